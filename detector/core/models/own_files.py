"""The description that a file of ours carries: what its graph alone does not say.

A graph that this program writes has raw outputs. The anchors, the class names and the shape of the
input belong to the ``Network``, so they go into the file beside the graph, as one JSON text in the
metadata of ONNX (``KEY``). ``describe`` writes it, ``parse_description`` reads it back, and
``OwnFile.head`` makes the same head of it.

A file may come from anywhere, so each value is checked: a wrong one is a ModelError that says to
build the file again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from detector.core.errors import ModelError
from detector.core.errors.parsing import parse_json, quote
from detector.core.models import layouts
from detector.core.models.base import Dense, Head, InputRules, Network
from detector.core.stages import heads, readings
from detector.core.types import GEOMETRIES

KEY = "detect-video"
VERSION = 2
MAX_CLASSES = 100_000
MAX_TEXT = 200  # characters of a name
MAX_LAYERS, MAX_ANCHORS = 16, 64
MAX_STRIDE = 1024
MAX_BINS = 256  # of a distance; generalised focal loss has 8 to 33
LARGEST = 1 << 53

Shape = tuple[int, ...]


class Kind(NamedTuple):
    """A head layout. ``arguments``: those of its functions that the input and the class names do
    not give. ``fits``: (output shapes, arguments, rules, classes) -> whether the head can read
    them.
    """

    head: Callable[..., Any]
    dense: Callable[..., Any]
    arguments: tuple[str, ...]
    fits: Callable[[Sequence[Shape], Mapping[str, Any], InputRules, int], bool]


@dataclass(frozen=True, slots=True)
class OwnFile:
    """What the description says. ``arguments``: of the head, checked. ``outputs``: the names of
    the graph's outputs in the head's order.
    """

    family: str
    precision: str
    geometry: str
    pad_value: int | tuple[int, int, int]
    of_picture: bool
    stride: int
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    needs_nms: bool
    parameters: int
    parameters_fused: int
    random_seed: int | None
    kind: str
    arguments: Mapping[str, Any]

    def head(
        self, origin: object, rules: InputRules, shapes: Sequence[Shape], classes: int
    ) -> tuple[Head, Dense]:
        """``Network.head`` and ``Network.dense`` for outputs of these shapes. Raises ModelError
        where they are not the head's.
        """
        kind = KINDS[self.kind]
        if not kind.fits(shapes, self.arguments, rules, classes):
            seen = ", ".join("x".join(map(str, shape)) for shape in shapes)
            raise _damaged(origin, f"its outputs {seen} are not those of its {self.kind} head")
        given = dict(self.arguments)
        if "reading" in given:
            given["reading"] = _at_size(given["reading"], rules)
        more = {"classes": classes} if self.kind == "list" else {}
        return partial(kind.head, **given), partial(kind.dense, **given, **more)


def describe(network: Network) -> str | None:
    """The description of a network, as JSON; None for a head that is none of ours."""
    head = network.head
    function, given = (head.func, head.keywords) if isinstance(head, partial) else (head, {})
    name = next((name for name, kind in KINDS.items() if kind.head is function), None)
    if name is None:
        return None
    arguments = dict(given)
    if "reading" in arguments:
        arguments["reading"] = _without_size(arguments["reading"])
    if "layers" in arguments:
        arguments["layers"] = [asdict(layer) for layer in arguments["layers"]]
    content = {
        "version": VERSION,
        "family": network.family,
        "precision": network.precision,
        "geometry": network.input.geometry,
        "pad_value": network.input.pad_value,
        "of_picture": network.input.of_picture,
        "stride": network.input.stride,
        "names": network.names,
        "outputs": [info.name for info in network.graph.graph.output],
        "needs_nms": network.needs_nms,
        "parameters": network.parameters,
        "parameters_fused": network.parameters_fused,
        "random_seed": network.random_seed,
        "kind": name,
        "arguments": {key: arguments[key] for key in KINDS[name].arguments if key in arguments},
    }
    return json.dumps(content, default=float)


def write_description(network: Network) -> None:
    """Puts the description into the network's graph, in place of one that it has."""
    kept = [entry for entry in network.graph.metadata_props if entry.key != KEY]
    text = describe(network)
    del network.graph.metadata_props[:]
    network.graph.metadata_props.extend(kept)
    if text is not None:
        network.graph.metadata_props.add(key=KEY, value=text)


