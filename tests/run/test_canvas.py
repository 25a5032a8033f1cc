"""The canvas (the network's input size) follows the shape of files, cameras and batch items."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
# The canvas of the packaged model, (height, width).
OWN = catalogue.known_model("street").canvases[0]
AT = (256, 416)  # an example of a model's own canvas, independent of OWN


def of_shape(width: int, height: int) -> tuple[int, int]:
    return input_of_shape(OWN, 32, width, height)


WIDE, CLASSIC = of_shape(16, 9), of_shape(4, 3)
PORTRAIT, SQUARE = of_shape(9, 16), of_shape(1, 1)


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


def make_config(**options: Any) -> Config:
    return resolve_config(None, {"engine": "null", **options})


def run(
    specs: Sequence[str], folder: Path, hooks: Hooks | None = None, **options: Any
) -> RunResult:
    settings = {"output": f"{folder}/", "run_dir": str(folder / "run"), "no_video": True, **options}
    result = detect(list(specs), make_config(**settings), hooks=hooks or Hooks())
    assert result.exit_code == 0, result.errors
    return result


def input_of(result: RunResult) -> tuple[int, int]:
    height, width = result.summary.model_input[:2]
    return height, width


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (1920, 1080, AT),  # 16:9, the shape of the model's own canvas
        (1280, 720, AT),
        (1280, 800, AT),  # 16:10
        (853, 480, AT),
        (1366, 768, AT),
        (416, 256, AT),
        (640, 480, (288, 384)),  # 4:3, without padding
        (3, 4, (384, 288)),
        (720, 576, (288, 384)),  # PAL, stored as 5:4
        (1080, 1920, (416, 256)),  # 9:16, a portrait video
        (1024, 1024, (320, 320)),
        (1000, 1001, (320, 320)),
        (1500, 1000, (256, 384)),  # 3:2 exactly; more area would only be padding
        (2560, 1080, (224, 480)),  # 21:9
        (1000, 100, (96, 960)),  # a panorama of 10:1
        (100, 1000, (960, 96)),
        (8000, 1, (96, 1152)),  # each side has at least 96 pixels
        (1, 1, (320, 320)),
    ],
)
def test_canvas_follows_picture_shape(width: int, height: int, expected: tuple[int, int]) -> None:
    assert input_of_shape(AT, 32, width, height) == expected


@pytest.mark.parametrize("own", [AT, (192, 320), (352, 608), (640, 640)])
@pytest.mark.parametrize("shape", [(16, 9), (4, 3), (1, 1), (9, 16), (64, 27), (10, 1), (341, 270)])
def test_no_other_canvas_of_equal_area_shows_a_larger_picture(
    own: tuple[int, int], shape: tuple[int, int]
) -> None:
    height, width = input_of_shape(own, 32, *shape)
    assert height % 32 == width % 32 == 0
    assert min(height, width) >= 96
    assert height * width <= 1.05 * own[0] * own[1]

    def scale(height: int, width: int) -> float:
        return min(width / shape[0], height / shape[1])

    most = own[0] * own[1] * 1.05
    sides = range(96, int(most) // 96 + 1, 32)
    others = [(h, w) for h in sides for w in sides if h * w <= most]
    assert scale(height, width) >= max(scale(*other) for other in others) - 1e-12
    assert scale(height, width) >= scale(*own)


def test_declared_canvases_match_the_model_files() -> None:
    names = [name for name in catalogue.known() if catalogue.known_model(name).canvases]
    assert names == ["street", "street-1"]
    for name in names:
        rules = open_network(ModelRequest(name)).input
        own, *smaller = catalogue.known_model(name).canvases
        assert own == (rules.height, rules.width)
        assert (rules.geometry, rules.stride) == ("centre", canvas.STRIDE)
        assert all(height * width < own[0] * own[1] for height, width in smaller)


def test_other_models_keep_their_own_canvas(tmp_path: Path) -> None:
    for model in ("yolov4-tiny", str(CHECKOUT / "cfg/darknet/street.cfg")):
        config = make_config(model=model)
        assert not canvas.follows_source(config)
        assert canvas.find_canvas(config, (640, 480)) is None
        assert SourceReading.of(config).picture_size([str(STREET)]) is None


def test_size_option_overrides_the_canvas_of_the_source(clips: dict[str, str]) -> None:
    for size, expected in (("416x256", AT), ("320", (256, 320)), ("64x96", (96, 64))):
        config = make_config(size=size)
        picture = SourceReading.of(config).picture_size([clips["classic"]])
        network = canvas.open_network(config, picture)
        assert (network.input.height, network.input.width) == expected
        assert network.warnings == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("wide", WIDE), ("classic", CLASSIC), ("upright", PORTRAIT), ("square", SQUARE)],
)
@pytest.mark.slow
def test_run_uses_the_canvas_of_its_video(
    clips: dict[str, str], tmp_path: Path, name: str, expected: tuple[int, int]
) -> None:
    result = run([clips[name]], tmp_path)
    assert input_of(result) == expected
    sizes = [f"{w}x{h}" for h, w in (expected, OWN)]
    noted = [note for note in result.summary.notes if all(size in note for size in sizes)]
    assert len(noted) == (expected != OWN)


def test_rotated_video_uses_its_displayed_size(tmp_path: Path) -> None:
    """The file stores pictures of 96x64 pixels, which are displayed as 64x96."""
    path = str(write_video(tmp_path / "turned.mp4", 2, rotation=90))
    picture = SourceReading.of(make_config()).picture_size([path])
    assert picture == (64, 96)
    assert canvas.find_canvas(make_config(), picture) == of_shape(2, 3)


@pytest.mark.slow
def test_first_of_several_sources_decides_the_canvas(clips: dict[str, str], tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.mp4")
    for specs, expected in (
        ([clips["classic"], clips["wide"]], CLASSIC),
        ([clips["wide"], clips["classic"]], WIDE),
    ):
        assert input_of(run(specs, tmp_path / f"{expected}")) == expected
    picture = SourceReading.of(make_config()).picture_size([missing, clips["square"]])
    assert picture == (240, 240)


def test_image_files_keep_the_canvas_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "square.png")
    assert cv2.imwrite(path, np.zeros((64, 64, 3), np.uint8))
    monkeypatch.setattr(SourceReading, "open", None)  # opening a file to learn its size would fail
    for spec in (path, str(tmp_path)):
        assert SourceReading.of(make_config()).picture_size([spec]) is None


def test_eval_keeps_the_canvas_of_the_model(clips: dict[str, str], tmp_path: Path) -> None:
    """``eval`` opens sources with a function of its own (``Hooks.source``); so does this test."""
    config = make_config()
    result = run(
        [clips["classic"]], tmp_path, Hooks(source=lambda spec: SourceReading.of(config).open(spec))
    )
    assert input_of(result) == OWN


@pytest.mark.slow
def test_detector_keeps_the_canvas_of_the_model(clips: dict[str, str]) -> None:
    with Detector(engine="null") as detector:
        frames = list(detector.stream(clips["classic"]))
        assert len(frames) == 2
        network = detector._plan.network
        assert (network.input.height, network.input.width) == OWN


def test_model_is_loaded_once(
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


@pytest.mark.slow
def test_packaged_calibration_applies_to_every_canvas() -> None:
    own = packaged(open_network(ModelRequest("street")), "street")
    assert own is not None
    for size in ((288, 384), (416, 256), (320, 320), (96, 960), (192, 320)):
        calibration = packaged(open_network(ModelRequest("street", size=size)), "street")
        assert calibration == own
    other = open_network(ModelRequest("street", size=(288, 384)))
    assert packaged(replace(other, sha256="ab" * 32), "street") is None


@pytest.mark.slow
def test_int8_runs_on_another_canvas(clips: dict[str, str], tmp_path: Path) -> None:
    result = run([clips["classic"]], tmp_path, engine="ort", precision="int8")
    assert (result.summary.precision, input_of(result)) == ("int8", CLASSIC)


def cameras_of(tmp_path: Path, *sizes: tuple[int, int] | None) -> Any:
    lines = ["cameras:"]
    for number, size in enumerate(sizes):
        lines += [f"  - name: cam{number}", f"    url: {number}"]
        lines += [] if size is None else [f"    size: {size[0]}x{size[1]}"]
    path = tmp_path / "cameras.yaml"
    path.write_text("\n".join(lines) + "\n")
    return make_cameras([str(path)])


VGA, HD, VGA_UPRIGHT = (640, 480), (1280, 720), (480, 640)


@pytest.mark.parametrize(
    ("sizes", "picture", "noted"),
    [
        ([VGA], VGA, False),
        ([HD], None, False),
        ([None], None, False),  # the size is not yet known, and the run does not wait
        ([HD, None], None, False),
        ([VGA, VGA, HD], VGA, True),
        ([HD, VGA, HD], None, True),
        ([VGA, HD], None, True),  # in a tie, the model's own canvas wins
        ([VGA, None], None, True),
        ([VGA_UPRIGHT, VGA, VGA], VGA, True),
        ([VGA_UPRIGHT, VGA], VGA_UPRIGHT, True),  # in a tie of other canvases, the first wins
    ],
)
def test_cameras_share_the_canvas_of_most_cameras(
    tmp_path: Path, sizes: list[Any], picture: Any, noted: bool
) -> None:
    cameras = cameras_of(tmp_path, *sizes)
    size, line = choose_size(cameras, make_config())
    assert size == picture
    assert (line is not None) == noted
    if line is not None:
        height, width = canvas.find_canvas(make_config(), size) or OWN
        assert f"{width}x{height}" in line
        assert ("reported no size" in line) == (None in sizes)
    assert choose_size(cameras, make_config(size="320")) == (None, None)
    assert choose_size(cameras, make_config(model="yolov4-tiny")) == (None, None)


def test_looped_files_report_their_size(clips: dict[str, str], tmp_path: Path) -> None:
    specs = [clips["square"], clips["wide"], str(tmp_path / "missing.mp4")]
    noted = [read_size(camera) for camera in make_cameras(specs, loop=True)]
    assert noted == [(240, 240), (640, 360), None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, (240, 240)), ({"size": "320"}, live.SHAPE), ({"model": "yolov4-tiny"}, None)],
)
def test_live_run_loads_the_model_for_the_picture_size_of_its_source(
    clips: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, str],
    expected: Any,
) -> None:
    class LoadError(Exception):
        """Raised instead of loading the model."""

    pictures: list[Any] = []

    def load(*_: Any, picture: Any, **__: Any) -> None:
        pictures.append(picture)
        raise LoadError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "load_model", load)
    with pytest.raises(LoadError):
        live.detect_live([clips["square"]], make_config(repeat=True, **options))
    assert pictures == [expected]


@pytest.fixture
def job() -> Any:
    config, flags = ask([], {"engine": "ort", "no_video": True}, None)
    model, facts = open_model(as_plain(config), [], resolves=True)
    yield model, facts, settle([], flags, None, config, facts)
    model.close()


def task_of(path: str) -> Task:
    return Task(name=Path(path).name, path=path, version=version_of(Path(path).stat()))


@pytest.mark.slow
def test_batch_items_equal_single_runs(job: Any, clips: dict[str, str], tmp_path: Path) -> None:
    model, facts, settings = job
    assert facts.model_input == OWN
    assert facts.config["runtime"]["size"] is None  # the size is decided for each item
    assert settings.canvas == OF_SOURCE
    outputs = open_outputs(str(tmp_path / "out"))
    for name in ("wide", "classic", "upright", "square", "wide", "classic"):
        process_item(task_of(clips[name]), model, outputs)
        rows = tmp_path / "out" / "files" / f"{name}.mp4" / "detections.jsonl"
        alone = detect([clips[name]], replace_output(config_of(settings.config), tmp_path / name))
        assert alone.exit_code == 0, alone.errors
        (path,) = [Path(source.outputs["jsonl"]) for source in alone.summary.each]
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


def test_worker_keeps_recent_canvases_open(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[tuple[int, int]] = []
    engines: dict[tuple[int, int], FakeEngine] = {}
    shapes = {"own": (16, 9), "a": (4, 3), "b": (3, 4), "c": (1, 1), "d": (9, 16), "none": None}

    def load(config: Config, *, picture: tuple[int, int], measured: bool) -> Any:
        loads.append(picture)
        loaded = SimpleNamespace(engine=FakeEngine())
        engines[picture] = loaded.engine
        return loaded

    monkeypatch.setattr("detector.core.run.loading.load_model", load)
    monkeypatch.setattr(SourceReading, "picture_size", lambda self, specs: shapes[specs[0]])
    own = SimpleNamespace(engine=FakeEngine())
    model = OpenModel(make_config(), own, "digest", has_shape_of_source=True)
    assert model.loaded_for("own") is own
    assert model.loaded_for("none") is own  # the run will report that its source is unreadable
    first = model.loaded_for("a")
    for name in ("b", "c", "a", "a"):
        model.loaded_for(name)
    assert model.loaded_for("a") is first
    assert loads == [(4, 3), (3, 4), (1, 1)]
    assert batch_item.MOST_CANVASES == 3
    model.loaded_for("d")  # closes b, the least recently used
    assert engines[3, 4].closed == 1
    assert engines[4, 3].closed == engines[1, 1].closed == 0
    model.loaded_for("b")
    assert loads == [(4, 3), (3, 4), (1, 1), (9, 16), (3, 4)]
    assert engines[1, 1].closed == 1
    model.close()
    assert own.engine.closed == 1
    assert engines[4, 3].closed == engines[9, 16].closed == engines[3, 4].closed == 1


def test_size_option_applies_to_all_items(clips: dict[str, str]) -> None:
    config, _ = ask([], {"engine": "null", "size": "320"}, None)
    model, facts = open_model(as_plain(config), [clips["classic"]], resolves=True)
    try:
        assert (facts.model_input, facts.canvas) == ((256, 320), None)
        assert facts.config["runtime"]["size"] == "320x256"
        assert model.loaded_for(clips["square"]) is model.loaded
    finally:
        model.close()
