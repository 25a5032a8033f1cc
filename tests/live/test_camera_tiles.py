"""Test that each camera can have its own ``tiles``."""

import json
from dataclasses import replace

import numpy as np
import pytest

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.loop.tiled import MixedRequest
from detector.core.run.plan import PlanDraft
from detector.core.run.tiling import Tiling
from detector.core.sources import find_arriving
from detector.core.types import Arrival, Frame
from detector.live.camera_tiles import CameraTiles, choose_tiling
from tests.cli.command import run_ok
from tests.conftest import CHECKOUT
from tests.live.fake_feeds import camera

STREET = str(CHECKOUT / "videos/street.mp4")


def open_tiles(*cameras, tiles: str) -> CameraTiles:
    draft = PlanDraft.of(Config().with_options({"engine": "null", "size": "416x256"}))
    run = CameraTiles(replace(draft, tiling=choose_tiling(Tiling.parse(tiles), cameras)).load())
    for config in cameras:
        run.open(config)
    return run


def test_tiles_of_a_camera_override_those_of_the_run():
    own = {"a": "4x4", "b": "none", "c": None}
    run = open_tiles(*(camera(name, tiles=tiles) for name, tiles in own.items()), tiles="1x2")
    request = MixedRequest(DoublingRequest(1), 17)
    picture, slot = np.zeros((1080, 1920, 3), np.uint8), np.zeros((17, 256, 416, 3), np.uint8)
    for name, inputs in zip(own, (17, 1, 3), strict=True):
        frame = Frame(0, 0, 0.0, picture, arrival=Arrival(name, 1, 0, 0.0))
        fit = run.give(frame, request, 0)(picture, slot)
        assert len(fit.shown) == request.counts[0] == inputs
    with pytest.raises(UsageError, match="5x5"):
        run.check(camera("e", tiles="5x5"))
    run.check(camera("e", tiles="3x3"))


def test_equal_tiles_of_all_cameras_need_no_mixed_requests():
    run = open_tiles(camera("a"), tiles="2x2")
    assert not run.differ
    with pytest.raises(UsageError, match="start"):
        run.check(camera("b", tiles="none"))


# Mixed requests: a picture has one input or, with tiles, several.


class DoublingRequest:
    device_ms = 2.0

    def __init__(self, batch: int) -> None:
        self.slot = np.zeros((batch, 2, 2, 3), np.uint8)
        self.calls: list[int] = []

    def infer(self, n):
        self.calls.append(n)
        return [2.0 * self.slot[:n, 0, 0, :1].astype(np.float32)]


@pytest.mark.parametrize(("batch", "calls"), [(1, [1] * 5), (3, [3, 3, 1]), (16, [7])])
def test_mixed_request_infers_the_given_number_of_inputs_per_row(batch, calls):
    inner = DoublingRequest(batch)
    request = MixedRequest(inner, 5)
    counts = [5, 1, 1][:batch]
    for row, count in enumerate(counts):
        request.counts[row] = count
        request.slot[row, :count] = 10 * row + np.arange(count)[:, None, None, None]
    rows = len(counts)
    output, input_counts = request.infer(rows)
    assert input_counts.tolist() == counts
    for row, count in enumerate(counts):
        assert output[row, :count, 0].tolist() == [2.0 * (10 * row + at) for at in range(count)]
    assert request.device_ms == 2.0 * len(inner.calls)
    assert inner.calls == calls


# Whole runs.


@pytest.mark.slow
def test_run_infers_tiles_only_for_the_camera_that_has_them(tmp_path):
    (tmp_path / "cameras.yaml").write_text(
        f"cameras:\n  - {{name: far, url: {STREET}}}\n"
        f"  - {{name: own, url: {STREET}, tiles: 1x2, rate: 1}}\n"
    )
    done = run_ok(
        *("cameras.yaml", "--loop", "--size", "448x256", "--batch", "2", "--frames", "20"),
        *("--engine", "null", "-o", "out/", "--json"),
        cwd=tmp_path,
    )
    summary = json.loads(done.stdout)
    tiles = {stream["name"]: stream["tiles"] for stream in summary["streams"]}
    assert tiles == {"far": "none", "own": "1x2"}
    assert summary["tiles"] == 3


def test_tiles_of_a_camera_are_refused_outside_the_command(tmp_path):
    path = tmp_path / "cameras.yaml"
    path.write_text("cameras: {a: {url: 'rtsp://127.0.0.1:1/x', tiles: 2x2}}")
    with pytest.raises(UsageError, match="tiles"):
        find_arriving().open(str(path), decoder="auto", stride=1, frames=None)
