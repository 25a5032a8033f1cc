"""Operators on arrays that decode boxes and build attention: reshapes, products of matrices, reductions. As in
operators.py, one function an ONNX operator: node -> (torch module, names of the tensors that it is called with)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from detector.engines.torch_graph import modules
from detector.engines.torch_graph.selection import gather_computed, of_all_inputs

if TYPE_CHECKING:
    from detector.engines.torch_graph.operators import Made, Node


def _reshape(node: Node) -> Made:
    shape = node.numbers(1)
    if 0 in shape and node.attributes.get("allowzero", 0):
        raise node.error("empty tensors are not supported")
    return modules.Reshape(shape), node.inputs[:1]


def _squeeze(node: Node) -> Made:
    axes = tuple(node.numbers(1))
    return modules.Called(lambda x: x.squeeze(axes)), node.inputs[:1]


def _unsqueeze(node: Node) -> Made:
    axes = node.numbers(1)
    if min(axes) < 0 and len(axes) > 1:
        raise node.error("several axes that count from the end are not supported")

    def unsqueeze(x: Tensor) -> Tensor:
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    return modules.Called(unsqueeze), node.inputs[:1]


def _flatten(node: Node) -> Made:
    """Always two axes: what lies before ``axis``, and the rest."""
    axis = node.attributes.get("axis", 1)
    return modules.Called(lambda x: x.reshape(math.prod(x.shape[:axis]), -1)), node.inputs


def _softmax(node: Node) -> Made:
    return nn.Softmax(dim=node.attributes.get("axis", -1)), node.inputs


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[Node], Made]:
    def make(node: Node) -> Made:
        given = node.attributes.get("axes") or (node.numbers(1) if len(node.inputs) > 1 and node.inputs[1] else None)
        if given is None:
            raise node.error("a reduction must name its axes")
        axes, keep = [int(axis) for axis in given], bool(node.attributes.get("keepdims", 1))
        return modules.Called(lambda x: function(x, axes, keep)), node.inputs[:1]

    return make


def _gather(node: Node) -> Made:
    """Of a constant list of indices, or of one, which removes the axis; others are in selection.py."""
    axis = node.attributes.get("axis", 0)
    indices = node.constant(1) if node.is_constant(1) else None
    if indices is None or indices.ndim > 1:
        return gather_computed(node)
    if indices.ndim == 0:
        place = int(indices)
        return modules.Called(lambda x: x.select(axis, place)), node.inputs[:1]
    return modules.Picked(axis, torch.tensor(indices)), node.inputs[:1]


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """Of whole numbers without the rest, as ONNX divides them."""
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _average_pool(node: Node) -> Made:
    node.refuse(auto_pad=(b"NOTSET",), ceil_mode=(0,), dilations=([1, 1],))
    kernel = tuple(node.attributes["kernel_shape"])
    stride = tuple(node.attributes.get("strides", [1] * len(kernel)))
    top, left, bottom, right = node.attributes.get("pads", [0] * 4)
    if (top, left) != (bottom, right):
        raise node.error("unequal padding is not supported")
    counts = bool(node.attributes.get("count_include_pad", 0))
    return nn.AvgPool2d(kernel, stride, (top, left), count_include_pad=counts), node.inputs


def _batch_norm(node: Node) -> Made:
    """As it stands in inference: a factor and a shift per channel."""
    node.refuse(training_mode=(0,))
    parts = [node.constant(at) for at in range(1, 5)]
    if any(part is None for part in parts):
        raise node.error("its statistics must be constants")
    module = nn.BatchNorm2d(
        len(parts[0]),  # type: ignore[arg-type]
        eps=node.attributes.get("epsilon", 1e-5),
        dtype=torch.tensor(parts[0]).dtype,
    )
    with torch.no_grad():
        for target, part in zip(
            (module.weight, module.bias, module.running_mean, module.running_var), parts, strict=True
        ):
            target.copy_(torch.tensor(part))
    return module, node.inputs[:1]


def _gelu(node: Node) -> Made:
    return nn.GELU(approximate=node.attributes.get("approximate", b"none").decode()), node.inputs


def _global_max(node: Node) -> Made:
    return nn.AdaptiveMaxPool2d(1), node.inputs


def _mish(node: Node) -> Made:
    return nn.Mish(), node.inputs


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.mean(axes, keep)


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keep)


def _amax(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.amax(axes, keep)


def _amin(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.amin(axes, keep)


ARRAYS: dict[str, Callable[[Node], Any]] = {
    "Abs": of_all_inputs(torch.abs),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Div": of_all_inputs(_quotient),
    "Erf": of_all_inputs(torch.erf),
    "Exp": of_all_inputs(torch.exp),
    "Flatten": _flatten,
    "Floor": of_all_inputs(torch.floor),
    "Gather": _gather,
    "Gelu": _gelu,
    "GlobalMaxPool": _global_max,
    "Log": of_all_inputs(torch.log),
    "MatMul": of_all_inputs(torch.matmul),
    "Max": of_all_inputs(torch.maximum),
    "Min": of_all_inputs(torch.minimum),
    "Mish": _mish,
    "Neg": of_all_inputs(torch.neg),
    "PRelu": of_all_inputs(_prelu),
    "Pow": of_all_inputs(torch.pow),
    "Reciprocal": of_all_inputs(torch.reciprocal),
    "ReduceMax": _reduce(_amax),
    "ReduceMean": _reduce(_mean),
    "ReduceMin": _reduce(_amin),
    "ReduceSum": _reduce(_sum),
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Sqrt": of_all_inputs(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": of_all_inputs(torch.sub),
    "Unsqueeze": _unsqueeze,
}
