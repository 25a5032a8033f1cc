"""Which head decodes the outputs of a TensorRT plan that was built elsewhere.

``LAYOUTS``, at the end, is a table that is tried from the top, one row for each layout. A row is a
function (outputs, description) -> PlanHead, or None where the outputs have another layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detector.core.errors import ModelError
from detector.core.models import layouts
from detector.core.models.base import Dense, Head
from detector.core.models.description import heads_of
from detector.core.models.layouts import MAX_DETECTIONS, PYRAMIDS, count_cells
from detector.core.stages.heads import darknet_yolo, darknet_yolo_dense
from detector.core.stages.readings import Reading

FINISHED = 6  # columns of a finished detection: x1, y1, x2, y2, score, class
A_YOLO = re.compile("yolo|ultralytics", re.IGNORECASE)
COCO = 80  # classes that are assumed where finished detections come without names


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a plan.

    ``shape``: -1 for a side that is chosen at run time. ``profiles``: of an input, the (smallest,
    best, largest) shape of each optimisation profile. ``dtype``: numpy's name, or TensorRT's where
    numpy has none.
    """

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    profiles: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def __str__(self) -> str:
        sides = "x".join("?" if side < 0 else str(side) for side in self.shape)
        return f"{'input' if self.is_input else 'output'} {self.name} {self.dtype} {sides}"


@dataclass(frozen=True, slots=True)
class Description:
    """What is known besides the plan.

    ``names``: () where they are unknown. ``finished``: its header says that it gives
    detections that need no NMS. ``about``: what its header calls the model.
    """

    path: Path
    height: int
    width: int
    batch: int
    cfg: Path | None
    names: tuple[str, ...]
    finished: bool = False
    about: str = ""

    def boxes_a_cell(self, rows: int) -> int | None:
        """1 or 3 if ``rows`` are that many boxes for each cell of this input's maps; else None."""
        pyramids = [count_cells(self.height, self.width, strides) for strides in PYRAMIDS]
        return next(
            (boxes for boxes in (1, 3) if rows in [boxes * count for count in pyramids]), None
        )


@dataclass(frozen=True, slots=True)
class PlanHead:
    """A head and what belongs to it.

    ``outputs``: names of the tensors that ``head`` wants, in its order. ``classes``: how many class
    names there must be; None for any number. ``needs_nms``: False if each object has one box.
    """

    layout: str
    outputs: tuple[str, ...]
    head: Head
    dense: Dense
    classes: int | None
    geometry: str
    pad_value: int = 114
    needs_nms: bool = True

    @property
    def reading(self) -> Reading | None:
        """What the outputs are read by; None for raw maps."""
        given = self.head.keywords if isinstance(self.head, partial) else {}
        return given.get("reading")


def head_of(outputs: Sequence[Tensor], description: Description) -> PlanHead:
    """The head for these outputs. Raises ModelError that lists them where none fits."""
    for row in LAYOUTS:
        if (head := row(outputs, description)) is not None:
            return head
    seen = ", ".join(map(str, outputs))
    raise ModelError(
        f"{description.path}: what its outputs mean is not known ({seen}): give the darknet .cfg "
        "that it was made from (cfg: x.cfg in --config, or --cfg), or the class names of a head "
        "that decodes its rows (names: in --config, or --names)"
    )


