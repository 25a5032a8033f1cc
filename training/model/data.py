"""Training pictures with their labels, mapped to person and vehicle.

They are read from folders of COCO and PASCAL VOC, taken from clips, rendered, or unpacked from one
packed file.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
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
# Similar to vehicles, but not vehicles: a box of such an object is neither right nor wrong.
IGNORED = ("bicycle", "bike", "train")
SIDE = 512  # longest side of a picture in memory, in pixels; larger pictures are shrunk
SIDE_RENDERED = 640  # for rendered pictures, because some of their cars are a few pixels wide
WEBP_QUALITY = 60  # at this quality, all pictures and the teacher take less than 60 MiB

# (person, vehicle). The target of a cell without a label is the teacher's score times this factor.
TRUST = {
    "coco": (0.5, 0.5),  # a few objects are not labelled, so we half trust the teacher
    "overpass": (1.0, 0.5),
    "voc": (0.5, 1.0),  # all people and vehicles are labelled, except lorries
    "traffic": (1.0, 1.0),  # people and distant vehicles are not labelled
    "road": (1.0, 1.0),
    "elevated": (1.0, 1.0),
    "clip": (1.0, 1.0),
    "rendered": (0.0, 0.0),
}


@dataclass(slots=True)
class Picture:
    image: NDArray[np.uint8]  # RGB [h, w, 3]
    boxes: NDArray[np.float32]  # [n, 4] xyxy in pixels of the image
    classes: NDArray[np.int64]  # [n] 0 person, 1 vehicle
    ignored: NDArray[np.bool_]  # [n] True: detecting the class here is neither right nor wrong
    kind: str  # a key of TRUST
    weight: float  # how often the picture is chosen, relative to others


def sampling_weight(split: str, kind: str, classes: Iterable[int]) -> float:
    """Return the weight of a picture. It is higher for pictures with vehicles, which are rare.

    Traffic pictures resemble each other, so their weight is low: with 3000 of them (``--traffic``),
    a sixth of the samples are from traffic and a tenth from rendered streets.
    """
    vehicle = 1 in classes
    if kind == "rendered":
        return 1.0 if vehicle else 0.4
    if split == "extra":
        return 2.0 if vehicle else 0.45
    coco = 3.5 if vehicle else 1.5
    weights = {"coco": coco, "road": 2.5, "elevated": 1.5, "overpass": 2.0, "traffic": 0.35}
    return weights.get(kind, 1.0)


def read_labelled(folder: Path) -> Iterator[Picture]:
    """Read ``coco/train``, ``coco/extra`` and ``highway/train``.

    The validation pictures and ``sequence/`` are never read here.
    """
    for part, split in (("coco", "train"), ("coco", "extra"), ("highway", "train")):
        yield from read_coco(folder / part / f"{split}.json", folder / part, split)


def read_coco(path: Path, pictures: Path, split: str) -> Iterator[Picture]:
    """Read the pictures of one COCO json, shrunk to SIDE."""
    document = json.loads(path.read_text(encoding="utf-8"))
    names = {row["id"]: row["name"] for row in document["categories"]}
    rows: dict[int, list[dict]] = {}
    for row in document["annotations"]:
        rows.setdefault(row["image_id"], []).append(row)
    for entry in document["images"]:
        image = cv2.cvtColor(cv2.imread(str(pictures / entry["file_name"])), cv2.COLOR_BGR2RGB)
        boxes, classes, ignored = map_labels(rows.get(entry["id"], []), names)
        kind = entry.get("set", "coco")
        image, boxes = shrink(image, boxes)
        weight = sampling_weight(split, kind, classes[~ignored].tolist())
        yield Picture(image, boxes, classes, ignored, kind, weight)


VOC_WEIGHTS = {"vehicle": 0.9, "person": 0.25, "animal": 0.25, "none": 0.06}
VOC_ENDS = ("xmin", "ymin", "xmax", "ymax")
ANIMALS = {"bird", "cat", "cow", "dog", "horse", "sheep"}


def read_voc(folder: Path) -> Iterator[Picture]:
    """Read a folder of PASCAL VOC: ``Annotations/*.xml`` with ``JPEGImages/*.jpg``.

    Pictures of other data bases in the folder are skipped. VOC's evaluation ignores difficult
    objects, and so do we (http://host.robots.ox.ac.uk/pascal/VOC/voc2007/guidelines.html).
    Pictures without a person or vehicle, mostly of animals, serve as negatives.
    """
    for path in sorted((folder / "Annotations").glob("*.xml")):
        document = ElementTree.parse(path).getroot()
        picture = folder / "JPEGImages" / f"{path.stem}.jpg"
        if "VOC" not in document.findtext("source/database", "") or not picture.is_file():
            continue
        objects = document.findall("object")
        names = {item.findtext("name", "") for item in objects}
        boxes, classes, ignored = _voc_labels(objects)
        present = {c for c, unsure in zip(classes, ignored, strict=True) if not unsure}
        content = "vehicle" if 1 in present else "person" if 0 in present else "none"
        if content == "none" and names & ANIMALS:
            content = "animal"
        image, boxes = shrink(cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB), boxes)
        yield Picture(image, boxes, classes, ignored, "voc", VOC_WEIGHTS[content])


def _voc_labels(
    objects: list[ElementTree.Element],
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Return boxes xyxy, classes, ignored. VOC counts pixels from 1, and xmax is inside the box."""
    boxes, classes, ignored = [], [], []
    for item in objects:
        name = item.findtext("name", "")
        if name not in CLASSES and name not in IGNORED:
            continue
        ends = [float(item.findtext(f"bndbox/{end}", "0")) for end in VOC_ENDS]
        boxes.append([ends[0] - 1, ends[1] - 1, ends[2], ends[3]])
        classes.append(CLASSES.get(name, 1))
        ignored.append(name in IGNORED or item.findtext("difficult") == "1")
    return (
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes, np.int64),
        np.array(ignored, bool),
    )


def map_labels(
    rows: list[dict], names: dict[int, str]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Convert COCO annotations to boxes xyxy, classes, ignored; other categories are dropped."""
    labels = []
    for row in rows:
        name = names[row["category_id"]]
        if name in CLASSES:
            labels.append((row["bbox"], CLASSES[name], bool(row.get("iscrowd", 0))))
        elif name in IGNORED:
            labels.append((row["bbox"], 1, True))
    boxes = np.array([box for box, _, _ in labels], np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    classes = np.array([c for _, c, _ in labels], np.int64)
    return boxes, classes, np.array([i for _, _, i in labels], bool)


def shrink(
    image: NDArray[np.uint8], boxes: NDArray[np.float32], side: int = SIDE
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Scale a picture and its boxes down until the longest side is at most ``side``."""
    height, width = image.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return image, boxes
    size = max(1, round(width * scale)), max(1, round(height * scale))
    factor = np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA), boxes * factor


def read_clips(folder: Path, every_s: float = 1.0) -> Iterator[Picture]:
    """Read frames of the clips. They have no labels, so the teacher gives all targets."""
    for path in sorted(folder.glob("*.mp4")):
        capture = cv2.VideoCapture(str(path))
        step = max(1, round((capture.get(cv2.CAP_PROP_FPS) or 25) * every_s))
        at = 0
        while capture.grab():
            if at % step == 0:
                _, frame = capture.retrieve()
                rgb = cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
                image, boxes = shrink(rgb, np.zeros((0, 4), np.float32))
                yield Picture(image, boxes, np.zeros(0, np.int64), np.zeros(0, bool), "clip", 1.0)
            at += 1
        capture.release()


def render_streets(seeds: Iterable[int], seconds: int = 8) -> Iterator[Picture]:
    """Render one frame per second of the streets of ``training/make_video``."""
    from street.scene import Scene

    for seed in seeds:
        for picture, visible in Scene(seed, seconds, 1, 640, 360).render():
            boxes = np.array([box.xywh for box in visible], np.float32).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            rgb = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
            image, boxes = shrink(rgb, boxes, SIDE_RENDERED)
            classes = np.array([box.category - 1 for box in visible], np.int64)
            ignored = np.array([box.ignored for box in visible], bool)
            weight = sampling_weight("rendered", "rendered", classes[~ignored].tolist())
            yield Picture(image, boxes, classes, ignored, "rendered", weight)


def pack(pictures: Iterable[Picture], extra: dict[str, bytes], target: Path) -> None:
    """Write a zip of WebP pictures, a json of their labels, and the files in ``extra``."""
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
    """Read the pictures of a file that ``pack`` wrote."""
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
