"""Descriptions of a model's input and outputs as YAML files: ``--describe model.yaml``.

For each family that we know, cfg/families has such a file. ``bind`` matches a description with the
outputs of a graph and returns a ``Bound``. docs/models.md explains every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from detector.core.errors import ModelError
from detector.core.errors.guard import keep
from detector.core.errors.reading import read_text
from detector.core.models import catalogue
from detector.core.models.layouts import layouts
from detector.core.models.layouts.base import Bound, JoinedOutput
from detector.core.models.layouts.described import cells_fit
from detector.core.models.layouts.output_shapes import Dims
from detector.core.stages.readings import Cells, Columns, Reading

PIXEL = "1/255"
MAX_SIDE = 8192
# Columns are written as 4, 0-3 (both included), 4- (to the end), last 32, or "but last 32" (all
# except the last 32). A range is not written as 1:30, because YAML reads that as the number 90.
COLUMNS = re.compile(
    r"(?P<first>\d{1,6})(?P<to>-(?P<last>\d{1,6})?)?|(?P<but>but )?last (?P<n>\d{1,6})"
)
SIDES = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3})")
ColumnNumber = Annotated[int, Meta(ge=0)]  # 0: the first column
TEMPLATE = "for a template, run: detect-video models describe X.onnx"
NUMBER = re.compile(r"([0-9.eE+-]+)(?:\s*/\s*([0-9.eE+-]+))?")
# Lists of names for descriptions. COCO numbers its 80 classes from 1 to 90. Networks with these
# numbers also have columns for the ten unused numbers (coco-90), and often for 0 (coco-91).
NAME_LISTS = {"coco-80": "coco.names", "coco-91": "coco-91.names", "coco-90": "coco-91.names"}


class _Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping in which unknown keys are errors."""


class InputDescription(_Mapping, frozen=True):
    """How the network's input is computed from pixels of 0 to 255: (pixel x ``scale`` - ``mean``) /
    ``deviation``. Mean and deviation are in the order of ``colour``. ``pad``: the colour of the
    padding, as one grey value, or as red, green and blue.
    """

    colour: Literal["rgb", "bgr"] = "rgb"
    scale: float | str = PIXEL
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] | None = None
    fit: Literal["letterbox", "stretch"] = "letterbox"
    align: Literal["centre", "top-left"] = "centre"
    rounding: Literal["nearest", "down"] = "nearest"
    pad: int | tuple[int, int, int] = 114
    size: str | None = None


class BoxesDescription(_Mapping, frozen=True):
    """``tensor``: an output's name, its possible names, or its number. ``levels``: one output per
    stride, instead of ``tensor``. ``columns``: see COLUMNS. ``axis``: which axis has the columns.
    ``of``: whether coordinates in 0..1 are fractions of the input or of the picture."""

    tensor: str | int | tuple[str, ...] | None = None
    columns: str | int | None = None
    form: Literal["xyxy", "xywh", "cxcywh", "yxyx"] = "xyxy"
    unit: Literal["pixels", "fraction"] = "pixels"
    of: Literal["input", "picture"] = "input"
    axis: Literal["last", "first"] = "last"
    levels: tuple[str | int, ...] | None = None


class ScoresDescription(_Mapping, frozen=True):
    """``several``: each class above the threshold gives a detection, not only the best class."""

    tensor: str | int | tuple[str, ...] | None = None
    columns: str | int | None = None
    values: Literal["probabilities", "logits", "softmax"] = "probabilities"
    background: Literal["none", "first", "last"] = "none"
    axis: Literal["last", "first"] = "last"
    several: bool = False
    levels: tuple[str | int, ...] | None = None


class ClassesDescription(_Mapping, frozen=True):
    """The classes of finished detections. ``first``: the class number that has the first name."""

    tensor: str | int | tuple[str, ...]
    column: ColumnNumber | None = None
    first: int = 0


class ColumnDescription(_Mapping, frozen=True):
    tensor: str | int | tuple[str, ...]
    column: ColumnNumber | None = None


class ObjectnessDescription(_Mapping, frozen=True):
    """``mean``: how objectness and a class probability are combined into a score."""

    tensor: str | int | tuple[str, ...] | None = None
    column: ColumnNumber | None = None
    levels: tuple[str | int, ...] | None = None
    mean: Literal["product", "geometric"] = "product"


