"""What the outputs of a plan from elsewhere mean: a table, tried from the top. One row a layout.

A row is a function (outputs, description) -> PlanHead, or None where the outputs are not of its layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detector.errors import ModelError
from detector.models.darknet import head_layers, letter_boxed
from detector.models.darknet.cfg import read_cfg
from detector.models.darknet.plan import make_plan
from detector.nvidia.plan import Tensor
from detector.stages.heads.darknet import darknet_yolo, darknet_yolo_dense
from detector.stages.heads.decoded import decoded, decoded_dense


@dataclass(frozen=True, slots=True)
class Description:
    """All that is known besides the plan. ``names``: () where nobody told them."""

    path: Path
    height: int
    width: int
    batch: int
    cfg: Path | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanHead:
    """``outputs``: names of tensors that ``head`` wants, in its order. ``classes``: how many names must be there."""

    layout: str
    outputs: tuple[str, ...]
    head: Callable[..., Any]
    dense: Callable[..., Any]
    classes: int
    geometry: str
    pad_value: int = 114


def head_of(outputs: Sequence[Tensor], description: Description) -> PlanHead:
    """Raises ModelError that names the tensors."""
    for row in LAYOUTS:
        if (found := row(outputs, description)) is not None:
            return found
    seen = ", ".join(map(str, outputs))
    raise ModelError(
        f"{description.path}: what its outputs mean is not known ({seen}): give the darknet .cfg that it was made of "
        "(cfg: x.cfg in --config, or --cfg), or the class names of a head that decodes its rows (names: in --config, "
        "or --names)"
    )


def _darknet(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """Raw maps of a cfg's [yolo] layers, found by their shape, since a plan keeps no order."""
    if description.cfg is None:
        return None
    sections, _, _ = read_cfg(description.cfg)
    plan = make_plan(sections, size=(description.height, description.width), batch=description.batch)
    found = []
    for yolo in plan.yolos:
        shape = (len(yolo.anchors) * (5 + yolo.classes), yolo.height, yolo.width)
        fitting = [tensor.name for tensor in outputs if tensor.shape[1:] == shape]
        if len(fitting) != 1:
            seen = ", ".join(map(str, outputs))
            raise ModelError(
                f"{description.path}: {description.cfg.name} says that one output is {'x'.join(map(str, shape))} a "
                f"picture, the plan has {seen}; is it the cfg that the plan was made of?"
            )
        found += fitting
    layers = head_layers(plan)
    geometry, pad = letter_boxed(plan)
    return PlanHead(
        "darknet",
        tuple(found),
        partial(darknet_yolo, layers=layers),
        partial(darknet_yolo_dense, layers=layers),
        plan.yolos[0].classes,
        geometry,
        pad,
    )


def _decoded(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """One output [B, N, 5 + classes] of boxes in pixels, as YOLOv5 and YOLOv7 export it."""
    rows = [tensor for tensor in outputs if len(tensor.shape) == 3 and tensor.shape[2] == 5 + len(description.names)]
    if len(outputs) != 1 or not rows or not description.names:
        return None
    return PlanHead("decoded", (rows[0].name,), decoded, decoded_dense, len(description.names), "centre")


LAYOUTS = (_darknet, _decoded)
