"""The layouts of YOLOs' outputs, and by what each is recognised.

layout       outputs of a YOLO
decoded      [B, 3 boxes a cell, 5 + classes]  YOLOv5 and 7
             [B, cells, 5 + classes]           YOLOv6, if named
grid         [B, cells, 5 + classes]           YOLOX, raw
anchor-free  [B, 4 + classes, cells]           YOLOv3u, 8, 9, 11 and 12
queries      [B, queries, 4 + classes]         RT-DETR
end-to-end   [B, detections, 6] and the like   YOLOv10, 26, or NMS inside
corners      [B, N, 1, 4] and [B, N, classes]  YOLOv4, by pytorch-YOLOv4

The number of rows tells most: 3 boxes a cell, 1 box a cell, or a few hundred detections. Where two
layouts have the same shape, the graph itself is asked: does the output come from convolutions
without arithmetic, is there an attention's GridSample? Which one a file has, and what else it may
be, recognise.py decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models import layouts
from detector.core.models.formats.onnx.evidence import Evidence
from detector.core.models.formats.onnx.foreign import attributes_of
from detector.core.models.layouts import (
    ANCHOR_FREE,
    CORNERS,
    DECODED,
    END_TO_END,
    GRID,
    MAX_DETECTIONS,
    QUERIES,
    WITH_TINY,
)
from detector.core.stages.readings import Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.foreign import ForeignGraph
    from detector.core.models.formats.onnx.metadata import Metadata

HOW_TO_SAY = "say what they mean: detect-video models describe {} writes a file for --describe"


@dataclass(frozen=True, slots=True)
class Layout:
    """``outputs``: those that the head reads, in its order. ``form``: the variant of a layout."""

    kind: str
    outputs: tuple[str, ...]
    classes: int | None  # None: the outputs do not tell
    strides: tuple[int, ...] = ()
    form: str = ""


def named_family(graph: ForeignGraph, metadata: Metadata) -> tuple[str | None, str]:
    """The YOLO that the metadata's description names, else the file's name; and which of them."""
    for text, where in (
        (metadata.description, "from the metadata"),
        (graph.name, "from the file's name"),
    ):
        match = re.search(r"yolox|yolov?(5|6|7|8|9|10|11|12|26)(?!\d)|rt[-_]?detr", text.lower())
        if match is None:
            continue
        number = match.group(1)
        if number is None:
            return ("yolox" if match.group() == "yolox" else "rtdetr"), where
        return (f"yolov{number}" if int(number) <= 10 else f"yolo{number}"), where
    return None, ""


def _has_boxes_apart(evidence: Evidence) -> bool:
    """Whether boxes stand in an output of their own, so that others hold scores alone (YOLO-NAS).
    The user's word counts more."""
    return not evidence.forced and any(side == 4 for _, _, side in evidence.rank3_outputs())


# ----------------------------------------------------------------------
# Matchers of YOLOs' layouts: the layout, where the outputs are of that kind; None otherwise


def _match_decoded(evidence: Evidence) -> Layout | None:
    if _has_boxes_apart(evidence):
        return None
    named, _ = named_family(evidence.graph, evidence.metadata)
    for name, rows, columns in evidence.rank3_outputs():
        if columns < 6:
            continue
        asked = (
            evidence.forced
            and rows > columns
            and not evidence.is_raw(name)
            and not _looks_finished(evidence, rows, columns)
        )
        if evidence.pyramid(rows, 3, WITH_TINY) or asked:
            return Layout(DECODED, (name,), columns - 5)
        # One box a cell: YOLOX exported with its decoding inside, which has e^size in its graph, or
        # YOLOv6, which has to say so.
        if (
            evidence.pyramid(rows, 1)
            and (evidence.has_operator("Exp") or named == "yolov6")
            and not evidence.is_raw(name)
            and evidence.fits_names(columns - 5)
        ):
            return Layout(DECODED, (name,), columns - 5, form="cells")
    return None


def _match_grid(evidence: Evidence) -> Layout | None:
    """Raw rows of one box a cell.

    In a network that was quantised dynamically, arithmetic stands behind every convolution, so the
    rows do not look raw. If such a file calls itself YOLOX, the missing e^size tells.
    """
    if _has_boxes_apart(evidence):
        return None
    undecoded = not evidence.has_operator("Exp") and (
        evidence.forced or named_family(evidence.graph, evidence.metadata)[0] == "yolox"
    )
    for name, rows, columns in evidence.rank3_outputs():
        strides = evidence.pyramid(rows, 1)
        if strides is None or columns < 6 or not evidence.fits_names(columns - 5):
            continue
        if undecoded or evidence.is_raw(name):
            return Layout(GRID, (name,), columns - 5, strides)
    return None


