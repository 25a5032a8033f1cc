"""The house's input before a graph from elsewhere: u8 RGB NHWC, Cast, Transpose, then what the network was trained on.

Channel order and 1/255 go into the first convolutions where nothing but slices and joins lies between: zero padding
stays zero, so nothing changes but the last bit. Elsewhere, and for half-precision weights, whose smallest numbers
1/255 would lose, they are nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from detector.models.graph import INPUT
from detector.models.onnx_file.foreign import ForeignGraph, attributes_of

if TYPE_CHECKING:
    import onnx

BGR = [2, 1, 0]
PREFIX = "input"  # what its nodes are called; for torch a module of that name, with their last words inside


def put_prefix(graph: ForeignGraph, *, planar: bool, bgr: bool, scale: float) -> None:
    """In place. ``planar``: the graph wants NCHW, else NHWC. ``scale``: factor on the 0..255 of a pixel."""
    from onnx import TensorProto, helper

    _make_way(graph)
    old, kind = graph.input, graph.input.type.tensor_type.elem_type
    sides = [dim.dim_value for dim in old.type.tensor_type.shape.dim]
    batch, height, width = (sides[0], sides[2], sides[3]) if planar else sides[:3]
    graph.input = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [batch, height, width, 3])
    nodes = [helper.make_node("Cast", [INPUT], ["input.cast"], name="input.cast", to=TensorProto.FLOAT)]
    if planar:
        nodes.append(_after(nodes, "Transpose", "input.transpose", perm=[0, 3, 1, 2]))
    if planar and kind == TensorProto.FLOAT and _absorb(graph, old.name, BGR if bgr else [0, 1, 2], scale):
        bgr, scale = False, 1.0
    if bgr:
        nodes += _swapped(graph, nodes[-1].output[0], axis=1 if planar else 3)
    if scale != 1:
        factor = graph.constant("input.scale.factor", np.array([scale], np.float32))
        nodes.append(_after(nodes, "Mul", "input.scale", factor))
    if kind != TensorProto.FLOAT:
        nodes.append(_after(nodes, "Cast", "input.fp16", to=kind))
    graph.rename(old.name, nodes[-1].output[0])
    graph.nodes = [*nodes, *graph.nodes]


def _make_way(graph: ForeignGraph) -> None:
    """Tensors of the graph's own that are called as those of the prefix get other names."""
    tensors = {name for node in graph.nodes for name in (*node.input, *node.output)} - {graph.input.name}
    others = {name: graph.fresh(name) for name in tensors if name == INPUT or name.startswith(f"{PREFIX}.")}
    for node in graph.nodes:
        node.input[:] = [others.get(name, name) for name in node.input]
        node.output[:] = [others.get(name, name) for name in node.output]
    graph.constants = {others.get(name, name): tensor for name, tensor in graph.constants.items()}
    for name in others.values():
        if name in graph.constants:
            graph.constants[name].name = name
    graph.outputs = {others.get(name, name): kind for name, kind in graph.outputs.items()}


def _after(nodes: list[onnx.NodeProto], operator: str, name: str, *more: str, **attributes: object) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(operator, [nodes[-1].output[0], *more], [name], name=name, **attributes)


def _swapped(graph: ForeignGraph, x: str, axis: int) -> list[onnx.NodeProto]:
    """RGB -> BGR by three slices and a join, operators that every engine has."""
    from onnx import helper

    nodes = []
    for channel, name in zip(BGR, ("input.blue", "input.green", "input.red"), strict=True):
        bounds = [
            graph.constant(f"{name}.{key}", np.array([value], np.int64))
            for key, value in (("starts", channel), ("ends", channel + 1), ("axes", axis))
        ]
        nodes.append(helper.make_node("Slice", [x, *bounds], [name], name=name))
    parts = [node.output[0] for node in nodes]
    return [*nodes, helper.make_node("Concat", parts, ["input.bgr"], name="input.bgr", axis=axis)]


def _absorb(graph: ForeignGraph, start: str, order: list[int], scale: float) -> bool:
    """Reorders and scales the weights that read the picture; False, with nothing changed, where that cannot be."""
    orders = {start: order}
    found: list[tuple[onnx.NodeProto, list[int]]] = []
    for node in graph.nodes:
        read = [name for name in node.input if name in orders]
        if not read:
            continue
        if node.op_type == "Conv" and _takes(graph, node, read):
            found.append((node, orders[read[0]]))
        elif node.op_type == "Slice" and _leaves_channels(graph, node):
            orders[node.output[0]] = orders[read[0]]
        elif node.op_type == "Concat" and len(read) == len(node.input) and attributes_of(node)["axis"] == 1:
            orders[node.output[0]] = _joined([orders[name] for name in node.input])
        else:
            return False
    if not found or any(name in graph.outputs for name in orders):
        return False
    for node, channels in found:
        weights = graph.value(node.input[1])
        assert weights is not None
        # Channel i of what comes now is channel channels.index(i) of what the weights were made for.
        moved = weights[:, np.argsort(channels)] * np.float32(scale)
        node.input[1] = graph.constant(node.input[1], moved.astype(np.float32))
    return True


def _takes(graph: ForeignGraph, node: onnx.NodeProto, read: list[str]) -> bool:
    weights = graph.dims.get(node.input[1], ())
    return (
        read == [node.input[0]]
        and node.input[1] in graph.constants
        and len(weights) == 4
        and attributes_of(node).get("group", 1) == 1
    )


def _leaves_channels(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    axes = graph.value(node.input[3]) if len(node.input) > 3 else None
    return axes is not None and bool((axes % 4 >= 2).all())


def _joined(orders: list[list[int]]) -> list[int]:
    joined: list[int] = []
    for order in orders:
        joined += [len(joined) + channel for channel in order]
    return joined
