"""Ranges -> a graph with QuantizeLinear and DequantizeLinear nodes. Two kinds from one calibration:

int8-u8  activations u8 with a zero point, around every node that is int8: what onnxruntime and OpenVINO turn into
         integer kernels. Biases int32.
int8-s8  activations s8 symmetric, only in front of convolutions, Gemm and MatMul: TensorRT knows no zero point, moves
         Q and DQ itself, and fuses activations only where none stands in between. Biases float32.

Weights are s8, symmetric, a scale for each output channel, in both. Scales of both come from the same ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.models.graph.build import (
    MOVING,
    MULTIPLYING,
    QUANTISED,
    infer_shapes,
    is_quantised,
    node_macs,
    tail,
    tensor_shapes,
)
from detector.models.graph.halves import operand_name

if TYPE_CHECKING:
    import onnx


# ----------------------------------------------------------------------
# Which nodes of a graph can be int8, and which of them belong together.

# Operators for which onnxruntime has an integer kernel, or drops Q and DQ around them.
FUSED = (
    "Relu",
    "Clip",
)  # swallowed by the QuantizeLinear behind them, where it cuts at the same place
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
        self.floats = {
            info.name for info in infos if info.type.tensor_type.elem_type == TensorProto.FLOAT
        }
        last = tail(model)
        self.able = [
            node.name for node in self.graph.node if node.name not in last and self._can(node)
        ]
        self.shapes = tensor_shapes(model)
        self.batch = self.shapes[self.graph.input[0].name][0]

    def tensors_in(self, name: str) -> list[str]:
        """Float tensors that a node reads and that are no constants."""
        return [
            tensor
            for tensor in self.nodes[name].input
            if tensor in self.floats and tensor not in self.constants
        ]

    def multiplies(self, name: str) -> bool:
        return self.nodes[name].op_type in MULTIPLYING

    def macs(self, name: str) -> int:
        """For one picture."""
        return node_macs(self.nodes[name], self.shapes) // self.batch

    def _can(self, node: onnx.NodeProto) -> bool:
        if len(node.output) != 1 or node.output[0] not in self.floats:
            return False
        dynamic = [
            name for name in node.input if name in self.floats and name not in self.constants
        ]
        if node.op_type in MULTIPLYING:
            return (
                len(dynamic) == 1
                and dynamic[0] == node.input[0]
                and node.input[1] in self.constants
            )
        if node.op_type == "Resize":
            return _attribute(node, "mode") == b"nearest"
        if node.op_type in COMPUTING:
            return len(dynamic) == len(
                node.input
            )  # with a constant among them it is a scale, and cheap
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
        if (
            readers
            and all(reader in drained for reader in readers)
            and not set(out) & set(wiring.outputs)
        ):
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
    return Share(
        len(stays), len(everything), sum(map(wiring.macs, stays)) / total if total else 0.0
    )


def _attribute(node: onnx.NodeProto, name: str) -> object:
    from onnx import helper

    return next(
        (helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), None
    )


Range = tuple[float, float]
KINDS = ("int8-u8", "int8-s8")
PIXELS = (0.0, 255.0)
WEIGHT_TOP = 127  # TensorRT takes weights of -127..127
BIAS_TOP = 2**31 - 2**24  # of the int32 that a bias becomes, with room for what is added to it


def watched(model: onnx.ModelProto) -> list[str]:
    """The tensors whose ranges ``quantised_graph`` may ask for, in the graph's order."""
    wiring = Wiring(model)
    asked = [
        name
        for node in wiring.able
        for name in (*wiring.tensors_in(node), *wiring.nodes[node].output)
    ]
    sources = _sources(wiring)
    return list(dict.fromkeys(sources.get(name, name) for name in asked))


def quantised_graph(
    model: onnx.ModelProto, ranges: Mapping[str, Range], kept: Collection[str], kind: str
) -> onnx.ModelProto:
    """``kept``: nodes that stay float. ``kind``: of ``KINDS``. All but the picture's size and batch may differ from
    the graph that was calibrated on, as long as the tensors' names are the same."""
    return _Writer(model, ranges, kept, kind).model()