def _match_anchor_free(evidence: Evidence) -> Layout | None:
    """Any number of cells will do where the user names the family: the maps may be unusual."""
    if _has_boxes_apart(evidence):
        return None
    branches = []
    for name, first, second in evidence.rank3_outputs():
        fits = evidence.pyramid(second, 1, WITH_TINY) or (evidence.forced and second > first)
        if first >= 5 and fits and evidence.fits_names(first - 4):
            branches.append(Layout(ANCHOR_FREE, (name,), first - 4))
    if branches:
        return _main_branch(evidence, branches)
    for name, first, second in evidence.rank3_outputs():
        asked = evidence.forced and first > second and not _looks_finished(evidence, first, second)
        if second >= 5 and (evidence.pyramid(first, 1) or asked) and not evidence.is_raw(name):
            names = evidence.metadata.names
            if evidence.forced or (names is not None and len(names) == second - 4):
                return Layout(ANCHOR_FREE, (name,), second - 4, form="rows")
    return None


def _main_branch(evidence: Evidence, branches: list[Layout]) -> Layout:
    """The branch that detects, of a network that was trained with another one beside it.

    YOLOv9's own exporter writes both, of one shape. The main branch's convolutions are cv4 and cv5
    of its last module, and it comes second. Raises ModelError where nothing tells.
    """
    if len(branches) == 1:
        return branches[0]
    words = [evidence.words_behind(branch.outputs[0]) for branch in branches]
    main = [at for at, text in enumerate(words) if re.search(r"\bcv[45]\b", text)]
    if len(branches) == 2 and len(main) == 1:
        return branches[main[0]]
    named, _ = named_family(evidence.graph, evidence.metadata)
    if len(branches) == 2 and (named == "yolov9" or evidence.forced):
        return branches[1]
    names = ", ".join(branch.outputs[0] for branch in branches)
    raise ModelError(
        f"{evidence.graph.name}: has {len(branches)} branches of one shape ({names}), of which one "
        "may only be for training, and nothing says which: --family yolov9 takes the second; "
        f"otherwise {HOW_TO_SAY.format(evidence.graph.name + '.onnx')}"
    )


def _looks_finished(evidence: Evidence, rows: int, columns: int) -> bool:
    """Whether it has the shape of a list of finished detections, and of nothing else."""
    return (
        columns == 6
        and rows <= MAX_DETECTIONS
        and not evidence.pyramid(rows, 1)
        and not evidence.pyramid(rows, 3)
    )


def _is_stated(evidence: Evidence) -> bool:
    """Whether the file has the metadata that Ultralytics' exporters write."""
    return evidence.metadata.names is not None and evidence.metadata.stride is not None


def _is_yolo(evidence: Evidence) -> bool:
    """Whether anything but the shape of a list says that a YOLO gives it."""
    named, _ = named_family(evidence.graph, evidence.metadata)
    return named is not None or _is_stated(evidence) or evidence.has_pyramid()


def _is_plugin(name: str) -> bool:
    """Whether an output has the name that the exporters of YOLOs give to boxes behind NMS."""
    return name == "det_boxes"


def _match_queries(evidence: Evidence) -> Layout | None:
    named = named_family(evidence.graph, evidence.metadata)[0] == "rtdetr" or evidence.forced
    # RT-DETR begins with convolutions of 3x3; other transformers that sample begin with 7x7, or
    # with patches, and want their pictures normalised.
    alike = evidence.has_operator("GridSample") and (_is_stated(evidence) or evidence.stem() == {3})
    if not named and not alike:
        return None
    outputs = list(evidence.rank3_outputs())
    boxes = [(name, rows) for name, rows, columns in outputs if columns == 4]
    if len(boxes) > 1:  # four classes
        boxes = [(name, rows) for name, rows in boxes if "box" in name.lower()]
    if len(boxes) == 1:
        boxes_name, queries = boxes[0]
        for name, rows, columns in outputs:
            if name != boxes_name and rows == queries:
                maker = evidence.maker(name)
                is_sigmoid = maker is not None and maker.op_type == "Sigmoid"
                form = "probabilities" if is_sigmoid else "logits"
                return Layout(QUERIES, (name, boxes_name), columns, form=form)
    for name, rows, columns in outputs:
        if (
            len(outputs) == 1
            and columns >= 5
            and rows <= MAX_DETECTIONS
            and not evidence.pyramid(columns, 1)
        ):
            if evidence.ends_in_class(name, columns):
                return Layout(QUERIES, (name,), None, form="numbered")
            return Layout(QUERIES, (name,), columns - 4, form="joined")
    return None


def _match_end_to_end(evidence: Evidence) -> Layout | None:
    names = list(evidence.graph.outputs)
    if len(names) == 1:
        return _match_finished_rows(evidence, names[0])
    return _match_finished_parts(evidence, names)


def _match_finished_rows(evidence: Evidence, name: str) -> Layout | None:
    """[B, K, 6], or YOLOv7's [K, 7] with the picture's number in front."""
    dims = evidence.dims(name)
    if len(dims) == 3 and dims[2] == 6 and (dims[1] is None or dims[1] <= MAX_DETECTIONS):
        rows = dims[1]
        stated = evidence.forced or evidence.metadata.nms or evidence.metadata.end2end
        if not (stated or _is_yolo(evidence)):
            return None  # lists of detections of other detectors have as many columns
        if (
            rows is not None
            and (evidence.pyramid(rows, 1) or evidence.pyramid(rows, 3))
            and not stated
        ):
            return None
        if evidence.has_operator("GridSample") and not stated:
            return None  # these are queries of two classes
        return Layout(END_TO_END, (name,), None, form="rows")
    if len(dims) == 2 and dims[1] == 7 and _box_column(evidence, name) == 1:
        return Layout(END_TO_END, (name,), None, form="batch-rows")
    return None


