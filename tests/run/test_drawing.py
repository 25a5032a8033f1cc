"""Options of drawing, from the configuration to written and streamed pictures."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.detect import detect
from detector.core.run.drawing import Drawing
from detector.core.stages.annotate import pixelate
from detector.core.types import Detections, Frame
from tests.conftest import CHECKOUT
from tests.planes import planes_of

CLIP = CHECKOUT / "videos" / "street.mp4"
FRAMES = 3


def run(folder: Path, **options: object) -> Path:
    settings = {
        "engine": "ort",
        "frames": FRAMES,
        "save": ("pictures",),
        "output": f"{folder}/",
        "run_dir": str(folder / "run"),
        **options,
    }
    assert detect([str(CLIP)], resolve_config(None, settings)).exit_code == 0
    return folder / "street-ort-detected"


@pytest.mark.parametrize(
    ("pictures", "watched", "kept", "threads"),
    [
        ((), None, None, [0, 2]),
        (("bgr",), None, [False, False], [0, 2]),
        (("plain",), None, [True, False], [0, 0]),
        (("bgr", "plain"), None, [False, False], [0, 0]),  # "plain" needs the frames in order
        ((), lambda: False, [True, True], [0, 0]),  # the watcher may want pictures later
    ],
)
def test_pictures_are_drawn_only_for_sinks_and_watchers(
    pictures, watched, kept, threads, monkeypatch
) -> None:
    """``kept``: whether frames keep the decoder's planes, without and with a blurred class."""
    calls: list[object] = []
    sinks = [SimpleNamespace(pictures=kind, see=lambda *it: calls.append(it)) for kind in pictures]
    drawing = Drawing.of(resolve_config(None, {}))
    assert (drawing.annotation(sinks, watched) is None) == (kept is None)  # type: ignore[arg-type]
    for cores, expected in zip((2, 4), threads, strict=True):
        monkeypatch.setattr("detector.core.run.limits.usable_cores", lambda cores=cores: cores)
        assert drawing.threads(sinks, watched) == expected  # type: ignore[arg-type]
    boxes, names = np.array([[2, 2, 12, 12]], np.float32), ("person",)
    detections = Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int64), names)
    for blurred, stays in zip((frozenset[int](), frozenset({0})), kept or (), strict=False):
        frame = Frame(0, 0, 0.0, planes := planes_of(np.zeros((16, 16, 3), np.uint8)))
        prepare = replace(drawing, blurred=blurred).annotation(sinks, watched)  # type: ignore[arg-type]
        prepare(frame, detections)  # type: ignore[misc]
        assert (frame.picture is planes) == stays
    assert len(calls) == 2 * pictures.count("plain")


@pytest.mark.slow
def test_blurred_classes_are_pixelated_in_outputs_and_streams(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", hide_labels=True)
    blurred = run(tmp_path / "blurred", hide_labels=True, blur=("vehicle",))
    with Detector(engine="ort", frames=FRAMES, blur=("vehicle",)) as detector:
        streamed = list(detector.stream(str(CLIP)))
    with Detector(engine="ort", frames=FRAMES) as detector:
        clear = list(detector.stream(str(CLIP)))
    assert len(streamed) == len(clear) == FRAMES
    hidden = 0
    for (frame, detections), (original, _) in zip(streamed, clear, strict=True):
        expected = original.image.copy()
        pixelate(expected, detections, frozenset({1}))
        np.testing.assert_array_equal(frame.image, expected)
        name = f"frame_{frame.index:06d}.jpg"
        pictures = [cv2.imread(str(folder / name)) for folder in (plain, blurred)]
        hidden += int(detections.class_ids.tolist().count(1))
        assert (
            distance(pictures[1], expected, detections)
            < 3
            < distance(pictures[0], expected, detections)
        )
    assert hidden >= FRAMES  # at least one vehicle per frame


def distance(picture: np.ndarray, expected: np.ndarray, detections: Detections) -> float:
    """Return the median difference inside the vehicles, in grey levels. Drawn lines and JPEG hardly
    change it."""
    difference = np.abs(picture.astype(int) - expected.astype(int))
    inside = np.zeros(picture.shape[:2], np.bool_)
    for (x1, y1, x2, y2), class_id in zip(
        detections.boxes.astype(int).tolist(), detections.class_ids.tolist(), strict=True
    ):
        inside[y1:y2, x1:x2] |= class_id == 1
    return float(np.median(difference[inside]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"blur": ("nobody",)},
        {"blur": ("person",), "classes": ("vehicle",)},
        {"blur": ("person",), "engine": "null"},
        {"blur": ("person",), "random_weights": 1, "model": "yolov5n"},
    ],
    ids=str,
)
def test_blur_of_classes_that_cannot_be_detected_is_refused(
    tmp_path: Path, options: dict[str, object]
) -> None:
    settings = {"engine": "ort", "frames": 1, "output": f"{tmp_path}/", **options}
    with pytest.raises(UsageError, match="--blur"):
        detect([str(CLIP)], resolve_config(None, settings))


@pytest.mark.parametrize(
    "options", [{"line_width": 0}, {"line_width": 10**9}, {"font_scale": 0}, {"font_scale": "nan"}]
)
def test_drawing_option_beyond_its_limits_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        resolve_config(None, options)
