"""Read labelled data for ``eval``, and stored detections.

The formats are those in the lists ``FORMATS`` of all files of this folder. ``classmap`` pairs a
model's classes with those of labels.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from detector.core import wings
from detector.core.errors import SourceError, UsageError
from detector.core.sources._contents import VIDEOS
from detector.lab.datasets.base import (
    Dataset,
    DetectionFormat,
    LabelFormat,
    Lookup,
    StoredDetections,
)

__all__ = ["detection_formats", "label_formats", "open", "open_detections"]

Kind = TypeVar("Kind", LabelFormat, DetectionFormat)


def label_formats() -> dict[str, LabelFormat]:
    return _list_formats(LabelFormat)


def detection_formats() -> dict[str, DetectionFormat]:
    return _list_formats(DetectionFormat)


def _list_formats(kind: type[Kind]) -> dict[str, Kind]:
    modules = wings.import_files(__name__, *__path__)
    formats = [each for module in modules for each in getattr(module, "FORMATS", ())]
    named = {each.name: each for each in formats if isinstance(each, kind)}
    return dict(sorted(named.items()))


def open(
    spec: str, *, format: str = "auto", images: str | None = None, split: str = "val"
) -> Dataset:
    """Open labels and pictures. ``images``: the pictures' folder or video. Raises SourceError."""
    path = Path(spec)
    if path.suffix.lower() in VIDEOS and path.is_file():
        path, images = _find_labels_of(path), images or spec
    if images is not None and not os.path.exists(images):
        raise SourceError(f"--images {images}: no such folder or video; check the path")
    expected = (
        "a COCO .json, a YOLO data.yaml, a folder with images/ and labels/, or a MOT sequence with "
        "gt/gt.txt"
    )
    reader = _choose_format(path, format, label_formats(), expected)
    dataset = reader.read(path, None if images is None else Path(images), split)
    if not dataset.pictures:
        raise SourceError(f"{spec}: contains no pictures to evaluate; check the path")
    return dataset


def open_detections(
    spec: str, dataset: Dataset, names: tuple[str, ...] | None = None
) -> StoredDetections:
    """Open detections that a sink wrote. ``names``: class names, if the file has none."""
    path = Path(spec)
    expected = "what --save coco, mot, yolo, jsonl or csv wrote, or a folder with SEQUENCE.txt"
    reader = _choose_format(path, "auto", detection_formats(), expected)
    return reader.read(path, Lookup(dataset), names)


def _choose_format(path: Path, format: str, known: dict[str, Kind], expected: str) -> Kind:
    if not os.path.exists(path):
        raise SourceError(f"{path}: no such file or folder; give {expected}")
    if format != "auto":
        if format not in known:
            raise UsageError(f"format {format!r} is not one of {', '.join(known)}")
        return known[format]
    for each in known.values():
        if each.claims(path):
            return each
    raise SourceError(f"{path}: unknown format; eval reads {expected}")


def _find_labels_of(video: Path) -> Path:
    """Return the labels next to in.mp4: in.json, in.gt.txt or in.txt."""
    for suffix in (".json", ".gt.txt", ".txt"):
        path = video.with_name(video.stem + suffix)
        if path.is_file():
            return path
    raise SourceError(
        f"{video}: no labels next to it ({video.stem}.json or {video.stem}.txt); give the file "
        f"of labels (for eval, also --images {video})"
    )
