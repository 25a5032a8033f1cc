"""Describes an engine's own file: the head by its tensors (``head_of``), names and task by its
header or a file next to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.errors import ModelError
from detector.core.errors.text import counted
from detector.core.models.description import family, geometry_of
from detector.core.models.layouts import layouts
from detector.core.models.layouts.base import Bound
from detector.core.models.layouts.plans import ReadyMade
from detector.core.models.names import find_names, read_names

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.metadata import Metadata

COCO = 80  # classes that are assumed where finished detections come without names
# What to do with such a file whose outputs are read wrongly: --describe is for ONNX files.
AS_ONNX = (
    "give the ONNX file that it was made from, and describe its outputs: detect-video models "
    "describe writes a file for --describe"
)


@dataclass(frozen=True, slots=True)
class PlanHead:
    layout: str
    bound: Bound
    geometry: str
    pad_value: int | tuple[int, int, int]


def head_of(seen: ReadyMade) -> PlanHead:
    """Return the head for these outputs. Raises ModelError that lists them where none fits."""
    for layout in sorted(layouts().values(), key=lambda one: (not one.is_named(seen), one.order)):
        if (bound := layout.in_plan(seen)) is None:
            continue
        if bound.geometry is not None:
            return PlanHead(layout.name, bound, bound.geometry, bound.pad_value)
        given = family(layout.usual_family).input
        return PlanHead(layout.name, bound, geometry_of(given), given.pad)
    raise ModelError(
        f"{seen.path}: it does not say what its outputs mean ({seen.listed()}); give the darknet "
        ".cfg that it was made from (cfg: x.cfg in --config, or --cfg), or the class names of a "
        "head that decodes its rows (names: in --config, or --names)"
    )


def beside(path: Path, suffix: str) -> Path | None:
    found = path.with_suffix(suffix)
    return found if found.is_file() else None


def metadata_of(path: Path, header: Mapping[str, Any]) -> Metadata:
    """Read Ultralytics' metadata, in or next to the file. ModelError for another task."""
    from detector.core.models.formats.onnx.metadata import read_metadata

    told = {key: value for key, value in header.items() if value is not None}
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in told.items()
    }
    return read_metadata(str(path), texts)


def known_names(
    path: Path, file: Path | None, class_names: Sequence[str], told: Metadata
) -> tuple[str, ...]:
    if class_names:
        return tuple(class_names)
    if file := file or beside(path, ".names"):
        return read_names(file)
    return told.names or ()


def class_names_of(
    path: Path, bound: Bound, known: Sequence[str]
) -> tuple[Sequence[str], list[str]]:
    if known:
        if bound.classes not in (None, len(known)):
            raise ModelError(
                f"{path}: {counted(len(known), 'class name', 'is')} given, but its head has "
                f"{counted(bound.classes, 'class')}"
            )
        return known, []
    found, warnings = find_names(path, bound.classes or COCO)
    if bound.classes is None:
        warnings = [
            f"{path.name} has no class names: COCO's {COCO} are assumed; use --names FILE for "
            "others"
        ]
    return found, warnings
