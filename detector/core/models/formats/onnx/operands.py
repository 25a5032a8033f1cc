"""Check the lists that operators take as inputs: starts, ends, shapes, sizes and factors. ONNX's
shape inference reports a wrong list only if it needs the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.foreign import ForeignGraph

if TYPE_CHECKING:
    import onnx

# Operator -> positions of inputs that must be lists [N]. Elsewhere, axes may be a single number.
LISTS = {
    "Slice": (1, 2, 3, 4),
    "Reshape": (1,),
    "Split": (1,),
    "Tile": (1,),
    "Resize": (2, 3),
    "ConstantOfShape": (0,),
}
FACTORS = {("Resize", 2)}  # lists of floats; all others hold whole numbers
NAMES = ("starts", "ends", "axes", "steps")  # a Slice's inputs, from input 1


def check_operands(graph: ForeignGraph) -> None:
    for node in graph.nodes:
        for at in LISTS.get(node.op_type, ()):
            if at < len(node.input) and node.input[at]:
                _check_list(graph, node, at)
        if node.op_type == "Slice":
            _check_slice(graph, node)


def _check_list(graph: ForeignGraph, node: onnx.NodeProto, at: int) -> None:
    from onnx import TensorProto

    name = node.input[at]
    dims, kind = graph.dims.get(name), graph.types.get(name)
    if dims is not None and len(dims) != 1:
        raise _damaged(graph, node, f"its input {at} has shape {list(dims)}, but must be a list")
    integers = (TensorProto.INT32, TensorProto.INT64)
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
    allowed = floats if (node.op_type, at) in FACTORS else integers
    if kind and kind not in allowed:
        raise _damaged(graph, node, f"its input {at} has the wrong number type")


def _check_slice(graph: ForeignGraph, node: onnx.NodeProto) -> None:
    lengths = {
        name: graph.dims[tensor][0]
        for name, tensor in zip(NAMES, node.input[1:], strict=False)
        if tensor and tensor in graph.dims
    }
    if len({length for length in lengths.values() if length is not None}) > 1:
        raise _damaged(graph, node, f"the lengths of its lists do not match: {lengths}")
    dims = graph.dims.get(node.input[0])
    if dims is None:
        return
    rank, count = len(dims), lengths.get("starts")
    axes = graph.value(node.input[3]) if len(node.input) > 3 and node.input[3] else None
    listed = range(count or 0) if axes is None else axes.tolist()
    if any(not -rank <= axis < rank for axis in listed) or len({a % rank for a in listed}) < len(
        listed
    ):
        raise _damaged(
            graph, node, f"its axes {list(listed)[:9]} do not fit its input, which has rank {rank}"
        )


def _damaged(graph: ForeignGraph, node: onnx.NodeProto, what: str) -> ModelError:
    return ModelError(
        f"{graph.name}: node {node.name or node.output[0]} ({node.op_type}): {what}; the file is "
        "damaged: export it again"
    )
