"""Read the layers of the optimised graph that ONNX Runtime saves: types, times and our nodes.

ONNX Runtime fuses and renames nodes and changes their layout, without recording their origin. But
each new name contains the name of one of our nodes (``0.act_nchwc``, ``3.conv_token_7``). Our graph
shows where our other nodes went: a convolution whose name occurs in no new name was fused into the
activation after it, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from detector.core.engines.base import LayerExecution

if TYPE_CHECKING:
    import onnx

SUFFIX = "_kernel_time"
OWN_NAME = re.compile(
    r"^(?:InsertedPrecisionFreeCast_)?(.*?)(?:_nchwc|_nhwc|_token_\d+|_quant|_q|_qlinear)*$"
)
COMPUTING = ("Conv", "Gemm", "MatMul")  # operators that compute have one of these in their names
INTEGER = (
    "ConvInteger",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QGemm",
    "NhwcMaxPool",
)
QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear")
RESULTS = {  # operator -> type of its result, if it is not the type of its input
    "ConvInteger": "int32",
    "MatMulInteger": "int32",
    "MatMulIntegerToFloat": "fp32",
    "DynamicQuantizeMatMul": "fp32",
    "Shape": "int64",
    "Size": "int64",
    "NonMaxSuppression": "int64",
}
NAMES = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "u8", "int8": "i8"}


def split_into_runs(events: list[dict[str, Any]]) -> list[list[tuple[str, str, float]]]:
    """For each run, list its nodes in order: (name, operator, ms), with a resolution of 1 us."""
    nodes = [
        event for event in events if event.get("cat") == "Node" and event["name"].endswith(SUFFIX)
    ]
    bounds = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "Session" and event["name"] == "model_run"
    ]
    return [
        [
            (
                event["name"].removesuffix(SUFFIX),
                str(event["args"].get("op_name", "")),
                event["dur"] / 1e3,
            )
            for event in nodes
            if start <= event["ts"] <= end
        ]
        for start, end in sorted(bounds)
    ]


def read_layers(
    optimised: onnx.ModelProto, graph: onnx.ModelProto, requested: str = "fp32"
) -> list[LayerExecution]:
    """Return the layers of a graph's optimised form. ``requested``: the precision of the run."""
    nodes: dict[int, list[str]] = {}
    for name, owner in _find_owners(optimised.graph, graph.graph).items():
        nodes.setdefault(owner, []).append(name)
    layers = []
    for at, (node, precision) in enumerate(_precisions(optimised.graph)):
        if precision == "fp32" and requested == "tf32" and _computes(node):
            precision = "tf32"
        own = tuple(nodes.get(at, ()))
        layers.append(LayerExecution(node.name, node.op_type, precision, nodes=own))
    return layers


def _precisions(graph: Any) -> Iterator[tuple[Any, str]]:
    """Yield each node and its precision: "int8" if it computes on integers, otherwise the type of
    its first input. Bytes before the first quantiser belong to the picture and stay "u8"."""
    types = {value.name: _name(value.type.tensor_type.elem_type) for value in graph.input}
    types |= {tensor.name: _name(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        precision = next((types[name] for name in node.input if name in types), "none")
        if node.op_type.startswith("QLinear") or node.op_type in INTEGER:
            precision, result = "int8", RESULTS.get(node.op_type, "int8")
        elif node.op_type in QUANTISING:
            result = "int8"
        elif node.op_type == "DequantizeLinear":
            result = types.get(node.input[1], "fp32")
        else:
            result = RESULTS.get(node.op_type, precision)
        to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
        types |= dict.fromkeys(node.output, result if to is None else _name(to))
        yield node, precision


def _name(elem_type: int) -> str:
    from onnx import TensorProto

    name: str = TensorProto.DataType.Name(elem_type).lower()
    return NAMES.get(name, name)


def _find_owners(optimised: Any, graph: Any) -> dict[str, int]:
    """Map our nodes to the index of the optimised node that computes them; omit constants."""
    folded = _find_constant_nodes(graph)
    nodes = [node for node in graph.node if node.name not in folded]
    owners = _find_owners_by_name(optimised, {node.name for node in nodes})
    before, after = _find_neighbours(nodes)
    computing = {at for at, node in enumerate(optimised.node) if _computes(node)}
    # A node keeps the first owner it gets. Convolutions and dequantisers get the next node's owner.
    for node in reversed(nodes):
        if _computes(node) or node.op_type == "DequantizeLinear":
            candidates = [
                at
                for at in _owners_of(after[node.name], owners)
                if not _computes(node) or at in computing
            ]
            owners |= {node.name: candidates[0]} if candidates and node.name not in owners else {}
    # Then each other node gets the owner of the node before it, or else of the node after it.
    for neighbours, order in ((before, nodes), (after, nodes[::-1])):
        for node in order:
            candidates = _owners_of(neighbours[node.name], owners)
            owners |= {node.name: candidates[0]} if candidates and node.name not in owners else {}
    return owners


def _find_owners_by_name(optimised: Any, known: set[str]) -> dict[str, int]:
    owners: dict[str, int] = {}
    for at, node in enumerate(optimised.node):
        match = OWN_NAME.match(node.name)
        for name in (node.name, match.group(1) if match else ""):
            if name in known:
                owners.setdefault(name, at)
    return owners


def _find_neighbours(nodes: list[Any]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    made_by = {output: node.name for node in nodes for output in node.output}
    before = {
        node.name: [made_by[value] for value in node.input if value in made_by] for node in nodes
    }
    after: dict[str, list[str]] = {node.name: [] for node in nodes}
    for name, sources in before.items():
        for source in sources:
            after[source].append(name)
    return before, after


def _owners_of(names: list[str], owners: dict[str, int]) -> list[int]:
    return [owners[name] for name in names if name in owners]


def _computes(node: Any) -> bool:
    return any(part in node.op_type for part in COMPUTING)


def _find_constant_nodes(graph: Any) -> set[str]:
    """Return the nodes that depend only on constants. ONNX Runtime computes them on loading."""
    constant = {tensor.name for tensor in graph.initializer}
    folded = set()
    for node in graph.node:
        if constant.issuperset(name for name in node.input if name):
            constant.update(node.output)
            folded.add(node.name)
    return folded
