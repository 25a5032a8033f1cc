"""The names and content of crops. A crop has no drawn box, and is blurred if its class is."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from probing import make_frame, open_sink

from detector.core.config.levels import resolve_config
from detector.core.run.detect import detect
from detector.core.sinks.crops import cut, safe_folder
from detector.core.types import Detections, Frame
from tests.conftest import CHECKOUT

CLIP = CHECKOUT / "videos" / "street.mp4"


def detections_of(
    *rows: tuple[float, float, float, float, int], names: tuple[str, ...]
) -> Detections:
    boxes = np.array([row[:4] for row in rows], np.float32).reshape(-1, 4)
    ids = np.array([row[4] for row in rows], np.int64)
    return Detections(boxes, np.full(len(rows), 0.5, np.float32), ids, names)


def save(folder: Path, *pairs: tuple[Frame, Detections]) -> list[str]:
    sink = open_sink("crops", folder)
    for frame, detections in pairs:
        sink.see(frame.image, detections)
        frame.image[:] = 0  # later drawing must not show in the crops
        sink.write(frame, detections)
    sink.close()
    files = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return sorted(str(path.relative_to(folder)) for path in files)


def test_crops_are_named_after_frames_or_pictures(tmp_path: Path) -> None:
    two = detections_of((1, 1, 9, 9, 0), (2, 2, 9, 9, 1), (3, 3, 9, 9, 0), names=("person", "car"))
    none = detections_of(names=("person", "car"))
    assert save(tmp_path / "a", (make_frame(123), two), (make_frame(124), none)) == [
        "car/frame_000123_1.jpg",
        "person/frame_000123_0.jpg",
        "person/frame_000123_2.jpg",
    ]
    frames = [make_frame(0, path="in/x.png"), make_frame(1, path="in/l/y.png", name="l/y.png")]
    assert save(tmp_path / "b", *((frame, two) for frame in frames))[0:2] == [
        "car/l_y_1.jpg",
        "car/x_1.jpg",
    ]
    crop = cv2.imread(str(tmp_path / "a/person/frame_000123_0.jpg"))
    assert crop.shape == (8, 8, 3)
    assert crop.min() > 0


CUTS = [
    # box -> width and height of the crop in a picture of 64 x 48
    ((1.0, 2.0, 9.0, 8.0), (8, 6)),
    ((1.9, 2.9, 8.1, 7.1), (8, 6)),  # rounded outward
    ((-5.0, -5.0, 3.0, 4.0), (3, 4)),
    ((60.0, 40.0, 99.0, 99.0), (4, 8)),
    ((5.0, 5.0, 5.0, 5.0), (1, 1)),
    ((64.0, 48.0, 64.0, 48.0), (1, 1)),
]


@pytest.mark.parametrize(("box", "size"), CUTS)
def test_crop_is_clipped_and_never_empty(box: tuple[float, ...], size: tuple[int, int]) -> None:
    crop = cut(np.zeros((48, 64, 3), np.uint8), list(box))
    assert (crop.shape[1], crop.shape[0]) == size


FOLDERS = [
    ("person", "person"),
    ("traffic light", "traffic light"),
    ("../../etc", "_.._etc"),
    ("a/b\\c:d", "a_b_c_d"),
    (".hidden", "hidden"),
    ("..", ""),
    ("行人", "行人"),
    ("x\ny\x1b[0m", "x_y__0m"),
    ("\ud800", "_"),
]


@pytest.mark.parametrize(("name", "folder"), FOLDERS, ids=[ascii(row[0]) for row in FOLDERS])
def test_class_name_becomes_a_safe_folder_name(name: str, folder: str) -> None:
    assert safe_folder(name) == folder


def test_classes_with_similar_names_have_separate_folders(tmp_path: Path) -> None:
    names = ("Car", "car", "..", "é" * 300)
    rows = detections_of(*((1, 1, 9, 9, i) for i in range(4)), names=names)
    files = save(tmp_path / "out", (make_frame(0, path=f"in/{'s' * 250}.jpg"), rows))
    folders = {name.split("/")[0] for name in files}
    assert folders == {"Car", "car_1", "class_2", "é" * 100}


@pytest.mark.slow
def test_crops_of_a_run_have_no_boxes_and_are_blurred_if_their_class_is(tmp_path: Path) -> None:
    def run(name: str, save: tuple[str, ...], **options: object) -> Path:
        folder = tmp_path / name
        settings = {"engine": "ort", "frames": 2, "save": save, "output": f"{folder}/", **options}
        settings["run_dir"] = str(folder / "run")
        assert detect([str(CLIP)], resolve_config(None, settings)).exit_code == 0
        return folder / "street-ort-crops"

    def read(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}

    alone = read(run("alone", ("crops",)))
    assert alone
    assert read(run("with-video", ("crops", "video"))) == alone
    assert read(run("no-video", ("crops",), no_video=True)) == alone
    blurred = read(run("blurred", ("crops", "video"), blur=("vehicle",)))
    assert read(run("blurred-alone", ("crops",), blur=("vehicle",))) == blurred
    assert blurred.keys() == alone.keys()
    vehicles = [name for name in alone if name.startswith("vehicle/")]
    assert vehicles
    assert all(blurred[name] != alone[name] for name in vehicles)