def parse_description(text: str, origin: object) -> OwnFile:
    """Raises ModelError for a text that ``describe`` did not write."""
    content = parse_json(text, origin, ModelError, cure="build it again")
    version = content.get("version") if isinstance(content, dict) else None
    if version not in (1, VERSION):
        if isinstance(version, int) and version > VERSION:
            raise ModelError(f"{origin}: a newer detect-video wrote it; update detect-video")
        raise _damaged(origin, f"version {quote(version)}")
    if version == 1:
        content = _renew(content)
    reader = _Reader(origin, content)
    name = reader.one_of("kind", tuple(KINDS))
    seed = content.get("random_seed")
    return OwnFile(
        family=reader.text("family"),
        precision=reader.text("precision"),
        geometry=reader.one_of("geometry", GEOMETRIES),
        pad_value=reader.colour("pad_value"),
        of_picture=version > 1 and reader.boolean("of_picture"),
        stride=reader.whole("stride", 1, MAX_STRIDE),
        names=reader.texts("names", MAX_CLASSES),
        outputs=reader.texts("outputs", 3 * MAX_LAYERS),
        needs_nms=reader.boolean("needs_nms"),
        parameters=reader.whole("parameters", 0, LARGEST),
        parameters_fused=reader.whole("parameters_fused", 0, LARGEST),
        random_seed=None if seed is None else reader.whole("random_seed", 0, LARGEST),
        kind=name,
        arguments=_arguments(origin, name, content.get("arguments")),
    )


def _without_size(reading: readings.Reading) -> dict[str, Any]:
    """As JSON has it. Whatever is measured in pixels of the input is a word or a number of strides,
    so that the file can be opened at another size."""
    values = asdict(reading)
    values["unit"] = "pixels" if reading.unit == (1.0, 1.0) else "fraction"
    if reading.cells is not None:
        values["cells"] |= {"height": 0, "width": 0}
    return values


def _at_size(reading: readings.Reading, rules: InputRules) -> readings.Reading:
    """For an input of that size; the twin of ``_without_size``."""
    if reading.unit != (1.0, 1.0):
        reading = replace(reading, unit=(float(rules.width), float(rules.height)))
    if reading.cells is not None:
        cells = replace(reading.cells, height=rules.height, width=rules.width)
        reading = replace(reading, cells=cells)
    return reading


def _renew(content: Mapping[str, Any]) -> dict[str, Any]:
    """What version 1 wrote, in the words of today. Its kinds of heads were one for each layout."""
    given = content.get("arguments")
    given = given if isinstance(given, dict) else {}
    several = isinstance(content.get("outputs"), list) and len(content["outputs"]) > 1
    form = "joined" if not several else "logits" if given.get("logits") else "probabilities"
    finished = given.get("form", "rows")
    strides = given.get("strides")
    made: dict[str, Callable[[], readings.Reading]] = {
        "decoded-rows": layouts.decoded,
        "yolox": lambda: layouts.grid(0, 0, tuple(strides) if isinstance(strides, list) else ()),
        "anchor-free": lambda: layouts.anchor_free(rows=given.get("rows") is True),
        "queries": lambda: layouts.queries(2, 2, form),
        "corners": lambda: layouts.corners(2, 2),
        "end-to-end": lambda: layouts.finished(
            finished if isinstance(finished, str) and finished in layouts.FINISHED else "rows"
        ),
    }
    if content.get("kind") not in made:
        return dict(content)
    reading = made[content["kind"]]()
    kind = "rows" if reading.classes is None else "list"
    return {**content, "kind": kind, "arguments": {"reading": _without_size(reading)}}