def _match_corners(evidence: Evidence) -> Layout | None:
    """What Darknet2ONNX of pytorch-YOLOv4 writes; its shapes are like no other's."""
    graph = evidence.graph
    boxes = [name for name in graph.outputs if evidence.dims(name)[2:] == (1, 4)]
    scores = list(evidence.rank3_outputs())
    if len(graph.outputs) != 2 or len(boxes) != 1 or len(scores) != 1:
        return None
    name, rows, classes = scores[0]
    if evidence.dims(boxes[0])[1] != rows or not evidence.fits_names(classes):
        return None
    return Layout(CORNERS, (boxes[0], name), classes)


def _box_column(evidence: Evidence, name: str) -> int | None:
    """Where the four columns of the box begin in [K, 7].

    YOLOv7 writes batch, box, class, score; others have other orders.
    """
    node = evidence.maker(name)
    if node is None or node.op_type != "Concat" or attributes_of(node)["axis"] not in (1, -1):
        return None
    start = 0
    for tensor in node.input:
        dims = evidence.dims(tensor)
        if len(dims) != 2 or dims[1] is None:
            return None
        if dims[1] == 4:
            return start
        start += dims[1]
    return None


def _match_finished_parts(evidence: Evidence, names: list[str]) -> Layout | None:
    """Boxes [B, K, 4] with scores and classes [B, K], or [B, K, 5] with classes.

    A count [B, 1] may be among the outputs.
    """
    wide = [
        name for name in names if len(evidence.dims(name)) == 3 and evidence.dims(name)[2] in (4, 5)
    ]
    flat = [name for name in names if len(evidence.dims(name)) == 2 and evidence.dims(name)[1] != 1]
    counts = [name for name in names if name not in wide and name not in flat]
    if len(wide) != 1 or not (evidence.forced or _is_yolo(evidence) or _is_plugin(wide[0])):
        return None
    if any(evidence.dims(name)[1] != evidence.dims(wide[0])[1] for name in flat):
        return None
    if len(counts) > 1 or any(evidence.dims(name)[-1:] not in ((1,), ()) for name in counts):
        return None
    scores = [name for name in flat if re.search(r"score|conf", name.lower())]
    labels = [name for name in flat if name not in scores]
    columns = evidence.dims(wide[0])[2]
    if columns == 5 and len(flat) == 1:
        return Layout(END_TO_END, (wide[0], flat[0]), None, form="boxes-with-scores")
    if columns == 4 and len(scores) == 1 and len(labels) == 1:
        return Layout(END_TO_END, (wide[0], scores[0], labels[0]), None, form="parts")
    return None


# ----------------------------------------------------------------------
# The table


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """``usual_family``: assumed where nothing names one; others of that layout want the same input.
    ``needs_nms``: whether several boxes of one object may come out.
    """

    shape: str  # for messages
    usual_family: str
    needs_nms: bool
    match: Callable[[Evidence], Layout | None]
    reading: Callable[[Layout, Evidence], Reading]


# They are tried in this order where the family is not named: first those that the number of rows
# proves.
LAYOUTS = {
    DECODED: LayoutRow(
        "[batch, rows, 5 + classes] with rows = 3 boxes a cell",
        "yolov5",
        True,
        _match_decoded,
        lambda layout, evidence: layouts.decoded(),
    ),
    GRID: LayoutRow(
        "[batch, cells, 5 + classes]",
        "yolox",
        True,
        _match_grid,
        lambda layout, evidence: layouts.grid(evidence.height, evidence.width, layout.strides),
    ),
    ANCHOR_FREE: LayoutRow(
        "[batch, 4 + classes, cells]",
        "yolov8",
        True,
        _match_anchor_free,
        lambda layout, evidence: layouts.anchor_free(rows=layout.form == "rows"),
    ),
    QUERIES: LayoutRow(
        "[batch, queries, 4 + classes], or 4 + score and class, or boxes [batch, queries, 4] "
        "beside logits [batch, queries, classes]",
        "rtdetr",
        False,
        _match_queries,
        lambda layout, evidence: layouts.queries(evidence.height, evidence.width, layout.form),
    ),
    END_TO_END: LayoutRow(
        "[batch, detections, 6] or the like, after NMS",
        "yolov10",
        False,
        _match_end_to_end,
        lambda layout, evidence: layouts.finished(layout.form),
    ),
    CORNERS: LayoutRow(
        "boxes [batch, rows, 1, 4] beside scores [batch, rows, classes]",
        "yolov4",
        True,
        _match_corners,
        lambda layout, evidence: layouts.corners(evidence.height, evidence.width),
    ),
}
