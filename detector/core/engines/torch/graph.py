"""Convert an ONNX graph to a ``torch.fx.GraphModule`` of ordinary modules whose paths are the
nodes' names, so that torch's own tools (hooks, profiler, compile, training) work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import EngineError

if TYPE_CHECKING:
    import onnx
    from torch.fx import GraphModule


Signature = tuple[list[tuple[str, tuple[int, ...]]], list[tuple[str, tuple[int, ...]]]]


def graph_module(model: onnx.ModelProto) -> GraphModule:
    """Return a module, in eval mode and without gradients, that maps u8 [B, H, W, 3] to a tuple of
    the graph's outputs. If operators are unsupported, raises an EngineError that lists them all."""
    import torch
    from onnx import numpy_helper
    from torch import fx, nn

    from detector.core.engines.torch.operators import OPERATORS, OnnxNode

    unsupported = sorted({node.op_type for node in model.graph.node} - OPERATORS.keys())
    if unsupported:
        raise EngineError(
            f"engine torch: the operators {', '.join(unsupported)} of this graph are not "
            "supported; use --engine ort"
        )
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    folded = dequantize_constants(model, constants)
    root, graph = nn.Module(), fx.Graph()
    values: dict[str, fx.Node] = {
        info.name: graph.placeholder(f"input{at}") for at, info in enumerate(model.graph.input)
    }
    operators = {}
    read = {name for proto in model.graph.node for name in proto.input} | {
        info.name for info in model.graph.output
    }
    for proto in model.graph.node:
        if proto.output[0] in folded:
            continue
        node = OnnxNode(proto, constants)
        operators[proto.name] = proto.op_type
        module, inputs = OPERATORS[proto.op_type](node)
        for name in inputs:
            if name not in values and name not in constants:
                raise EngineError(
                    f"engine torch: node {proto.name} reads the tensor {name}, which does not exist"
                )
            if name not in values:  # a constant that the module takes as an input
                path = f"constants.{name}.value"
                attach(root, path, torch.tensor(constants[name]))
                values[name] = graph.get_attr(path)
        # The module of the first output in use gets the node's name; later names are numbered.
        path = proto.name
        parts = module if isinstance(module, list) else [module]
        if not read.isdisjoint(proto.output[len(parts) :]):
            raise node.error("its further outputs are not supported")
        for at, part in enumerate(parts):
            if proto.output[at] in read:
                attach(root, path, part)
                values[proto.output[at]] = graph.call_module(
                    path, tuple(values[name] for name in inputs)
                )
                path = f"{proto.name}.{at + 1}"
    graph.output(tuple(values[info.name] for info in model.graph.output))
    result = fx.GraphModule(root, graph)
    result.requires_grad_(False)
    result.meta["operators"] = operators
    return result.eval()


def dequantize_constants(model: onnx.ModelProto, constants: dict[str, NDArray[Any]]) -> set[str]:
    """Add DequantizeLinear results of constants to ``constants``, and return their names."""
    from onnx import helper

    folded = set()
    for proto in model.graph.node:
        if proto.op_type != "DequantizeLinear" or not all(
            name in constants for name in proto.input if name
        ):
            continue
        attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute
        }
        values, scale = (constants[name] for name in proto.input[:2])
        zero = (
            constants[proto.input[2]]
            if len(proto.input) > 2 and proto.input[2]
            else np.zeros_like(scale, values.dtype)
        )
        if attributes.get("block_size"):
            raise EngineError(
                f"engine torch: node {proto.name}: scales by blocks are not supported; "
                "use --engine ort"
            )
        axis = int(attributes.get("axis", 1))
        sides = [1] * values.ndim
        if scale.size > 1:
            sides[axis] = -1
        shifted = values.astype(np.float64) - zero.astype(np.float64).reshape(sides)
        constants[proto.output[0]] = (shifted * scale.reshape(sides)).astype(np.float32)
        folded.add(proto.output[0])
    return folded


def lay_out(module: GraphModule, channels_last: bool) -> GraphModule:
    """Store convolution weights in the picture's layout: NHWC (``channels_last``) or NCHW.
    Otherwise each run reorders them and takes 5 times as long (yolov4-tiny, 2 threads, AVX-512)."""
    import torch
    from torch import nn

    from detector.core.engines.torch.modules import Permute

    layout = torch.channels_last if channels_last else torch.contiguous_format
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)):
            part.weight.data = part.weight.data.contiguous(memory_format=layout)
        elif isinstance(part, Permute):
            part.copies = not channels_last
    return module


def signature(model: onnx.ModelProto) -> Signature:
    """Return (type, shape) of the inputs and of the outputs; -1 is a dynamic dimension."""
    graph = model.graph
    return list(map(_type_and_shape, graph.input)), list(map(_type_and_shape, graph.output))


def _type_and_shape(info: Any) -> tuple[str, tuple[int, ...]]:
    from onnx import helper

    tensor = info.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape


def attach(root: Any, path: str, part: Any) -> None:
    """Put a module or a tensor at a dotted path, creating the modules above it."""
    from torch import Tensor, nn

    *parents, last = path.split(".")
    parent = root
    for name in parents:
        if name not in parent._modules:
            parent.add_module(name, nn.Module())
        parent = parent._modules[name]
    if isinstance(part, Tensor):
        parent.register_buffer(last, part)
    else:
        parent.add_module(last, part)
