"""--rect: input shapes, equality with runs of single pictures, open engines, and refusals."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.batch.item import open_model
from detector.batch.settings import as_plain
from detector.core import models
from detector.core.config.levels import resolve_config
from detector.core.errors import EngineError, UsageError
from detector.core.run import shapes
from detector.core.run.canvas import open_network
from detector.core.run.detect import RunResult, detect
from detector.core.run.shapes import ShapedRequest, Shapes
from detector.core.stages.preprocess import smallest_input
from detector.lab.compare import compare_command
from detector.lab.tune import tune
from tests.checkpoints import random_checkpoint
from tests.conftest import CHECKOUT
from tests.models import exports
from tests.waiting import meet

STREET = CHECKOUT / "videos" / "street.mp4"
SIZES = {"a.png": (320, 180), "b.png": (180, 320), "c.png": (200, 190), "d.png": (640, 350)}
INPUTS = {"a.png": (96, 160), "b.png": (160, 96), "c.png": (160, 160), "d.png": (96, 160)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    capture = cv2.VideoCapture(str(STREET))
    frame = capture.read()[1]
    capture.release()
    for name, size in SIZES.items():
        cv2.imwrite(str(folder / name), cv2.resize(frame, size))
    return folder


def run(source: Path, place: Path, **options: Any) -> tuple[RunResult, list[dict[str, Any]]]:
    settings = {"size": "160", "rect": True, "no_video": True, **options}
    where = {"output": f"{place}/rows.jsonl", "run_dir": f"{place}/run"}
    result = detect([str(source)], resolve_config(None, {**settings, **where}))
    assert result.exit_code == 0, result.errors
    return result, [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_summary_counts_shapes_and_pixels(pictures: Path, tmp_path: Path, sync: bool) -> None:
    result, rows = run(pictures, tmp_path, engine="null", sync=sync)
    assert [Path(row["source"]).name for row in rows] == sorted(SIZES)
    inputs = result.summary.input_shapes
    assert (inputs.shapes, inputs.made, inputs.square_pixels) == (3, 2, 160 * 160)
    mean = sum(height * width for height, width in INPUTS.values()) / len(INPUTS)
    assert inputs.mean_pixels == mean
    assert inputs.made_s <= result.summary.seconds["run"]
    reader = result.summary.threads["main" if sync else "reader"]
    assert "shape" in reader.waits


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch", "openvino"])
def test_detections_with_rect_are_the_same_as_for_each_picture_alone(
    pictures: Path, tmp_path: Path, engine: str
) -> None:
    for library in {"torch": ["torch"], "openvino": ["openvino"]}.get(engine, []):
        pytest.importorskip(library, reason=f"machine: no {library}")
    options = {"engine": engine, "precision": "fp32", "threads": 1}
    _, rows = run(pictures, tmp_path, save_times=True, **options)
    assert sum(len(row["detections"]) for row in rows) >= 8
    for row in rows:
        height, width = INPUTS[Path(row["source"]).name]
        alone = tmp_path / Path(row["source"]).stem
        alone.mkdir()
        size = f"{width}x{height}"
        _, (single,) = run(Path(row["source"]), alone, size=size, rect=False, **options)
        assert single["detections"] == row["detections"]


@pytest.mark.slow
def test_detections_of_yolov5n_with_rect_equal_those_of_single_pictures(tmp_path: Path) -> None:
    model = str(random_checkpoint(tmp_path / "yolov5n.pt"))
    options = {"model": model, "engine": "ort", "size": "320", "threads": 1}
    (tmp_path / "cut").mkdir()
    frame = cv2.VideoCapture(str(STREET)).read()[1]
    for width in (960, 300, 720, 540, 380, 900):
        cv2.imwrite(f"{tmp_path}/cut/{width}.png", frame[:, :width])
    photos = sorted((tmp_path / "cut").iterdir())
    with Detector(rect=True, **options) as together:
        called = together(photos)
        streamed = [detections for _, detections in together.stream(photos[0].parent)]
    assert sum(map(len, called)) > 30
    shapes_used = set()
    for photo, *results in zip(photos, called, streamed, strict=True):
        height, width = cv2.imread(str(photo)).shape[:2]
        shape = smallest_input(320, 32, width, height)
        shapes_used.add(shape)
        with Detector(**{**options, "size": f"{shape[1]}x{shape[0]}"}) as single:
            alone = single(photo)
        for detections in results:
            assert np.array_equal(alone.boxes, detections.boxes)
            assert np.array_equal(alone.scores, detections.scores)
    assert len(shapes_used) == 5


@pytest.mark.slow
def test_note_says_that_pictures_of_other_shapes_lose_pixels(
    pictures: Path, tmp_path: Path
) -> None:
    for size, notes in (("160", 1), ("160x160", 0)):
        result, _ = run(pictures, tmp_path, engine="null", size=size, rect=False)
        assert sum("use --rect" in note for note in result.summary.notes) == notes


@pytest.mark.slow
def test_video_has_one_input_shape(tmp_path: Path) -> None:
    result, rows = run(STREET, tmp_path, engine="null", frames=3)
    assert (len(rows), result.summary.input_shapes.shapes) == (3, 1)
    assert result.summary.model_input == smallest_input(160, 32, 960, 540)
    assert any("--rect" in note for note in result.summary.notes)


@pytest.mark.slow
def test_batch_workers_open_the_same_model_for_any_first_picture(pictures: Path) -> None:
    """A worker whose model has another digest would be rejected."""
    plain = as_plain(resolve_config(None, {"engine": "null", "size": "160", "rect": True}))
    size_by_digest = {}
    for name in SIZES:
        model, facts = open_model(plain, [str(pictures / name)], resolves=True)
        size_by_digest[model.digest] = facts.config["runtime"]["size"]
        model.close()
    assert list(size_by_digest.values()) == ["160"]


def fake_loaded(shape: tuple[int, int], requests: int, log: list[str]) -> Any:
    rules = SimpleNamespace(height=shape[0], width=shape[1], stride=32)
    slots = [
        SimpleNamespace(slot=np.zeros((1, *shape, 3), np.uint8), device_ms=None)
        for _ in range(requests)
    ]
    engine = SimpleNamespace(requests=slots, close=lambda: log.append(f"close {shape}"))
    network = SimpleNamespace(input=rules, parameters=10**6)
    return SimpleNamespace(network=network, engine=engine)


def make_shapes(
    monkeypatch: pytest.MonkeyPatch, most: int, requests: int
) -> tuple[Shapes, list[str]]:
    monkeypatch.setattr(shapes, "MAX_OPEN", most)
    log: list[str] = []

    def load(config: Any) -> Any:
        width, height = map(int, config.runtime.size.split("x"))
        assert not config.runtime.rect
        log.append(f"open {(height, width)}")
        return fake_loaded((height, width), requests, log)

    config = resolve_config(None, {"size": "320", "rect": True})
    return Shapes(fake_loaded((320, 320), requests, log), config, load), log


def give_shape(opened: Shapes, request: ShapedRequest, height: int) -> None:
    opened.prepare((height, 320))
    network = opened.give(request, (height, 320))
    assert network.input.height == height
    assert request.slot.shape == (1, height, 320, 3)


def test_least_recently_used_shape_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = make_shapes(monkeypatch, most=4, requests=1)
    (request,) = opened.requests
    for height in (64, 96, 128, 64, 96):
        give_shape(opened, request, height)
    assert log == ["open (64, 320)", "open (96, 320)", "open (128, 320)"]
    give_shape(opened, request, 160)
    assert log[3:] == ["close (128, 320)", "open (160, 320)"]
    give_shape(opened, request, 128)  # must be opened again
    assert log[5:] == ["close (64, 320)", "open (128, 320)"]
    assert (opened._made, len(opened._shapes), opened._pictures) == (5, 4, 7)
    opened.close()
    opened.close()
    assert sorted(log[7:]) == ["close (128, 320)", "close (160, 320)", "close (96, 320)"]


def test_shape_that_a_request_uses_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three requests may use its own shape, so more than MAX_OPEN shapes may be open."""
    opened, log = make_shapes(monkeypatch, most=2, requests=3)
    busy, other, _ = opened.requests
    give_shape(opened, busy, 64)
    for height in (96, 128, 160):
        give_shape(opened, other, height)
    assert not [line for line in log if line.startswith("close")]
    give_shape(opened, other, 192)
    assert [line for line in log if line.startswith("close")] == ["close (96, 320)"]


