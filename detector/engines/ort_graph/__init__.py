"""What ONNX Runtime made of a graph: its own nodes, the type that each computes in, the graph's nodes it stands for.

Read from the optimised graph that ONNX Runtime saves. It fuses, renames and lays out anew, and says nowhere what came
from what; but a name of its own always holds the name of one node of ours (``0.act_nchwc``, ``3.conv_token_7``). The
rest follows from the graph: a convolution without such a name went into the activation behind it, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from detector.engines.base import LayerExecution

if TYPE_CHECKING:
    import onnx

OWN_NAME = re.compile(r"^(?:InsertedPrecisionFreeCast_)?(.*?)(?:_nchwc|_nhwc|_token_\d+|_quant|_q|_qlinear)*$")
COMPUTING = ("Conv", "Gemm", "MatMul")  # in the operator's name, whatever is fused to it
INTEGER = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm", "NhwcMaxPool")
QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear")
RESULTS = {  # operator -> what it gives, where that is not what it takes
    "ConvInteger": "int32",
    "MatMulInteger": "int32",
    "MatMulIntegerToFloat": "fp32",
    "DynamicQuantizeMatMul": "fp32",
    "Shape": "int64",
    "Size": "int64",
    "NonMaxSuppression": "int64",
}
NAMES = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "u8", "int8": "i8"}


def layers(optimised: onnx.ModelProto, graph: onnx.ModelProto, float_math: str = "fp32") -> list[LayerExecution]:
    """``float_math``: what fp32 convolutions and products run as ("tf32" where the GPU was allowed to)."""
    stands_for: dict[int, list[str]] = {}
    for name, owner in _owners(optimised.graph, graph.graph).items():
        stands_for.setdefault(owner, []).append(name)
    found = []
    for at, (node, precision) in enumerate(_precisions(optimised.graph)):
        if precision == "fp32" and _computes(node):
            precision = float_math
        found.append(LayerExecution(node.name, node.op_type, precision, nodes=tuple(stands_for.get(at, ()))))
    return found


def _precisions(graph: Any) -> Iterator[tuple[Any, str]]:
    """Every node with the type that it computes in: that of its first input, or int8 for integer arithmetic.

    Bytes count as int8 once something has quantised them; before that they are a picture.
    """
    types = {value.name: _name(value.type.tensor_type.elem_type) for value in graph.input}
    types |= {tensor.name: _name(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        given = next((types[name] for name in node.input if name in types), "none")
        if node.op_type.startswith("QLinear") or node.op_type in INTEGER:
            precision, gives = "int8", RESULTS.get(node.op_type, "int8")
        elif node.op_type in QUANTISING:
            precision, gives = given, "int8"
        elif node.op_type == "DequantizeLinear":
            precision, gives = given, types.get(node.input[1], "fp32")
        else:
            precision, gives = given, RESULTS.get(node.op_type, given)
        to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
        types |= dict.fromkeys(node.output, gives if to is None else _name(to))
        yield node, precision


def _name(elem_type: int) -> str:
    from onnx import TensorProto

    name: str = TensorProto.DataType.Name(elem_type).lower()
    return NAMES.get(name, name)


def _owners(optimised: Any, graph: Any) -> dict[str, int]:
    """Node of our graph -> index of the optimised node that does its work; nodes folded into constants are left out."""
    folded = _folded(graph)
    nodes = [node for node in graph.node if node.name not in folded]
    owners = _named(optimised, {node.name for node in nodes})
    before, behind = _neighbours(nodes)
    computing = {at for at, node in enumerate(optimised.node) if _computes(node)}
    # Each of these passes leaves alone what an earlier one placed.
    for node in reversed(nodes):  # a convolution went into what comes behind it; so did a change of type
        if _computes(node) or node.op_type == "DequantizeLinear":
            places = [at for at in _places(behind[node.name], owners) if not _computes(node) or at in computing]
            owners |= {node.name: places[0]} if places and node.name not in owners else {}
    for around, order in ((before, nodes), (behind, nodes[::-1])):  # an activation, or what opens the graph
        for node in order:
            places = _places(around[node.name], owners)
            owners |= {node.name: places[0]} if places and node.name not in owners else {}
    return owners


def _named(optimised: Any, known: set[str]) -> dict[str, int]:
    """What can be told by name."""
    owners: dict[str, int] = {}
    for at, made in enumerate(optimised.node):
        match = OWN_NAME.match(made.name)
        for name in (made.name, match.group(1) if match else ""):
            if name in known:
                owners.setdefault(name, at)
    return owners


def _neighbours(nodes: list[Any]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Node -> the nodes that it reads from; node -> those that read from it."""
    made_by = {output: node.name for node in nodes for output in node.output}
    before = {node.name: [made_by[value] for value in node.input if value in made_by] for node in nodes}
    behind: dict[str, list[str]] = {node.name: [] for node in nodes}
    for name, sources in before.items():
        for source in sources:
            behind[source].append(name)
    return before, behind


def _places(names: list[str], owners: dict[str, int]) -> list[int]:
    return [owners[name] for name in names if name in owners]


def _computes(node: Any) -> bool:
    return any(part in node.op_type for part in COMPUTING)


def _folded(graph: Any) -> set[str]:
    """Nodes that hang on constants alone: worked out while loading."""
    constant = {tensor.name for tensor in graph.initializer}
    folded = set()
    for node in graph.node:
        if constant.issuperset(name for name in node.input if name):
            constant.update(node.output)
            folded.add(node.name)
    return folded
