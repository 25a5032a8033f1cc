"""COCO: one json with images, annotations and categories. We read labels, detections that our sink
wrote, and plain lists of results.

We add keys to COCO's: ``images[].frame_index`` (or a name like ``in.mp4#12``) makes a picture a
frame of a video. ``images[].labelled`` names the classes for which the picture was labelled.
``images[].set`` names its part of the dataset. ``annotations[].ignore`` marks a box to ignore:
finding it or missing it has no effect on the score.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from detector.core.errors import SourceError
from detector.core.errors.parsing import LARGEST, quote
from detector.core.errors.text import counted
from detector.core.sources._contents import VIDEOS
from detector.core.types import LabelledPicture
from detector.lab.datasets.base import (
    MAX_PIXELS,
    Dataset,
    DetectionFormat,
    LabelFormat,
    Lookup,
    RowCollector,
    StoredDetections,
    make_picture,
    read_json,
    read_picture_size,
    to_box,
)

MAX_FRAME_DIGITS = 18  # digits of a frame's number in a file name

Row = tuple[list[float], int, bool, bool, float | None]


class CocoLabels(LabelFormat):
    name, suffixes = "coco", (".json",)

    def read(self, path: Path, images: Path | None, split: str) -> Dataset:
        document = read_json(path)
        entries = _require_list(path, document, "images")
        names, class_of = _read_categories(path, document)
        annotations = _require_list(path, document, "annotations")
        if annotations and "score" in annotations[0]:
            raise SourceError(
                f"{path}: its annotations have scores, so they are detections; give the file with "
                "--detections"
            )
        ids = [_read_int(path, row, "id", "image") for row in entries]
        if len(set(ids)) != len(ids):
            raise SourceError(f"{path}: two images have the same id; ids must be unique")
        rows, dropped = _read_annotations(path, annotations, set(ids), class_of)
        video = _find_video(path, entries, images)
        folder = path.parent if video or not entries else _find_folder(path, entries, images)
        known = {name: at for at, name in reversed(list(enumerate(names)))}
        pictures = [
            _read_picture(path, number, entry, rows.get(number, []), folder, video, known)
            for number, entry in zip(ids, entries, strict=True)
        ]
        skipped = f"skipped {counted(dropped, 'box')} without an area"
        notes = [f"{path}: {skipped}"] if dropped else []
        category_ids = {at: category for category, at in class_of.items()}
        return Dataset(str(path), "coco", names, pictures, video, notes, category_ids)


def _require_list(path: Path, document: Any, key: str) -> list[dict[str, Any]]:
    if isinstance(document, list):
        raise SourceError(
            f"{path}: is a list of results; labels need 'images', 'annotations' and 'categories'"
        )
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SourceError(
            f"{path}: has no list {key!r}: a COCO json has 'images', 'annotations' and 'categories'"
        )
    return rows


def _require(path: Path, row: dict[str, Any], key: str, kind: str) -> Any:
    if key not in row:
        raise SourceError(f"{path}: {kind} {_show_id(row)} has no {key!r}; it needs one")
    return row[key]


def _read_int(path: Path, row: dict[str, Any], key: str, kind: str) -> int:
    value = _require(path, row, key, kind)
    try:
        number = int(value)
        if abs(number) <= LARGEST:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise SourceError(f"{path}: {kind}: {key} is {quote(value)}; it must be a whole number")


def _read_ids(path: Path, row: dict[str, Any], kind: str) -> tuple[int, int]:
    return _read_int(path, row, "image_id", kind), _read_int(path, row, "category_id", kind)


def _read_categories(path: Path, document: Any) -> tuple[tuple[str, ...], dict[int, int]]:
    rows = _require_list(path, document, "categories")
    names = tuple(str(_require(path, row, "name", "category")) for row in rows)
    return names, {_read_int(path, row, "id", "category"): at for at, row in enumerate(rows)}


def _read_annotations(
    path: Path, annotations: list[dict[str, Any]], images: set[int], class_of: dict[int, int]
) -> tuple[dict[int, list[Row]], int]:
    rows: dict[int, list[Row]] = {}
    unknown: list[int] = []
    dropped = 0
    for row in annotations:
        image, category = _read_ids(path, row, "annotation")
        if image not in images:
            unknown.append(image)
            continue
        if category not in class_of:
            raise SourceError(
                f"{path}: annotation {_show_id(row)} is of category {category}, which is not listed"
            )
        box = _read_box(path, row)
        if box[2] <= box[0] or box[3] <= box[1]:
            dropped += 1
            continue
        crowd = bool(row.get("iscrowd", 0))
        ignored, area = bool(row.get("ignore", 0)) and not crowd, _read_area(path, row)
        rows.setdefault(image, []).append((box, class_of[category], ignored, crowd, area))
    if unknown:
        raise SourceError(
            f"{path}: 'images' lacks the pictures of {counted(len(unknown), 'annotation')} (the "
            f"first has image_id {unknown[0]}); add the pictures, or remove the annotations"
        )
    return rows, dropped


def _read_box(path: Path, row: dict[str, Any]) -> list[float]:
    box = row.get("bbox")
    try:
        x, y, width, height = to_box(box)
        good = all(-MAX_PIXELS <= value <= MAX_PIXELS for value in (x, y, width, height))
        good = good and width >= 0 and height >= 0
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise SourceError(
            f"{path}: annotation {_show_id(row)}: bbox {quote(box)} is not [x, y, width, height]"
        )
    return [x, y, x + width, y + height]


def _read_area(path: Path, row: dict[str, Any]) -> float | None:
    area = row.get("area")
    if area is None:
        return None
    if not isinstance(area, (int, float)) or not 0 <= area <= MAX_PIXELS**2:
        raise SourceError(
            f"{path}: annotation {_show_id(row)}: area {quote(area)} is not a number of pixels"
        )
    return float(area)


def _show_id(row: dict[str, Any]) -> str:
    return quote(row.get("id", "?")).strip("'")


def _frame_index(entry: dict[str, Any]) -> int | None:
    value = entry.get("frame_index")
    if value is None:
        _, sign, value = str(entry.get("file_name", "")).rpartition("#")
        value = value if sign else None
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) <= MAX_FRAME_DIGITS else None
    return value if type(value) is int else None


def _find_video(path: Path, entries: list[dict[str, Any]], images: Path | None) -> str | None:
    if images is not None and images.is_file():
        return str(images)
    if not entries or _frame_index(entries[0]) is None:
        return None
    named = Path(str(entries[0].get("file_name", "")).rpartition("#")[0])
    if named.suffix.lower() not in VIDEOS:
        return None
    for folder in (images,) if images else (path.parent, Path()):
        if os.path.isfile(folder / named):
            return str(folder / named)
    return str((images or path.parent) / named)


def _find_folder(path: Path, entries: list[dict[str, Any]], images: Path | None) -> Path:
    """Find the pictures' folder: ``images``, next to the json, or where COCO's archives put it."""
    name = str(entries[0].get("file_name", ""))
    if images is not None:
        return images
    split = path.stem.removeprefix("instances_")
    above = path.parent.parent
    places = (
        path.parent,
        path.parent / "images",
        path.parent / split,
        above,
        above / "images",
        above / split,
        above / "images" / split,
    )
    return next((place for place in places if os.path.isfile(place / name)), path.parent)


def _read_picture(
    path: Path,
    number: int,
    entry: dict[str, Any],
    rows: list[Row],
    folder: Path,
    video: str | None,
    known: dict[str, int],
) -> LabelledPicture:
    name = str(_require(path, entry, "file_name", "image"))
    frame = _frame_index(entry)
    if video is not None and frame is None:
        raise SourceError(
            f"{path}: image {number} has no frame_index, so its place in {video} is unknown; add it"
        )
    place = None if video else str(folder / name)
    if "width" in entry and "height" in entry:
        size = (_read_int(path, entry, "width", "image"), _read_int(path, entry, "height", "image"))
        if not all(0 <= side <= MAX_PIXELS for side in size):
            raise SourceError(f"{path}: image {number} is {size[0]}x{size[1]} pixels; correct it")
    else:
        size = read_picture_size(place) if place else (0, 0)
    labelled = entry.get("labelled")
    classes = None
    if labelled is not None:
        if not isinstance(labelled, list) or not all(isinstance(c, str) for c in labelled):
            raise SourceError(f"{path}: image {number}: 'labelled' must be a list of class names")
        classes = frozenset(known[c] for c in labelled if c in known)
    return make_picture(
        number,
        name,
        size,
        rows,
        labelled=classes,
        path=place,
        frame=frame,
        subset=str(entry.get("set", "")),
    )


class CocoDetections(DetectionFormat):
    name, suffixes = "coco", (".json",)

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        """Read our sink's document or a list of results (``_read_results``)."""
        document = read_json(path)
        if isinstance(document, list):
            return _read_results(path, document, lookup, names)
        entries = _require_list(path, document, "images")
        own, class_of = _read_categories(path, document)
        collector = RowCollector(path, lookup, every_picture_listed=True)
        place = {
            _read_int(path, row, "id", "image"): collector.register(
                _find_picture(path, row, lookup), row.get("file_name")
            )
            for row in entries
        }
        for row in _require_list(path, document, "annotations"):
            image, category = _read_ids(path, row, "annotation")
            if image not in place or category not in class_of:
                raise SourceError(
                    f"{path}: annotation {_show_id(row)} is of an image or category that is not "
                    "listed"
                )
            at = place[image]
            if at is not None:
                _add_row(collector, at, path, row, class_of[category])
        return collector.finish(own)


