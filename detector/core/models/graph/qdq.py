"""Write an int8 graph: fp32 plus QuantizeLinear (Q) and DequantizeLinear (DQ) nodes.

Calibration and the choice of nodes that stay float are in ``core.run.quantize``. This file decides
which nodes can be int8 (``Wiring``), which of them belong together (``int8_units``) and which are
int8 in the end (``int8_nodes``), and writes the graph (``quantised_graph``). There are three kinds
of graphs, made from the same ranges:

int8-u8  Activations are u8 with a zero point. Q and DQ are before and after each int8 node, so that
         ONNX Runtime and OpenVINO run it in an integer kernel. Biases are int32.
int8-s8  Activations are s8 and symmetric. Q and DQ are only before convolutions, Gemm and MatMul:
         TensorRT does not support zero points, moves Q and DQ itself, and fuses an activation only
         if no Q or DQ is before the activation. Biases are float32.
int8-u8-front  For OpenVINO on a CPU. Like int8-u8, but Q and DQ are only before int8 nodes, so that
         inputs of float nodes and the outputs are not rounded. The ranges of a depthwise
         convolution's input channels differ up to a thousandfold, so each channel has a scale.
         ONNX Runtime and TensorRT accept only one scale for an input.

In all kinds weights are s8 and symmetric, with a scale per output channel. They have 7 bits for a
CPU that adds products in 16 bits, because sums of larger products could overflow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.models.graph.build import (
    is_quantised,
    node_macs,
    tail_nodes,
    tensor_shapes,
    with_nodes,
)
from detector.core.models.graph.halves import operand_name
from detector.core.models.graph.int8 import FRONT, KINDS, WEIGHT_TOP
from detector.core.models.graph.operators import MOVING, MULTIPLYING, QUANTISED
from detector.core.models.graph.ranges import Range, channel_name

if TYPE_CHECKING:
    import onnx

# Operators that may be int8, besides MULTIPLYING and MOVING. ONNX Runtime drops a Relu or Clip if
# the Q after it clips at the same value. It has integer kernels for COMPUTING.
FUSED = ("Relu", "Clip")
COMPUTING = ("LeakyRelu", "Sigmoid", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool")

PIXELS = (0.0, 255.0)  # the range of the picture, even if the frames do not use all of it
BIAS_TOP = 2**31 - 2**24  # largest int32 bias; it leaves room for the products added to it


class Wiring:
    """A graph with the maker and readers of each tensor. ``able``: nodes that can be int8."""

    def __init__(self, model: onnx.ModelProto) -> None:
        from onnx import TensorProto

        self.graph = model.graph
        self.nodes = {node.name: node for node in self.graph.node}
        # Constant -> number of dimensions.
        self.constants = {tensor.name: len(tensor.dims) for tensor in self.graph.initializer}
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
        decoding = tail_nodes(model)
        self.able = [
            node.name
            for node in self.graph.node
            if node.name not in decoding and self._can_be_int8(node)
        ]
        self.shapes = tensor_shapes(model)
        self.batch = self.shapes[self.graph.input[0].name][0]

    def tensors_in(self, name: str) -> list[str]:
        """Return the float tensors that a node reads, without constants."""
        return self._computed_floats(self.nodes[name])

    def multiplies(self, name: str) -> bool:
        return self.nodes[name].op_type in MULTIPLYING

    def is_depthwise(self, name: str) -> bool:
        node = self.nodes[name]
        input_shape = self.shapes.get(node.input[0], ())
        return (
            node.op_type == "Conv"
            and input_shape[:1] == (self.batch,)
            and input_shape[1] > 1
            and self.shapes[node.input[1]][1] == 1
        )

    def macs(self, name: str) -> int:
        """Return the MACs of one node for one picture."""
        return node_macs(self.nodes[name], self.shapes) // self.batch

    def _computed_floats(self, node: onnx.NodeProto) -> list[str]:
        return [name for name in node.input if name in self.floats and name not in self.constants]

    def _can_be_int8(self, node: onnx.NodeProto) -> bool:
        computed = self._computed_floats(node)
        if len(node.output) != 1 or node.output[0] not in self.floats or not computed:
            return False
        if node.op_type in MULTIPLYING:
            if computed != [node.input[0]] or node.input[1] not in self.constants:
                return False
            # A vector has no output channels; for stacked matrices ONNX Runtime has no kernel.
            return node.op_type != "MatMul" or self.constants[node.input[1]] == 2
        if node.op_type == "Resize":
            return _get_attribute(node, "mode") == b"nearest"
        if node.op_type in COMPUTING:
            # A node with a constant input only scales or shifts, which is fast in float.
            return len(computed) == len(node.input)
        return node.op_type in MOVING or node.op_type in FUSED


def why_not_int8(model: onnx.ModelProto) -> str | None:
    """Explain why no layer can become int8, and what to do; return None if one can."""
    wiring = Wiring(model)
    if is_quantised(model):
        return QUANTISED
    if not any(map(wiring.multiplies, wiring.able)):
        return (
            "none of its layers can be int8: they use half precision, or compute their weights; "
            "export it in single precision with constant weights"
        )
    return None


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that are int8 or float together. The first node multiplies or joins several tensors.
    The other nodes (activation, pooling) read only tensors of this unit."""

    name: str  # name of the first node
    nodes: tuple[str, ...]
    layers: int  # number of multiplying nodes
    macs: int  # per picture