def test_shape_needed_by_two_threads_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = make_shapes(monkeypatch, most=3, requests=2)
    load, both = opened._load, Barrier(2)
    opened._load = lambda config: meet(both) or load(config)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda request: give_shape(opened, request, 64), opened.requests))
    assert log == ["open (64, 320)"]
    assert not np.shares_memory(*(request.slot for request in opened.requests))
    opened.close()
    with pytest.raises(EngineError, match="closed"):  # another thread may have closed the model
        opened.prepare((64, 320))
    assert log == ["open (64, 320)", "close (64, 320)"]


def test_shape_is_not_closed_while_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = make_shapes(monkeypatch, most=3, requests=1)
    (request,), prepare = opened.requests, opened.prepare
    run_shapes, low = opened.of_run(lambda network: network), np.zeros((96, 320, 3), np.uint8)
    opened.prepare((64, 320))
    assert not run_shapes.has(low)
    run_shapes.prepare(low)
    assert run_shapes.has(low)

    def prepared(shape: tuple[int, int]) -> None:
        prepare(shape)
        wait([pool.submit(prepare, (128, 320))], 0.3)  # another thread needs room for a shape

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(opened, "prepare", prepared)
        assert opened.give(request, (64, 320)).input.height == 64
    monkeypatch.setattr(opened, "prepare", prepare)
    assert log[2:] == ["close (96, 320)", "open (128, 320)"]
    opened.prepare((160, 320))  # closes (128, 320), which ``give`` must then load again
    assert opened.give(request, (128, 320)).input.height == 128


