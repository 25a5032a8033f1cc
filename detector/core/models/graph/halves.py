"""Convert a graph to half precision: float16 or bfloat16 between the picture and the raw outputs.

Each node reads one float type, so that strongly typed engines accept the graph; Casts convert
between the types. These stay float32:

- The outputs, which keep their names: a half-precision node that computes an output is renamed
  with the ending ``_fp16`` or ``_bf16``, and the Cast after it gets its old name.
- The tail: all nodes after the last convolution, Gemm or MatMul. They decode boxes, which half
  precision would round to half a pixel. It would not make the tail faster.
- Nodes whose constants do not fit into float16, and operators that ONNX defines for float32 only.
- For bfloat16: the conversion from u8, which goes through float32; ConvTranspose, for which
  TensorRT for RTX has no bfloat16 kernel; and ``sensitive_nodes``.

``sensitive_nodes`` are the nodes whose results change most if they are rounded to bfloat16's eight
bits (docs/quantisation.md, "bf16 and its mismatches"). Engines that convert a graph themselves
also leave these nodes in float32. They are the following, and nodes between them:

- Thin convolutions (depthwise ones, and the first one) and their activations, which matrix units do
  not speed up.
- The stem: the first layers, up to a fifth of the MACs. Their errors pass through all other layers.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.models.base import Network
from detector.core.models.graph.build import (
    good_name,
    infer_shapes,
    is_quantised,
    node_macs,
    tail_nodes,
    tensor_shapes,
    uncounted,
    with_nodes,
)
from detector.core.models.graph.operators import MULTIPLYING, QUANTISED

if TYPE_CHECKING:
    import onnx

HALVES = ("fp16", "bf16")
# The first opset with bfloat16 for Conv and similar operators, and its IR version.
BF16_OPSET, BF16_IR = 22, 10
CONSTANT_MAKERS = ("Constant", "ConstantOfShape")  # their attribute ``value`` sets their type
THIN = 8  # a convolution with fewer input channels per group is thin
STEM = 0.2  # largest share of the MACs in the stem
# SiLU consists of Sigmoid and Mul.
ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "HardSwish", "Sigmoid", "Elu", "Mul")


def convert_to_halves(network: Network, precision: str) -> Network:
    """Return the network in "fp16" or "bf16". Raises ModelError if it is not fp32."""
    if network.precision != "fp32":
        raise ModelError(
            f"{network.name}: the graph is {network.precision}; only fp32 can become {precision}"
        )
    if is_quantised(network.graph):
        raise ModelError(f"{network.name} cannot become {precision}: {QUANTISED}")
    graph = _HalvesWriter(network.graph, precision).model()
    return replace(network, graph=graph, precision=precision, path=None)


def operand_name(tensor: str, ending: str) -> str:
    """Return a name for another form of a tensor, such as ``0.conv_fp16`` for ``0.conv``. ``12``
    becomes ``n12_fp16``: in a valid name, a part that begins with a digit is a number."""
    name = f"{tensor}_{ending}"
    if good_name(name):
        return name
    head, _, last = tensor.rpartition(".")
    return f"{head}.n{last}_{ending}" if head else f"n{last}_{ending}"


def original_names(model: onnx.ModelProto) -> dict[str, str]:
    """Map both ways between old and new names of nodes that compute outputs. The conversion gave
    each such node a name with an ending, and gave the old name to the Cast after it."""
    makers = {output: node.name for node in model.graph.node for output in node.output}
    originals: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type != "Cast" or not node.name:
            continue
        maker = makers.get(node.input[0])
        if maker is not None and maker in [operand_name(node.name, half) for half in HALVES]:
            originals |= {maker: node.name, node.name: maker}
    return originals


def sensitive_nodes(model: onnx.ModelProto, kept: Set[str] = frozenset()) -> set[str]:
    """Return the nodes that stay float32 in bfloat16: ``kept``, thin convolutions, the stem, and
    nodes between these."""
    nodes = {*kept, *_thin_nodes(model.graph), *_stem_nodes(model)}
    return nodes | _nodes_between(model.graph, nodes)


def _thin_nodes(graph: onnx.GraphProto) -> set[str]:
    """Return convolutions with few input channels per group, and their activations. Convolutions in
    attention blocks are omitted: OpenVINO 2026.4 cannot compile such a block with mixed types."""
    thin: set[str] = set()
    constants = {tensor.name: tensor.dims for tensor in graph.initializer}
    makers = {name: node.name for node in graph.node for name in node.output}
    reshaped = {name for node in graph.node if node.op_type == "Reshape" for name in node.output}
    for node in graph.node:
        if node.op_type == "Conv" and node.input[1] in constants:
            is_thin = constants[node.input[1]][1] < THIN and node.input[0] not in reshaped
        else:
            dynamic = [makers.get(name) for name in node.input if name and name not in constants]
            is_thin = (
                node.op_type in ACTIVATIONS
                and bool(dynamic)
                and all(maker in thin for maker in dynamic)
            )
        if is_thin:
            thin.add(node.name)
    return thin


def _stem_nodes(model: onnx.ModelProto) -> set[str]:
    """Return the first nodes, with at most ``STEM`` of all MACs; set() if none has MACs."""
    shapes = tensor_shapes(model)
    skipped = set(uncounted(model))
    macs = {
        node.name: 0 if node.name in skipped else node_macs(node, shapes)
        for node in model.graph.node
    }
    remaining = STEM * sum(macs.values())
    stem: list[str] = []
    for node in model.graph.node:
        remaining -= macs[node.name]
        if remaining < 0:
            break
        stem.append(node.name)
    return set(stem) if any(macs[name] for name in stem) else set()


def _nodes_between(graph: onnx.GraphProto, kept: Set[str]) -> set[str]:
    """Return nodes between or before ``kept`` nodes. In half precision they would need two Casts,
    which cost more time than it saves."""
    makers = {name: node.name for node in graph.node for name in node.output}
    outputs = {info.name for info in graph.output}
    first = _nodes_before_products(graph)
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.name)
    between: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in MULTIPLYING or outputs.intersection(node.output):
            continue
        float32_nodes = kept | between if node.name in first else kept
        if all(readers.get(name, set()) <= float32_nodes for name in node.output) and (
            node.name in first or all(makers[name] in kept for name in node.input if name in makers)
        ):
            between.add(node.name)
    return between


def _nodes_before_products(graph: onnx.GraphProto) -> set[str]:
    products: set[str] = set()
    before: set[str] = set()
    for node in graph.node:
        if node.op_type in MULTIPLYING or products.intersection(node.input):
            products.update(node.output)
        else:
            before.add(node.name)
    return before


class _HalvesWriter:
    """``types``: written float tensor -> its precision. ``renamed``: output -> its new name.
    ``made``: new constants. ``elements``: tensor -> ONNX type."""

    def __init__(self, model: onnx.ModelProto, precision: str) -> None:
        from onnx import TensorProto, numpy_helper

        self.precision = precision
        self.half = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
        self.source = model if precision == "fp16" else _raise_opset(model)
        graph = self.source.graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.values = {
            name: numpy_helper.to_array(tensor) for name, tensor in self.constants.items()
        }
        self.elements = {
            info.name: info.type.tensor_type.elem_type for info in (*graph.input, *graph.value_info)
        }
        self.elements |= {info.name: info.type.tensor_type.elem_type for info in graph.output}
        self.elements |= {name: tensor.data_type for name, tensor in self.constants.items()}
        self.opset = max(
            entry.version for entry in self.source.opset_import if entry.domain in ("", "ai.onnx")
        )
        self.kept = tail_nodes(self.source)
        self.kept |= {node.name for node in graph.node if self._must_stay(node)}
        if precision == "bf16":
            self.kept = sensitive_nodes(self.source, self.kept)
        self.renamed: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[str, onnx.TensorProto] = {}
        self.casts: set[str] = set()

    def model(self) -> onnx.ModelProto:
        import onnx

        outputs = [info.name for info in self.source.graph.output]
        for node in self.source.graph.node:
            self._write(node, outputs)
        for name in outputs:
            if name in self.renamed:
                self.nodes.append(_make_cast(self.renamed[name], name, onnx.TensorProto.FLOAT))
        return with_nodes(self.source, self.nodes, self.made.values())

    def _write(self, node: onnx.NodeProto, outputs: list[str]) -> None:
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        precision = "fp32" if node.name in self.kept else self.precision
        for at, name in enumerate(node.input):
            if name:
                copy.input[at] = self._write_operand(node, at, name, precision)
        if precision != "fp32":
            self._convert_attributes(copy)
        for at, name in enumerate(node.output):
            if self._is_float(name):
                self.types[name] = precision
                if precision != "fp32" and name in outputs:
                    copy.output[at] = self.renamed[name] = operand_name(name, self.precision)
                    copy.name = copy.output[at] if copy.name == name else copy.name
        self.nodes.append(copy)

    def _write_operand(self, node: onnx.NodeProto, at: int, name: str, precision: str) -> str:
        """Return the name of the input after its conversion to the type that the node reads."""
        if not self._is_float(name) or (precision != "fp32" and not self._may_be_half(node, at)):
            precision = "fp32"
        if name in self.constants:
            return self._write_constant(name, precision)
        current = self.renamed.get(name, name)
        if self.types.get(name, "fp32") == precision or not self._is_float(name):
            return current
        return self._write_cast(current, name, precision)

    def _write_cast(self, current: str, name: str, precision: str) -> str:
        from onnx import TensorProto

        cast = operand_name(name, precision)
        if cast not in self.casts:
            self.casts.add(cast)
            self.nodes.append(
                _make_cast(current, cast, TensorProto.FLOAT if precision == "fp32" else self.half)
            )
        return cast

    def _write_constant(self, name: str, precision: str) -> str:
        if precision == "fp32":
            self.made[name] = self.constants[name]
            return name
        half = operand_name(name, precision)
        if half not in self.made:
            self.made[half] = self._half_tensor(self.values[name], half)
        return half

    def _half_tensor(self, values: NDArray[Any], name: str) -> onnx.TensorProto:
        from onnx import helper, numpy_helper

        if self.precision == "fp16":
            return numpy_helper.from_array(values.astype(np.float16), name)
        bits = _bfloat16_bits(values)
        return helper.make_tensor(name, self.half, values.shape, bits.tobytes(), raw=True)

    def _convert_attributes(self, node: onnx.NodeProto) -> None:
        from onnx import TensorProto, numpy_helper

        for attribute in node.attribute:
            if (
                node.op_type == "Cast"
                and attribute.name == "to"
                and attribute.i == TensorProto.FLOAT
            ):
                attribute.i = self.half
            elif attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(
                    self._half_tensor(numpy_helper.to_array(attribute.t), attribute.t.name)
                )

    def _must_stay(self, node: onnx.NodeProto) -> bool:
        if any(attribute.HasField("g") for attribute in node.attribute):
            raise ModelError(
                f"node {node.name} ({node.op_type}) contains a subgraph, which cannot be "
                f"{self.precision}"
            )
        reads = [name for name in node.input if name and self._is_float(name)]
        if self.precision == "bf16" and node.op_type == "ConvTranspose":
            return True
        if not reads:
            makes_float = any(self._is_float(name) for name in node.output)
            return makes_float and node.op_type not in CONSTANT_MAKERS and self.precision == "bf16"
        if not any(
            self._may_be_half(node, at) for at, name in enumerate(node.input) if name in reads
        ):
            return True
        return any(name in self.constants and not self._fits(name) for name in reads)

    def _fits(self, name: str) -> bool:
        """Return whether a constant fits into the half type (bfloat16 has the range of float32)."""
        if self.precision == "bf16":
            return True
        values = self.values[name]
        return bool((np.abs(values[np.isfinite(values)]) <= np.finfo(np.float16).max).all())

    def _may_be_half(self, node: onnx.NodeProto, at: int) -> bool:
        """Return whether ONNX allows half precision at input ``at`` (not for a Resize's scales)."""
        from onnx import defs

        if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type, self.opset):
            return False
        schema = defs.get_schema(node.op_type, self.opset)
        described = schema.inputs[min(at, len(schema.inputs) - 1)].type_str
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        half = "float16" if self.precision == "fp16" else "bfloat16"
        return f"tensor({half})" in allowed.get(described, [described])

    def _is_float(self, name: str) -> bool:
        from onnx import TensorProto

        return bool(self.elements.get(name) == TensorProto.FLOAT)


def _raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnx import version_converter

    if (
        max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        >= BF16_OPSET
    ):
        return model
    try:
        raised = version_converter.convert_version(model, BF16_OPSET)
    except Exception as exc:  # the converter raises plain RuntimeErrors
        raise ModelError(
            f"graph {model.graph.name}: ONNX cannot convert it to opset {BF16_OPSET}, which bf16 "
            "needs: "
            f"{' '.join(str(exc).split())}"
        ) from exc
    raised.ir_version = max(raised.ir_version, BF16_IR)
    raised.producer_name, raised.producer_version = model.producer_name, model.producer_version
    infer_shapes(raised)
    return raised


def _bfloat16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the upper 16 bits of each float32, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    result: NDArray[np.uint16] = np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")
    return result


def _make_cast(tensor: str, name: str, to: int) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node("Cast", [tensor], [name], name=name, to=to)
