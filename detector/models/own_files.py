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
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.errors import ModelError
from detector.errors.parsing import parse_json, quote
from detector.models.base import Head, InputRules, Network
from detector.stages import heads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEY = "detect-video"
VERSION = 1
GEOMETRIES = ("centre", "top-left-truncate", "stretch")
FORMS = ("rows", "batch-rows", "parts", "boxes-with-scores")
MAX_CLASSES = 100_000
MAX_TEXT = 200  # characters of a name
MAX_LAYERS, MAX_ANCHORS = 16, 64
MAX_STRIDE = 1024
LARGEST = 1 << 53

Shape = tuple[int, ...]
Dense = Callable[[list["NDArray[np.float32]"]], "NDArray[np.float32]"]


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
    pad_value: int
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
        if self.kind == "yolox":
            given = {"grid": heads.Grid(rules.height, rules.width, given["strides"])}
        elif self.kind in ("queries", "corners"):
            given |= {"width": rules.width, "height": rules.height}
        more = {"classes": classes} if self.kind == "end-to-end" else {}
        return partial(kind.head, **given), partial(kind.dense, **given, **more)


def describe(network: Network) -> str | None:
    """The description of a network, as JSON; None for a head that is none of ours."""
    head = network.head
    function, given = (head.func, head.keywords) if isinstance(head, partial) else (head, {})
    name = next((name for name, kind in KINDS.items() if kind.head is function), None)
    if name is None:
        return None
    arguments = dict(given)
    if "grid" in arguments:
        arguments = {"strides": arguments["grid"].strides}
    if "layers" in arguments:
        arguments["layers"] = [asdict(layer) for layer in arguments["layers"]]
    content = {
        "version": VERSION,
        "family": network.family,
        "precision": network.precision,
        "geometry": network.input.geometry,
        "pad_value": network.input.pad_value,
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
    if version != VERSION:
        if isinstance(version, int) and version > VERSION:
            raise ModelError(f"{origin}: a newer detect-video wrote it; update detect-video")
        raise _damaged(origin, f"version {quote(version)}")
    reader = _Reader(origin, content)
    name = reader.one_of("kind", tuple(KINDS))
    seed = content.get("random_seed")
    return OwnFile(
        family=reader.text("family"),
        precision=reader.text("precision"),
        geometry=reader.one_of("geometry", GEOMETRIES),
        pad_value=reader.whole("pad_value", 0, 255),
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
    reader = _Reader(origin, content)
    made: dict[str, Any] = {}
    for key in KINDS[kind].arguments:
        if key == "layers":
            layer = _anchored_layer if kind == "anchor-maps" else _yolo_layer
            made[key] = [layer(origin, one) for one in _list(origin, content.get(key), MAX_LAYERS)]
        elif key == "strides":
            given = _list(origin, content.get(key), MAX_LAYERS)
            if not all(isinstance(one, int) and 1 <= one <= MAX_STRIDE for one in given):
                raise _damaged(origin, f"strides {quote(given)}")
            made[key] = tuple(given)
        elif key == "form":
            made[key] = reader.one_of(key, FORMS) if key in content else FORMS[0]
        else:
            made[key] = reader.boolean(key) if key in content else False
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


def _rows_fit(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    return len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][2] == 5 + classes


def _grid_fits(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    cells = sum(
        -(-rules.height // stride) * -(-rules.width // stride) for stride in given["strides"]
    )
    return _rows_fit(shapes, given, rules, classes) and shapes[0][1] == cells


def _columns_fit(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    side = 2 if given["rows"] else 1
    return len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][side] == 4 + classes


def _finished_fit(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    rows = shapes[0][1] if shapes and len(shapes[0]) == 3 else 0
    batch = shapes[0][0] if shapes else 0
    lists = {
        "rows": [(batch, rows, 6)],
        "batch-rows": [(batch, rows, 7)],
        "parts": [(batch, rows, 4), (batch, rows), (batch, rows)],
        "boxes-with-scores": [(batch, rows, 5), (batch, rows)],
    }
    return list(shapes) == lists[given["form"]]


def _queries_fit(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    if not shapes or len(shapes[0]) != 3:
        return False
    batch, queries, columns = shapes[0]
    if len(shapes) == 1:
        return columns == 4 + classes
    return list(shapes) == [(batch, queries, classes), (batch, queries, 4)]


def _corners_fit(
    shapes: Sequence[Shape], given: Mapping[str, Any], rules: InputRules, classes: int
) -> bool:
    batch, rows = shapes[0][:2] if shapes and len(shapes[0]) == 4 else (0, 0)
    return list(shapes) == [(batch, rows, 1, 4), (batch, rows, classes)]


KINDS = {
    "anchor-maps": Kind(heads.anchor_maps, heads.anchor_maps_dense, ("layers",), _maps_fit),
    "darknet-yolo": Kind(heads.darknet_yolo, heads.darknet_yolo_dense, ("layers",), _maps_fit),
    "decoded-rows": Kind(heads.decoded_rows, heads.decoded_rows_dense, (), _rows_fit),
    "yolox": Kind(heads.yolox, heads.yolox_dense, ("strides",), _grid_fits),
    "anchor-free": Kind(heads.anchor_free, heads.anchor_free_dense, ("rows",), _columns_fit),
    "end-to-end": Kind(heads.end_to_end, heads.end_to_end_dense, ("form",), _finished_fit),
    "queries": Kind(heads.queries, heads.queries_dense, ("logits",), _queries_fit),
    "corners": Kind(heads.corners, heads.corners_dense, (), _corners_fit),
}
