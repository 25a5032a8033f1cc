"""Resolves Ifs that are constant, or that only guard against a picture without boxes.

Engines get graphs without branches. An If whose condition is a constant is the branch that it
takes. torchvision's detectors ask whether there is any box before their NMS, since the maximum of
no numbers is undefined; there we always take the other branch, and a box of zeros joins the
maximum. Any other branch is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.foreign import ForeignGraph, constant_of

if TYPE_CHECKING:
    import onnx

CONTROL_FLOW = ("If", "Loop", "Scan")


def refuse_branches(graph: ForeignGraph) -> None:
    branching = sorted({node.op_type for node in graph.nodes if node.op_type in CONTROL_FLOW})
    if branching:
        raise ModelError(
            f"{graph.name}: holds {', '.join(branching)}, which branch on the content of the "
            "picture; that is not supported: export it without NMS, or with a fixed size"
        )


def taken_branch(graph: ForeignGraph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Return the nodes of an If's taken branch, with the If's names. None: the picture decides."""
    from onnx import helper

    condition = graph.value(node.input[0])
    attributes = {attribute.name: attribute.g for attribute in node.attribute}
    guarded: set[str] = set()
    if condition is not None and condition.size == 1:
        taken = attributes["then_branch" if condition.item() else "else_branch"]
    else:
        guarded = _emptiness_of(graph, node.input[0])
        known = all(graph.dims.get(name) for name in guarded)
        if not guarded or not known or not _gives_nothing(attributes["then_branch"]):
            return None  # or not yet: ranks become known as constants are computed
        taken = attributes["else_branch"]
    if len(taken.output) != len(node.output):
        return None
    graph.constants |= {tensor.name: tensor for tensor in taken.initializer}
    ends = [
        helper.make_node("Identity", [info.name], [name], name=graph.fresh(f"{node.name}.end"))
        for info, name in zip(taken.output, node.output, strict=True)
    ]
    nodes: list[onnx.NodeProto] = []
    for inner in taken.node:
        if inner.op_type == "ReduceMax" and inner.input[0] in guarded:
            nodes.append(_with_a_row_of_zeros(graph, inner))
        nodes.append(inner)
    return [*nodes, *ends]


def _emptiness_of(graph: ForeignGraph, name: str) -> set[str]:
    """The tensor that a condition tests for emptiness (Equal(ReduceProd(Shape(x)), 0)), else {}."""
    makers = graph.makers()
    node = makers.get(name)
    while node is not None and node.op_type in ("Cast", "Identity", "Squeeze"):
        node = makers.get(node.input[0])
    if node is None or node.op_type != "Equal":
        return set()
    zero = graph.value(node.input[1])
    counted = makers.get(node.input[0])
    if zero is None or zero.any() or counted is None:
        return set()
    if counted.op_type == "Size":
        return {counted.input[0]}
    shape = makers.get(counted.input[0])
    if counted.op_type == "ReduceProd" and shape is not None and shape.op_type == "Shape":
        return {shape.input[0]}
    return set()


def _gives_nothing(branch: onnx.GraphProto) -> bool:
    tensors = {node.output[0]: constant_of(node) for node in branch.node}
    tensors |= {tensor.name: tensor for tensor in branch.initializer}
    ends = [tensors.get(info.name) for info in branch.output]
    return all(tensor is not None and 0 in tensor.dims for tensor in ends)


def _with_a_row_of_zeros(graph: ForeignGraph, node: onnx.NodeProto) -> onnx.NodeProto:
    """Add a Pad with a zero row to the node's input: coordinates are never below zero."""
    rank = len(graph.dims[node.input[0]])
    pads = np.zeros(2 * rank, np.int64)
    pads[rank] = 1  # after the last row
    made = graph.node("Pad", "boxes.and_none", [node.input[0], graph.constant("pads", pads)])
    node.input[0] = made.output[0]
    return made