def int8_units(wiring: Wiring) -> list[Unit]:
    """Return all nodes that can be int8, as units, in the graph's order."""
    members: dict[str, list[str]] = {}
    first_of: dict[str, str] = {}  # node -> the first node of its unit
    for name in wiring.able:
        firsts = {first_of.get(wiring.maker.get(tensor, "")) for tensor in wiring.tensors_in(name)}
        first = firsts.pop() if len(firsts) == 1 and not wiring.multiplies(name) else None
        first_of[name] = first or name
        members.setdefault(first_of[name], []).append(name)
    return [
        Unit(
            name=first,
            nodes=tuple(nodes),
            layers=sum(wiring.multiplies(node) for node in nodes),
            macs=sum(wiring.macs(node) for node in nodes),
        )
        for first, nodes in members.items()
    ]


def int8_nodes(wiring: Wiring, kept: Collection[str]) -> set[str]:
    """Return the nodes that are int8 if the nodes ``kept`` stay float. A node that does not
    multiply becomes int8 only if all nodes before it, or all nodes after it, are int8. Otherwise
    int8 would not make it faster."""
    able = [name for name in wiring.able if name not in kept]
    after_int8 = {name for name in able if wiring.multiplies(name)}
    before_int8 = set(after_int8)
    for name in able:
        makers = [wiring.maker.get(tensor) for tensor in wiring.tensors_in(name)]
        if makers and all(maker in after_int8 for maker in makers):
            after_int8.add(name)
    for name in reversed(able):
        outputs = wiring.nodes[name].output
        readers = [reader for tensor in outputs for reader in wiring.readers.get(tensor, ())]
        if (
            readers
            and all(reader in before_int8 for reader in readers)
            and not set(outputs) & set(wiring.outputs)
        ):
            before_int8.add(name)
    return after_int8 | before_int8


@dataclass(frozen=True, slots=True)
class FloatShare:
    """How many of the multiplying layers stay float."""

    layers: int
    all_layers: int
    macs: float  # share of all MACs, 0..1


def float_share(model: onnx.ModelProto, kept: Iterable[str]) -> FloatShare:
    """Count the layers that stay float: ``kept``, and all that cannot be int8."""
    wiring = Wiring(model)
    layers = [name for name in wiring.nodes if wiring.multiplies(name)]
    quantised = int8_nodes(wiring, set(kept))
    floats = [name for name in layers if name not in quantised]
    total = sum(map(wiring.macs, layers))
    return FloatShare(
        len(floats), len(layers), sum(map(wiring.macs, floats)) / total if total else 0.0
    )


def tensors_to_measure(model: onnx.ModelProto) -> list[str]:
    """Return the tensors whose ranges ``quantised_graph`` may need, in the graph's order."""
    wiring = Wiring(model)
    names = [
        name
        for node in wiring.able
        for name in (*wiring.tensors_in(node), *wiring.nodes[node].output)
    ]
    sources = _range_sources(wiring)
    return list(dict.fromkeys(sources.get(name, name) for name in names))


