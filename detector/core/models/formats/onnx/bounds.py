"""What an ONNX file may hold, told before anything is built from it.

A few bytes can stand for a lot: an empty node takes two bytes in the file and a hundred in memory,
and a local function that calls another one twice doubles the graph with each level. So the file is
measured in three steps, each before the work that would suffer:

``measure_bytes``  the file's fields, before protobuf builds objects from them
``measure_graph``  the nodes after inlining, and every name, before onnx sees the model
``every_graph``    the walk over subgraphs and functions that both checks of tensors use

The limits lie ten times and more above what exporters write: D-FINE has 3,711 nodes before it is
simplified, and a node's name 109 characters (docs/models.md has the limits).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

from detector.core.errors import ModelError
from detector.core.errors.limits import how_to_raise, raised

if TYPE_CHECKING:
    import onnx

    Graph: TypeAlias = onnx.GraphProto | onnx.FunctionProto

Key = tuple[str, str, str]  # of a function: domain, name, overload

MAX_NODES = 100_000  # including subgraphs and inlined functions
MAX_CALLS = 100  # functions in functions: onnx inlines them on the stack, so this one stays
MAX_NAME = 4096  # characters of a name
MAX_FIELDS = 1_000_000
MAX_STRUCTURE = 24 << 20  # bytes of nodes, names and shapes; protobuf makes up to 80 times of them
MAX_PACKED = 256 << 20  # bytes of numbers of variable length; protobuf makes up to 8 times of them
ENDLESS = 10**12  # nodes; where counting ends
SMALL = 256  # bytes of a part that is not looked into

Fields = dict[int, str]
# Message -> field number -> content. "data" costs its size, "packed" up to eight times as much.
MESSAGES: dict[str, Fields] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {
        4: "data",
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse",
        23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {4: "data", 5: "packed", 7: "packed", 9: "data", 10: "data", 11: "packed"},
}
VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # protobuf's wire types; the fixed ones' sizes


class _DamagedError(Exception):
    """The bytes are not protobuf; the parser reports it too."""


def measure_bytes(path: Path, data: bytes) -> None:
    """Raise ModelError if protobuf would make far more of the file than it takes on disk."""
    try:
        reason = _excess(data)
    except (_DamagedError, IndexError):
        return
    if reason is not None:
        raise ModelError(
            f"{path}: holds {reason}, more than any detector; it is damaged, or not a detector; "
            f"{how_to_raise()}"
        )


@dataclass(slots=True)
class _Totals:
    fields: int = 0
    structure: int = 0  # bytes
    packed: int = 0  # bytes

    def excess(self) -> str | None:
        if self.fields > (most := raised(MAX_FIELDS)):
            return f"more than {most:,} fields"
        if self.structure > (most := raised(MAX_STRUCTURE)):
            return f"more than {most >> 20} MB of nodes and names"
        if self.packed > (most := raised(MAX_PACKED)):
            return f"more than {most >> 20} MB of packed numbers; store weights as raw bytes"
        return None


def _excess(data: bytes) -> str | None:
    """Return what there is too much of; None where nothing is."""
    total, most_fields = _Totals(), raised(MAX_FIELDS)
    parts = [("model", 0, len(data))]
    while parts:
        message, start, end = parts.pop()
        known = MESSAGES[message]
        for number, at, size in _fields(data, start, end):
            total.fields += 1
            total.structure += 2
            part = known.get(number)
            if part == "packed":
                total.packed += size
            elif part is None or (size <= SMALL and part != "data"):
                total.structure += size
            elif part != "data":
                parts.append((part, at, at + size))
            if total.fields > most_fields:
                break
        if (reason := total.excess()) is not None:
            return reason
    return None


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, where it begins, bytes) of each field of a message; 0 bytes for a plain number."""
    while at < end:
        tag, at = _varint(data, at)
        kind, size = tag & 7, 0
        if kind == BYTES:
            size, at = _varint(data, at)
            if at + size > end:
                raise _DamagedError
        elif kind == VARINT:
            _, at = _varint(data, at)
        elif kind in FIXED:
            at += FIXED[kind]
        else:  # groups: ONNX has none
            raise _DamagedError
        yield tag >> 3, at, size
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where the next field begins."""
    first = data[at]
    if first < 0x80:
        return first, at + 1
    value, shift = first & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise _DamagedError


# The parsed model


def every_graph(model: onnx.ModelProto) -> Iterator[Graph]:
    waiting: list[Graph] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for attribute in attributes_in(graph):
            waiting += subgraphs(attribute)


def attributes_in(graph: Graph) -> Iterator[onnx.AttributeProto]:
    """Yield attributes of its nodes and a function's defaults, not those of subgraphs."""
    for node in graph.node:
        yield from node.attribute
    if is_function(graph):
        yield from graph.attribute_proto


