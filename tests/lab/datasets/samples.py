"""Small labelled datasets with known boxes, in every format."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

WIDTH, HEIGHT = 64, 48


def picture(path: Path, width: int = WIDTH, height: int = HEIGHT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((height, width, 3), 90, np.uint8))
    return path


def coco_document() -> dict[str, Any]:
    """Return labels of two pictures: the first has a person, a crowd of persons and a car."""
    person = {"image_id": 10, "category_id": 1}
    return {
        "images": [
            {"id": 10, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT, "set": "day"},
            {
                "id": 20,
                "file_name": "b.jpg",
                "width": WIDTH,
                "height": HEIGHT,
                "labelled": ["car"],
                "set": "night",
            },
        ],
        "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"id": 1, **person, "bbox": [1, 2, 10, 20], "area": 150, "iscrowd": 0},
            {"id": 2, **person, "bbox": [30, 0, 30, 40], "area": 1200, "iscrowd": 1},
            {"id": 3, "image_id": 10, "category_id": 3, "bbox": [5, 5, 8, 4], "ignore": 1},
        ],
    }


def coco(
    folder: Path, document: Any = None, pictures: tuple[str, ...] = ("a.jpg", "b.jpg")
) -> Path:
    for name in pictures:
        picture(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "labels.json"
    path.write_text(json.dumps(coco_document() if document is None else document))
    return path


def yolo(folder: Path, *, yaml: bool = True) -> Path:
    """Write two pictures. Picture a has a car in its upper left quarter and a person as a polygon;
    picture b has no labels."""
    picture(folder / "images/val/a.jpg")
    picture(folder / "images/val/b.png")
    labels = folder / "labels/val"
    labels.mkdir(parents=True)
    (labels / "a.txt").write_text("1 0.25 0.25 0.5 0.5\n0 0.5 0.5 1 0.5 1 1\n")
    if yaml:
        (folder / "data.yaml").write_text(
            "path: .\ntrain: images/train\nval: images/val\nnames: {0: person, 1: car}\n"
        )
    else:
        (folder / "classes.txt").write_text("person\ncar\n")
    return folder


def mot(folder: Path, frames: int = 2, *, info: bool = True) -> Path:
    """Write a sequence. Its first two frames show a pedestrian; the first frame also has an ignored
    pedestrian, and the second an ignored car."""
    for frame in range(frames):
        picture(folder / f"img1/{frame + 1:06d}.jpg")
    (folder / "gt").mkdir(parents=True)
    (folder / "gt/gt.txt").write_text(
        "1,1,5,6,10,20,1,1,1.0\n2,1,6,6,10,20,1,1,0.8\n1,2,30,6,10,20,0,1,0.1\n2,3,40,10,20,10,0,3,1\n"
    )
    if info:
        (folder / "seqinfo.ini").write_text(
            f"[Sequence]\nname=x\nimDir=img1\nframeRate=30\nseqLength={frames}\nimWidth={WIDTH}\nimHeight={HEIGHT}\n"
        )
    return folder
