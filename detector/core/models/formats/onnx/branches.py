"""Replace Ifs that are constant, or that only guard against a picture without boxes.

Engines get graphs without branches. An If with a constant condition becomes the branch that it
takes. torchvision's detectors test before NMS whether there are any boxes, since the maximum of an
empty list is undefined. For these Ifs, we take the branch that handles boxes, and add a box of
zeros to the boxes whose maximum this branch computes. All other branches are refused.
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
            f"{graph.name}: holds {', '.join(branching)} nodes, which branch on the content of the "
            "picture; that is not supported: export it without NMS, or with a fixed size"
        )


def taken_branch(graph: ForeignGraph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Return the nodes that replace an If; None if we cannot tell which branch it takes."""
    from onnx import helper

    condition = graph.value(node.input[0])
    attributes = {attribute.name: attribute.g for attribute in node.attribute}
    guarded: set[str] = set()
    if condition is not None and condition.size == 1:
        branch = attributes["then_branch" if condition.item() else "else_branch"]
    else:
        guarded = _tested_for_emptiness(graph, node.input[0])
        known = all(graph.dims.get(name) for name in guarded)
        if not guarded or not known or not _returns_empty(attributes["then_branch"]):
            return None  # for now: ranks may become known when more constants are computed
        branch = attributes["else_branch"]
    if len(branch.output) != len(node.output):
        return None
    graph.constants |= {tensor.name: tensor for tensor in branch.initializer}
    ends = [
        helper.make_node("Identity", [info.name], [name], name=graph.fresh(f"{node.name}.end"))
        for info, name in zip(branch.output, node.output, strict=True)
    ]
    nodes: list[onnx.NodeProto] = []
    for inner in branch.node:
        if inner.op_type == "ReduceMax" and inner.input[0] in guarded:
            nodes.append(_add_row_of_zeros(graph, inner))
        nodes.append(inner)
    return [*nodes, *ends]


def _tested_for_emptiness(graph: ForeignGraph, name: str) -> set[str]:
    """Return {x} if the condition is Equal(ReduceProd(Shape(x)), 0) or similar; else set()."""
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


def _returns_empty(branch: onnx.GraphProto) -> bool:
    tensors = {node.output[0]: constant_of(node) for node in branch.node}
    tensors |= {tensor.name: tensor for tensor in branch.initializer}
    ends = [tensors.get(info.name) for info in branch.output]
    return all(tensor is not None and 0 in tensor.dims for tensor in ends)


def _add_row_of_zeros(graph: ForeignGraph, node: onnx.NodeProto) -> onnx.NodeProto:
    """Pad the input; return the Pad. No coordinate is below 0, so the maximum does not change."""
    rank = len(graph.dims[node.input[0]])
    pads = np.zeros(2 * rank, np.int64)
    pads[rank] = 1  # after the last row
    pad = graph.node("Pad", "boxes.and_none", [node.input[0], graph.constant("pads", pads)])
    node.input[0] = pad.output[0]
    return pad
