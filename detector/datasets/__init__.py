"""Labelled data for ``eval``, and detections that were written before. One file a format, found by its name.

A module of this folder holds one or both of these pairs:
    labelled(path) -> bool, read(path, images, split) -> Dataset           labels
    written(path) -> bool, found(path, lookup, names) -> Found             detections
The first of a pair says whether a path looks like the format; it opens no more than a folder's listing.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from detector.datasets.base import VIDEOS, Dataset, Found, Lookup
from detector.errors import SourceError, UsageError

__all__ = ["names", "open", "open_found"]


def names(function: str = "read") -> list[str]:
    """The formats that can be read (``found``: as detections), sorted."""
    return [name for name in _modules() if hasattr(_modules()[name], function)]


def _modules() -> dict[str, ModuleType]:
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    listed = [name for name in found if name != "base" and not name.startswith("_")]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in listed}


def open(
    spec: str, *, format: str = "auto", images: str | None = None, split: str = "val"
) -> Dataset:
    """Labels with their pictures. ``images``: the folder of the pictures, or the video whose frames are labelled.

    ``split``: part of a YOLO data.yaml. Raises SourceError, one line, for what cannot be read, holds no picture, or
    speaks of pictures that it does not have.
    """
    path = Path(spec)
    if not path.exists():
        raise SourceError(
            f"{spec}: no such file or folder; give a COCO json, a YOLO folder or a MOT sequence"
        )
    if path.suffix.lower() in VIDEOS and path.is_file():
        path, images = _labels_beside(path), images or spec
    if images is not None and not Path(images).exists():
        raise SourceError(f"--images {images}: no such folder or video; check the path")
    module = _chosen(path, format, "labelled", "read")
    dataset: Dataset = module.read(path, None if images is None else Path(images), split)
    if not dataset.pictures:
        raise SourceError(
            f"{spec}: has no picture, so there is nothing to evaluate; check the path"
        )
    return dataset


def open_found(
    spec: str, dataset: Dataset, *, format: str = "auto", names: tuple[str, ...] | None = None
) -> Found:
    """Detections that a sink wrote, for the pictures of a dataset. ``names``: of class numbers, where the file has no
    names itself. Raises SourceError."""
    path = Path(spec)
    if not path.exists():
        raise SourceError(
            f"{spec}: no such file or folder; give what detect-video --save coco, mot or yolo wrote"
        )
    module = _chosen(path, format, "written", "found")
    result: Found = module.found(path, Lookup(dataset), names)
    return result


def _chosen(path: Path, format: str, sign: str, function: str) -> ModuleType:
    known = {name: module for name, module in _modules().items() if hasattr(module, function)}
    if format != "auto":
        if format not in known:
            raise UsageError(f"format {format!r} is not one of {', '.join(known)}")
        return known[format]
    for module in known.values():
        if getattr(module, sign)(path):
            return module
    wanted = (
        "a COCO .json, a YOLO data.yaml or a folder with images/ and labels/, a MOT sequence with gt/gt.txt"
        if function == "read"
        else "what --save coco, mot, yolo, jsonl or csv wrote"
    )
    raise SourceError(f"{path}: no format that eval knows; it reads {wanted}")


def _labels_beside(video: Path) -> Path:
    """in.mp4 -> in.json, in.gt.txt or in.txt."""
    for suffix in (".json", ".gt.txt", ".txt"):
        path = video.with_name(video.stem + suffix)
        if path.is_file():
            return path
    raise SourceError(
        f"{video}: no labels beside it ({video.stem}.json or {video.stem}.txt); "
        f"give the labels themselves (to eval: with --images {video})"
    )
