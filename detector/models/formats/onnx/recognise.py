"""Family and output layout of a graph, from its metadata, names and shapes; refused with what was seen otherwise.

The number of rows tells most: 3 boxes a cell is YOLOv5 and 7, one a cell YOLOX or YOLOv8, a few hundred a list of
finished detections. Where two layouts have one shape, the graph itself is asked (does the output come from
convolutions without arithmetic? is there an attention's GridSample?).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detector.errors import ModelError
from detector.models.formats.onnx.foreign import Dims, ForeignGraph, attributes_of

if TYPE_CHECKING:
    import onnx


# ----------------------------------------------------------------------
# What each family of models wants at its input, and how its outputs may be laid out. One line a family.

DECODED = "decoded"  # [B, N, 5 + classes]: cx, cy, w, h in network pixels, objectness, class probabilities
ANCHOR_FREE = (
    "anchor-free"  # [B, 4 + classes, N]: cx, cy, w, h in network pixels, class probabilities
)
GRID = "grid"  # [B, N, 5 + classes] of YOLOX: offsets from cells, logarithms of sizes
END_TO_END = (
    "end-to-end"  # [B, K, 6] or [K, 7] or boxes, scores and classes apart: finished detections
)
QUERIES = "queries"  # [B, Q, 4 + classes] or logits and boxes apart; boxes cx, cy, w, h in 0..1

SHAPES = {  # for messages
    DECODED: "[batch, rows, 5 + classes] with rows = 3 boxes a cell",
    ANCHOR_FREE: "[batch, 4 + classes, cells]",
    GRID: "[batch, cells, 5 + classes]",
    END_TO_END: "[batch, detections, 6] or the like, after NMS",
    QUERIES: "[batch, queries, 4 + classes], or boxes [batch, queries, 4] beside logits [batch, queries, classes]",
}


@dataclass(frozen=True, slots=True)
class Family:
    """``layouts``: what its exports give, the usual one first. ``scale``: on the 0..255 of a pixel."""

    name: str
    layouts: tuple[str, ...]
    geometry: str = "centre"
    scale: float = 1 / 255
    bgr: bool = False
    pad_value: int = 114


FAMILIES = {
    family.name: family
    for family in (
        Family("yolov5", (DECODED, ANCHOR_FREE, END_TO_END)),  # anchor-free: the later "u" models
        Family("yolov7", (DECODED, END_TO_END)),
        Family("yolov8", (ANCHOR_FREE, END_TO_END)),
        Family("yolov9", (ANCHOR_FREE, END_TO_END)),
        Family("yolov10", (END_TO_END, ANCHOR_FREE)),
        Family("yolo11", (ANCHOR_FREE, END_TO_END)),
        Family("yolo12", (ANCHOR_FREE, END_TO_END)),
        Family("yolo26", (END_TO_END, ANCHOR_FREE)),
        Family("yolox", (GRID, DECODED, END_TO_END), "top-left-truncate", 1.0, True),
        Family("rtdetr", (QUERIES,), "stretch"),
    )
}
ALIASES = {"yolov11": "yolo11", "yolov12": "yolo12", "yolov26": "yolo26", "rt-detr": "rtdetr"}

# Where nothing tells the family, the oldest one of that layout, which wants the same input.
USUAL = {
    DECODED: "yolov5",
    ANCHOR_FREE: "yolov8",
    GRID: "yolox",
    END_TO_END: "yolov10",
    QUERIES: "rtdetr",
}


def cells(height: int, width: int, strides: tuple[int, ...]) -> int:
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


# From the largest maps to the smallest; with an extra one at either end for P2 and P6 models.
PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))


# ----------------------------------------------------------------------
# What exporters write beside the graph: names, stride, input size, task. Read as data, never evaluated.

MAX_TEXT = 1 << 20
MAX_CLASSES = 100_000
MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class Metadata:
    """Keys that are absent are None or empty. ``imgsz``: (height, width)."""

    description: str = ""
    names: tuple[str, ...] | None = None
    stride: int | None = None
    imgsz: tuple[int, int] | None = None
    nms: bool = False
    end2end: bool = False


def read_metadata(path: str, entries: Mapping[str, str]) -> Metadata:
    """Raises ModelError for a task that is not detection; other values that make no sense count as absent."""
    task = str(entries.get("task", "detect")).strip().lower()
    if task not in ("detect", ""):
        raise ModelError(
            f"{path}: is a model for the task {task!r}; only detection is supported: export one whose task is detect"
        )
    arguments = _literal(entries.get("args", ""))
    nms = arguments.get("nms") if isinstance(arguments, dict) else None
    return Metadata(
        description=str(entries.get("description", ""))[:200],
        names=_names(_literal(entries.get("names", ""))),
        stride=_stride(_literal(entries.get("stride", ""))),
        imgsz=_size(_literal(entries.get("imgsz", ""))),
        nms=bool(nms) or _literal(entries.get("nms", "")) is True,
        end2end=_literal(entries.get("end2end", "")) is True,
    )


def _literal(text: str) -> Any:
    """A value written as in Python or JSON; None for anything else. ``literal_eval`` builds data and calls nothing."""
    text = text.strip()
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _names(value: Any) -> tuple[str, ...] | None:
    """A list, or a mapping of class ids from 0 on."""
    if isinstance(value, dict):
        try:
            numbered = {int(key): str(name) for key, name in value.items()}
        except (TypeError, ValueError):
            return None
        if sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[key] for key in range(len(numbered))]
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_CLASSES:
        return None
    # A name goes into tables, file names and pictures.
    printable = ["".join(c for c in str(name) if c.isprintable()).strip() for name in value]
    return tuple(name or f"class{at}" for at, name in enumerate(printable))


def _stride(value: Any) -> int | None:
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, int | float) for item in value)
    ):
        value = max(value)
    return int(value) if isinstance(value, int | float) and 1 <= value <= 1024 else None


def _size(value: Any) -> tuple[int, int] | None:
    if isinstance(value, int):
        value = [value, value]
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or not all(isinstance(side, int) for side in value)
    ):
        return None
    height, width = value
    return (height, width) if 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE else None


MAX_DETECTIONS = (
    3000  # rows of a finished list; the smallest pyramids have fewer cells, but other counts
)
PROTOTYPES = 4  # pixels of the input for one of a mask's prototypes
TRANSPARENT = frozenset(
    "Concat Transpose Reshape Identity Cast Sigmoid Slice Split Squeeze Unsqueeze Flatten QuantizeLinear "
    "DequantizeLinear".split()
)


@dataclass(frozen=True, slots=True)
class Layout:
    """``outputs``: the ones that the head reads, in its order. ``form`` tells variants of one layout apart."""

    kind: str
    outputs: tuple[str, ...]
    classes: int | None  # None: the outputs do not tell
    strides: tuple[int, ...] = ()
    form: str = ""


@dataclass(frozen=True, slots=True)
class Recognised:
    family: Family
    layout: Layout
    why: str


@dataclass(frozen=True, slots=True)
class _Seen:
    graph: ForeignGraph
    metadata: Metadata
    height: int
    width: int
    makers: dict[str, onnx.NodeProto]
    forced: bool  # somebody said which family it is

    def dims(self, name: str) -> Dims:
        return self.graph.dims.get(name, ())

    def rank3(self) -> Iterator[tuple[str, int, int]]:
        """Outputs [B, A, B] of which the last two sides are known."""
        for name in self.graph.outputs:
            dims = self.dims(name)
            if len(dims) == 3 and dims[1] is not None and dims[2] is not None:
                yield name, dims[1], dims[2]

    def pyramid(self, rows: int, boxes: int) -> tuple[int, ...] | None:
        """The strides whose cells give that many rows."""
        for strides in PYRAMIDS:
            if boxes * cells(self.height, self.width, strides) == rows:
                return strides
        return None

    def finished(self, rows: int, columns: int) -> bool:
        """Whether it has the shape of a list of finished detections, and no other."""
        return (
            columns == 6
            and rows <= MAX_DETECTIONS
            and not self.pyramid(rows, 1)
            and not self.pyramid(rows, 3)
        )

    def maker(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a tensor; what only hands it on is passed over."""
        node = self.makers.get(name)
        while node is not None and node.op_type in ("Identity", "Cast"):
            node = self.makers.get(node.input[0])
        return node

    def operators(self) -> set[str]:
        return {node.op_type for node in self.graph.nodes}