def depthwise_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the tensors for which int8-u8-front needs a range per channel."""
    wiring = Wiring(model)
    convolutions = filter(wiring.is_depthwise, wiring.able)
    return list(dict.fromkeys(wiring.nodes[name].input[0] for name in convolutions))


def quantised_graph(
    model: onnx.ModelProto,
    ranges: Mapping[str, Range],
    kept: Collection[str],
    kind: str,
    weight_top: int = WEIGHT_TOP,
) -> onnx.ModelProto:
    """Return the graph with Q and DQ nodes. ``ranges``: those of ``tensors_to_measure`` and of the
    channels of ``depthwise_inputs``. ``kept``: nodes that stay float. ``kind``: one of ``KINDS``.
    ``weight_top``: the largest integer weight."""
    return _QdqWriter(model, ranges, kept, kind, weight_top).model()


def original_names(model: onnx.ModelProto) -> dict[str, str]:
    """Map both ways between old and new names of int8 nodes that compute outputs. Each such node
    has a name with an ending, and the DQ after it has the old name."""
    names = {node.name for node in model.graph.node}
    originals: dict[str, str] = {}
    for node in model.graph.node:
        raw = operand_name(node.name, "raw") if node.op_type == "DequantizeLinear" else ""
        if raw in names:
            originals |= {raw: node.name, node.name: raw}
    return originals


def u8_scale(low: float, high: float) -> tuple[np.float32, int]:
    """Return the scale and the zero point that make u8 cover a range and represent 0 exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 255) or np.float32(1)
    return scale, int(np.clip(round(-low / float(scale)), 0, 255))


def s8_scale(low: float, high: float) -> np.float32:
    """Return the scale with which s8 covers a range, with 0 as zero point."""
    return np.float32(max(abs(low), abs(high)) / 127) or np.float32(1)


def weight_scales(
    weights: NDArray[np.float32], axis: int, top: int = WEIGHT_TOP
) -> NDArray[np.float32]:
    """Return a scale per output channel, [channels] float32. ``axis``: that of the channels."""
    others = tuple(at for at in range(weights.ndim) if at != axis)
    scales = np.abs(weights).max(axis=others) / top
    result: NDArray[np.float32] = np.where(scales > 0, scales, 1).astype(np.float32)
    return result