class CellsDescription(_Mapping, frozen=True):
    """The cells to which the rows' boxes are relative (``Cells`` in stages/readings.py)."""

    kind: Literal["offsets", "linear", "distances"]
    strides: tuple[int, ...]
    bins: int = 1
    centre: float = 0.0
    anchors: int = 1
    sizes: tuple[tuple[float | tuple[float, float], ...], ...] = ()
    variances: tuple[float, float] = (1.0, 1.0)

    def of(self, height: int, width: int) -> Cells:
        return Cells(height=height, width=width, **msgspec.structs.asdict(self))


class OutputsDescription(_Mapping, frozen=True):
    """``nms``: "needed" if an object may get several boxes, "inside" if the network contains NMS,
    "none" if the network was trained to give one box per object."""

    boxes: BoxesDescription
    scores: ScoresDescription
    classes: ClassesDescription | None = None
    objectness: ObjectnessDescription | None = None
    count: ColumnDescription | None = None
    cells: CellsDescription | None = None
    nms: Literal["needed", "inside", "none"] = "needed"


class Signs(_Mapping, frozen=True):
    """How to recognise a model file of a family in cfg/families; all signs must fit.

    ``words``: a regular expression for the file's metadata or name. ``operators`` must occur in the
    graph; operators in ``without`` must not. ``stem``: kernel sides of the first convolutions.
    ``picture``: possible names of the picture's input. ``inputs``: names of inputs for its size.
    ``normalises``: the graph subtracts a mean or divides by a deviation. ``sides``: see
    ``Evidence.sides``. ``classes``: number of class columns, including background.
    """

    words: str = ""
    operators: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    stem: tuple[int, ...] = ()
    picture: tuple[str, ...] = ()
    normalises: bool = False
    sides: Literal["", "linear", "moved"] = ""
    classes: int | None = None
    inputs: tuple[str, ...] = ()


class Description(_Mapping, frozen=True):
    """``layouts``: the possible layouts of a YOLO model; the number of rows decides between them
    (layouts/). Any other model has ``outputs``. ``names``: the classes, or a key of NAME_LISTS."""

    family: str
    version: Literal[1] = 1
    about: str = ""
    licence: str = ""
    source: str = ""
    input: InputDescription = InputDescription()
    layouts: tuple[str, ...] = ()
    outputs: OutputsDescription | None = None
    signs: Signs = Signs()
    names: tuple[str, ...] | str | None = None


def read_description(path: Path) -> Description:
    """Read a description. Raises ModelError, which names the wrong key."""
    from detector.core.errors.yaml_parsing import parse_yaml  # imports yaml, which most runs skip

    keep("the model's description", path)
    values = parse_yaml(read_text(path, "a description", error=ModelError), path, ModelError)
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds no keys; {TEMPLATE}")
    try:
        description = msgspec.convert(values, Description, strict=True)
    except msgspec.ValidationError as exc:
        raise ModelError(f"{path}: {exc}; {TEMPLATE}") from exc
    _check(path, description)
    return description


def _check(path: Path, description: Description) -> None:
    try:
        pixel_scale(description.input)
        given_size(description.input)
    except ValueError as exc:
        raise ModelError(f"{path}: {exc}") from exc
    unknown = [name for name in description.layouts if name not in layouts()]
    if unknown:
        raise ModelError(f"{path}: layouts: {unknown[0]!r} is not one of {', '.join(layouts())}")
    outputs, described = description.outputs, description.input
    if outputs is None:
        if not description.layouts:
            raise ModelError(
                f"{path}: lacks the key 'outputs', which says where boxes and scores are"
            )
        return
    if any(value == 0 for value in described.deviation or ()):
        raise ModelError(f"{path}: input.deviation: a 0 would divide by zero")
    pad = described.pad
    if not all(0 <= value <= 255 for value in ((pad,) if isinstance(pad, int) else pad)):
        raise ModelError(f"{path}: input.pad: {described.pad} is not 0 to 255")
    for part in (outputs.boxes.columns, outputs.scores.columns):
        if part is not None and COLUMNS.fullmatch(str(part)) is None:
            raise ModelError(
                f"{path}: columns: {part}: write 0-3, 4- (to the last), 4, 'last 9' or 'but last 9'"
            )
    _check_cells(path, outputs)
    if outputs.classes is not None and outputs.scores.background == "last":
        raise ModelError(
            f"{path}: outputs.scores.background: 'last' needs a score for each class; for finished "
            "detections write 'none', or 'first' (the class below classes.first means background)"
        )
    if outputs.classes is not None and outputs.scores.values == "softmax":
        raise ModelError(
            f"{path}: outputs.scores.values: 'softmax' needs a score for each class; finished "
            "detections have one score each, so write 'probabilities' or 'logits'"
        )
    if outputs.boxes.of == "picture" and outputs.boxes.unit == "pixels":
        raise ModelError(f"{path}: outputs.boxes.of: 'picture' needs 'unit: fraction'")


