"""Pictures with their labels, mapped to person and vehicle: read from folders, or from one packed file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

CLASSES = {
    "person": 0,
    **dict.fromkeys(("car", "motorcycle", "motorbike", "bus", "truck", "Vehicle", "vehicle"), 1),
}
IGNORED = ("bicycle", "bike", "train")  # something like a vehicle, but none: neither right nor wrong
SIDE = 416  # longest side in memory; coco/extra comes no larger
SIDE_RENDERED = 640  # as rendered: far cars of some pixels are what these pictures teach
WEBP_QUALITY = 60  # all pictures and the teacher stay below 60 MiB

TRUST = {  # how much of the teacher's score is a target where no label lies: (person, vehicle)
    "coco": (0.5, 0.5),  # labelled completely; a little of the teacher softens what annotators left out
    "overpass": (1.0, 0.5),
    "road": (1.0, 1.0),
    "elevated": (1.0, 1.0),
    "clip": (1.0, 1.0),
    "rendered": (0.0, 0.0),
}


@dataclass(slots=True)
class Picture:
    image: NDArray[np.uint8]  # RGB [h, w, 3]
    boxes: NDArray[np.float32]  # [n, 4] xyxy in its pixels
    classes: NDArray[np.int64]  # [n] 0 person, 1 vehicle
    ignored: NDArray[np.bool_]  # [n] a region where that class is neither right nor wrong
    kind: str  # a key of TRUST
    weight: float  # how often it is drawn


def sampling_weight(split: str, kind: str, classes: Iterable[int]) -> float:
    vehicle = 1 in classes
    if kind == "rendered":
        return 0.9 if vehicle else 0.4
    if split == "extra":
        return 2.0 if vehicle else 0.45
    return {"coco": 2.5 if vehicle else 1.5, "road": 2.0, "elevated": 1.5, "overpass": 2.5}.get(kind, 1.0)


def labelled(folder: Path) -> Iterator[Picture]:
    """``coco/train``, ``coco/extra`` and ``highway/train``. Validation and ``sequence/`` are never read here."""
    for part, split in (("coco", "train"), ("coco", "extra"), ("highway", "train")):
        yield from coco_pictures(folder / part / f"{split}.json", folder / part, split)


def coco_pictures(path: Path, pictures: Path, split: str) -> Iterator[Picture]:
    """The pictures of one COCO json, shrunk to SIDE."""
    document = json.loads(path.read_text(encoding="utf-8"))
    names = {row["id"]: row["name"] for row in document["categories"]}
    rows: dict[int, list[dict]] = {}
    for row in document["annotations"]:
        rows.setdefault(row["image_id"], []).append(row)
    for entry in document["images"]:
        image = cv2.cvtColor(cv2.imread(str(pictures / entry["file_name"])), cv2.COLOR_BGR2RGB)
        boxes, classes, ignored = mapped(rows.get(entry["id"], []), names)
        kind = entry.get("set", "coco")
        image, boxes = shrunk(image, boxes)
        weight = sampling_weight(split, kind, classes[~ignored].tolist())
        yield Picture(image, boxes, classes, ignored, kind, weight)


def mapped(rows: list[dict], names: dict[int, str]) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Annotations -> boxes xyxy, classes, ignored. Other categories are left out."""
    found = []
    for row in rows:
        name = names[row["category_id"]]
        if name in CLASSES:
            found.append((row["bbox"], CLASSES[name], bool(row.get("iscrowd", 0))))
        elif name in IGNORED:
            found.append((row["bbox"], 1, True))
    boxes = np.array([box for box, _, _ in found], np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return boxes, np.array([c for _, c, _ in found], np.int64), np.array([i for _, _, i in found], bool)


def shrunk(
    image: NDArray[np.uint8], boxes: NDArray[np.float32], side: int = SIDE
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Longest side at most ``side``; the boxes go along."""
    height, width = image.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return image, boxes
    size = max(1, round(width * scale)), max(1, round(height * scale))
    factor = np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA), boxes * factor


def clips(folder: Path, every_s: float = 1.0) -> Iterator[Picture]:
    """Frames of the shared clips: no labels, the teacher alone speaks there."""
    for path in sorted(folder.glob("*.mp4")):
        capture = cv2.VideoCapture(str(path))
        step = max(1, round((capture.get(cv2.CAP_PROP_FPS) or 25) * every_s))
        at = 0
        while capture.grab():
            if at % step == 0:
                _, frame = capture.retrieve()
                image, boxes = shrunk(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.zeros((0, 4), np.float32))
                yield Picture(image, boxes, np.zeros(0, np.int64), np.zeros(0, bool), "clip", 1.0)
            at += 1
        capture.release()


def rendered(seeds: Iterable[int], seconds: int = 8) -> Iterator[Picture]:
    """One frame a second of the streets of training/make_video."""
    from street.scene import Scene

    for seed in seeds:
        for picture, found in Scene(seed, seconds, 1, 640, 360).render():
            boxes = np.array([box.xywh for box in found], np.float32).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            image, boxes = shrunk(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), boxes, SIDE_RENDERED)
            classes = np.array([box.category - 1 for box in found], np.int64)
            ignored = np.array([box.ignored for box in found], bool)
            weight = sampling_weight("rendered", "rendered", classes[~ignored].tolist())
            yield Picture(image, boxes, classes, ignored, "rendered", weight)


def pack(pictures: Iterable[Picture], extra: dict[str, bytes], target: Path) -> None:
    """One zip of WebP pictures and a json of their labels; ``extra`` files go along under their names."""
    partial = target.with_name(target.name + ".part")
    rows = []
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for number, picture in enumerate(pictures):
            bgr = cv2.cvtColor(picture.image, cv2.COLOR_RGB2BGR)
            data = cv2.imencode(".webp", bgr, [cv2.IMWRITE_WEBP_QUALITY, WEBP_QUALITY])[1]
            archive.writestr(f"{number:05d}.webp", data.tobytes())
            rows.append(
                {
                    "boxes": np.round(picture.boxes, 2).tolist(),
                    "classes": picture.classes.tolist(),
                    "ignored": picture.ignored.tolist(),
                    "kind": picture.kind,
                    "weight": picture.weight,
                }
            )
        for name, data in extra.items():
            archive.writestr(name, data)
        archive.writestr("labels.json", json.dumps(rows, separators=(",", ":")))
    partial.replace(target)


def unpack(path: Path) -> Iterator[Picture]:
    with zipfile.ZipFile(path) as archive:
        for number, row in enumerate(json.loads(archive.read("labels.json"))):
            data = np.frombuffer(archive.read(f"{number:05d}.webp"), np.uint8)
            yield Picture(
                cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB),
                np.array(row["boxes"], np.float32).reshape(-1, 4),
                np.array(row["classes"], np.int64),
                np.array(row["ignored"], bool),
                row["kind"],
                row["weight"],
            )