def recognise(
    graph: ForeignGraph, metadata: Metadata, size: tuple[int, int], asked: str | None = None
) -> Recognised:
    """``asked``: the family that the user named. Raises ModelError with the shapes seen and what would be needed."""
    seen = _Seen(graph, metadata, *size, graph.makers(), asked is not None)
    _refuse_masks(seen)
    if asked is not None:
        family = FAMILIES[asked]
        for kind in family.layouts:
            if layout := MATCHERS[kind](seen):
                return Recognised(family, layout, "as asked for by --family")
        wanted = "; or ".join(SHAPES[kind] for kind in family.layouts)
        raise ModelError(f"{graph.name}: --family {asked}: gives {wanted}; {_shapes(seen)}")
    named, source = _named(graph, metadata)
    kinds = [kind for kind in MATCHERS if named is None or kind in FAMILIES[named].layouts]
    for kind in kinds:
        if layout := MATCHERS[kind](seen):
            usual = "yolox" if layout.form == "cells" else USUAL[kind]
            name, why = (named, source) if named else (usual, "from its output's shape")
            return Recognised(FAMILIES[name], layout, f"{why}, {kind} outputs")
    raise ModelError(_refusal(seen, named))


def _refuse_masks(seen: _Seen) -> None:
    """YOLOv5's and YOLOv8's segmentation: rows that end in coefficients, for masks of a quarter of the picture's size.
    Read as detections, the coefficients would be classes."""
    quarter = (seen.height // PROTOTYPES, seen.width // PROTOTYPES)
    maps = [name for name in seen.graph.outputs if len(seen.dims(name)) == 4]
    if len(maps) == 1 and seen.dims(maps[0])[2:] == quarter and any(True for _ in seen.rank3()):
        raise ModelError(
            f"{seen.graph.name}: is a model for segmentation: {_shapes(seen)}, and {maps[0]} holds masks; only "
            "detection is supported: export one whose task is detect"
        )


def _named(graph: ForeignGraph, metadata: Metadata) -> tuple[str | None, str]:
    """A family's name in the description, else in the file's."""
    for text, where in (
        (metadata.description, "from the metadata"),
        (graph.name, "from the file's name"),
    ):
        found = re.search(r"yolox|yolov?(5|7|8|9|10|11|12|26)(?!\d)|rt[-_]?detr", text.lower())
        if found is None:
            continue
        number = found.group(1)
        if number is None:
            return ("yolox" if found.group() == "yolox" else "rtdetr"), where
        return (f"yolov{number}" if int(number) <= 10 else f"yolo{number}"), where
    return None, ""


def _shapes(seen: _Seen) -> str:
    parts = [
        f"{name} [{', '.join('?' if dim is None else str(dim) for dim in seen.dims(name))}]"
        for name in seen.graph.outputs
    ]
    return f"its outputs at {seen.width}x{seen.height} are {', '.join(parts)}"


def _refusal(seen: _Seen, named: str | None) -> str:
    raw = any(len(seen.dims(name)) >= 4 for name in seen.graph.outputs)
    needed = (
        "these are raw maps whose anchors the file does not hold: export it with its boxes decoded (YOLOv7: --grid)"
        if raw
        else f"known are {'; '.join(f'{kind} {shape}' for kind, shape in SHAPES.items())}: export it so, or say what "
        f"it is with --family ({', '.join(FAMILIES)})"
    )
    family = f"it calls itself {named}, but " if named else "its family was not recognised: "
    return f"{seen.graph.name}: {family}{_shapes(seen)}; {needed}"


def _decoded(seen: _Seen) -> Layout | None:
    for name, rows, columns in seen.rank3():
        if columns < 6:
            continue
        asked = (
            seen.forced
            and rows > columns
            and not _is_raw(seen, name)
            and not seen.finished(rows, columns)
        )
        if seen.pyramid(rows, 3) or asked:
            return Layout(DECODED, (name,), columns - 5)
        # YOLOX exported with its decoding inside: the only one-box-a-cell family with e^size in the graph.
        if (
            seen.pyramid(rows, 1)
            and "Exp" in seen.operators()
            and not _is_raw(seen, name)
            and _fits_names(seen, columns - 5)
        ):
            return Layout(DECODED, (name,), columns - 5, form="cells")
    return None


def _grid(seen: _Seen) -> Layout | None:
    """Raw rows of one box a cell. In a network that was quantised dynamically arithmetic stands behind every
    convolution; of one that calls itself YOLOX the missing e^size tells then."""
    undecoded = "Exp" not in seen.operators() and (
        seen.forced or _named(seen.graph, seen.metadata)[0] == "yolox"
    )
    for name, rows, columns in seen.rank3():
        strides = seen.pyramid(rows, 1)
        if strides is None or columns < 6 or not _fits_names(seen, columns - 5):
            continue
        if undecoded or _is_raw(seen, name):
            return Layout(GRID, (name,), columns - 5, strides)
    return None


def _anchor_free(seen: _Seen) -> Layout | None:
    """Where somebody says that it is so, any number of cells will do: the maps may be others than usual."""
    for name, first, second in seen.rank3():
        asked = seen.forced and second > first
        if first >= 5 and (seen.pyramid(second, 1) or asked) and _fits_names(seen, first - 4):
            return Layout(ANCHOR_FREE, (name,), first - 4)
        asked = seen.forced and first > second and not seen.finished(first, second)
        if second >= 5 and (seen.pyramid(first, 1) or asked) and not _is_raw(seen, name):
            names = seen.metadata.names
            if seen.forced or (names is not None and len(names) == second - 4):
                return Layout(ANCHOR_FREE, (name,), second - 4, form="rows")
    return None


def _fits_names(seen: _Seen, classes: int) -> bool:
    """Where the file says how many classes there are, a layout that gives another number is not it."""
    names = seen.metadata.names
    return names is None or len(names) == classes or seen.forced


def _end_to_end(seen: _Seen) -> Layout | None:
    names = list(seen.graph.outputs)
    if len(names) == 1:
        return _finished_rows(seen, names[0])
    return _finished_parts(seen, names)


def _finished_rows(seen: _Seen, name: str) -> Layout | None:
    dims = seen.dims(name)
    if len(dims) == 3 and dims[2] == 6 and (dims[1] is None or dims[1] <= MAX_DETECTIONS):
        rows = dims[1]
        stated = seen.forced or seen.metadata.nms or seen.metadata.end2end
        if rows is not None and (seen.pyramid(rows, 1) or seen.pyramid(rows, 3)) and not stated:
            return None
        if "GridSample" in seen.operators() and not stated:
            return None  # queries of two classes
        return Layout(END_TO_END, (name,), None, form="rows")
    if len(dims) == 2 and dims[1] == 7 and _box_column(seen, name) == 1:
        return Layout(END_TO_END, (name,), None, form="batch-rows")
    return None


def _box_column(seen: _Seen, name: str) -> int | None:
    """Where the four columns of the box begin in [K, 7]: YOLOv7 writes batch, box, class, score; others do not."""
    node = seen.maker(name)
    if node is None or node.op_type != "Concat" or attributes_of(node)["axis"] not in (1, -1):
        return None
    start = 0
    for part in node.input:
        dims = seen.dims(part)
        if len(dims) != 2 or dims[1] is None:
            return None
        if dims[1] == 4:
            return start
        start += dims[1]
    return None


def _finished_parts(seen: _Seen, names: list[str]) -> Layout | None:
    """Boxes [B, K, 4] with scores and classes [B, K], or [B, K, 5] with classes; a count [B, 1] may stand beside."""
    wide = [name for name in names if len(seen.dims(name)) == 3 and seen.dims(name)[2] in (4, 5)]
    flat = [name for name in names if len(seen.dims(name)) == 2 and seen.dims(name)[1] != 1]
    counts = [name for name in names if name not in wide and name not in flat]
    if len(wide) != 1 or any(
        seen.dims(flat_name)[1] != seen.dims(wide[0])[1] for flat_name in flat
    ):
        return None
    if len(counts) > 1 or any(seen.dims(name)[-1:] not in ((1,), ()) for name in counts):
        return None
    scores = [name for name in flat if re.search(r"score|conf", name.lower())]
    labels = [name for name in flat if name not in scores]
    if seen.dims(wide[0])[2] == 5 and len(flat) == 1:
        return Layout(END_TO_END, (wide[0], flat[0]), None, form="boxes-with-scores")
    if len(scores) == 1 and len(labels) == 1 and seen.dims(wide[0])[2] == 4:
        return Layout(END_TO_END, (wide[0], scores[0], labels[0]), None, form="parts")
    return None


def _queries(seen: _Seen) -> Layout | None:
    if (
        "GridSample" not in seen.operators()
        and not seen.forced
        and _named(seen.graph, seen.metadata)[0] != "rtdetr"
    ):
        return None
    found = list(seen.rank3())
    boxes = [(name, rows) for name, rows, columns in found if columns == 4]
    if len(boxes) == 1:
        for name, rows, columns in found:
            if name != boxes[0][0] and rows == boxes[0][1]:
                made = seen.maker(name)
                form = (
                    "probabilities" if made is not None and made.op_type == "Sigmoid" else "logits"
                )
                return Layout(QUERIES, (name, boxes[0][0]), columns, form=form)
    for name, rows, columns in found:
        if (
            len(found) == 1
            and columns >= 5
            and rows <= MAX_DETECTIONS
            and not seen.pyramid(columns, 1)
        ):
            return Layout(QUERIES, (name,), columns - 4, form="joined")
    return None


def _is_raw(seen: _Seen, name: str) -> bool:
    """Whether an output is what convolutions gave, joined and put through a logistic at most."""
    pending, met = [name], set()
    while pending:
        node = seen.makers.get(pending.pop())
        if node is None:
            return False
        if node.op_type == "Conv" or id(node) in met:
            continue
        met.add(id(node))
        if node.op_type not in TRANSPARENT:
            return False
        pending += [given for given in node.input if given and given not in seen.graph.constants]
    return True


# The order counts where the family is not named: what the number of rows proves comes first.
MATCHERS: dict[str, Callable[[_Seen], Layout | None]] = {
    DECODED: _decoded,
    GRID: _grid,
    ANCHOR_FREE: _anchor_free,
    QUERIES: _queries,
    END_TO_END: _end_to_end,
}