def _check_cells(path: Path, outputs: OutputsDescription) -> None:
    cells = outputs.cells
    if cells is not None and not cells_fit(cells.of(1, 1)):
        raise ModelError(
            f"{path}: outputs.cells: 'bins', 'anchors' and 'strides' must be whole numbers of at "
            "least 1, 'centre' 0 to 1, 'variances' above 0; 'sizes' must be a list of numbers "
            "above 0 for each stride, and cannot be combined with 'anchors' or 'distances'"
        )
    for name in ("boxes", "scores", "objectness"):
        part = getattr(outputs, name)
        if part is None or (part.tensor is None) == bool(part.levels):
            continue
        raise ModelError(
            f"{path}: outputs.{name}: give 'tensor' (one output) or 'levels' (one per stride)"
        )
    if cells is None and (outputs.boxes.levels or outputs.scores.levels):
        raise ModelError(f"{path}: outputs.boxes.levels: needs outputs.cells with the strides")


@cache
def families() -> Mapping[str, Description]:
    return {name: family(name) for name in family_names()}


@cache
def family_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


@cache
def family(name: str) -> Description:
    return read_description(_folder() / f"{name}.yaml")


def _folder() -> Path:
    return catalogue.folder() / "families"


def as_yaml(description: Description) -> str:
    import yaml

    values = msgspec.to_builtins(description)
    keys = ("version", "family", "about", "input", "layouts", "outputs", "names")
    shown = {key: values[key] for key in keys}
    text: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


def pixel_scale(described: InputDescription) -> float:
    match = NUMBER.fullmatch(str(described.scale).strip())
    try:
        value = float(match[1]) / float(match[2] or 1) if match else 0.0
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError(f"input.scale: {described.scale!r}: write a factor such as 1/255 or 1")
    return value


def given_size(described: InputDescription) -> tuple[int, int] | None:
    if described.size is None:
        return None
    sides = SIDES.fullmatch(described.size)
    if sides is None or max(int(sides[1]), int(sides[2])) > MAX_SIDE:
        raise ValueError(f"input.size: {described.size!r}: write 640x384 (width x height)")
    return int(sides[2]), int(sides[1])


def geometry_of(described: InputDescription) -> str:
    if described.fit == "stretch":
        return "stretch"
    if described.align == "centre":
        return "centre"
    return "top-left" if described.rounding == "nearest" else "top-left-truncate"


def listed_names(description: Description) -> tuple[str, ...] | None:
    from detector.core.models.names import read_names

    names = description.names
    if not isinstance(names, str):
        return names
    if names not in NAME_LISTS:
        raise ModelError(f"names: {names!r} is not a known list; known: {', '.join(NAME_LISTS)}")
    listed = read_names(catalogue.folder() / "names" / NAME_LISTS[names])
    return listed[1:] if names == "coco-90" else listed


class _MismatchError(Exception):
    """The graph does not match the description; the text says why."""


def bind(
    described: OutputsDescription, dims: Mapping[str, Dims], size: tuple[int, int]
) -> Bound | str:
    """Match a description with a graph; return a message if it does not fit. ``dims``: the shapes
    of the outputs, in order. ``size``: (height, width)."""
    try:
        return _Binder(dims, size).bind(described)
    except _MismatchError as exc:
        return str(exc)


