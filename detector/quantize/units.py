"""Which nodes of a graph can be int8, and which of them belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detector.models.graph import MOVING, MULTIPLYING, QUANTISED, is_quantised, node_macs, tail, tensor_shapes

if TYPE_CHECKING:
    import onnx

# Operators for which onnxruntime has an integer kernel, or drops Q and DQ around them.
FUSED = ("Relu", "Clip")  # swallowed by the QuantizeLinear behind them, where it cuts at the same place
COMPUTING = ("LeakyRelu", "Sigmoid", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool")


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that are int8 or float together: a multiplying node with what follows it alone (its activation, a
    pooling), or one node where several come together. ``layers``: its multiplying nodes. ``macs``: for one picture."""

    name: str
    nodes: tuple[str, ...]
    layers: int
    macs: int


class Wiring:
    """Who makes and who reads each tensor, and what may be int8."""

    def __init__(self, model: onnx.ModelProto) -> None:
        from onnx import TensorProto

        self.graph = model.graph
        self.nodes = {node.name: node for node in self.graph.node}
        self.constants = {tensor.name for tensor in self.graph.initializer}
        self.outputs = [info.name for info in self.graph.output]
        self.maker = {name: node.name for node in self.graph.node for name in node.output}
        self.readers: dict[str, list[str]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node.name)
        infos = (*self.graph.input, *self.graph.value_info, *self.graph.output)
        self.floats = {info.name for info in infos if info.type.tensor_type.elem_type == TensorProto.FLOAT}
        last = tail(model)
        self.able = [node.name for node in self.graph.node if node.name not in last and self._can(node)]
        self.shapes = tensor_shapes(model)
        self.batch = self.shapes[self.graph.input[0].name][0]

    def tensors_in(self, name: str) -> list[str]:
        """Float tensors that a node reads and that are no constants."""
        return [tensor for tensor in self.nodes[name].input if tensor in self.floats and tensor not in self.constants]

    def multiplies(self, name: str) -> bool:
        return self.nodes[name].op_type in MULTIPLYING

    def macs(self, name: str) -> int:
        """For one picture."""
        return node_macs(self.nodes[name], self.shapes) // self.batch

    def _can(self, node: onnx.NodeProto) -> bool:
        if len(node.output) != 1 or node.output[0] not in self.floats:
            return False
        dynamic = [name for name in node.input if name in self.floats and name not in self.constants]
        if node.op_type in MULTIPLYING:
            return len(dynamic) == 1 and dynamic[0] == node.input[0] and node.input[1] in self.constants
        if node.op_type == "Resize":
            return _attribute(node, "mode") == b"nearest"
        if node.op_type in COMPUTING:
            return len(dynamic) == len(node.input)  # with a constant among them it is a scale, and cheap
        return node.op_type in MOVING or node.op_type in FUSED


def refusal(model: onnx.ModelProto) -> str | None:
    """Why no layer of a graph can become int8, and what to do; None where one can."""
    wiring = Wiring(model)
    if is_quantised(model):
        return QUANTISED
    if not any(map(wiring.multiplies, wiring.able)):
        return (
            "none of its layers can be int8: they are in half precision, or their weights are computed; export it in "
            "single precision, with its weights as constants"
        )
    return None


def units(wiring: Wiring) -> list[Unit]:
    """All that can be int8, in the graph's order."""
    members: dict[str, list[str]] = {}
    home: dict[str, str] = {}  # node -> the unit's first node
    for name in wiring.able:
        before = {home.get(wiring.maker.get(tensor, "")) for tensor in wiring.tensors_in(name)}
        joins = before.pop() if len(before) == 1 and not wiring.multiplies(name) else None
        home[name] = joins or name
        members.setdefault(home[name], []).append(name)
    return [
        Unit(
            name=first,
            nodes=tuple(nodes),
            layers=sum(wiring.multiplies(node) for node in nodes),
            macs=sum(wiring.macs(node) for node in nodes),
        )
        for first, nodes in members.items()
    ]


def settled(wiring: Wiring, kept: Collection[str]) -> set[str]:
    """The nodes that are int8 when ``kept`` (nodes) stay float. One that multiplies nothing follows its neighbours:
    it is int8 only if all that it reads, or all that reads it, is int8; alone it would cost precision for nothing."""
    chosen = [name for name in wiring.able if name not in kept]
    fed = {name for name in chosen if wiring.multiplies(name)}
    drained = set(fed)
    for name in chosen:
        makers = [wiring.maker.get(tensor) for tensor in wiring.tensors_in(name)]
        if makers and all(maker in fed for maker in makers):
            fed.add(name)
    for name in reversed(chosen):
        out = wiring.nodes[name].output
        readers = [reader for tensor in out for reader in wiring.readers.get(tensor, ())]
        if readers and all(reader in drained for reader in readers) and not set(out) & set(wiring.outputs):
            drained.add(name)
    return fed | drained


@dataclass(frozen=True, slots=True)
class Share:
    """What stays float of the multiplying layers: their number and their MACs, of all."""

    layers: int
    all_layers: int
    macs: float  # 0..1


def float_share(model: onnx.ModelProto, kept: Iterable[str]) -> Share:
    """``kept``: nodes that stay float; those that cannot be int8 at all are counted with them."""
    wiring = Wiring(model)
    everything = [name for name in wiring.nodes if wiring.multiplies(name)]
    whole = settled(wiring, set(kept))
    stays = [name for name in everything if name not in whole]
    total = sum(map(wiring.macs, everything))
    return Share(len(stays), len(everything), sum(map(wiring.macs, stays)) / total if total else 0.0)


def _attribute(node: onnx.NodeProto, name: str) -> object:
    from onnx import helper

    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), None)
