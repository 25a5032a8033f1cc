"""The canvas follows the source: the rule, who obeys it, and what stays as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.batch import item as batch_item
from detector.batch.documents import OF_SOURCE
from detector.batch.item import OpenModel, Task, open_model, process_item
from detector.batch.listing import version_of
from detector.batch.places import open_outputs
from detector.batch.settings import as_plain, ask, config_of, settle
from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config
from detector.core.models import ModelRequest, catalogue, open_network
from detector.core.run import canvas
from detector.core.run import plan as plans
from detector.core.run.detect import Hooks, RunResult, detect
from detector.core.run.quantize.calibrate import packaged
from detector.core.run.reading import SourceReading
from detector.core.stages.preprocess import input_of_shape
from detector.live import run as live
from detector.live.canvas import choose_size, read_size
from detector.live.sources.cameras import make_cameras
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

STREET = CHECKOUT / "videos" / "street.mp4"
# Of the model that ships, whichever edition: height, width. The table of the rule has its own.
OWN = catalogue.known_model("street").canvases[0]
AT = (256, 416)


def of_shape(width: int, height: int) -> tuple[int, int]:
    return input_of_shape(OWN, 32, width, height)


WIDE, CLASSIC = of_shape(16, 9), of_shape(4, 3)
UPRIGHT_ONE, SQUARE = of_shape(9, 16), of_shape(1, 1)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("clips")
    capture = cv2.VideoCapture(str(STREET))
    frames = [capture.read()[1] for _ in range(2)]
    capture.release()
    sizes = {"wide": (640, 360), "classic": (320, 240), "upright": (180, 320), "square": (240, 240)}
    for name, size in sizes.items():
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(folder / f"{name}.mp4"), fourcc, 25, size)
        for frame in frames:
            writer.write(cv2.resize(frame, size))
        writer.release()
    return {name: str(folder / f"{name}.mp4") for name in sizes}


def configured(**options: Any) -> Config:
    return resolve_config(None, {"engine": "null", **options})


def run(
    specs: Sequence[str], folder: Path, hooks: Hooks | None = None, **options: Any
) -> RunResult:
    given = {"output": f"{folder}/", "run_dir": str(folder / "run"), "no_video": True, **options}
    result = detect(list(specs), configured(**given), hooks=hooks or Hooks())
    assert result.exit_code == 0, result.errors
    return result


def input_of(result: RunResult) -> tuple[int, int]:
    width_last = result.summary.model_input
    return width_last[0], width_last[1]


# ---- the rule


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (1920, 1080, AT),  # 16:9, the shape that the model's own is made for
        (1280, 720, AT),
        (1280, 800, AT),  # 16:10
        (853, 480, AT),
        (1366, 768, AT),
        (416, 256, AT),
        (640, 480, (288, 384)),  # 4:3, without any grey
        (3, 4, (384, 288)),
        (720, 576, (288, 384)),  # PAL, as stored: 5:4
        (1080, 1920, (416, 256)),  # 9:16, upright
        (1024, 1024, (320, 320)),
        (1000, 1001, (320, 320)),
        (1500, 1000, (256, 384)),  # 3:2: the smaller canvas shows as much
        (2560, 1080, (224, 480)),  # 21:9
        (1000, 100, (96, 960)),  # a panorama of 10:1
        (100, 1000, (960, 96)),
        (8000, 1, (96, 1152)),  # never less than three cells
        (1, 1, (320, 320)),
    ],
)
def test_the_canvas_of_a_shape(width: int, height: int, expected: tuple[int, int]) -> None:
    assert input_of_shape(AT, 32, width, height) == expected


@pytest.mark.parametrize("own", [AT, (192, 320), (352, 608), (640, 640)])
@pytest.mark.parametrize("shape", [(16, 9), (4, 3), (1, 1), (9, 16), (64, 27), (10, 1), (341, 270)])
def test_no_other_canvas_of_the_area_shows_more(
    own: tuple[int, int], shape: tuple[int, int]
) -> None:
    height, width = input_of_shape(own, 32, *shape)
    assert height % 32 == width % 32 == 0
    assert min(height, width) >= 96
    assert height * width <= 1.05 * own[0] * own[1]

    def shown(height: int, width: int) -> float:
        return min(width / shape[0], height / shape[1])

    most = own[0] * own[1] * 1.05
    sides = range(96, int(most) // 96 + 1, 32)
    others = [(h, w) for h in sides for w in sides if h * w <= most]
    assert shown(height, width) >= max(shown(*one) for one in others) - 1e-12
    assert shown(height, width) >= shown(*own)


def test_what_is_declared_is_what_the_files_say() -> None:
    having = [name for name in catalogue.known() if catalogue.known_model(name).canvases]
    assert having == ["street", "street-1"]
    for name in having:
        rules = open_network(ModelRequest(name)).input
        own, *smaller = catalogue.known_model(name).canvases
        assert own == (rules.height, rules.width)
        assert (rules.geometry, rules.stride) == ("centre", canvas.STRIDE)
        assert all(one[0] * one[1] < own[0] * own[1] for one in smaller)


def test_other_models_and_files_keep_their_own(tmp_path: Path) -> None:
    for model in ("yolov4-tiny", str(CHECKOUT / "cfg/darknet/street.cfg")):
        config = configured(model=model)
        assert not canvas.follows_source(config)
        assert canvas.find_canvas(config, (640, 480)) is None
        assert SourceReading.of(config).picture_size([str(STREET)]) is None


def test_given_size_overrides_the_shape(clips: dict[str, str]) -> None:
    for size, expected in (("416x256", AT), ("320", (256, 320)), ("64x96", (96, 64))):
        config = configured(size=size)
        picture = SourceReading.of(config).picture_size([clips["classic"]])
        network = canvas.open_network(config, picture)
        assert (network.input.height, network.input.width) == expected
        assert network.warnings == []


# ---- runs


@pytest.mark.parametrize(
    ("name", "expected"),
    [("wide", WIDE), ("classic", CLASSIC), ("upright", UPRIGHT_ONE), ("square", SQUARE)],
)
@pytest.mark.slow
def test_a_run_has_the_canvas_of_its_video(
    clips: dict[str, str], tmp_path: Path, name: str, expected: tuple[int, int]
) -> None:
    result = run([clips[name]], tmp_path)
    assert input_of(result) == expected
    sizes = [f"{w}x{h}" for h, w in (expected, OWN)]
    told = [note for note in result.summary.notes if all(size in note for size in sizes)]
    assert len(told) == (expected != OWN)


def test_rotated_video_counts_in_its_displayed_size(tmp_path: Path) -> None:
    """96x64 in the file with pixels of 4:3; the letterbox gets 64x96 of them."""
    path = str(write_video(tmp_path / "turned.mp4", 2, rotation=90))
    picture = SourceReading.of(configured()).picture_size([path])
    assert picture == (64, 96)
    assert canvas.find_canvas(configured(), picture) == of_shape(2, 3)


@pytest.mark.slow
def test_the_first_of_several_decides(clips: dict[str, str], tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.mp4")
    for specs, expected in (
        ([clips["classic"], clips["wide"]], CLASSIC),
        ([clips["wide"], clips["classic"]], WIDE),
    ):
        assert input_of(run(specs, tmp_path / f"{expected}")) == expected
    picture = SourceReading.of(configured()).picture_size([missing, clips["square"]])
    assert picture == (240, 240)


def test_pictures_keep_the_models_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "square.png")
    assert cv2.imwrite(path, np.zeros((64, 64, 3), np.uint8))
    monkeypatch.setattr(SourceReading, "open", None)  # which would decode one
    for spec in (path, str(tmp_path)):
        assert SourceReading.of(configured()).picture_size([spec]) is None


def test_what_is_judged_keeps_the_models_own(clips: dict[str, str], tmp_path: Path) -> None:
    """``eval`` opens its sources in its own way."""
    config = configured()
    result = run(
        [clips["classic"]], tmp_path, Hooks(source=lambda spec: SourceReading.of(config).open(spec))
    )
    assert input_of(result) == OWN


@pytest.mark.slow
def test_the_python_api_keeps_the_models_own(clips: dict[str, str]) -> None:
    with Detector(engine="null") as detector:
        frames = list(detector.stream(clips["classic"]))
        assert len(frames) == 2
        network = detector._plan.network
        assert (network.input.height, network.input.width) == OWN


def test_there_is_one_load(
    clips: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real = canvas.open_network

    def open_once(*arguments: Any) -> Any:
        opened.append(arguments)
        return real(*arguments)

    monkeypatch.setattr("detector.core.run.loading.open_network", open_once)
    run([clips["classic"], clips["square"]], tmp_path)
    assert len(opened) == 1


# ---- int8


@pytest.mark.slow
def test_the_packaged_calibration_holds_on_every_canvas() -> None:
    own = packaged(open_network(ModelRequest("street")), "street")
    assert own is not None
    for size in ((288, 384), (416, 256), (320, 320), (96, 960), (192, 320)):
        found = packaged(open_network(ModelRequest("street", size=size)), "street")
        assert found == own
    other = open_network(ModelRequest("street", size=(288, 384)))
    assert packaged(replace(other, sha256="ab" * 32), "street") is None


@pytest.mark.slow
def test_int8_runs_on_another_canvas(clips: dict[str, str], tmp_path: Path) -> None:
    result = run([clips["classic"]], tmp_path, engine="ort", precision="int8")
    assert (result.summary.precision, input_of(result)) == ("int8", CLASSIC)


# ---- cameras


def cameras_of(tmp_path: Path, *sizes: tuple[int, int] | None) -> Any:
    lines = ["cameras:"]
    for number, size in enumerate(sizes):
        lines += [f"  - name: cam{number}", f"    url: {number}"]
        lines += [] if size is None else [f"    size: {size[0]}x{size[1]}"]
    path = tmp_path / "cameras.yaml"
    path.write_text("\n".join(lines) + "\n")
    return make_cameras([str(path)])


VGA, HD, UPRIGHT = (640, 480), (1280, 720), (480, 640)


@pytest.mark.parametrize(
    ("sizes", "picture", "told"),
    [
        ([VGA], VGA, False),
        ([HD], None, False),
        ([None], None, False),  # the size is unknown, and we do not wait for it
        ([HD, None], None, False),
        ([VGA, VGA, HD], VGA, True),
        ([HD, VGA, HD], None, True),
        ([VGA, HD], None, True),  # as many: the model's own
        ([VGA, None], None, True),
        ([UPRIGHT, VGA, VGA], VGA, True),
        ([UPRIGHT, VGA], UPRIGHT, True),  # as many: the first
    ],
)
def test_cameras_share_the_canvas_of_most(
    tmp_path: Path, sizes: list[Any], picture: Any, told: bool
) -> None:
    cameras = cameras_of(tmp_path, *sizes)
    found, line = choose_size(cameras, configured())
    assert found == picture
    assert (line is not None) == told
    if line is not None:
        height, width = canvas.find_canvas(configured(), found) or OWN
        assert f"{width}x{height}" in line
        assert ("reported no size" in line) == (None in sizes)
    assert choose_size(cameras, configured(size="320")) == (None, None)
    assert choose_size(cameras, configured(model="yolov4-tiny")) == (None, None)


def test_files_that_play_as_cameras_tell_their_size(clips: dict[str, str], tmp_path: Path) -> None:
    specs = [clips["square"], clips["wide"], str(tmp_path / "missing.mp4")]
    told = [read_size(camera) for camera in make_cameras(specs, loop=True)]
    assert told == [(240, 240), (640, 360), None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, (240, 240)), ({"size": "320"}, live.SHAPE), ({"model": "yolov4-tiny"}, None)],
)
def test_a_live_run_loads_it_before_it_connects(
    clips: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, str],
    expected: Any,
) -> None:
    class EnoughError(Exception):
        """The model would be loaded now."""

    asked: list[Any] = []

    def load(*_: Any, picture: Any, **__: Any) -> None:
        asked.append(picture)
        raise EnoughError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "load_model", load)
    with pytest.raises(EnoughError):
        live.detect_live([clips["square"]], configured(repeat=True, **options))
    assert asked == [expected]


# ---- batch


@pytest.fixture
def job(tmp_path: Path) -> Any:
    config, flags = ask([], {"engine": "ort", "no_video": True}, None)
    model, facts = open_model(as_plain(config), [], resolves=True)
    yield model, facts, settle([], flags, None, config, facts)
    model.close()


def task_of(path: str) -> Task:
    return Task(name=Path(path).name, path=path, version=version_of(Path(path).stat()))


@pytest.mark.slow
def test_items_of_a_batch_equal_runs_of_their_own(
    job: Any, clips: dict[str, str], tmp_path: Path
) -> None:
    model, facts, settings = job
    assert facts.model_input == OWN
    assert facts.config["runtime"]["size"] is None  # the rule, not what it comes to
    assert settings.canvas == OF_SOURCE
    outputs = open_outputs(str(tmp_path / "out"))
    for name in ("wide", "classic", "upright", "square", "wide", "classic"):
        process_item(task_of(clips[name]), model, outputs)
        rows = tmp_path / "out" / "files" / f"{name}.mp4" / "detections.jsonl"
        alone = detect([clips[name]], replace_output(config_of(settings.config), tmp_path / name))
        assert alone.exit_code == 0, alone.errors
        (path,) = [Path(one.outputs["jsonl"]) for one in alone.summary.each]
        assert rows.read_bytes() == path.read_bytes()
        assert any(json.loads(line)["detections"] for line in rows.read_text().splitlines())


def replace_output(config: Config, folder: Path) -> Config:
    output = replace(config.output, output=f"{folder}/", run_dir=str(folder / "run"))
    return replace(config, output=output)


class FakeEngine:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class FakeLoaded:
    def __init__(self) -> None:
        self.engine = FakeEngine()


def test_a_worker_keeps_the_latest_canvases_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    engines: dict[tuple[int, int], FakeEngine] = {}
    shapes = {"own": (16, 9), "a": (4, 3), "b": (3, 4), "c": (1, 1), "d": (9, 16), "none": None}

    def load(config: Config, *, picture: tuple[int, int], measured: bool) -> FakeLoaded:
        made.append(picture)
        loaded = FakeLoaded()
        engines[picture] = loaded.engine
        return loaded

    monkeypatch.setattr("detector.core.run.loading.load_model", load)
    monkeypatch.setattr(SourceReading, "picture_size", lambda self, specs: shapes[specs[0]])
    own: Any = FakeLoaded()
    model = OpenModel(configured(), own, "digest", has_shape_of_source=True)
    assert model.loaded_for("own") is own
    assert model.loaded_for("none") is own  # the run of an unreadable source reports it
    first = model.loaded_for("a")
    for name in ("b", "c", "a", "a"):
        model.loaded_for(name)
    assert model.loaded_for("a") is first
    assert made == [(4, 3), (3, 4), (1, 1)]
    assert batch_item.MOST_CANVASES == 3
    model.loaded_for("d")  # b is what was not used for longest
    assert engines[3, 4].closed == 1
    assert engines[4, 3].closed == engines[1, 1].closed == 0
    model.loaded_for("b")
    assert made == [(4, 3), (3, 4), (1, 1), (9, 16), (3, 4)]
    assert engines[1, 1].closed == 1
    model.close()
    assert own.engine.closed == 1
    assert engines[4, 3].closed == engines[9, 16].closed == engines[3, 4].closed == 1


def test_given_size_applies_to_all_items(clips: dict[str, str]) -> None:
    config, _ = ask([], {"engine": "null", "size": "320"}, None)
    model, facts = open_model(as_plain(config), [clips["classic"]], resolves=True)
    try:
        assert (facts.model_input, facts.canvas) == ((256, 320), None)
        assert facts.config["runtime"]["size"] == "320x256"
        assert model.loaded_for(clips["square"]) is model.loaded
    finally:
        model.close()
