"""Which nodes of a graph bfloat16 hurts most. They stay float32 in it, whoever converts: a graph, or an engine.

- Thin convolutions (depthwise ones, and the first one) with their activations: matrix units gain nothing on them.
- The stem: the first layers, up to a fifth of the MACs. What they round goes through all the others, and bfloat16 has
  eight bits.

Measured in docs/quantisation.md, "bf16, and what its mismatches are".
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from detector.models.graph import MULTIPLYING, node_macs, tensor_shapes

if TYPE_CHECKING:
    import onnx

THIN = 8  # input channels a group, below which a convolution is thin
STEM = 0.2  # of the MACs, which the first layers that stay float32 make at most
ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "HardSwish", "Sigmoid", "Elu", "Mul")  # SiLU is Sigmoid and Mul


def sensitive(model: onnx.ModelProto, kept: Set[str] = frozenset()) -> set[str]:
    """Names of the nodes that stay float32, with those in ``kept``, which do anyway, and what lies between any two."""
    found = {*kept, *_thin(model.graph), *_stem(model)}
    return found | _between(model.graph, found)


def _thin(graph: onnx.GraphProto) -> set[str]:
    """Names of the convolutions with few input channels a group, and of the activations that read nothing else."""
    found: set[str] = set()
    constants = {tensor.name: tensor.dims for tensor in graph.initializer}
    makers = {name: node.name for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type == "Conv" and node.input[1] in constants:
            follows = constants[node.input[1]][1] < THIN
        else:
            dynamic = [makers.get(name) for name in node.input if name and name not in constants]
            follows = node.op_type in ACTIVATIONS and bool(dynamic) and all(maker in found for maker in dynamic)
        if follows:
            found.add(node.name)
    return found


def _stem(model: onnx.ModelProto) -> set[str]:
    """Names of the first nodes, in order, as long as their MACs are at most ``STEM`` of all; none without MACs."""
    shapes = tensor_shapes(model)
    macs = {node.name: node_macs(node, shapes) for node in model.graph.node}
    left = STEM * sum(macs.values())
    found: list[str] = []
    for node in model.graph.node:
        left -= macs[node.name]
        if left < 0:
            break
        found.append(node.name)
    return set(found) if any(macs[name] for name in found) else set()


def _between(graph: onnx.GraphProto, kept: Set[str]) -> set[str]:
    """Nodes between those that stay, or between the picture and these: two Casts around one would gain nothing."""
    makers = {name: node.name for node in graph.node for name in node.output}
    outputs = {info.name for info in graph.output}
    first = _before_any_product(graph)
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.name)
    found: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in MULTIPLYING or outputs.intersection(node.output):
            continue
        stays = kept | found if node.name in first else kept
        if all(readers.get(name, set()) <= stays for name in node.output) and (
            node.name in first or all(makers[name] in kept for name in node.input if name in makers)
        ):
            found.add(node.name)
    return found


def _before_any_product(graph: onnx.GraphProto) -> set[str]:
    """Names of the nodes that read nothing which a multiplying node has made: what is done to the picture itself."""
    made: set[str] = set()
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in MULTIPLYING or made.intersection(node.input):
            made.update(node.output)
        else:
            found.add(node.name)
    return found
