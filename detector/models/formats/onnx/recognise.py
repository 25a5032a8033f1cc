"""Which family an ONNX file is of, how its outputs are laid out, and which head reads them.

``FAMILIES`` says what each family wants at its input and which layouts its exports have;
``LAYOUTS``, at the end, says for each layout how it is recognised and which head decodes it.

layout       outputs                                                         head
decoded      [B, 3 boxes a cell, 5 + classes]  YOLOv5 and 7                  decoded
             [B, cells, 5 + classes]           YOLOv6, if named              decoded
grid         [B, cells, 5 + classes]           YOLOX, raw                    yolox
anchor-free  [B, 4 + classes, cells]           YOLOv3u, 8, 9, 11 and 12      anchor_free
queries      [B, queries, 4 + classes]         RT-DETR                       queries
end-to-end   [B, detections, 6] and the like   YOLOv10, 26, or NMS inside    end_to_end
corners      [B, N, 1, 4] and [B, N, classes]  YOLOv4, by pytorch-YOLOv4     corners

The number of rows tells most: 3 boxes a cell, 1 box a cell, or a few hundred detections. Where two
layouts have the same shape, the graph itself is asked: does the output come from convolutions
without arithmetic, is there an attention's GridSample? A file that fits no layout is refused with
the shapes that were seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from detector.errors import ModelError
from detector.models.base import Head, InputRules
from detector.models.formats.onnx.foreign import Dims, ForeignGraph, attributes_of
from detector.models.formats.onnx.inputs import TORCH_SIZES, meaning_of
from detector.stages import heads

if TYPE_CHECKING:
    import onnx

    from detector.models.formats.onnx.metadata import Metadata

# Layouts, with what their columns hold. Boxes are centre x, centre y, width, height.
DECODED = "decoded"  # a box in network pixels, objectness, class probabilities
GRID = "grid"  # a box as offsets from its cell and logarithms of sizes, objectness, probabilities
ANCHOR_FREE = "anchor-free"  # a box in network pixels, class probabilities
QUERIES = "queries"  # a box in 0..1, class probabilities or logits, joined or apart
END_TO_END = "end-to-end"  # finished detections: box corners, score, class; joined or apart
CORNERS = "corners"  # box corners in 0..1; apart from them, objectness x class probabilities

MAX_DETECTIONS = 3000  # rows of a list of finished detections; the smallest maps have fewer cells
MASK_SCALE = 4  # pixels of the input for one pixel of a segmentation model's masks
# Operators that compute nothing, or a logistic at most.
TRANSPARENT = frozenset(
    "Concat Transpose Reshape Identity Cast Sigmoid Slice Split Squeeze Unsqueeze Flatten "
    "QuantizeLinear DequantizeLinear".split()
)


@dataclass(frozen=True, slots=True)
class Family:
    """``layouts``: those of its exports, the usual one first. ``scale``: a factor on the 0..255 of
    a pixel. ``geometry`` and ``pad_value``: as in ``InputRules``.
    """

    name: str
    layouts: tuple[str, ...]
    geometry: str = "centre"
    scale: float = 1 / 255
    bgr: bool = False
    pad_value: int = 114


FAMILIES = {
    family.name: family
    for family in (
        Family("yolov4", (CORNERS,), "stretch"),
        Family("yolov5", (DECODED, ANCHOR_FREE, END_TO_END)),  # anchor-free: the later "u" models
        # DECODED with one box a cell and an objectness of 1; anchor-free: by Ultralytics.
        Family("yolov6", (DECODED, ANCHOR_FREE, END_TO_END)),
        Family("yolov7", (DECODED, END_TO_END)),
        Family("yolov8", (ANCHOR_FREE, END_TO_END)),
        Family("yolov9", (ANCHOR_FREE, END_TO_END)),
        Family("yolov10", (END_TO_END, ANCHOR_FREE)),
        Family("yolo11", (ANCHOR_FREE, END_TO_END)),
        Family("yolo12", (ANCHOR_FREE, END_TO_END)),
        Family("yolo26", (END_TO_END, ANCHOR_FREE)),
        Family("yolox", (GRID, DECODED, END_TO_END), "top-left-truncate", 1.0, True),
        Family("rtdetr", (QUERIES, END_TO_END), "stretch"),
    )
}
ALIASES = {"yolov11": "yolo11", "yolov12": "yolo12", "yolov26": "yolo26", "rt-detr": "rtdetr"}

# Strides of a network's maps, from the largest map to the smallest; P2 and P6 models have one more.
PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
# YOLOv3-tiny has two maps. They have so few cells that a list of detections may be as long, so only
# layouts of another shape than such a list look for them.
WITH_TINY = (*PYRAMIDS, (16, 32))


def cells(height: int, width: int, strides: tuple[int, ...]) -> int:
    """The number of cells of all maps."""
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


@dataclass(frozen=True, slots=True)
class Layout:
    """``outputs``: those that the head reads, in its order. ``form``: the variant of a layout."""

    kind: str
    outputs: tuple[str, ...]
    classes: int | None  # None: the outputs do not tell
    strides: tuple[int, ...] = ()
    form: str = ""


@dataclass(frozen=True, slots=True)
class Recognition:
    """``why``: what gave it away, as words for the user."""

    family: Family
    layout: Layout
    why: str


def recognise(
    graph: ForeignGraph, metadata: Metadata, size: tuple[int, int], asked: str | None = None
) -> Recognition:
    """The family and layout of a folded graph.

    ``size``: (height, width) of the input. ``asked``: the family that the user named.
    Raises ModelError with the shapes that were seen and with what would be needed.
    """
    evidence = _Evidence(graph, metadata, *size, graph.makers(), asked is not None)
    _refuse_masks(evidence)
    if asked is not None:
        family = FAMILIES[asked]
        for kind in family.layouts:
            if layout := LAYOUTS[kind].match(evidence):
                return Recognition(family, layout, "as asked for by --family")
        wanted = "; or ".join(LAYOUTS[kind].shape for kind in family.layouts)
        raise ModelError(
            f"{graph.name}: --family {asked}: its exports give {wanted}; but "
            f"{evidence.output_shapes()}"
        )
    named, where = _named_family(graph, metadata)
    for kind, row in LAYOUTS.items():
        if named is not None and kind not in FAMILIES[named].layouts:
            continue
        if layout := row.match(evidence):
            usual = "yolox" if layout.form == "cells" else row.usual_family
            name, why = (named, where) if named else (usual, "from its output's shape")
            return Recognition(FAMILIES[name], layout, f"{why}, {kind} outputs")
    raise ModelError(_refusal(evidence, named))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the matchers look at."""

    graph: ForeignGraph
    metadata: Metadata
    height: int
    width: int
    makers: dict[str, onnx.NodeProto]
    forced: bool  # the user said which family it is

    def dims(self, name: str) -> Dims:
        return self.graph.dims.get(name, ())

    def rank3_outputs(self) -> Iterator[tuple[str, int, int]]:
        """Name and last two sides of the outputs [B, n, m] of which both are known."""
        for name in self.graph.outputs:
            dims = self.dims(name)
            if len(dims) == 3 and dims[1] is not None and dims[2] is not None:
                yield name, dims[1], dims[2]

    def pyramid(
        self, rows: int, boxes: int, among: Iterable[tuple[int, ...]] = PYRAMIDS
    ) -> tuple[int, ...] | None:
        """The strides of the maps that give that many rows, with ``boxes`` boxes a cell."""
        for strides in among:
            if boxes * cells(self.height, self.width, strides) == rows:
                return strides
        return None

    def looks_finished(self, rows: int, columns: int) -> bool:
        """Whether it has the shape of a list of finished detections, and of nothing else."""
        return (
            columns == 6
            and rows <= MAX_DETECTIONS
            and not self.pyramid(rows, 1)
            and not self.pyramid(rows, 3)
        )

    def fits_names(self, classes: int) -> bool:
        """False where the file names another number of classes."""
        names = self.metadata.names
        return names is None or len(names) == classes or self.forced

    def ends_in_class(self, name: str, columns: int) -> bool:
        """Whether rows of six end in a score and the number of a class, not in two scores.

        The file names another number of classes than two, or whole numbers become the last column.
        """
        if columns != 6:
            return False
        if not self.fits_names(2):
            return True
        node = self.maker(name)
        last = self.makers.get(node.input[-1]) if node and node.op_type == "Concat" else None
        return last is not None and last.op_type == "Cast"

    def has_operator(self, operator: str) -> bool:
        return any(node.op_type == operator for node in self.graph.nodes)

    def maker(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a tensor; Identity and Cast compute nothing."""
        node = self.makers.get(name)
        while node is not None and node.op_type in ("Identity", "Cast"):
            node = self.makers.get(node.input[0])
        return node

    def is_raw(self, name: str) -> bool:
        """Whether an output is what convolutions gave, joined, with a logistic at most."""
        pending, met = [name], set()
        while pending:
            node = self.makers.get(pending.pop())
            if node is None:
                return False
            if node.op_type == "Conv" or id(node) in met:
                continue
            met.add(id(node))
            if node.op_type not in TRANSPARENT:
                return False
            constants = self.graph.constants
            pending += [tensor for tensor in node.input if tensor and tensor not in constants]
        return True

    def output_shapes(self) -> str:
        shapes = [
            f"{name} [{', '.join('?' if dim is None else str(dim) for dim in self.dims(name))}]"
            for name in self.graph.outputs
        ]
        return f"its outputs at {self.width}x{self.height} are {', '.join(shapes)}"


def _refuse_masks(evidence: _Evidence) -> None:
    """Refuses the segmentation models of YOLOv5 and YOLOv8.

    Their rows end in coefficients for masks, which have a quarter of the input's size. Read as
    detections, the coefficients would be classes.
    """
    graph = evidence.graph
    quarter = (evidence.height // MASK_SCALE, evidence.width // MASK_SCALE)
    maps = [name for name in graph.outputs if len(evidence.dims(name)) == 4]
    has_rows = any(True for _ in evidence.rank3_outputs())
    if len(maps) == 1 and evidence.dims(maps[0])[2:] == quarter and has_rows:
        raise ModelError(
            f"{graph.name}: is a model for segmentation: {evidence.output_shapes()}, and {maps[0]} "
            "holds masks; only detection is supported: export one whose task is detect"
        )


def _named_family(graph: ForeignGraph, metadata: Metadata) -> tuple[str | None, str]:
    """The family that the metadata's description names, else the file's name; and which of them.

    An input of sizes that RT-DETR and its descendants have says more than both.
    """
    if (name := _target_sizes(graph)) is not None:
        return "rtdetr", f"from its input {name}"
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


def _target_sizes(graph: ForeignGraph) -> str | None:
    """The input by which RT-DETR, D-FINE and DEIM scale their boxes to pixels, where there is one.

    What they return is then finished, in network pixels.
    """
    sizes = (info.name for info in graph.sizes)
    return next((name for name in sizes if meaning_of(name) is TORCH_SIZES), None)


def _refusal(evidence: _Evidence, named: str | None) -> str:
    graph = evidence.graph
    if any(len(evidence.dims(name)) >= 4 for name in graph.outputs):
        needed = (
            "these are raw maps whose anchors the file does not hold: export it with its boxes "
            "decoded (YOLOv7: --grid)"
        )
    else:
        known = "; ".join(f"{kind} {row.shape}" for kind, row in LAYOUTS.items())
        needed = (
            f"known are {known}: export it in one of these layouts, or say which family it is with "
            f"--family ({', '.join(FAMILIES)})"
        )
    family = f"it calls itself {named}, but " if named else "its family was not recognised: "
    return f"{graph.name}: {family}{evidence.output_shapes()}; {needed}"


# Matchers: the layout, where the outputs are of that kind; None otherwise


def _match_decoded(evidence: _Evidence) -> Layout | None:
    named, _ = _named_family(evidence.graph, evidence.metadata)
    for name, rows, columns in evidence.rank3_outputs():
        if columns < 6:
            continue
        asked = (
            evidence.forced
            and rows > columns
            and not evidence.is_raw(name)
            and not evidence.looks_finished(rows, columns)
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


def _match_grid(evidence: _Evidence) -> Layout | None:
    """Raw rows of one box a cell.

    In a network that was quantised dynamically, arithmetic stands behind every convolution, so the
    rows do not look raw. If such a file calls itself YOLOX, the missing e^size tells.
    """
    undecoded = not evidence.has_operator("Exp") and (
        evidence.forced or _named_family(evidence.graph, evidence.metadata)[0] == "yolox"
    )
    for name, rows, columns in evidence.rank3_outputs():
        strides = evidence.pyramid(rows, 1)
        if strides is None or columns < 6 or not evidence.fits_names(columns - 5):
            continue
        if undecoded or evidence.is_raw(name):
            return Layout(GRID, (name,), columns - 5, strides)
    return None


def _match_anchor_free(evidence: _Evidence) -> Layout | None:
    """Any number of cells will do where the user names the family: the maps may be unusual."""
    for name, first, second in evidence.rank3_outputs():
        fits = evidence.pyramid(second, 1, WITH_TINY) or (evidence.forced and second > first)
        if first >= 5 and fits and evidence.fits_names(first - 4):
            return Layout(ANCHOR_FREE, (name,), first - 4)
        asked = evidence.forced and first > second and not evidence.looks_finished(first, second)
        if second >= 5 and (evidence.pyramid(first, 1) or asked) and not evidence.is_raw(name):
            names = evidence.metadata.names
            if evidence.forced or (names is not None and len(names) == second - 4):
                return Layout(ANCHOR_FREE, (name,), second - 4, form="rows")
    return None


def _match_queries(evidence: _Evidence) -> Layout | None:
    if _target_sizes(evidence.graph) is not None:
        return None
    if (
        not evidence.has_operator("GridSample")
        and not evidence.forced
        and _named_family(evidence.graph, evidence.metadata)[0] != "rtdetr"
    ):
        return None
    outputs = list(evidence.rank3_outputs())
    boxes = [(name, rows) for name, rows, columns in outputs if columns == 4]
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


def _match_end_to_end(evidence: _Evidence) -> Layout | None:
    names = list(evidence.graph.outputs)
    if len(names) == 1:
        return _match_finished_rows(evidence, names[0])
    return _match_finished_parts(evidence, names)


def _match_finished_rows(evidence: _Evidence, name: str) -> Layout | None:
    """[B, K, 6], or YOLOv7's [K, 7] with the picture's number in front."""
    dims = evidence.dims(name)
    if len(dims) == 3 and dims[2] == 6 and (dims[1] is None or dims[1] <= MAX_DETECTIONS):
        rows = dims[1]
        stated = evidence.forced or evidence.metadata.nms or evidence.metadata.end2end
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


def _match_corners(evidence: _Evidence) -> Layout | None:
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


def _box_column(evidence: _Evidence, name: str) -> int | None:
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


def _match_finished_parts(evidence: _Evidence, names: list[str]) -> Layout | None:
    """Boxes [B, K, 4] with scores and classes [B, K], or [B, K, 5] with classes.

    A count [B, 1] may be among the outputs.
    """
    wide = [
        name for name in names if len(evidence.dims(name)) == 3 and evidence.dims(name)[2] in (4, 5)
    ]
    flat = [name for name in names if len(evidence.dims(name)) == 2 and evidence.dims(name)[1] != 1]
    counts = [name for name in names if name not in wide and name not in flat]
    if len(wide) != 1:
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


# Heads

Dense = Callable[[list[NDArray[np.float32]]], NDArray[np.float32]]
"""Every row of one picture's outputs, decoded: ``Network.dense``."""


def build_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    """``Network.head`` and ``Network.dense`` of a layout. ``classes``: how many names there are."""
    return LAYOUTS[layout.kind].head(layout, rules, classes)


def _decoded_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    return heads.decoded_rows, heads.decoded_rows_dense


def _grid_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    grid = heads.Grid(rules.height, rules.width, layout.strides)
    return partial(heads.yolox, grid=grid), partial(heads.yolox_dense, grid=grid)


def _anchor_free_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    rows = layout.form == "rows"
    return partial(heads.anchor_free, rows=rows), partial(heads.anchor_free_dense, rows=rows)


def _queries_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    if layout.form == "numbered":
        size = rules.width, rules.height
        finished = partial(heads.end_to_end, form="queries", size=size)
        return finished, partial(heads.end_to_end_dense, form="queries", size=size, classes=classes)
    logits = layout.form == "logits"
    head = partial(heads.queries, width=rules.width, height=rules.height, logits=logits)
    dense = partial(heads.queries_dense, width=rules.width, height=rules.height, logits=logits)
    return head, dense


def _corners_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    head = partial(heads.corners, width=rules.width, height=rules.height)
    dense = partial(heads.corners_dense, width=rules.width, height=rules.height)
    return head, dense


def _end_to_end_head(layout: Layout, rules: InputRules, classes: int) -> tuple[Head, Dense]:
    head = partial(heads.end_to_end, form=layout.form)
    return head, partial(heads.end_to_end_dense, form=layout.form, classes=classes)


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """``usual_family``: assumed where nothing names one; others of that layout want the same input.
    ``needs_nms``: whether several boxes of one object may come out.
    """

    shape: str  # for messages
    usual_family: str
    needs_nms: bool
    match: Callable[[_Evidence], Layout | None]
    head: Callable[[Layout, InputRules, int], tuple[Head, Dense]]


# They are tried in this order where the family is not named: first those that the number of rows
# proves.
LAYOUTS = {
    DECODED: LayoutRow(
        "[batch, rows, 5 + classes] with rows = 3 boxes a cell",
        "yolov5",
        True,
        _match_decoded,
        _decoded_head,
    ),
    GRID: LayoutRow("[batch, cells, 5 + classes]", "yolox", True, _match_grid, _grid_head),
    ANCHOR_FREE: LayoutRow(
        "[batch, 4 + classes, cells]", "yolov8", True, _match_anchor_free, _anchor_free_head
    ),
    QUERIES: LayoutRow(
        "[batch, queries, 4 + classes], or 4 + score and class, or boxes [batch, queries, 4] "
        "beside logits [batch, queries, classes]",
        "rtdetr",
        False,
        _match_queries,
        _queries_head,
    ),
    END_TO_END: LayoutRow(
        "[batch, detections, 6] or the like, after NMS",
        "yolov10",
        False,
        _match_end_to_end,
        _end_to_end_head,
    ),
    CORNERS: LayoutRow(
        "boxes [batch, rows, 1, 4] beside scores [batch, rows, classes]",
        "yolov4",
        True,
        _match_corners,
        _corners_head,
    ),
}
