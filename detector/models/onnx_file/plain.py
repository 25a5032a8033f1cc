"""The same graph in plainer words, so that more engines understand it: one output a node, bounds that are places."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from detector.models.onnx_file.foreign import ForeignGraph, attributes_of

if TYPE_CHECKING:
    import onnx


def make_plain(graph: ForeignGraph) -> None:
    """Split becomes Slices; bounds of a Slice that count from the end, or beyond it, become what they mean.

    But what a GatherElements reads (YOLOv10's and YOLO26's choice of the best cells) is cut off by a Split: OpenVINO
    2026.4 takes a Slice before a GatherElements away, and then refuses the graph, whose shapes no longer fit.
    """
    gathered = {node.input[0] for node in graph.nodes if node.op_type == "GatherElements"}
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        if node.op_type == "Split" and not gathered & set(node.output) and (parts := _slices(graph, node)):
            nodes += parts
        else:
            if node.op_type == "Slice":
                _resolve(graph, node)
            nodes.append(_split(graph, node) if node.output[0] in gathered else node)
    graph.nodes = nodes


def _split(graph: ForeignGraph, node: onnx.NodeProto) -> onnx.NodeProto:
    """The Split that gives what a Slice gives, and what it leaves out, which nobody reads; other nodes as they are."""
    from onnx import helper

    shape = graph.shape(node.input[0])
    bounds = [graph.value(name) for name in node.input[1:]]
    if node.op_type != "Slice" or shape is None or len(bounds) != 3 or any(b is None or b.size != 1 for b in bounds):
        return node
    start, end, axis = (int(bound.item()) for bound in bounds if bound is not None)
    sides = {"before": start, "": end - start, "after": shape[axis] - end}
    kept = {place: side for place, side in sides.items() if side > 0}
    outputs = [graph.fresh(f"{node.output[0]}.{place}") if place else node.output[0] for place in kept]
    sizes = graph.constant(f"{node.output[0]}.sizes", np.array(list(kept.values()), np.int64))
    return helper.make_node("Split", [node.input[0], sizes], outputs, name=node.name, axis=axis)


def _slices(graph: ForeignGraph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """One Slice an output; none where the parts' sizes are not known."""
    from onnx import helper

    shape, axis = graph.shape(node.input[0]), attributes_of(node).get("axis", 0)
    parts = [graph.shape(name) for name in node.output]
    if shape is None or any(part is None for part in parts):
        return []
    ends = list(itertools.accumulate(part[axis] for part in parts if part is not None))
    made = []
    for at, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        bounds = [
            graph.constant(f"{node.name}.{key}", np.array([value], np.int64))
            for key, value in (("starts", start), ("ends", end), ("axes", axis % len(shape)))
        ]
        inputs, name = [node.input[0], *bounds], f"{node.name}_{at}" if node.name else ""
        if node.output[at]:
            made.append(helper.make_node("Slice", inputs, [node.output[at]], name=name))
    return made


def _resolve(graph: ForeignGraph, node: onnx.NodeProto) -> None:
    shape = graph.shape(node.input[0])
    parts = [graph.value(name) if name else None for name in node.input[1:]]
    if shape is None or len(parts) < 2 or any(graph.value(name) is None for name in node.input[1:] if name):
        return
    starts, ends = parts[:2]
    assert starts is not None
    assert ends is not None
    axes = parts[2] if len(parts) > 2 and parts[2] is not None else np.arange(len(starts))
    steps = parts[3] if len(parts) > 3 and parts[3] is not None else np.ones(len(starts), np.int64)
    if (steps < 1).any():
        return  # backwards: left as it is
    axes = axes % len(shape)
    limits = np.array(shape, np.int64)[axes]
    starts, ends = (np.clip(np.where(b < 0, b + limits, b), 0, limits) for b in (starts.astype(int), ends.astype(int)))
    values = [starts, ends, axes] if (steps == 1).all() else [starts, ends, axes, steps]
    stem = node.name or node.output[0]
    del node.input[1:]
    node.input.extend(graph.constant(f"{stem}.bounds", np.asarray(value, np.int64)) for value in values)