class _Binder:
    def __init__(self, dims: Mapping[str, Dims], size: tuple[int, int]) -> None:
        self.dims, self.size, self.outputs = dict(dims), size, list(dims)
        self.used: dict[str, int] = {}
        self.bare: set[str] = set()
        self.joined: dict[str, JoinedOutput] = {}
        self.anchors: Sequence[int] = ()

    def bind(self, spec: OutputsDescription) -> Bound:
        height, width = self.size
        self.anchors = () if spec.cells is None else spec.cells.of(height, width).boxes
        boxes, rows, sides = self._bind_columns(spec.boxes, spec.boxes.columns, spec.boxes.axis)
        cells = spec.cells
        needed = 4 if cells is None or cells.kind != "distances" else 4 * cells.bins
        if spec.boxes.columns is None:
            if sides is None and not isinstance(spec.boxes.tensor, int):
                # No shape was inferred (YOLO-NAS pads its list), so we trust the output's name.
                boxes = replace(boxes, count=needed)
            elif sides != needed:
                raise _MismatchError(
                    f"{self._describe(spec.boxes)} has {sides} columns, not {needed}"
                )
        elif boxes.count != needed:
            raise _MismatchError(f"boxes need {needed} columns, not columns {spec.boxes.columns}")
        scores, score_rows, columns = self._bind_scores(spec)
        self._check_rows(rows, score_rows, spec.scores)
        classes = self._bind_column(spec.classes, rows) if spec.classes else None
        objectness = self._bind_column(spec.objectness, rows) if spec.objectness else None
        count = None if spec.count is None else self._index_of(self._output_name(spec.count))
        reading = Reading(
            boxes=boxes,
            scores=scores,
            form=spec.boxes.form,
            unit=(float(width), float(height)) if spec.boxes.unit == "fraction" else (1.0, 1.0),
            values=spec.scores.values,
            background=spec.scores.background,
            several=spec.scores.several,
            objectness=objectness,
            objectness_mean=spec.objectness.mean if spec.objectness else "product",
            cells=None if cells is None else self._bind_cells(cells, rows),
            classes=classes,
            first_class=spec.classes.first if spec.classes else 0,
            count=count,
        )
        classes_known = None if columns is None else columns - (reading.background != "none")
        if classes_known is not None and classes_known < 1:
            raise _MismatchError(f"{self._describe(spec.scores)} has no class column")
        return Bound(
            reading,
            tuple(self.used),
            frozenset(self.bare),
            classes_known,
            spec.nms == "needed",
            joined={name: self.joined[name] for name in self.used if name in self.joined},
        )

    def _bind_scores(self, spec: OutputsDescription) -> tuple[Columns, Any, int | None]:
        """Return the scores' columns, and the numbers of rows and columns. A number is None if it
        is unknown. For finished detections, the number of columns is None, too."""
        part = spec.scores
        if spec.classes is None:
            return self._bind_columns(part, part.columns, part.axis)
        column = None if part.columns is None else int(str(part.columns).split("-")[0])
        single = ObjectnessDescription(part.tensor, column)
        name = self._output_name(single)
        return self._bind_column(single, None), self._count_rows(name, column), None

    def _output_name(self, part: Any) -> str:
        levels = getattr(part, "levels", None)
        return self._join(levels) if levels else self._find_output(part.tensor)

    def _join(self, levels: Sequence[str | int]) -> str:
        outputs = tuple(self._find_output(level) for level in levels)
        if len(outputs) != len(self.anchors):
            raise _MismatchError(f"{len(outputs)} levels, but {len(self.anchors)} strides")
        tables = [self._read_level(*level) for level in zip(outputs, self.anchors, strict=True)]
        if len({columns for _, columns in tables}) > 1:
            shapes = ", ".join(f"{name} {_format_dims(self.dims[name])}" for name in outputs)
            raise _MismatchError(f"the levels have different numbers of columns: {shapes}")
        name, rows, columns = "+".join(outputs), sum(rows for rows, _ in tables), tables[0][1]
        self.joined[name] = JoinedOutput(outputs, rows, columns)
        self.dims[name] = (1, rows, columns)
        return name

    def _read_level(self, name: str, anchors: int) -> tuple[int, int]:
        dims = self.dims[name]
        sides = [side for side in dims if side is not None]
        if len(sides) < len(dims) or len(dims) not in (2, 3, 4):
            raise _MismatchError(f"output {name} {_format_dims(dims)} is not a level of known size")
        if len(sides) < 4:
            return sides[-2], sides[-1]
        if sides[1] % anchors:
            raise _MismatchError(
                f"output {name} {_format_dims(dims)} does not hold {anchors} anchors per cell"
            )
        return sides[2] * sides[3] * anchors, sides[1] // anchors

    def _find_output(self, names: Any) -> str:
        if isinstance(names, int):
            if 0 <= names < len(self.outputs):
                return self.outputs[names]
            raise _MismatchError(f"the model has no output number {names}")
        for name in (names,) if isinstance(names, str) else names:
            if name in self.dims:
                return str(name)
        listed = names if isinstance(names, str) else " or ".join(names)
        raise _MismatchError(f"the model has no output named {listed}")

    def _describe(self, part: Any) -> str:
        name = self._output_name(part)
        return f"output {name} {_format_dims(self.dims[name])}"

    def _index_of(self, name: str) -> int:
        return self.used.setdefault(name, len(self.used))

    def _bind_columns(
        self, part: Any, columns: str | int | None, axis: str
    ) -> tuple[Columns, int | None, int | None]:
        """Return (a part's columns in a table [1, N, columns], N, number of the part's columns)."""
        name = self._output_name(part)
        dims = self.dims[name]
        if len(dims) == 2:
            self.bare.add(name)
            dims = (1, *dims)
        dims = _as_table(dims)
        if len(dims) != 3:
            raise _MismatchError(f"{self._describe(part)} is not a table of rows")
        across = axis == "first"
        rows, sides = (dims[2], dims[1]) if across else (dims[1], dims[2])
        if columns is None:
            return Columns(self._index_of(name), 0, None, across), rows, sides
        first, count = _parse_columns(str(columns), sides)
        if sides is not None and (first >= sides or first + (count or 1) > sides):
            raise _MismatchError(f"{self._describe(part)} has no columns {columns}")
        columns_used = count if count is not None else None if sides is None else sides - first
        return Columns(self._index_of(name), first, count, across), rows, columns_used

    def _bind_column(self, part: Any, rows: int | None) -> Columns:
        """Return one column of a table, or an output that consists of one column."""
        name, column = self._output_name(part), part.column
        dims = _as_table(self.dims[name])
        if column is None:
            if len(dims) == 1:
                self.bare.add(name)
            elif not (len(dims) == 2 or (len(dims) == 3 and dims[2] == 1)):
                raise _MismatchError(f"{self._describe(part)} does not hold one number per row")
        elif len(dims) == 2:
            self.bare.add(name)
        elif len(dims) != 3:
            raise _MismatchError(f"{self._describe(part)} is not a table of rows")
        if column is not None and dims[-1] is not None and column >= dims[-1]:
            raise _MismatchError(f"{self._describe(part)} has no column {column}")
        self._check_rows(rows, self._count_rows(name, column), part)
        return Columns(self._index_of(name), column or 0, 1)

    def _count_rows(self, name: str, column: int | None) -> int | None:
        dims = self.dims[name]
        if column is None:
            return dims[0] if len(dims) == 1 else dims[1]
        return dims[-2]

    def _check_rows(self, rows: int | None, own_rows: int | None, part: Any) -> None:
        if None not in (rows, own_rows) and rows != own_rows:
            raise _MismatchError(
                f"{self._describe(part)} does not have the {rows} rows of the boxes"
            )

    def _bind_cells(self, cells: CellsDescription, rows: int | None) -> Cells:
        sized = cells.of(*self.size)
        if rows != sized.rows:
            strides = ", ".join(map(str, cells.strides))
            raise _MismatchError(
                f"strides {strides} make {sized.rows} boxes, but there are {rows} rows"
            )
        return sized


