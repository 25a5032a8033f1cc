"""Build ONNX graphs node by node, and compute shapes and MACs of any ONNX graph.

A node that we build has one output, which has the node's name (see ``good_name``).
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core import __version__
from detector.core.errors import ModelError
from detector.core.models.graph.operators import (
    ACTIVATIONS,
    CONVERSIONS,
    INTEGER,
    MULTIPLYING,
    TRAINED,
)

if TYPE_CHECKING:
    import onnx


OPSET = 17
IR_VERSION = 8  # belongs to opset 17; old runtimes reject newer versions
INPUT = "images"
LIGHT_FLOATS = 4096  # shape inference does not get the values of constants with more elements
LONGEST_VECTOR = 1 << 20  # in elements; the scores of 8,400 boxes for 80 classes are 672,000
# Operators whose output sizes depend on values of their inputs.
BY_VALUE = frozenset(
    "ConstantOfShape Expand Tile Range Pad OneHot Resize Upsample Reshape Split".split()
)

CUTTING = frozenset({"Slice", "Gather"})  # operators that read only as much as they write

Shape = tuple[int, ...]


class GraphBuilder:
    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._input: onnx.ValueInfoProto | None = None
        self._names: set[str] = set()

    def input_u8(self, batch: int, height: int, width: int) -> str:
        """Add the input, u8 RGB [B, H, W, 3]. Return the name of its conversion to float32 NCHW."""
        from onnx import TensorProto, helper

        self._input = helper.make_tensor_value_info(
            INPUT, TensorProto.UINT8, [batch, height, width, 3]
        )
        # TensorRT requires that a conversion is the first node to read u8.
        cast = self.add("Cast", "input.cast", [INPUT], to=TensorProto.FLOAT)
        return self.add("Transpose", "input.transpose", [cast], perm=[0, 3, 1, 2])

    def constant(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._reserve(name)
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def add(self, operator: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node and return its name. "" stands for an omitted input."""
        from onnx import helper

        self._reserve(name)
        self._nodes.append(
            helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        )
        return name

    def conv(
        self,
        name: str,
        x: str,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32],
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilation: int = 1,
        groups: int = 1,
    ) -> str:
        """Add a Conv. ``weight``: [out, in / groups, k, k]. ``pads``: top, left, bottom, right."""
        return self.add(
            "Conv",
            name,
            [x, self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)],
            kernel_shape=list(weight.shape[2:]),
            strides=list(strides),
            pads=list(pads),
            dilations=[dilation] * 2,
            group=groups,
        )

    def max_pool(
        self, name: str, x: str, kernel: int, strides: Sequence[int], pads: Sequence[int]
    ) -> str:
        return self.add(
            "MaxPool", name, [x], kernel_shape=[kernel] * 2, strides=list(strides), pads=list(pads)
        )

    def upsample(self, name: str, x: str, factor: int) -> str:
        return self.add(
            "Resize",
            name,
            [x, "", self.constant(f"{name}.scales", np.array([1, 1, factor, factor], np.float32))],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    def activation(self, stem: str, kind: str, x: str, slope: float | None = None) -> str:
        """Add the nodes of ``ACTIVATIONS[kind]``, named STEM.PART. ``slope``: for "leaky" only."""
        tensors = {"x": x}
        for part, operator, inputs, attributes in ACTIVATIONS[kind]:
            if kind == "leaky" and slope is not None:
                attributes = {"alpha": slope}
            name = f"{stem}.{part}"
            operands = [
                tensors[operand]
                if isinstance(operand, str)
                else self.constant(f"{name}.n{at}", np.array(operand, np.float32))
                for at, operand in enumerate(inputs)
            ]
            tensors[part] = self.add(operator, name, operands, **attributes)
        return tensors.get("act", x)

    def _reserve(self, name: str) -> None:
        if not good_name(name) or name in self._names:
            raise ValueError(f"node name {name!r} is taken, or is not words joined by dots")
        self._names.add(name)

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return a model of the nodes that ``outputs`` need, after shape inference and checks."""
        from onnx import TensorProto, helper

        assert self._input is not None, "call input_u8 first"
        nodes, constants = self._select_needed(outputs)
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        model = helper.make_model(
            helper.make_graph(nodes, self.name, [self._input], infos, initializer=constants),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="detect-video",
            producer_version=__version__,
        )
        infer_shapes(model)
        return model

    def _select_needed(
        self, outputs: Sequence[str]
    ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        needed = set(outputs)
        nodes = []
        for node in reversed(self._nodes):
            if node.output[0] in needed:
                nodes.append(node)
                needed.update(node.input)
        return nodes[::-1], [tensor for name, tensor in self._constants.items() if name in needed]


def good_name(name: str) -> bool:
    return all(
        re.fullmatch(r"[0-9]+|[A-Za-z_]\w*", part, re.ASCII) and not keyword.iskeyword(part)
        for part in name.split(".")
    )


def is_heavy(tensor: onnx.TensorProto) -> bool:
    """Return whether a constant has too many values to be relevant for shape inference."""
    return bool(math.prod(tensor.dims) > LIGHT_FLOATS)


def with_nodes(
    source: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], constants: Iterable[onnx.TensorProto]
) -> onnx.ModelProto:
    """Return a copy of a model with its nodes and constants replaced. Raises ModelError."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(source)
    del model.graph.node[:], model.graph.initializer[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    infer_shapes(model)
    return model


def infer_shapes(model: onnx.ModelProto, *, unfinished: bool = False) -> None:
    """Check the model and add all tensors' shapes, in place. ``unfinished``: outputs may lack
    shapes. Raises ModelError."""
    from onnx import checker, helper, shape_inference

    graph = model.graph
    heavy = [tensor for tensor in graph.initializer if is_heavy(tensor)]
    heavy_names = {tensor.name for tensor in heavy}
    stand_ins = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in heavy
    ]
    light = helper.make_model(
        helper.make_graph(
            graph.node,
            graph.name or "graph",
            [*graph.input, *stand_ins],
            graph.output,
            initializer=[tensor for tensor in graph.initializer if tensor.name not in heavy_names],
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    try:
        inferred = shape_inference.infer_shapes(light, check_type=True, strict_mode=True)
        if _needs_values(inferred.graph):
            inferred = shape_inference.infer_shapes(
                light, check_type=True, strict_mode=True, data_prop=True
            )
        check_model(inferred, unfinished=unfinished)
    except (
        checker.ValidationError,
        shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as exc:
        raise ModelError(
            f"graph {graph.name}: the ONNX checker rejects it: {' '.join(str(exc).split())[:300]}"
        ) from exc
    del graph.value_info[:]
    graph.value_info.extend(inferred.graph.value_info)
    del graph.output[:]
    graph.output.extend(inferred.graph.output)


def check_model(model: onnx.ModelProto, *, unfinished: bool) -> None:
    from onnx import checker

    types = [info.type.tensor_type for info in model.graph.output if unfinished]
    shapeless = [tensor for tensor in types if not tensor.HasField("shape")]
    for tensor in shapeless:
        tensor.shape.SetInParent()
    checker.check_model(model)
    for tensor in shapeless:
        tensor.ClearField("shape")


def _needs_values(graph: onnx.GraphProto) -> bool:
    """Return whether shape inference should also compute the tensors' values. It should if shapes
    are missing, unless a long vector (of a Range) could take all memory."""
    dims: dict[str, list[int | None]] = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape"):
            dims[info.name] = [
                dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim
            ]
    dims |= {tensor.name: [*tensor.dims] for tensor in graph.initializer}
    outputs = [dims.get(name) for node in graph.node for name in node.output if name]
    if all(sides is not None and None not in sides for sides in outputs):
        return False
    if any(len(sides) == 1 and (sides[0] or 0) > LONGEST_VECTOR for sides in dims.values()):
        return False
    for node in graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            return False  # vectors in a branch may be long, but have no entry in ``dims``
        sides = dims.get(node.output[0]) if node.op_type in BY_VALUE else []
        if sides is None or sides == [None]:
            return False
    return True


def tensor_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    graph = model.graph
    shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[info.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


def output_shapes(model: onnx.ModelProto) -> list[Shape]:
    shapes = tensor_shapes(model)
    return [shapes[info.name] for info in model.graph.output]


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether the graph has nodes that quantise, or compute with integers."""
    return any(node.op_type in INTEGER for node in model.graph.node)


def tail_nodes(model: onnx.ModelProto) -> set[str]:
    """Return the nodes after the last Conv, Gemm or other multiplying node. They decode boxes."""
    needed: set[str] = set()  # tensors that a multiplying node needs
    tail = set()
    for node in reversed(model.graph.node):
        if node.op_type in MULTIPLYING or needed.intersection(node.output):
            needed.update(node.input)
        else:
            tail.add(node.name)
    return tail


def count_macs(model: onnx.ModelProto) -> int:
    """Count multiply-accumulates of Conv, Gemm and MatMul for one picture. FLOPs = 2 x MACs."""
    shapes = tensor_shapes(model)
    batch = shapes[model.graph.input[0].name][0]
    return sum(node_macs(node, shapes) for node in model.graph.node) // batch


def parameters_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return constant -> number of values, for the constants that training changes."""
    constants = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            sizes = [math.prod(entry.t.dims) for entry in node.attribute if entry.name == "value"]
            constants |= dict.fromkeys(node.output, *sizes) if sizes else {}
    return {
        name: constants[name]
        for node in model.graph.node
        if node.op_type in TRAINED
        for name in node.input
        if name in constants
    }


def uncounted(model: onnx.ModelProto) -> list[str]:
    """List the multiplying nodes whose shapes, and so their MACs, depend on the picture."""
    shapes = tensor_shapes(model)
    return [
        node.name
        for node in model.graph.node
        if node.op_type in MULTIPLYING
        and not all(name in shapes for name in (*node.input[:2], node.output[0]))
    ]


def peak_bytes(model: onnx.ModelProto) -> int:
    """Return the peak size of the tensors in use at one time, at four bytes per value."""
    graph, shapes = model.graph, tensor_shapes(model)
    constants = {tensor.name for tensor in graph.initializer}
    last = {name: at for at, node in enumerate(graph.node) for name in node.input}
    last |= dict.fromkeys((info.name for info in graph.output), len(graph.node))
    peak = live = 0
    freed: dict[int, int] = {}  # number of a node -> bytes that are freed after it
    for at, node in enumerate(graph.node):
        for name in node.output:
            size = 4 * math.prod(shapes.get(name, (0,))) if name not in constants else 0
            live += size
            freed[last.get(name, at)] = freed.get(last.get(name, at), 0) + size
        peak = max(peak, live)
        live -= freed.get(at, 0)
    return peak


class NodeCost(NamedTuple):
    """The cost for a whole batch. ``elements``: the number of values that are read (weights,
    activations) or written. ``shape``: the shape of the largest output."""

    macs: int
    elements: int
    parameters: int = 0
    shape: Shape = ()


def node_costs(model: onnx.ModelProto) -> dict[str, NodeCost]:
    """Return node (name or first output) -> cost. Omits conversions and nodes of unknown shape."""
    shapes = tensor_shapes(model)
    costs = {}
    for node in model.graph.node:
        tensors = [name for name in (*node.input, *node.output) if name]
        if node.op_type in CONVERSIONS or not all(name in shapes for name in tensors):
            continue
        written = sum(math.prod(shapes[name]) for name in node.output if name)
        elements = written + sum(_count_read(node, name, shapes) for name in node.input if name)
        costs[node.name or node.output[0]] = NodeCost(node_macs(node, shapes), elements)
    return costs


def joint_cost(model: onnx.ModelProto, groups: Sequence[Sequence[str]]) -> list[NodeCost]:
    """Return each group's cost if its nodes run as one layer. Tensors inside a group are free."""
    shapes, costs = tensor_shapes(model), node_costs(model)
    nodes = {node.name or node.output[0]: node for node in model.graph.node}
    readers: dict[str, set[str]] = {info.name: {""} for info in model.graph.output}
    for name, node in nodes.items():
        for value in node.input:
            readers.setdefault(value, set()).add(name)
    trained = parameters_of(model)

    def cost_of(group: Sequence[str]) -> NodeCost:
        members = {name for name in group if name in nodes}
        if not members & costs.keys():
            return NodeCost(0, 0)
        computed = {value for name in members for value in nodes[name].output}
        read = {value for name in members for value in nodes[name].input if value} - computed
        written = {value for value in computed if readers.get(value, set()) - members}
        elements = sum(math.prod(shapes.get(value, (0,))) for value in written)
        for value in read:
            readers_here = [nodes[name] for name in members if value in nodes[name].input]
            elements += max(_count_read(node, value, shapes) for node in readers_here)
        largest = max(sorted(written), key=lambda name: math.prod(shapes.get(name, ())), default="")
        macs = sum(costs[name].macs for name in members & costs.keys())
        parameters = sum(trained.get(value, 0) for value in read)
        return NodeCost(macs, elements, parameters, shapes.get(largest, ()))

    return [cost_of(group) for group in groups]


def _count_read(node: onnx.NodeProto, value: str, shapes: dict[str, Shape]) -> int:
    """Return how many elements of ``value`` a node reads. A Slice or Gather reads only a part."""
    size = math.prod(shapes.get(value, (0,)))
    if node.op_type in CUTTING and value == node.input[0]:
        return min(size, sum(math.prod(shapes.get(name, (0,))) for name in node.output))
    return size


def node_macs(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    """Return a node's MACs for the whole batch; 0 for operators other than ``MULTIPLYING``."""
    if node.op_type not in MULTIPLYING:
        return 0
    try:
        left, right, out = shapes[node.input[0]], shapes[node.input[1]], shapes[node.output[0]]
    except KeyError as exc:
        raise ModelError(
            f"node {node.name}: its MACs cannot be counted, because tensor {exc} has no fixed "
            "shape; use --precision fp32"
        ) from exc
    if node.op_type == "Conv":
        return math.prod(out) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(left) * math.prod(right[1:])
    if node.op_type == "MatMul":
        return math.prod(out) * left[-1]
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(out) * left[0 if transposed else 1]
