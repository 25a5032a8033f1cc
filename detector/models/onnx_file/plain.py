"""The same graph in plainer words, so that more engines understand it: one output a node, bounds that are places."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from detector.models.onnx_file.foreign import ForeignGraph, attributes_of

if TYPE_CHECKING:
    import onnx


def make_plain(graph: ForeignGraph) -> None:
    """Split becomes Slices; bounds of a Slice that count from the end, or beyond it, become what they mean."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        if node.op_type == "Split" and (parts := _slices(graph, node)):
            nodes += parts
        else:
            if node.op_type == "Slice":
                _resolve(graph, node)
            nodes.append(node)
    graph.nodes = nodes


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