def is_function(graph: Graph) -> TypeGuard[onnx.FunctionProto]:
    return hasattr(graph, "attribute_proto")


def subgraphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def measure_graph(path: Path, model: onnx.ModelProto) -> None:
    """Raise ModelError for too many nodes, also after inlining, and for invalid names."""
    _refuse_names(path, model)
    functions = {_key(each.domain, each.name, each.overload): each for each in model.functions}
    if len(functions) != len(model.functions):
        raise ModelError(f"{path}: defines a function twice; export it again")
    measured: dict[Key, Measure] = {}
    for key in functions:
        _measure_function(path, key, functions, measured)
    total = _measure(model.graph.node, measured).nodes
    if total > (most := raised(MAX_NODES)):
        raise ModelError(
            f"{path}: has {total:,} nodes, functions inlined, but at most {most:,} are read (ten "
            f"times the largest detector); {how_to_raise()}"
        )


def _refuse_names(path: Path, model: onnx.ModelProto) -> None:
    most = raised(MAX_NAME)
    try:
        for name in _names(model):
            if not isinstance(name, str):  # protobuf hands out bytes where they are no UTF-8
                raise UnicodeError
            if len(name) > most:
                raise ModelError(
                    f"{path}: has a name of {len(name):,} characters, {name[:40]}...; names have "
                    f"at most {most:,}: export it again; {how_to_raise()}"
                )
        for entry in model.metadata_props:
            if not isinstance(entry.value, str):
                raise UnicodeError
    except UnicodeError as exc:
        raise ModelError(
            f"{path}: has names that are not text; the file is damaged: download it or export it "
            "again"
        ) from exc


def _names(model: onnx.ModelProto) -> Iterator[str | bytes]:
    yield from (entry.domain for entry in model.opset_import)
    yield from (entry.key for entry in model.metadata_props)
    yield from (model.producer_name, model.producer_version, model.domain)
    for graph in every_graph(model):
        yield graph.name
        for node in graph.node:
            yield from (node.op_type, node.name, node.domain, node.overload)
            yield from node.input
            yield from node.output
        for attribute in attributes_in(graph):
            yield from (attribute.name, attribute.ref_attr_name)
        if is_function(graph):
            yield from (graph.domain, graph.overload, *graph.input, *graph.output, *graph.attribute)
            continue
        yield from (item.name for item in (*graph.input, *graph.output))
        for item in graph.input:
            yield from (dim.dim_param for dim in item.type.tensor_type.shape.dim)
        yield from (tensor.name for tensor in graph.initializer)


class Measure(NamedTuple):
    nodes: int  # with functions inlined
    calls: int  # how deep functions call functions


def _measure_function(
    path: Path, start: Key, functions: dict[Key, onnx.FunctionProto], measured: dict[Key, Measure]
) -> None:
    """Measure a function after the functions that it calls, without recursion."""
    calling = [start]
    while calling:
        nodes = functions[calling[-1]].node
        called = {_key_of(node) for node in _all_nodes(nodes)} & functions.keys()
        missing = next((key for key in sorted(called) if key not in measured), None)
        if missing is None:
            measured[calling.pop()] = _measure(nodes, measured)
        elif missing in calling:
            raise ModelError(f"{path}: its function {missing[1]} calls itself; export it again")
        else:
            calling.append(missing)
        if len(calling) > MAX_CALLS or measured.get(start, Measure(0, 0)).calls > MAX_CALLS:
            raise ModelError(
                f"{path}: its functions call one another more than {MAX_CALLS} deep; export it "
                "without functions"
            )


def _measure(nodes: Iterable[onnx.NodeProto], measured: dict[Key, Measure]) -> Measure:
    count = calls = 0
    for node in _all_nodes(nodes):
        inside = measured.get(_key_of(node), Measure(0, 0))
        count, calls = count + 1 + inside.nodes, max(calls, inside.calls)
    return Measure(min(count, ENDLESS), calls + 1)


def _key_of(node: onnx.NodeProto) -> Key:
    return _key(node.domain, node.op_type, node.overload)


def _key(domain: str, name: str, overload: str) -> Key:
    return "" if domain == "ai.onnx" else domain, name, overload


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += [graph.node for each in node.attribute for graph in subgraphs(each)]