def _add_row(
    collector: RowCollector, at: int, path: Path, row: dict[str, Any], class_id: int
) -> None:
    track = _read_int(path, row, "track_id", "annotation") if "track_id" in row else None
    box, score = _read_box(path, row), _read_score(path, row)
    collector.add(at, box, score, class_id, str(path), track)


def _find_picture(path: Path, entry: dict[str, Any], lookup: Lookup) -> int | None:
    """Find an entry's picture by ``source`` (which our sink writes), ``file_name`` or frame."""
    frame = _frame_index(entry)
    at = None
    for name in (str(entry[key]) for key in ("source", "file_name") if key in entry):
        at = lookup.by_file(os.path.join(path.parent, name)) if at is None else at
        at = lookup.by_name(name) if at is None else at
    return at if at is not None or frame is None else lookup.by_frame(frame)


def _read_results(
    path: Path, rows: list[Any], lookup: Lookup, names: tuple[str, ...] | None
) -> StoredDetections:
    """Read [{image_id, category_id, bbox, score}]. ``names[0]`` is the name of category 1."""
    if not all(isinstance(row, dict) for row in rows):
        raise SourceError(
            f"{path}: each result must be an object with image_id, category_id, bbox and score"
        )
    collector = RowCollector(path, lookup, every_picture_listed=False)
    class_of = _map_categories(path, lookup, names)
    for row in rows:
        image, category = _read_ids(path, row, "result")
        if category not in class_of:
            place = "the labels" if names is None else "--names"
            raise SourceError(f"{path}: a result is of category {category}, unnamed in {place}")
        at = collector.register(lookup.by_id(image), f"image_id {image}")
        if at is not None:
            _add_row(collector, at, path, row, class_of[category])
    return collector.finish(names or lookup.dataset.classes)


def _map_categories(path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> dict[int, int]:
    if names is not None:
        return {number: number - 1 for number in range(1, len(names) + 1)}
    if not lookup.dataset.category_ids:
        raise SourceError(
            f"{path}: results without names need labels in COCO format, or --names FILE"
        )
    return {category: at for at, category in lookup.dataset.category_ids.items()}


def _read_score(path: Path, row: dict[str, Any]) -> float:
    score = row.get("score")
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        raise SourceError(
            f"{path}: annotation {_show_id(row)} has no score, so it is a label, not a detection"
        )
    return float(score)


FORMATS = (CocoLabels(), CocoDetections())
