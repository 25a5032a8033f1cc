"""coco, mot and yolo: the exact contents of the files, and what remains after an abort."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import NAMES, make_frame, make_info, one_person

from detector.core import sinks
from detector.core.errors import OutputError
from detector.core.types import Detections


def two_objects() -> Detections:
    boxes = np.array([[1.234, 2, 30.5, 40.999], [0, 0, 64, 48]], np.float32)
    return Detections(boxes, np.array([0.91, 0.00125], np.float32), np.array([0, 1]), NAMES)


def open_sink(name: str, folder: Path, source: str = "in.mp4", **options: Any) -> sinks.Sink:
    sink = sinks.open(name, folder / f"out{sinks.find(name).suffixes[0]}", **options)
    sink.open(make_info(source))
    return sink


def write_labels(name: str, folder: Path, *pairs: Any, **options: Any) -> Path:
    sink = open_sink(name, folder, **options)
    for frame, detections in pairs:
        sink.write(frame, detections)
    return sink.close()


@pytest.mark.parametrize(("one_class", "column"), [(False, ("1,1", "2,1")), (True, ("-1,-1",) * 2)])
def test_mot_file_is_exact(tmp_path: Path, one_class: bool, column: tuple[str, str]) -> None:
    """TrackEval and motmetrics read ten columns, count pixels from 1 and expect a single class."""
    sink = open_sink("mot", tmp_path, one_class=one_class)
    sink.write(make_frame(0), Detections.empty())
    sink.write(make_frame(4), two_objects())
    assert sink.close().read_text().splitlines() == [
        f"5,-1,2.23,3.00,29.27,39.00,0.910000,{column[0]},-1",
        f"5,-1,1.00,1.00,64.00,48.00,0.001250,{column[1]},-1",
    ]
    assert [("--classes" in note) for note in sink.notes] == [True] * (not one_class)


@pytest.mark.parametrize("scores", [False, True])
def test_yolo_files_are_exact(scores: bool, tmp_path: Path) -> None:
    """Trainers read five numbers; with --save-conf the score is the sixth."""
    path = write_labels(
        "yolo",
        tmp_path,
        (make_frame(0), two_objects()),
        (make_frame(3), Detections.empty(NAMES)),
        (make_frame(4, path="x/cat.jpg"), one_person()),
        save_conf=scores,
    )
    first, second = (" 0.910000", " 0.001250") if scores else ("", "")
    assert path == tmp_path / "out-labels"
    files = {
        file.name: file.read_text() for file in path.iterdir() if not file.name.startswith(".")
    }
    assert files == {
        "classes.txt": 'person\na "quoted", name\n',
        "data.yaml": "# Written by detect-video: the class names. Pictures are not "
        'written.\nnc: 2\nnames:\n  0: "person"\n  1: "a \\"quoted\\", name"\n',
        "frame_000000.txt": f"0 0.247922 0.447906 0.457281 0.812479{first}\n"
        f"1 0.500000 0.500000 1.000000 1.000000{second}\n",
        "frame_000003.txt": "",
        "cat.txt": f"0 0.247922 0.447906 0.457281 0.812479{first}\n",
    }


def test_label_file_of_a_picture_named_classes_gets_another_name(tmp_path: Path) -> None:
    path = write_labels("yolo", tmp_path, (make_frame(0, path="classes.jpg"), one_person()))
    assert (path / "classes.txt").read_text().startswith("person\n")
    assert (path / "classes-2.txt").exists()


def test_coco_file_is_exact(tmp_path: Path) -> None:
    frames = ((make_frame(0), Detections.empty(NAMES)), (make_frame(7), two_objects()))
    path = write_labels("coco", tmp_path, *frames)
    assert json.loads(path.read_text()) == {
        "info": {"description": "detections of detect-video"},
        "licenses": [],
        "annotations": [
            {
                "id": 1,
                "image_id": 8,
                "category_id": 1,
                "bbox": [1.23, 2.0, 29.27, 39.0],
                "area": 1141.53,
                "iscrowd": 0,
                "score": 0.91,
                "segmentation": [[1.23, 2.0, 1.23, 41.0, 30.5, 41.0, 30.5, 2.0]],
            },
            {
                "id": 2,
                "image_id": 8,
                "category_id": 2,
                "bbox": [0.0, 0.0, 64.0, 48.0],
                "area": 3072.0,
                "iscrowd": 0,
                "score": 0.00125,
                "segmentation": [[0.0, 0.0, 0.0, 48.0, 64.0, 48.0, 64.0, 0.0]],
            },
        ],
        "images": [
            {"id": 1, "file_name": "in.mp4#0", "width": 64, "height": 48, "frame_index": 0},
            {"id": 8, "file_name": "in.mp4#7", "width": 64, "height": 48, "frame_index": 7},
        ],
        "categories": [
            {"id": 1, "name": "person", "supercategory": ""},
            {"id": 2, "name": NAMES[1], "supercategory": ""},
        ],
    }


def test_coco_results_match_their_dataset(tmp_path: Path) -> None:
    """The list of results, for ``COCO(...).loadRes``, has the ids of the dataset."""
    path = write_labels(
        "coco",
        tmp_path,
        (make_frame(0), one_person()),
        (make_frame(3), Detections.empty(NAMES)),
        (make_frame(7), two_objects()),
    )
    dataset = json.loads(path.read_text())
    results = json.loads((tmp_path / "out.coco-results.json").read_text())
    keys = ("image_id", "category_id", "bbox", "score")
    assert results == [{key: row[key] for key in keys} for row in dataset["annotations"]]
    assert {row["image_id"] for row in results} <= {row["id"] for row in dataset["images"]}
    api = pytest.importorskip(
        "faster_coco_eval", reason="machine: faster-coco-eval is not installed"
    ).COCO(str(path))
    assert len(api.loadRes(str(tmp_path / "out.coco-results.json")).anns) == 3


@pytest.mark.parametrize("name", [b"http://host/a.jpg", b"caf\xe9.jpg"])
def test_coco_keeps_addresses_and_names_outside_utf8(
    name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = make_frame(0, path=os.fsdecode(name))
    document = json.loads(write_labels("coco", tmp_path, (frame, one_person())).read_text())
    assert os.fsencode(document["images"][0]["file_name"]) == name


def test_coco_without_detections_lists_the_pictures(tmp_path: Path) -> None:
    sink = open_sink("coco", tmp_path, f"{tmp_path}/**")
    sink.write(make_frame(0, path=f"{tmp_path}/x/é.jpg"), Detections.empty())
    document = json.loads(sink.close().read_text())
    assert document["images"] == [{"id": 1, "file_name": "x/é.jpg", "width": 64, "height": 48}]
    assert document["annotations"] == []
    assert json.loads((tmp_path / "out.coco-results.json").read_text()) == []


@pytest.mark.parametrize("name", ["coco", "mot", "yolo"])
def test_label_sinks_mark_random_weights(name: str, tmp_path: Path) -> None:
    sink = open_sink(name, tmp_path, remark="random weights")
    sink.write(make_frame(0), one_person())
    path = sink.close()
    if name == "coco":
        assert json.loads(path.read_text())["info"]["remark"] == "random weights"
    else:
        assert "random weights" in sink.notes[0]


def test_aborted_coco_file_is_valid_json(tmp_path: Path) -> None:
    sink = open_sink("coco", tmp_path)
    for index in range(5):
        sink.write(make_frame(index), two_objects())
    with pytest.raises(ValueError, match="JSON"):
        sink.write(make_frame(5), one_person(score=float("nan")))
    assert sink.abort() == tmp_path / "out.coco.partial.json"
    (partial,) = tmp_path.iterdir()  # no list of results
    document = json.loads(partial.read_text())
    assert len(document["images"]) == 5
    assert len(document["annotations"]) == 10


def test_full_disk_leaves_valid_json(small_disk: Any) -> None:
    folder = small_disk(64)
    sink = open_sink("coco", folder)

    def fill() -> None:
        for index in range(3000):
            sink.write(make_frame(index), two_objects())

    with pytest.raises(OutputError, match="disk full"):
        fill()
    partial = sink.abort()
    assert partial is not None
    document = json.loads(partial.read_text())
    images = {image["id"] for image in document["images"]}
    assert len(images) > 50
    assert {row["image_id"] for row in document["annotations"]} == images
