"""ONNX graph -> ``torch.fx.GraphModule`` of ordinary modules whose paths are the nodes' names.

    operators.py  one function an ONNX operator: node -> torch module
    modules.py    the few modules that torch lacks

No trace and no generated code: node ``17.conv`` is ``module.get_submodule("17.conv")``, an ``nn.Conv2d``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detector.errors import EngineError

if TYPE_CHECKING:
    import onnx
    from torch.fx import GraphModule

Signature = tuple[list[tuple[str, tuple[int, ...]]], list[tuple[str, tuple[int, ...]]]]


def graph_module(model: onnx.ModelProto) -> GraphModule:
    """The module: takes u8 [B, H, W, 3], returns a tuple of the graph's outputs. In eval mode, without gradients.

    Raises EngineError that lists every operator for which there is no torch module here.
    """
    import torch
    from onnx import numpy_helper
    from torch import fx, nn

    from detector.engines.torch_graph.operators import OPERATORS, Node

    lacking = sorted({node.op_type for node in model.graph.node} - OPERATORS.keys())
    if lacking:
        raise EngineError(
            f"engine torch: no module for the operators {', '.join(lacking)} of this graph; use --engine ort"
        )
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    root, graph = nn.Module(), fx.Graph()
    values: dict[str, fx.Node] = {
        info.name: graph.placeholder(f"input{at}") for at, info in enumerate(model.graph.input)
    }
    for proto in model.graph.node:
        node = Node(proto, constants)
        module, inputs = OPERATORS[proto.op_type](node)
        for name in inputs:
            if name not in values and name not in constants:
                raise EngineError(f"engine torch: node {proto.name} reads the tensor {name}, which nothing makes")
            if name not in values:  # a constant that is an operand, not a parameter of the module
                place = f"constants.{name}.value"
                _attach(root, place, torch.tensor(constants[name]))
                values[name] = graph.get_attr(place)
        _attach(root, proto.name, module)
        values[proto.output[0]] = graph.call_module(proto.name, tuple(values[name] for name in inputs))
    graph.output(tuple(values[info.name] for info in model.graph.output))
    whole = fx.GraphModule(root, graph)
    whole.requires_grad_(False)
    # The picture comes as NHWC, so what Transpose hands on lies channels last. With weights laid out otherwise
    # every convolution reorders them anew: measured 5 times slower on yolov4-tiny (2 threads, AVX-512).
    return whole.eval().to(memory_format=torch.channels_last)


def signature(model: onnx.ModelProto) -> Signature:
    """(type, shape) of the inputs and of the outputs; -1 for a dimension that is not fixed."""
    return [_described(info) for info in model.graph.input], [_described(info) for info in model.graph.output]


def _described(info: Any) -> tuple[str, tuple[int, ...]]:
    from onnx import helper

    tensor = info.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape


def _attach(root: Any, path: str, part: Any) -> None:
    """Puts a module or a tensor at a dotted path, making the modules on the way."""
    from torch import Tensor, nn

    *way, last = path.split(".")
    place = root
    for name in way:
        if name not in place._modules:
            place.add_module(name, nn.Module())
        place = place._modules[name]
    if isinstance(part, Tensor):
        place.register_buffer(last, part)
    else:
        place.add_module(last, part)