def _parse_reading(origin: object, content: object) -> readings.Reading:
    """A checked reading of fractions of an unknown size. Raises ModelError."""
    import msgspec

    if isinstance(content, dict) and content.get("unit") in ("pixels", "fraction"):
        content = {**content, "unit": (1.0, 1.0) if content["unit"] == "pixels" else (2.0, 2.0)}
    try:
        reading = msgspec.convert(content, readings.Reading)
    except msgspec.ValidationError as exc:
        raise _damaged(origin, f"reading: {exc}") from exc
    cells = reading.cells
    fits = (
        reading.form in readings.FORMS
        and reading.values in readings.VALUES
        and reading.background in readings.BACKGROUNDS
        and 0 <= reading.first_class <= MAX_CLASSES
        and (cells is None or _cells_fit(cells))
        and all(_columns_fit(one) for one in _all_columns(reading))
    )
    if not fits:
        raise _damaged(origin, f"reading {quote(content)}")
    return reading


def _cells_fit(cells: readings.Cells) -> bool:
    return (
        cells.kind in readings.CELL_KINDS
        and 0 < len(cells.strides) <= MAX_LAYERS
        and all(1 <= stride <= MAX_STRIDE for stride in cells.strides)
        and 1 <= cells.bins <= MAX_BINS
        and 0 <= cells.centre <= 1
    )


def _columns_fit(columns: readings.Columns) -> bool:
    return (
        0 <= columns.output < 3 * MAX_LAYERS
        and 0 <= columns.first <= MAX_CLASSES
        and (columns.count is None or 1 <= columns.count <= MAX_CLASSES)
    )


def _all_columns(reading: readings.Reading) -> list[readings.Columns]:
    parts = (reading.boxes, reading.scores, reading.objectness, reading.classes)
    return [part for part in parts if part is not None]


def _damaged(origin: object, what: str) -> ModelError:
    return ModelError(
        f"{origin}: what detect-video wrote into it is damaged: {what}; build it again"
    )


class _Reader:
    """Values of a mapping, checked. Each method raises ModelError."""

    def __init__(self, origin: object, content: Mapping[str, Any]) -> None:
        self.origin, self.content = origin, content

    def _refusal(self, key: str) -> ModelError:
        return _damaged(self.origin, f"{key} {quote(self.content.get(key))}")

    def text(self, key: str) -> str:
        value = self.content.get(key)
        if not _is_text(value):
            raise self._refusal(key)
        return str(value)

    def texts(self, key: str, most: int) -> tuple[str, ...]:
        value = self.content.get(key)
        if not isinstance(value, list) or not 0 < len(value) <= most:
            raise self._refusal(key)
        if not all(_is_text(one) for one in value):
            raise self._refusal(key)
        return tuple(value)

    def one_of(self, key: str, words: tuple[str, ...]) -> str:
        value = self.content.get(key)
        if value not in words:
            raise self._refusal(key)
        return str(value)

    def boolean(self, key: str) -> bool:
        value = self.content.get(key)
        if not isinstance(value, bool):
            raise self._refusal(key)
        return value

    def whole(self, key: str, low: int, high: int) -> int:
        value = self.content.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._refusal(key)
        return value

    def colour(self, key: str) -> int | tuple[int, int, int]:
        """A grey, or red, green and blue."""
        value = self.content.get(key)
        if not isinstance(value, list):
            return self.whole(key, 0, 255)
        if len(value) != 3 or not all(type(one) is int and 0 <= one <= 255 for one in value):
            raise self._refusal(key)
        return (value[0], value[1], value[2])

    def number(self, key: str, low: float, high: float) -> float:
        value = self.content.get(key)
        if not _is_number(value, low, high):
            raise self._refusal(key)
        return float(value)  # type: ignore[arg-type]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


def _is_number(value: object, low: float, high: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and low <= value <= high
    )


def _arguments(origin: object, kind: str, content: object) -> dict[str, Any]:
    """The head's arguments, checked."""
    if not isinstance(content, dict) or not set(content) <= set(KINDS[kind].arguments):
        raise _damaged(origin, f"arguments {quote(content)}")
    made: dict[str, Any] = {}
    for key in KINDS[kind].arguments:
        if key == "layers":
            layer = _anchored_layer if kind == "anchor-maps" else _yolo_layer
            made[key] = [layer(origin, one) for one in _list(origin, content.get(key), MAX_LAYERS)]
        elif key == "reading":
            made[key] = _parse_reading(origin, content.get(key))
    return made


