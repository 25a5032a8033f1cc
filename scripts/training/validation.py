"""The validation pictures with their labels, and how a model's rows are judged on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.analysis.accuracy import average_precision as ap
from detector.analysis.accuracy import matching
from detector.stages.nms import nms
from detector.stages.preprocess import letterbox
from detector.types import Candidates, Letterbox
from training.data import CLASSES, IGNORED

CONFIDENCE, NMS_IOU, MAX_KEPT = 0.001, 0.65, 300
ASKED = 0.25  # the score at which recall and precision are reported
NAMES = ("person", "vehicle")

Rows = tuple[NDArray[np.float32], NDArray[np.float32]]
Model = Callable[[NDArray[np.uint8]], Rows]
"""u8 BGR picture -> boxes xyxy [N, 4] in its pixels, scores [N, 2] of person and vehicle; nothing suppressed yet."""


@dataclass(slots=True)
class Asked:
    """One validation picture."""

    image: NDArray[np.uint8]  # BGR
    group: str  # "coco", "road", "overpass", "elevated", "street.mp4"
    last: bool  # kept for the last figure: never looked at while anything is chosen
    truths: tuple[
        matching.Truth | None, matching.Truth | None
    ]  # person, vehicle; None: not labelled


def kept_for_last(name: str) -> bool:
    """Half of the pictures, by their names."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def pictures(labelled: Path) -> Iterator[Asked]:
    for part, split in (("coco", "val"), ("highway", "valid")):
        path = labelled / part / f"{split}.json"
        yield from _of_json(
            path, lambda entry, at=path.parent: cv2.imread(str(at / entry["file_name"]))
        )


def clip(video: Path, every: int) -> Iterator[Asked]:
    """Frames of a clip with a COCO json beside it."""
    capture, at = cv2.VideoCapture(str(video)), -1

    def frame(entry: dict) -> NDArray[np.uint8]:
        nonlocal at
        while at < entry["frame_index"]:
            at += 1
            capture.grab()
        return capture.retrieve()[1]

    yield from _of_json(video.with_suffix(".json"), frame, video.name, every)


def _of_json(
    path: Path, read: Callable[[dict], NDArray[np.uint8]], group: str = "coco", every: int = 1
) -> Iterator:
    document = json.loads(path.read_text(encoding="utf-8"))
    names = {row["id"]: row["name"] for row in document["categories"]}
    rows: dict[int, list[dict]] = {}
    for row in document["annotations"]:
        rows.setdefault(row["image_id"], []).append(row)
    for entry in document["images"][::every]:
        labels = rows.get(entry["id"], [])
        known = {CLASSES[name] for name in entry.get("labelled", NAMES) if name in CLASSES}
        truths = tuple(truth(labels, names, c) if c in known else None for c in (0, 1))
        yield Asked(read(entry), entry.get("set", group), kept_for_last(entry["file_name"]), truths)


def truth(rows: list[dict], names: dict[int, str], wanted: int) -> matching.Truth:
    found = [
        (row["bbox"], names[row["category_id"]] in IGNORED, bool(row.get("iscrowd", 0)))
        for row in rows
        if CLASSES.get(names[row["category_id"]]) == wanted
        or (wanted == 1 and names[row["category_id"]] in IGNORED)
    ]
    boxes = np.array([box for box, _, _ in found], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    crowd = np.array([c for _, _, c in found], bool)
    return matching.Truth(boxes, np.array([i for _, i, _ in found], bool) & ~crowd, crowd)


def boxed(
    image: NDArray[np.uint8], size: tuple[int, int], geometry: str, pad: int
) -> tuple[NDArray, Letterbox]:
    slot = np.empty((*size, 3), np.uint8)
    return slot, letterbox(image, slot, geometry=geometry, pad_value=pad)


def in_source(boxes: NDArray[np.float32], fit: Letterbox) -> NDArray[np.float32]:
    return (boxes - np.array([fit.pad_x, fit.pad_y] * 2)) / np.array([fit.scale_x, fit.scale_y] * 2)


def judged(rows: Rows, asked: Asked) -> list[matching.Judged | None]:
    """Threshold, NMS for each class by itself, boxes cut to the picture, matching."""
    height, width = asked.image.shape[:2]
    results: list[matching.Judged | None] = []
    for c, labels in enumerate(asked.truths):
        if labels is None:
            results.append(None)
            continue
        keep = rows[1][:, c] > CONFIDENCE
        scores = rows[1][keep, c].astype(np.float32)
        found = Candidates(
            rows[0][keep].astype(np.float32), scores, np.zeros(len(scores), np.int64)
        )
        kept = nms(found, iou=NMS_IOU, max_det=MAX_KEPT)
        boxes = kept.boxes.clip(0, [width, height, width, height])
        results.append(matching.judge(boxes, kept.scores, labels))
    return results


def run(model: Model, asked: list[Asked]) -> dict[tuple[str, str], list[matching.Judged]]:
    """(group, class) -> judged pictures."""
    results: dict[tuple[str, str], list[matching.Judged]] = {}
    for picture in asked:
        for name, result in zip(NAMES, judged(model(picture.image), picture), strict=True):
            if result is not None:
                results.setdefault((picture.group, name), []).append(result)
    return results


def figures(results: dict[tuple[str, str], list[matching.Judged]]) -> dict[str, float]:
    """One number a row of the issue's table: AP50, and recall and unmatched boxes of the elevated pictures."""
    found = {}
    for (group, name), rows in results.items():
        if group == "elevated":
            found["elevated recall"] = round(ap.recall(rows, ASKED), 4)
            found["elevated unmatched"] = ap.unmatched(rows, ASKED)
        else:
            found[f"{group} {name}"] = round(ap.average_precision(rows), 4)
    return found