def test_fewer_shapes_are_open_if_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape takes 8 MB. Even in 9 MB, three stay open: the first, current and next shape."""
    for room in (25_000_000, 9_000_000):

        def too_much(size: int, room: int = room) -> str | None:
            return "much" if size > room else None

        monkeypatch.setattr(shapes, "too_much", too_much)
        opened, log = make_shapes(monkeypatch, most=9, requests=1)
        for height in (64, 96, 128):
            give_shape(opened, opened.requests[0], height)
        assert [line for line in log if line.startswith("close")] == ["close (64, 320)"]


@pytest.mark.parametrize(
    "options",
    [
        {"size": "160x96"},
        {"batch": 2},
        {"model": "fixed.onnx"},
        {"model": "stretched.onnx", "family": "yolox"},
    ],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values()))),
)
@pytest.mark.parametrize("picture", [None, (320, 180)])
def test_rect_is_refused_for_a_single_input_shape(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    picture: tuple[int, int] | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    exports.anchor_free().save(tmp_path / "fixed.onnx", exports.STATED)
    exports.yolox().save(tmp_path / "stretched.onnx", exports.STATED)
    with pytest.raises(UsageError, match="--rect"):
        open_network(resolve_config(None, {"rect": True, **options}), picture)


def test_rect_is_refused_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_plan(*arguments: Any) -> Any:
        network = original(*arguments)
        network.plan = "street.plan"
        return network

    original = models.open_network
    monkeypatch.setattr(models, "open_network", open_plan)
    with pytest.raises(UsageError, match="--rect"):
        open_network(resolve_config(None, {"rect": True}), (320, 180))


def test_rect_is_refused_with_skip_still() -> None:
    with pytest.raises(UsageError, match="--skip-still"):
        detect(["a.png"], resolve_config(None, {"rect": True, "skip_still": "1%"}))


def test_compare_and_tune_refuse_rect() -> None:
    config = resolve_config(None, {"rect": True, "engine": "null"})

    def watch(*_: Any) -> None: ...

    with pytest.raises(UsageError, match="--rect"):
        compare_command("in.mp4", config, None, "fp32", "1", rounds=1, watch=watch)
    with pytest.raises(UsageError, match="--rect"):
        tune("in.mp4", config, floor=0.9, seconds=1.0, watch=watch)