def _list(origin: object, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= most:
        raise _damaged(origin, f"a list {quote(value)}")
    return value


def _layer_reader(origin: object, content: object, kind: type) -> _Reader:
    if not isinstance(content, dict):
        raise _damaged(origin, f"layer {quote(content)}")
    if content.keys() != {field.name for field in dataclasses.fields(kind)}:
        raise _damaged(origin, f"layer {quote(content)}")
    return _Reader(origin, content)


def _anchors(reader: _Reader) -> tuple[tuple[float, float], ...]:
    pairs = _list(reader.origin, reader.content["anchors"], MAX_ANCHORS)
    for pair in pairs:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(_is_number(side, 0, 1e6) for side in pair)
        ):
            raise _damaged(reader.origin, f"anchors {quote(pairs)}")
    return tuple((float(width), float(height)) for width, height in pairs)


def _anchored_layer(origin: object, content: object) -> heads.AnchoredLayer:
    reader = _layer_reader(origin, content, heads.AnchoredLayer)
    return heads.AnchoredLayer(
        _anchors(reader),
        reader.whole("classes", 1, MAX_CLASSES),
        reader.whole("stride", 1, MAX_STRIDE),
    )


def _yolo_layer(origin: object, content: object) -> heads.YoloLayer:
    reader = _layer_reader(origin, content, heads.YoloLayer)
    return heads.YoloLayer(
        _anchors(reader),
        reader.whole("classes", 1, MAX_CLASSES),
        reader.number("cell_width", 0.01, MAX_STRIDE),
        reader.number("cell_height", 0.01, MAX_STRIDE),
        reader.number("scale_x_y", 0, 100),
        reader.boolean("new_coords"),
    )


# Whether outputs are those of a head


def _cell(layer: Any) -> tuple[float, float]:
    """Width and height of a cell, in network pixels."""
    if isinstance(layer, heads.AnchoredLayer):
        return layer.stride, layer.stride
    return layer.cell_width, layer.cell_height


def _maps_fit(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    if len(shapes) != len(given["layers"]):
        return False
    for shape, layer in zip(shapes, given["layers"], strict=True):
        width, height = _cell(layer)
        if (
            len(shape) != 4
            or layer.classes != classes
            or shape[1] != len(layer.anchors) * (5 + classes)
            or abs(shape[2] * height - rules.height) > 0.5
            or abs(shape[3] * width - rules.width) > 0.5
        ):
            return False
    return True


def _reading_fits(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    reading: readings.Reading = _at_size(given["reading"], rules)
    if reading.count is not None and not 0 <= reading.count < len(shapes):
        return False
    rows = set()
    for part in _all_columns(reading):
        if part.output >= len(shapes) or (sides := _table(shapes[part.output], part)) is None:
            return False
        rows.add(sides[0])
        if part.first + (part.count or 1) > sides[1]:
            return False
    if len(rows) != 1:
        return False
    cells = reading.cells
    count = cells and layouts.count_cells(cells.height, cells.width, cells.strides)
    if count not in (None, *rows):
        return False
    if reading.classes is not None:
        return True
    sides = _table(shapes[reading.scores.output], reading.scores)
    assert sides is not None
    columns = reading.scores.count or sides[1] - reading.scores.first
    return columns - (reading.background != "none") == classes


def _table(shape: Shape, columns: readings.Columns) -> tuple[int, int] | None:
    """Rows and columns of an output; None where it is no table."""
    if len(shape) == 2:
        return shape[1], 1
    if len(shape) == 4 and shape[2] == 1:
        shape = (shape[0], shape[1], shape[3])
    if len(shape) != 3:
        return None
    return (shape[2], shape[1]) if columns.across else (shape[1], shape[2])


KINDS = {
    "anchor-maps": Kind(heads.anchor_maps, heads.anchor_maps_dense, ("layers",), _maps_fit),
    "darknet-yolo": Kind(heads.darknet_yolo, heads.darknet_yolo_dense, ("layers",), _maps_fit),
    "rows": Kind(readings.read_rows, readings.rows_dense, ("reading",), _reading_fits),
    "list": Kind(readings.read_list, readings.list_dense, ("reading",), _reading_fits),
}
