"""For a model in one engine's own format (a plan, an IR), find the head, the class names and the
task, from the model's tensors, the file's header and the files next to it."""

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
from detector.core.models.names import find_names, read_names, warn_of_coco

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.metadata import Metadata

COCO = 80  # assumed number of classes if neither the outputs nor the file state it
# Advice if a plan's outputs are read wrongly. --describe supports ONNX files, but not plans.
AS_ONNX = (
    "give the ONNX file that it was made from, and describe its outputs with --describe FILE "
    "(`detect-video models describe` writes the file)"
)


@dataclass(frozen=True, slots=True)
class PlanHead:
    layout: str
    bound: Bound
    geometry: str
    pad_value: int | tuple[int, int, int]


def head_of(plan: ReadyMade) -> PlanHead:
    """Return the head for a plan's outputs. If none fits, raise ModelError and list the outputs."""
    by_rank = sorted(layouts().values(), key=lambda each: (not each.is_named(plan), each.order))
    for layout in by_rank:
        if (bound := layout.in_plan(plan)) is None:
            continue
        if bound.geometry is not None:
            return PlanHead(layout.name, bound, bound.geometry, bound.pad_value)
        described = family(layout.usual_family).input
        return PlanHead(layout.name, bound, geometry_of(described), described.pad)
    raise ModelError(
        f"{plan.path}: it does not say what its outputs mean ({plan.listed()}); give the darknet "
        ".cfg that it was made from (--cfg, or network.cfg in --config); if its outputs are boxes "
        "already decoded, give its class names instead (--names, or network.names in --config)"
    )


def find_sibling(path: Path, suffix: str) -> Path | None:
    sibling = path.with_suffix(suffix)
    return sibling if sibling.is_file() else None


def metadata_of(path: Path, header: Mapping[str, Any]) -> Metadata:
    """Parse Ultralytics' metadata from a header. Raises ModelError unless the task is detection."""
    from detector.core.models.formats.onnx.metadata import read_metadata

    texts = {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in header.items()
        if value is not None
    }
    return read_metadata(str(path), texts)


def known_names(
    path: Path, file: Path | None, class_names: Sequence[str], metadata: Metadata
) -> tuple[str, ...]:
    if class_names:
        return tuple(class_names)
    if file := file or find_sibling(path, ".names"):
        return read_names(file)
    return metadata.names or ()


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
    names, warnings = find_names(path, bound.classes or COCO)
    if bound.classes is None:
        warnings = [warn_of_coco(path, COCO)]
    return names, warnings
