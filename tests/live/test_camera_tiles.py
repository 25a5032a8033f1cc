"""Test tiles per camera, and --tiles auto, which chooses them by object size and engine time."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace

import numpy as np
import pytest

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.loop.tiled import MixedRequest
from detector.core.run.plan import PlanDraft
from detector.core.run.sampling import FRAMES
from detector.core.run.tiling import Tiling
from detector.core.sources import find_arriving
from detector.core.types import Arrival, Detections, Frame
from detector.live.camera_tiles import (
    REPEAT_EMPTY_S,
    REPEAT_S,
    SHARE,
    TRIAL_INTERVAL_S,
    CameraTiles,
    choose_tiling,
)
from detector.live.sources.base import LIVE, FeedFacts
from tests.cli.command import start
from tests.conftest import CHECKOUT
from tests.live.fake_feeds import camera
from tests.waiting import PATIENCE_S, wait_for

STREET = str(CHECKOUT / "videos/street.mp4")
SECOND = 1_000_000_000
SMALL, TINY, LARGE = 20.0, 8.0, 60.0  # sides in pixels of the network's input


class Request:
    def __init__(self, input_s: float) -> None:
        self.input_s, self.inputs = input_s, 1

    def give(self, row: int, inputs: int) -> None:
        self.inputs = inputs


class FakeStreet:
    """Cameras of 1920x1080 and a network of 416x256. The test says how large detected objects are.
    One input takes ``input_s`` seconds."""

    def __init__(self, *cameras, tiles="auto", input_s=0.01, size=(1920, 1080)) -> None:
        draft = PlanDraft.of(Config().with_options({"engine": "null", "size": "416x256"}))
        tiling = choose_tiling(Tiling.parse(tiles), cameras)
        self.tiles = CameraTiles(replace(draft, tiling=tiling).load())
        self.request, self.now_s = Request(input_s), 100.0
        self.picture = np.zeros((size[1], size[0], 3), np.uint8)
        self.slot = np.zeros((17, 256, 416, 3), np.uint8)
        for config in cameras:
            self.tiles.open(config, None)

    def process(self, name: str, side: float | None) -> tuple[int, int]:
        """Process one picture with an object of this side, in pixels of the input; None: no object.
        Return the number of inputs and of objects written."""
        arrival = Arrival(name, 1, round(self.now_s * SECOND), self.now_s)
        frame = Frame(0, 0, self.now_s, self.picture, arrival=arrival)
        fit = self.tiles.give(frame, self.request, 0)(self.picture, self.slot)
        box = np.array([[100, 100, 100 + (side or 0), 100 + (side or 0)]], np.float32)
        detections = Detections(
            box, np.array([0.9], np.float32), np.zeros(1, np.int64), ("person",)
        )
        whole = detections if side is not None else Detections.empty()
        inputs = self.request.inputs
        shown = fit.to_source([whole, *[Detections.empty()] * (inputs - 1)])
        return inputs, len(shown)

    def try_tiles(self, sides: dict[str, float | None], fps: float = 5.0) -> list[str]:
        lines: list[str] = []
        for _ in range(FRAMES):
            for name, side in sides.items():
                self.process(name, side)
            self.now_s += TRIAL_INTERVAL_S
            lines += self.decide(sides, fps)
        return lines

    def decide(self, names, fps: float = 5.0) -> list[str]:
        return self.tiles.decide({name: FeedFacts(LIVE, 0, fps=fps) for name in names})

    def grids(self) -> list[str]:
        return [self.tiles.text(name) for name in sorted(self.tiles._grids)]


@pytest.mark.parametrize(
    ("side", "fps", "grid"),
    [
        (LARGE, 1, "none"),
        (SMALL, 1, "2x2"),
        (TINY, 1, "3x3"),
        (None, 1, "none"),
        (TINY, 9, "2x2"),  # 3x3 would be 90 inputs a second
        (TINY, 40, "none"),
    ],
)
def test_grid_depends_on_object_size_and_inference_time(side, fps, grid):
    street = FakeStreet(camera("a"), input_s=0.0125)
    street.tiles._plan.loaded.engine.concurrency = 1
    lines = street.try_tiles({"a": side}, fps)
    assert street.grids() == [grid]
    (line,) = lines
    assert re.match(rf"a: --tiles auto: {grid}: ", line)
    assert street.tiles.lines() == [line]


def test_camera_with_the_smallest_objects_gets_tiles_first():
    street = FakeStreet(camera("a"), camera("b"), camera("c"), input_s=1.0)
    inputs_a_second = 3 * 5 + 1 * 4 * 5  # whole pictures of all, and 2x2 tiles of one
    street.request.input_s = SHARE * street.tiles._plan.loaded.engine.concurrency / inputs_a_second
    street.try_tiles({"a": SMALL, "b": SMALL - 5, "c": LARGE})
    assert street.grids() == ["none", "2x2", "none"]
    assert any(f"{inputs_a_second}" in line for line in street.tiles.lines() if line[0] == "a")


def test_trial_with_tiles_does_not_change_the_output():
    street = FakeStreet(camera("a"))
    assert street.process("a", SMALL) == (5, 1), "five inputs; the output is of the first"
    assert street.process("a", SMALL) == (1, 1), "too early for the next trial"
    street.now_s += TRIAL_INTERVAL_S
    street.try_tiles({"a": SMALL})
    assert street.process("a", SMALL) == (5, 1)


@pytest.mark.parametrize(("side", "interval_s"), [(LARGE, REPEAT_S), (None, REPEAT_EMPTY_S)])
def test_trial_is_repeated(side, interval_s):
    street = FakeStreet(camera("a"))
    assert len(street.try_tiles({"a": side})) == 1
    end_s = street.now_s - TRIAL_INTERVAL_S
    street.now_s = end_s + interval_s - 1
    assert street.process("a", side)[0] == 1
    street.now_s = end_s + interval_s + 1
    lines = street.try_tiles({"a": SMALL})
    assert street.grids() == ["2x2"]
    assert len(lines) == 1


def test_late_camera_gets_its_trial():
    street = FakeStreet(camera("a"), camera("b"))
    street.try_tiles({"a": SMALL})
    assert street.grids() == ["2x2", "none"]
    street.try_tiles({"a": SMALL, "b": TINY})
    assert street.grids() == ["2x2", "3x3"]
    street.tiles.close("b")
    assert street.process("b", TINY)[0] == 1, "a picture in flight"


def test_tiles_are_chosen_again_for_pictures_of_another_size():
    street = FakeStreet(camera("a"))
    street.try_tiles({"a": SMALL})
    street.picture = np.zeros((10, 16, 3), np.uint8)
    assert street.process("a", SMALL)[0] == 5, "the trial"
    assert street.tiles.text("a") == "none"
    street.try_tiles({"a": 0.1})
    assert street.grids() == ["none"], "tiles would be smaller than the input"


def test_tiles_of_a_camera_override_those_of_the_run():
    street = FakeStreet(
        camera("a", tiles="4x4"), camera("b", tiles="none"), camera("c", tiles="auto"),
        camera("d"), tiles="1x2", input_s=0.001,
    )  # fmt: skip
    assert street.grids() == ["4x4", "none", "none", "1x2"]
    assert [street.process(name, LARGE)[0] for name in "abd"] == [17, 1, 3]
    street.try_tiles({"c": SMALL})
    assert street.grids() == ["4x4", "none", "2x2", "1x2"]
    with pytest.raises(UsageError, match="5x5"):
        street.tiles.check(camera("e", tiles="5x5"))
    street.tiles.check(camera("e", tiles="auto"))


def test_equal_tiles_need_no_mixed_requests():
    street = FakeStreet(camera("a"), tiles="2x2")
    assert not street.tiles.differ
    assert street.grids() == ["2x2"]
    with pytest.raises(UsageError, match="start"):
        street.tiles.check(camera("b", tiles="none"))


# ----------------------------------------------------------------------
# Requests with several inputs per picture.


class DoublingRequest:
    device_ms = 2.0

    def __init__(self, batch: int) -> None:
        self.slot = np.zeros((batch, 2, 2, 3), np.uint8)
        self.calls: list[int] = []

    def infer(self, n):
        self.calls.append(n)
        return [2.0 * self.slot[:n, 0, 0, :1].astype(np.float32)]


@pytest.mark.parametrize(("batch", "calls"), [(1, [1]), (3, [3, 3, 1, 1]), (16, [7, 1])], ids=str)
def test_mixed_request_infers_the_given_number_of_inputs_per_row(batch, calls):
    inner = DoublingRequest(batch)
    request = MixedRequest(inner, 5)
    counts = [5, 1, 1][:batch]
    for row, count in enumerate(counts):
        request.give(row, count)
        request.slot[row, :count] = 10 * row + np.arange(count)[:, None, None, None]
    rows = len(counts)
    output, input_counts = request.infer(rows)
    assert input_counts.tolist() == counts
    for row, count in enumerate(counts):
        assert output[row, :count, 0].tolist() == [2.0 * (10 * row + at) for at in range(count)]
    assert request.device_ms == 2.0 * len(inner.calls)
    assert sum(inner.calls) == sum(counts)
    assert len(inner.calls) == -(-sum(counts) // batch)
    assert request.input_s > 0


# ----------------------------------------------------------------------
# Whole runs.


@pytest.mark.slow
def test_run_with_automatic_and_fixed_tiles(tmp_path):
    (tmp_path / "cameras.yaml").write_text(
        f"cameras:\n  - {{name: far, url: {STREET}}}\n"
        f"  - {{name: own, url: {STREET}, tiles: 1x2, rate: 1}}\n"
    )
    process = start(
        *("cameras.yaml", "--loop", "--tiles", "auto", "--size", "448x256", "--batch", "2"),
        *("--engine", "null", "-o", "out/", "--run-dir", "run"),
        cwd=tmp_path,
    )
    try:
        wait_for(lambda: "far: --tiles auto: none" in process.errors_so_far())
    finally:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(PATIENCE_S)
    assert process.returncode == 143, stderr
    summary = json.loads(next((tmp_path / "run").glob("*/summary.json")).read_text())
    assert {stream["name"]: stream["tiles"] for stream in summary["streams"]} == {
        "far": "none",
        "own": "1x2",
    }
    assert summary["tiles"] == 3
    assert any(note.startswith("far: --tiles auto: none") for note in summary["notes"])
    document = json.loads(next((tmp_path / "run").glob("*/session.json")).read_text())
    assert document["config"]["input"]["tiles"] == "auto"


def test_camera_tiles_are_refused_without_tile_support(tmp_path):
    path = tmp_path / "cameras.yaml"
    path.write_text("cameras: {a: {url: 'rtsp://127.0.0.1:1/x', tiles: 2x2}}")
    with pytest.raises(UsageError, match="tiles"):
        find_arriving().open(str(path), decoder="auto", stride=1, frames=None)