def affine(low: float, high: float) -> tuple[np.float32, int]:
    """Scale and zero point of u8; 0 is always one of the steps."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 255) or np.float32(1)
    return scale, int(np.clip(round(-low / float(scale)), 0, 255))


def symmetric(low: float, high: float) -> np.float32:
    """Scale of s8 with the zero point 0."""
    return np.float32(max(abs(low), abs(high)) / 127) or np.float32(1)


def weight_scales(weights: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """One for each output channel, [channels] float32."""
    others = tuple(at for at in range(weights.ndim) if at != axis)
    scales = np.abs(weights).max(axis=others) / WEIGHT_TOP
    result: NDArray[np.float32] = np.where(scales > 0, scales, 1).astype(np.float32)
    return result


class _Writer:
    def __init__(
        self, model: onnx.ModelProto, ranges: Mapping[str, Range], kept: Collection[str], kind: str
    ) -> None:
        from onnx import numpy_helper

        if kind not in KINDS:
            raise ValueError(f"kind is one of {', '.join(KINDS)}; got {kind!r}")
        self.source, self.ranges, self.unsigned = model, ranges, kind == "int8-u8"
        self.wiring = Wiring(model)
        self.sources = _sources(self.wiring)
        chosen = settled(self.wiring, kept)
        self.chosen = (
            chosen if self.unsigned else {name for name in chosen if self.wiring.multiplies(name)}
        )
        self.quantised = self._tensors()
        self.values = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        import onnx

        for node in self.source.graph.node:
            self._write(node)
        result = onnx.ModelProto()
        result.CopyFrom(self.source)
        del result.graph.node[:], result.graph.initializer[:], result.graph.value_info[:]
        result.graph.node.extend(self.nodes)
        wanted = {name for node in self.nodes for name in node.input}
        result.graph.initializer.extend(
            tensor
            for tensor in self.source.graph.initializer
            if tensor.name in wanted and tensor.name not in self.made
        )
        result.graph.initializer.extend(self.made.values())
        infer_shapes(result)
        return result

    def _tensors(self) -> set[str]:
        """The tensors that get Q and DQ behind them."""
        found: set[str] = set()
        for name in self.chosen:
            found.update(self.wiring.tensors_in(name))
            if self.unsigned:
                found.update(self.wiring.nodes[name].output)
        return {name for name in found if not self._fuses(name)}

    def _fuses(self, tensor: str) -> bool:
        """Between a convolution and its Relu: one kernel does both."""
        readers = self.wiring.readers.get(tensor, [])
        maker = self.wiring.maker.get(tensor)
        return (
            self.unsigned
            and maker in self.chosen
            and self.wiring.multiplies(str(maker))
            and tensor not in self.wiring.outputs
            and len(readers) == 1
            and readers[0] in self.chosen
            and self.wiring.nodes[readers[0]].op_type in FUSED
        )

    def _write(self, node: onnx.NodeProto) -> None:
        import onnx

        made = onnx.NodeProto()
        made.CopyFrom(node)
        for at, name in enumerate(node.input):
            if name in self.quantised and self._reads_quantised(node.name, name):
                made.input[at] = self._dequantised(name)
        if node.name in self.chosen and self.wiring.multiplies(node.name):
            self._multiplying(made, node)
        for at, name in enumerate(node.output):
            if (
                self.unsigned
                and name in self.quantised
                and name in self.wiring.outputs
                and node.name in self.chosen
            ):
                made.output[at] = operand_name(name, "raw")
                made.name = made.output[at] if made.name == name else made.name
        self.nodes.append(made)
        for name in node.output:
            if name in self.quantised:
                self._pair(name, node.name in self.chosen)

    def _reads_quantised(self, reader: str, tensor: str) -> bool:
        """All readers of what an int8 node made; of what a float node made, only those that are int8."""
        return reader in self.chosen or (
            self.unsigned and self.wiring.maker.get(tensor) in self.chosen
        )

    def _dequantised(self, tensor: str) -> str:
        if (
            tensor in self.wiring.outputs
            and self.unsigned
            and self.wiring.maker.get(tensor) in self.chosen
        ):
            return tensor
        return operand_name(tensor, "dq")

    def _pair(self, tensor: str, by_chosen: bool) -> None:
        from onnx import helper

        scale, zero = self._scale(tensor)
        scale_name = self._constant(
            f"{operand_name(tensor, 'q')}.scale", np.array(scale, np.float32)
        )
        zero_name = self._constant(f"{operand_name(tensor, 'q')}.zero", zero)
        is_output = tensor in self.wiring.outputs and by_chosen and self.unsigned
        taken = operand_name(tensor, "raw") if is_output else tensor
        q, dq = operand_name(tensor, "q"), self._dequantised(tensor)
        self.nodes += [
            helper.make_node("QuantizeLinear", [taken, scale_name, zero_name], [q], name=q),
            helper.make_node("DequantizeLinear", [q, scale_name, zero_name], [dq], name=dq),
        ]

    def _scale(self, tensor: str) -> tuple[np.float32, NDArray[Any]]:
        low, high = self._range(tensor)
        if self.unsigned:
            scale, zero = affine(low, high)
            return scale, np.array(zero, np.uint8)
        return symmetric(low, high), np.array(0, np.int8)

    def _range(self, tensor: str) -> Range:
        source = self.sources.get(tensor, tensor)
        if source in _pictures(self.wiring):
            return PIXELS
        return self.ranges[source]

    def _multiplying(self, made: onnx.NodeProto, node: onnx.NodeProto) -> None:
        """Weights s8 with a scale for each output channel; for the kind u8 the bias as int32."""
        axis = _output_axis(node)
        weights = self.values[node.input[1]].astype(np.float32)
        scales = weight_scales(weights, axis)
        bias = (
            self.values[node.input[2]]
            if len(node.input) > 2 and node.input[2] in self.values
            else None
        )
        if bias is not None and self.unsigned and node.op_type == "Conv":
            given = float(self._scale(node.input[0])[0])
            # A channel with tiny weights and a large bias: coarser weights, so that the bias fits into its int32.
            scales = np.maximum(scales, (np.abs(bias) / (given * BIAS_TOP)).astype(np.float32))
            both = (scales * np.float32(given)).astype(np.float32)
            steps = np.round(bias.astype(np.float64) / both).astype(np.int32)
            made.input[2] = self._dequantised_constant(f"{node.name}_bias", steps, both, 0)
        shape = [1] * weights.ndim
        shape[axis] = -1
        steps = np.clip(np.round(weights / scales.reshape(shape)), -WEIGHT_TOP, WEIGHT_TOP).astype(
            np.int8
        )
        made.input[1] = self._dequantised_constant(f"{node.name}_weight", steps, scales, axis)

    def _dequantised_constant(
        self, name: str, steps: NDArray[Any], scales: NDArray[np.float32], axis: int
    ) -> str:
        from onnx import helper

        dq = operand_name(name, "dq")
        values = self._constant(operand_name(name, "q"), steps)
        scale = self._constant(f"{dq}.scale", scales)
        zero = self._constant(f"{dq}.zero", np.zeros(scales.shape, steps.dtype))
        self.nodes.append(
            helper.make_node("DequantizeLinear", [values, scale, zero], [dq], name=dq, axis=axis)
        )
        return dq

    def _constant(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.made[name] = numpy_helper.from_array(values, name)
        return name


def _output_axis(node: onnx.NodeProto) -> int:
    """The axis of a weight along which output channels lie."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if any(entry.name == "transB" and entry.i for entry in node.attribute) else 1
    return 1  # ConvTranspose [in, out, h, w] and MatMul [in, out]


def _sources(wiring: Wiring) -> dict[str, str]:
    """Tensor -> the one whose values it holds, moved about: both must have one scale, or moving would cost a
    rounding."""
    found: dict[str, str] = {}
    for node in wiring.graph.node:
        if node.op_type in MOVING and node.name in wiring.able:
            found[node.output[0]] = found.get(node.input[0], node.input[0])
    return found


def _pictures(wiring: Wiring) -> set[str]:
    """Tensors that hold the picture's own u8 values, as float."""
    given = {info.name for info in wiring.graph.input}
    return {
        node.output[0]
        for node in wiring.graph.node
        if node.op_type == "Cast" and node.input[0] in given
    }