class _QdqWriter:
    """Writes the graph. ``chosen``: int8 nodes. ``depthwise``: nodes whose input has a scale per
    channel. ``quantised``: tensors followed by Q and DQ. ``made``: new constants."""

    def __init__(
        self,
        model: onnx.ModelProto,
        ranges: Mapping[str, Range],
        kept: Collection[str],
        kind: str,
        weight_top: int,
    ) -> None:
        from onnx import numpy_helper

        assert kind in KINDS
        self.source, self.ranges, self.unsigned = model, ranges, kind != "int8-s8"
        self.on_outputs = kind == "int8-u8"  # Q and DQ also follow each int8 node
        self.weight_top = weight_top
        self.wiring = Wiring(model)
        self.sources = _range_sources(self.wiring)
        able = int8_nodes(self.wiring, kept)
        self.chosen = able if self.unsigned else set(filter(self.wiring.multiplies, able))
        self.depthwise = {
            name for name in self.chosen if kind == FRONT and self.wiring.is_depthwise(name)
        }
        self.by_channel = {self.wiring.nodes[name].input[0] for name in self.depthwise}
        self.quantised = self._quantised_tensors()
        self.values = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        for node in self.source.graph.node:
            self._write(node)
        read = {name for node in self.nodes for name in node.input} - self.made.keys()
        kept = [tensor for tensor in self.source.graph.initializer if tensor.name in read]
        return with_nodes(self.source, self.nodes, [*kept, *self.made.values()])

    def _quantised_tensors(self) -> set[str]:
        tensors: set[str] = set()
        for name in self.chosen:
            if name not in self.depthwise:
                tensors.update(self.wiring.tensors_in(name))
            if self.on_outputs:
                tensors.update(self.wiring.nodes[name].output)
        return {name for name in tensors if not self._is_fused(name)}

    def _is_fused(self, tensor: str) -> bool:
        """Return whether a tensor is between a convolution and a Relu that run as one kernel."""
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

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for at, name in enumerate(node.input):
            if node.name in self.depthwise and at == 0:
                copy.input[at] = self._dequantised_name(name, by_channel=True)
            elif name in self.quantised and self._reads_quantised(node.name, name):
                copy.input[at] = self._dequantised_name(name)
        if node.name in self.chosen and self.wiring.multiplies(node.name):
            self._quantise_weights(copy, node)
        for at, name in enumerate(node.output):
            if name in self.quantised and self._is_int8_output(name):
                copy.output[at] = operand_name(name, "raw")
                copy.name = copy.output[at] if copy.name == name else copy.name
        self.nodes.append(copy)
        for name in node.output:
            if name in self.quantised:
                self._write_pair(name)
            if name in self.by_channel:
                self._write_pair(name, by_channel=True)

    def _reads_quantised(self, reader: str, tensor: str) -> bool:
        """True for int8 readers. In an int8-u8 graph, also true if an int8 node made the tensor."""
        return reader in self.chosen or (
            self.on_outputs and self.wiring.maker.get(tensor) in self.chosen
        )

    def _is_int8_output(self, tensor: str) -> bool:
        """Return whether an int8 node computes this output. Then the DQ gets the output's name."""
        return (
            self.on_outputs
            and tensor in self.wiring.outputs
            and self.wiring.maker.get(tensor) in self.chosen
        )

    def _dequantised_name(self, tensor: str, by_channel: bool = False) -> str:
        if by_channel:
            return operand_name(tensor, "channels_dq")
        return tensor if self._is_int8_output(tensor) else operand_name(tensor, "dq")

    def _write_pair(self, tensor: str, by_channel: bool = False) -> None:
        from onnx import helper

        scale, zero = self._scale_of(tensor, by_channel)
        q = operand_name(tensor, "channels_q" if by_channel else "q")
        dq = self._dequantised_name(tensor, by_channel)
        scale_name = self._constant(f"{q}.scale", scale)
        zero_name = self._constant(f"{q}.zero", zero)
        source = operand_name(tensor, "raw") if self._is_int8_output(tensor) else tensor
        axis = {"axis": 1} if scale.ndim else {}
        self.nodes += [
            helper.make_node("QuantizeLinear", [source, scale_name, zero_name], [q], q, **axis),
            helper.make_node("DequantizeLinear", [q, scale_name, zero_name], [dq], dq, **axis),
        ]

    def _scale_of(self, tensor: str, by_channel: bool) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return scale and zero point, as scalars or [channels]."""
        source = self.sources.get(tensor, tensor)
        if by_channel and source not in _pictures(self.wiring):
            names = [channel_name(tensor, at) for at in range(self.wiring.shapes[tensor][1])]
            scales, zeros = zip(*(u8_scale(*self.ranges[name]) for name in names), strict=True)
            return np.array(scales, np.float32), np.array(zeros, np.uint8)
        low, high = PIXELS if source in _pictures(self.wiring) else self.ranges[source]
        if self.unsigned:
            scale, zero = u8_scale(low, high)
            return np.array(scale), np.array(zero, np.uint8)
        return np.array(s8_scale(low, high)), np.array(0, np.int8)

    def _quantise_weights(self, copy: onnx.NodeProto, node: onnx.NodeProto) -> None:
        """Make weights s8 with a scale per output channel, and the bias of u8 graphs int32."""
        axis = _output_axis(node)
        weights = self.values[node.input[1]].astype(np.float32)
        scales = weight_scales(weights, axis, self.weight_top)
        bias = self.values.get(node.input[2]) if len(node.input) > 2 else None
        if bias is not None and self.unsigned and node.op_type == "Conv":
            input_scale, _ = self._scale_of(node.input[0], node.name in self.depthwise)
            input_scale = np.repeat(input_scale.reshape(-1), len(bias) // input_scale.size)
            # Tiny weights with a large bias get a larger scale, so that the bias fits into int32.
            least_scales = (np.abs(bias) / (input_scale * BIAS_TOP)).astype(np.float32)
            scales = np.maximum(scales, least_scales)
            bias_scales = scales * input_scale
            steps = np.round(bias.astype(np.float64) / bias_scales).astype(np.int32)
            copy.input[2] = self._dequantised_constant(f"{node.name}_bias", steps, bias_scales, 0)
        shape = [1] * weights.ndim
        shape[axis] = -1
        steps = np.round(weights / scales.reshape(shape))
        steps = np.clip(steps, -self.weight_top, self.weight_top).astype(np.int8)
        copy.input[1] = self._dequantised_constant(f"{node.name}_weight", steps, scales, axis)

    def _dequantised_constant(
        self, name: str, steps: NDArray[Any], scales: NDArray[np.float32], axis: int
    ) -> str:
        """Write integers followed by a DQ; return the name of the float tensor."""
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
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if _get_attribute(node, "transB") else 1
    return 1  # ConvTranspose [in, out, h, w] and MatMul [in, out]


def _range_sources(wiring: Wiring) -> dict[str, str]:
    """Map moved values to their source, whose scale they keep: another scale would round again."""
    sources: dict[str, str] = {}
    for node in wiring.graph.node:
        if node.op_type in MOVING and node.name in wiring.able:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
    return sources


def _pictures(wiring: Wiring) -> set[str]:
    """Return the tensors that hold the picture's u8 values as float."""
    inputs = {info.name for info in wiring.graph.input}
    return {
        node.output[0]
        for node in wiring.graph.node
        if node.op_type == "Cast" and node.input[0] in inputs
    }


def _get_attribute(node: onnx.NodeProto, name: str) -> object:
    from onnx import helper

    return next(
        (helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), None
    )