def _as_table(dims: Dims) -> Dims:
    """Return [1, N, columns] if the shape is [1, N, 1, columns], or Caffe's [1, 1, N, columns]."""
    if len(dims) == 4 and dims[2] == 1:
        return (dims[0], dims[1], dims[3])
    if len(dims) == 4 and dims[1] == 1:
        return (dims[0], dims[2], dims[3])
    return dims


def _parse_columns(columns: str, sides: int | None) -> tuple[int, int | None]:
    """Return (first, count) of ``columns`` (see COLUMNS). ``sides``: the number of all columns."""
    match = COLUMNS.fullmatch(columns)
    assert match is not None
    if match["n"] is not None:
        if sides is None:
            raise _MismatchError(f"columns {columns}: the number of columns is unknown")
        if int(match["n"]) >= sides:
            raise _MismatchError(f"columns {columns}: there are only {sides} columns")
        rest = sides - int(match["n"])
        return (0, rest) if match["but"] else (rest, int(match["n"]))
    first = int(match["first"])
    if match["last"] is None:
        return first, None if match["to"] else 1
    if int(match["last"]) < first:
        raise _MismatchError(f"columns {columns} end before they begin")
    return first, int(match["last"]) - first + 1


def _format_dims(dims: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if side is None else str(side) for side in dims)}]"
