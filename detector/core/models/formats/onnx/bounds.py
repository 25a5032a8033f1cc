"""Limits for ONNX files, checked before anything is built from them.

A small file may hold a huge model. An empty node takes two bytes in the file and a hundred in
memory. If each function in a chain calls the next one twice, each doubles the graph. So we check:

``measure_bytes``  checks the file's fields, before protobuf builds objects from them
``measure_graph``  checks the nodes after inlining, and all names, before onnx reads the model

The limits are at least ten times as large as what exporters write: D-FINE has 3,711 nodes before it
is simplified, and names of 109 characters (docs/models.md lists the limits).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

from detector.core.errors import ModelError
from detector.core.models.formats import how_to_raise, raised

if TYPE_CHECKING:
    import onnx

    Graph: TypeAlias = onnx.GraphProto | onnx.FunctionProto

Key = tuple[str, str, str]  # a function's domain, name and overload

MAX_NODES = 100_000  # including subgraphs and inlined functions
MAX_CALLS = 100  # depth of calls; users cannot raise it, because onnx inlines recursively
MAX_NAME = 4096  # characters
MAX_FIELDS = 1_000_000
MAX_STRUCTURE = 24 << 20  # bytes of nodes, names and shapes; up to 80 times as many in memory
MAX_PACKED = 256 << 20  # bytes of packed numbers; up to 8 times as many in memory
MAX_COUNT = 10**12  # counts of nodes are capped at this number
SMALL = 256  # bytes; we add up smaller messages without looking into them

Fields = dict[int, str]
# Message -> field number -> content. In memory, "packed" takes up to 8 times its size in the file.
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
VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # protobuf's wire types; sizes of the fixed ones


class _DamagedError(Exception):
    """The bytes are not protobuf. The parser will report that."""


def measure_bytes(path: Path, data: bytes) -> None:
    """Raise ModelError if the parsed file would take far more memory than a detector needs."""
    try:
        reason = _excess(data)
    except (_DamagedError, IndexError):
        return
    if reason is not None:
        raise ModelError(
            f"{path}: holds {reason}, more than any detector; it is damaged, or not a detector; "
            f"{how_to_raise()}"
        )


def _excess(data: bytes) -> str | None:
    """Return which limit the file exceeds, as text for a message; None if it exceeds none."""
    fields = structure = packed = 0
    most_fields, most_structure = raised(MAX_FIELDS), raised(MAX_STRUCTURE)
    most_packed = raised(MAX_PACKED)
    parts = [("model", 0, len(data))]
    while parts:
        message, start, end = parts.pop()
        contents = MESSAGES[message]
        for number, at, size in _read_fields(data, start, end):
            fields += 1
            structure += 2
            part = contents.get(number)
            if part == "packed":
                packed += size
            elif part is None or (size <= SMALL and part != "data"):
                structure += size
            elif part != "data":
                parts.append((part, at, at + size))
            if fields > most_fields:
                return f"more than {most_fields:,} fields"
        if structure > most_structure:
            return f"more than {most_structure >> 20} MB of nodes and names"
        if packed > most_packed:
            return f"more than {most_packed >> 20} MB of packed numbers (use raw bytes for weights)"
    return None


def _read_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, bytes) of each field of a message; 0 bytes for a plain number."""
    while at < end:
        tag, at = _read_varint(data, at)
        kind, size = tag & 7, 0
        if kind == BYTES:
            size, at = _read_varint(data, at)
            if at + size > end:
                raise _DamagedError
        elif kind == VARINT:
            _, at = _read_varint(data, at)
        elif kind in FIXED:
            at += FIXED[kind]
        else:  # a group, which ONNX does not use
            raise _DamagedError
        yield tag >> 3, at, size
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
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


def every_graph(model: onnx.ModelProto) -> Iterator[Graph]:
    waiting: list[Graph] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for attribute in attributes_in(graph):
            waiting += subgraphs(attribute)


def attributes_in(graph: Graph) -> Iterator[onnx.AttributeProto]:
    """Yield attributes of nodes (not of nodes in subgraphs), and a function's default values."""
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
    """Raise ModelError for invalid names, recursive functions, or too many nodes after inlining."""
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
            f"{path}: has {total:,} nodes after inlining functions; at most {most:,} are read (ten "
            f"times the largest detector); {how_to_raise()}"
        )


def _refuse_names(path: Path, model: onnx.ModelProto) -> None:
    most = raised(MAX_NAME)
    try:
        for name in _names(model):
            if not isinstance(name, str):  # protobuf returns a name as bytes if it is not UTF-8
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
    calls: int  # depth of calls


def _measure_function(
    path: Path, start: Key, functions: dict[Key, onnx.FunctionProto], measured: dict[Key, Measure]
) -> None:
    """Measure the functions that ``start`` calls, then ``start`` itself. Uses no recursion."""
    stack = [start]
    while stack:
        nodes = functions[stack[-1]].node
        called = {_key_of(node) for node in _all_nodes(nodes)} & functions.keys()
        missing = next((key for key in sorted(called) if key not in measured), None)
        if missing is None:
            measured[stack.pop()] = _measure(nodes, measured)
        elif missing in stack:
            raise ModelError(f"{path}: its function {missing[1]} calls itself; export it again")
        else:
            stack.append(missing)
        if len(stack) > MAX_CALLS or measured.get(start, Measure(0, 0)).calls > MAX_CALLS:
            raise ModelError(
                f"{path}: its functions call one another more than {MAX_CALLS} deep; export it "
                "without functions"
            )


def _measure(nodes: Iterable[onnx.NodeProto], measured: dict[Key, Measure]) -> Measure:
    count = calls = 0
    for node in _all_nodes(nodes):
        called = measured.get(_key_of(node), Measure(0, 0))
        count, calls = count + 1 + called.nodes, max(calls, called.calls)
    return Measure(min(count, MAX_COUNT), calls + 1)


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