def _darknet(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """Raw maps of a cfg's [yolo] layers, told apart by their shapes: a plan keeps no order."""
    if description.cfg is None:
        return None
    from detector.core.models.formats.darknet import head_layers, input_geometry
    from detector.core.models.formats.darknet.cfg import read_cfg
    from detector.core.models.formats.darknet.layers import read_architecture

    sections, _, _ = read_cfg(description.cfg)
    architecture = read_architecture(
        sections, size=(description.height, description.width), batch=description.batch
    )
    found = []
    for yolo in architecture.yolos:
        shape = (len(yolo.anchors) * (5 + yolo.classes), yolo.height, yolo.width)
        fitting = [tensor.name for tensor in outputs if tensor.shape[1:] == shape]
        if len(fitting) != 1:
            seen = ", ".join(map(str, outputs))
            raise ModelError(
                f"{description.path}: {description.cfg.name} says that one output is "
                f"{'x'.join(map(str, shape))} a picture, but the plan has {seen}; "
                "is it the cfg that the plan was made from?"
            )
        found += fitting
    layers = head_layers(architecture)
    geometry, pad = input_geometry(architecture)
    return PlanHead(
        "darknet",
        tuple(found),
        partial(darknet_yolo, layers=layers),
        partial(darknet_yolo_dense, layers=layers),
        architecture.yolos[0].classes,
        geometry,
        pad,
    )


def _decoded_head(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """One output [B, N, 5 + classes] of boxes in pixels, as YOLOv5 and YOLOv7 export it."""
    shape = _only(outputs)
    if (
        shape is None
        or not description.names
        or shape[2] != 5 + len(description.names)
        or description.finished
    ):
        return None
    if shape[2] == FINISHED and description.boxes_a_cell(shape[1]) is None:
        return (
            None  # rows of one class are as wide as detections: only their number tells them apart
        )
    classes = len(description.names)
    head, dense = heads_of(layouts.decoded(), classes)
    return PlanHead("decoded", (outputs[0].name,), head, dense, classes, "centre")


def _anchor_free(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """One output [B, 4 + classes, cells], as YOLOv8, 9, 11 and 12 export it.

    Also its transpose, where the names prove it.
    """
    shape = _only(outputs)
    if shape is None or description.finished:
        return None
    if shape[1] > 4 and description.boxes_a_cell(shape[2]) == 1:
        classes, rows = shape[1] - 4, False
    elif shape[2] == 4 + len(description.names) > 4 and description.boxes_a_cell(shape[1]) == 1:
        classes, rows = shape[2] - 4, True
    else:
        return None
    head, dense = heads_of(layouts.anchor_free(rows=rows), classes)
    return PlanHead("anchor-free", (outputs[0].name,), head, dense, classes, "centre")


def _queries(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """One output [B, queries, 4 + classes] of RT-DETR, or 4 + score and class.

    The header must name it, because with two classes it looks like finished detections.
    """
    shape = _only(outputs)
    if shape is None or not re.search(r"rt-?detr", description.about, re.IGNORECASE):
        return None
    names = len(description.names)
    form = "joined"
    classes: int | None = shape[2] - 4
    if shape[2] == FINISHED and names not in (0, 2):
        form, classes = "numbered", None
    reading = layouts.queries(description.height, description.width, form)
    head, dense = heads_of(reading, names)
    own = (outputs[0].name,)
    return PlanHead("queries", own, head, dense, classes, "stretch", needs_nms=False)


def _corners(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """Boxes [B, N, 1, 4] and scores [B, N, classes], as pytorch-YOLOv4 exports YOLOv4."""
    boxes = [tensor for tensor in outputs if tensor.shape[2:] == (1, 4)]
    scores = [tensor for tensor in outputs if len(tensor.shape) == 3]
    if len(outputs) != 2 or not boxes or not scores or scores[0].shape[2] < 1:
        return None
    reading = layouts.corners(description.height, description.width)
    head, dense = heads_of(reading, scores[0].shape[2])
    names = boxes[0].name, scores[0].name
    return PlanHead("corners", names, head, dense, scores[0].shape[2], "stretch")


def _end_to_end(outputs: Sequence[Tensor], description: Description) -> PlanHead | None:
    """One output [B, detections, 6] of finished detections.

    The model was exported with NMS inside, or is a YOLOv10 or YOLO26. Other detectors' lists are as
    wide, with other columns: the header, the file's name or class names have to say that it is one.
    """
    shape = _only(outputs)
    if shape is None or shape[2] != FINISHED or shape[1] > MAX_DETECTIONS:
        return None
    said = f"{description.about}\n{description.path.stem}"
    known = description.finished or description.names or A_YOLO.search(said)
    if not known:
        return None
    if not description.finished and description.boxes_a_cell(shape[1]) is not None:
        return None
    head, dense = heads_of(layouts.finished(), len(description.names) or COCO)
    return PlanHead("end-to-end", (outputs[0].name,), head, dense, None, "centre", needs_nms=False)


def _only(outputs: Sequence[Tensor]) -> tuple[int, ...] | None:
    """The shape of the only output, if it has three sides and the last two are known; else None."""
    shape = outputs[0].shape if len(outputs) == 1 else ()
    return shape if len(shape) == 3 and -1 not in shape[1:] else None


LAYOUTS = (_darknet, _queries, _decoded_head, _anchor_free, _end_to_end, _corners)
