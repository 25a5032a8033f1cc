"""Convert ONNX operators. Each has a function: node -> (torch module, names of its inputs)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.core.engines.torch import modules
from detector.core.errors import EngineError

if TYPE_CHECKING:
    import onnx


Made = tuple[nn.Module | list[nn.Module], list[str]]


class OnnxNode:
    def __init__(self, proto: onnx.NodeProto, constants: Mapping[str, NDArray[Any]]) -> None:
        from onnx import helper

        self.name, self.operator = proto.name, proto.op_type
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.attributes = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute
        }
        self._constants = constants

    def constant(self, at: int) -> NDArray[Any] | None:
        """Return input ``at``, or None if absent. Raises EngineError if it is not a constant."""
        if at >= len(self.inputs) or not self.inputs[at]:
            return None
        if self.inputs[at] not in self._constants:
            raise self.error(f"input {self.inputs[at]} is computed; only a constant is supported")
        return self._constants[self.inputs[at]]

    def is_constant(self, at: int) -> bool:
        return self.inputs[at] in self._constants

    def numbers(self, at: int) -> list[int]:
        """Return input number ``at``, a list of integers. Raises EngineError if it is absent."""
        value = self.constant(at)
        if value is None:
            raise self.error(f"its input {at} must be given")
        return [int(number) for number in value.ravel()]

    def scalar(self, at: int) -> float | None:
        value = self.constant(at)
        return None if value is None else float(value.item())

    def error(self, text: str) -> EngineError:
        return EngineError(
            f"engine torch: node {self.name} ({self.operator}): {text}; use --engine ort"
        )

    def refuse(self, **allowed: tuple[Any, ...]) -> None:
        """Raise EngineError if an attribute of the node has a value that is not in ``allowed``."""
        for key, values in allowed.items():
            if key in self.attributes and self.attributes[key] not in values:
                raise self.error(f"{key}={self.attributes[key]!r} is not supported")


def _to_module(make: Callable[[], nn.Module]) -> Callable[[OnnxNode], Made]:
    return lambda node: (make(), node.inputs)


def _to_function(function: Callable[..., Tensor]) -> Callable[[OnnxNode], Made]:
    return lambda node: (modules.Called(function), node.inputs)


def _conv_transpose(node: OnnxNode) -> Made:
    if "output_shape" in node.attributes:
        raise node.error("output_shape is not supported")
    padding = tuple(node.attributes.get("output_padding", [0, 0]))
    return _convolution(node, nn.ConvTranspose2d, output_padding=padding)


def _convolution(
    node: OnnxNode, kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], **more: Any
) -> Made:
    weight, bias = node.constant(1), node.constant(2)
    if weight is None or weight.ndim != 4:
        raise node.error("only convolutions over pictures are supported")
    node.refuse(auto_pad=(b"NOTSET",))
    groups = node.attributes.get("group", 1)
    top, left, bottom, right = node.attributes.get("pads", [0] * 4)
    if (top, left) != (bottom, right):
        raise node.error(f"unequal padding {top, left, bottom, right} is not supported")
    channels = weight.shape[1] * groups, weight.shape[0]  # (in, out), or (out, in) if transposed
    # The device "meta" avoids random weights. nn.utils.skip_init would take 0.7 s to import sympy.
    module = kind(
        *(channels if kind is nn.Conv2d else channels[::-1]),
        kernel_size=tuple(weight.shape[2:]),
        stride=tuple(node.attributes.get("strides", [1, 1])),
        padding=(top, left),
        dilation=tuple(node.attributes.get("dilations", [1, 1])),
        groups=groups,
        bias=bias is not None,
        dtype=torch.tensor(weight[:0]).dtype,  # float16 in half-precision exports
        device="meta",
        **more,
    )
    module.weight = nn.Parameter(torch.tensor(weight))
    if bias is not None:
        module.bias = nn.Parameter(torch.tensor(bias).to(module.weight.dtype))
    return module, node.inputs[:1]


def _pad(node: OnnxNode) -> Made:
    node.refuse(mode=(b"constant",))
    pads, value, axes = node.numbers(1), node.scalar(2) or 0.0, node.constant(3)
    pad_axes = range(len(pads) // 2) if axes is None else [int(axis) for axis in axes.ravel()]

    def pad(x: Tensor) -> Tensor:
        widths = [0] * (2 * x.ndim)  # before and after each axis, the last axis first
        for at, axis in enumerate(pad_axes):
            place = 2 * (x.ndim - 1 - axis % x.ndim)
            widths[place : place + 2] = pads[at], pads[at + len(pads) // 2]
        return nn.functional.pad(x, widths, value=value)

    return modules.Called(pad), node.inputs[:1]


def _maxpool(node: OnnxNode) -> Made:
    node.refuse(auto_pad=(b"NOTSET",), storage_order=(0,), dilations=([1, 1],))
    kernel = tuple(node.attributes["kernel_shape"])
    stride = tuple(node.attributes.get("strides", [1] * len(kernel)))
    up = bool(node.attributes.get("ceil_mode", 0))
    top, left, bottom, right = node.attributes.get("pads", [0] * 4)
    if (top, left) == (bottom, right) and 2 * top <= kernel[0] and 2 * left <= kernel[1]:
        return nn.MaxPool2d(kernel, stride, (top, left), ceil_mode=up), node.inputs
    node.refuse(ceil_mode=(0,))
    return modules.PaddedMaxPool(kernel, stride, (left, right, top, bottom)), node.inputs


def _resize(node: OnnxNode) -> Made:
    node.refuse(
        mode=(b"nearest",),
        coordinate_transformation_mode=(b"asymmetric",),
        nearest_mode=(b"floor",),
    )
    scales = node.constant(2)
    if scales is None or scales.shape != (4,) or scales[0] != 1 or scales[1] != 1:
        raise node.error("only enlarging height and width by given scales is supported")
    if node.attributes.get("mode") != b"nearest" or (scales % 1).any():
        raise node.error("only the nearest pixel at whole scales is supported")
    return nn.Upsample(
        scale_factor=(float(scales[2]), float(scales[3])), mode="nearest"
    ), node.inputs[:1]


def _slice(node: OnnxNode) -> Made:
    starts, ends = (np.array(node.numbers(at), np.int64) for at in (1, 2))
    axes, steps = node.constant(3), node.constant(4)
    if steps is None:
        steps = np.ones(len(starts), np.int64)
    elif (steps < 1).any():
        raise node.error("negative steps are not supported")
    if (starts < 0).any() or (ends < 0).any() or (ends >= np.iinfo(np.int32).max).any():
        raise node.error("bounds that count from the end are not supported")
    dims = range(len(starts)) if axes is None else [int(axis) for axis in axes]
    ranges = [
        (dim, int(start), int(end), int(step))
        for dim, start, end, step in zip(dims, starts, ends, steps, strict=True)
    ]
    return modules.Narrow(ranges), node.inputs[:1]


def _cast(node: OnnxNode) -> Made:
    types = {
        1: torch.float32,
        6: torch.int32,
        7: torch.int64,
        9: torch.bool,
        10: torch.float16,
        11: torch.float64,
    }
    node.refuse(to=tuple(types))  # these are numbers of TensorProto.DataType
    return modules.ToType(types[node.attributes["to"]]), node.inputs


def _make_step(make: Callable[[float, int, torch.dtype], nn.Module]) -> Callable[[OnnxNode], Made]:
    """Return a converter for Q or DQ nodes of computed tensors. graph.py folds the others."""

    def made(node: OnnxNode) -> Made:
        scale, zero = node.constant(1), node.constant(2)
        if scale is None or scale.size != 1:
            raise node.error("only one scale for the whole tensor is supported")
        if zero is None or zero.dtype not in (np.uint8, np.int8):
            raise node.error("only u8 and s8 with their zero point given are supported")
        dtype = torch.uint8 if zero.dtype == np.uint8 else torch.int8
        return make(float(scale.item()), int(zero.item()), dtype), node.inputs[:1]

    return made


# Operators that select values, such as the best cells (YOLOv10, YOLO26) or positions (RT-DETR)

# GridSample's modes have other names in opset 20 than in opset 16.
SAMPLING = {b"bilinear": "bilinear", b"linear": "bilinear", b"nearest": "nearest"}


def _split(node: OnnxNode) -> Made:
    """Convert Split. The parts have the given sizes, or equal sizes (the last may be smaller)."""
    axis, count = node.attributes.get("axis", 0), len(node.outputs)
    ends = list(accumulate(node.numbers(1))) if len(node.inputs) > 1 and node.inputs[1] else []

    def part(at: int) -> Callable[[Tensor], Tensor]:
        def cut(x: Tensor) -> Tensor:
            side = -(-x.shape[axis] // count)
            start, end = (
                (at * side, min((at + 1) * side, x.shape[axis]))
                if not ends
                else ([0, *ends][at], ends[at])
            )
            return x.narrow(axis, start, end - start)

        return cut

    return [modules.Called(part(at)) for at in range(count)], node.inputs[:1]


def _top(node: OnnxNode) -> Made:
    """Convert TopK. Among equal values it chooses the first, which torch.topk does not ensure."""
    count, axis = node.constant(1), node.attributes.get("axis", -1)
    largest = bool(node.attributes.get("largest", 1))
    if count is None:
        raise node.error("the number of values must be given")
    length = int(count.item())

    def part(at: int) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.sort(x, dim=axis, descending=largest, stable=True)[at].narrow(
            axis, 0, length
        )

    return [modules.Called(part(at)) for at in range(len(node.outputs))], node.inputs[:1]


def _gather_elements(node: OnnxNode) -> Made:
    axis = node.attributes.get("axis", 0)
    return modules.Called(lambda x, at: x.gather(axis, at.long() % x.shape[axis])), node.inputs


def _gather_computed(node: OnnxNode) -> Made:
    """Convert Gather with computed indexes. In the result, their dimensions replace the axis."""
    axis = node.attributes.get("axis", 0)

    def gather(x: Tensor, at: Tensor) -> Tensor:
        place = axis % x.ndim
        chosen = x.index_select(place, at.reshape(-1).long() % x.shape[place])
        return chosen.reshape(*x.shape[:place], *at.shape, *x.shape[place + 1 :])

    return modules.Called(gather), node.inputs


def _gather_nd(node: OnnxNode) -> Made:
    node.refuse(batch_dims=(0,))
    return modules.Called(lambda x, at: x[tuple(at.long().unbind(-1))]), node.inputs


def _tile(node: OnnxNode) -> Made:
    repeats = node.numbers(1)
    return modules.Called(lambda x: x.repeat(repeats)), node.inputs[:1]


def _expand(node: OnnxNode) -> Made:
    sides = node.numbers(1)

    def expand(x: Tensor) -> Tensor:
        return x.expand(torch.broadcast_shapes(x.shape, sides))

    return modules.Called(expand), node.inputs[:1]


def _mod(node: OnnxNode) -> Made:
    """Convert Mod. The result has the sign of the divisor; with fmod, the sign of the dividend."""
    function = torch.fmod if node.attributes.get("fmod", 0) else torch.remainder
    return modules.Called(function), node.inputs


def _arg_max(node: OnnxNode) -> Made:
    node.refuse(select_last_index=(0,))
    axis, keep = node.attributes.get("axis", 0), bool(node.attributes.get("keepdims", 1))
    return modules.Called(lambda x: x.argmax(axis, keep)), node.inputs


def _grid_sample(node: OnnxNode) -> Made:
    node.refuse(mode=tuple(SAMPLING), padding_mode=(b"zeros", b"border", b"reflection"))
    mode = SAMPLING[node.attributes.get("mode", b"linear")]
    padding = node.attributes.get("padding_mode", b"zeros").decode()
    corners = bool(node.attributes.get("align_corners", 0))

    def sample(x: Tensor, grid: Tensor) -> Tensor:
        # Sample in float32: torch 2.13 reads the wrong memory of a non-contiguous bf16 tensor.
        sampled = nn.functional.grid_sample(x.float(), grid.float(), mode, padding, corners)
        return sampled.to(x.dtype)

    return modules.Called(sample), node.inputs


# Operators that decode boxes and build attention: reshapes, matrix products, reductions


def _reshape(node: OnnxNode) -> Made:
    shape = node.numbers(1)
    if 0 in shape and node.attributes.get("allowzero", 0):
        raise node.error("empty tensors are not supported")
    return modules.Reshape(shape), node.inputs[:1]


def _squeeze(node: OnnxNode) -> Made:
    axes = tuple(node.numbers(1))
    return modules.Called(lambda x: x.squeeze(axes)), node.inputs[:1]


def _unsqueeze(node: OnnxNode) -> Made:
    axes = node.numbers(1)
    if min(axes) < 0 and len(axes) > 1:
        raise node.error("several axes that count from the end are not supported")

    def unsqueeze(x: Tensor) -> Tensor:
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    return modules.Called(unsqueeze), node.inputs[:1]


def _flatten(node: OnnxNode) -> Made:
    axis = node.attributes.get("axis", 1)
    return modules.Called(lambda x: x.reshape(math.prod(x.shape[:axis]), -1)), node.inputs


def _reduce(function: Callable[..., Tensor]) -> Callable[[OnnxNode], Made]:
    def make(node: OnnxNode) -> Made:
        pad_axes = node.attributes.get("axes") or (
            node.numbers(1) if len(node.inputs) > 1 and node.inputs[1] else None
        )
        if not pad_axes:
            raise node.error("a reduction must name its axes")
        axes, keep = [int(axis) for axis in pad_axes], bool(node.attributes.get("keepdims", 1))
        return modules.Called(lambda x: function(x, axes, keep)), node.inputs[:1]

    return make


def _gather(node: OnnxNode) -> Made:
    axis = node.attributes.get("axis", 0)
    indices = node.constant(1) if node.is_constant(1) else None
    if indices is None or indices.ndim > 1:
        return _gather_computed(node)
    if indices.ndim == 0:
        place = int(indices)
        return modules.Called(lambda x: x.select(axis, place)), node.inputs[:1]
    return modules.Picked(axis, torch.tensor(indices)), node.inputs[:1]


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """Divide, and round integers towards zero as ONNX does."""
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _average_pool(node: OnnxNode) -> Made:
    node.refuse(auto_pad=(b"NOTSET",), ceil_mode=(0,), dilations=([1, 1],))
    kernel = tuple(node.attributes["kernel_shape"])
    stride = tuple(node.attributes.get("strides", [1] * len(kernel)))
    top, left, bottom, right = node.attributes.get("pads", [0] * 4)
    if (top, left) != (bottom, right):
        raise node.error("unequal padding is not supported")
    counts = bool(node.attributes.get("count_include_pad", 0))
    return nn.AvgPool2d(kernel, stride, (top, left), count_include_pad=counts), node.inputs


def _batch_norm(node: OnnxNode) -> Made:
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
            (module.weight, module.bias, module.running_mean, module.running_var),
            parts,
            strict=True,
        ):
            target.copy_(torch.tensor(part))
    return module, node.inputs[:1]


def _gelu(node: OnnxNode) -> Made:
    return nn.GELU(approximate=node.attributes.get("approximate", b"none").decode()), node.inputs


def _gemm(node: OnnxNode) -> Made:
    alpha, beta = node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)
    transposed = [bool(node.attributes.get(key, 0)) for key in ("transA", "transB")]

    def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = (x.T if transpose else x for x, transpose in zip((a, b), transposed, strict=True))
        product = a @ b if alpha == 1 else alpha * (a @ b)
        if c is None:
            return product
        return product + (c if beta == 1 else beta * c)

    return modules.Called(gemm), [name for name in node.inputs if name]


def _layer_norm(node: OnnxNode) -> Made:
    node.refuse(stash_type=(1,))
    if len([name for name in node.outputs if name]) > 1:
        raise node.error("its outputs for mean and deviation are not supported")
    axis, epsilon = node.attributes.get("axis", -1), node.attributes.get("epsilon", 1e-5)

    def norm(x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)

    return modules.Called(norm), [name for name in node.inputs if name]


OPERATORS: dict[str, Callable[[OnnxNode], Made]] = {
    "Abs": _to_function(torch.abs),
    "Add": _to_module(modules.Sum),
    "And": _to_function(torch.logical_and),
    "ArgMax": _arg_max,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": lambda node: (modules.Clamp(node.scalar(1), node.scalar(2)), node.inputs[:1]),
    "Concat": lambda node: (modules.Concat(node.attributes["axis"]), node.inputs),
    "Conv": lambda node: _convolution(node, nn.Conv2d),
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _make_step(modules.Dequantize),
    "Div": _to_function(_quotient),
    "Elu": lambda node: (nn.ELU(node.attributes.get("alpha", 1.0)), node.inputs),
    "Equal": _to_function(torch.eq),
    "Erf": _to_function(torch.erf),
    "Exp": _to_function(torch.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _to_function(torch.floor),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _to_module(lambda: nn.AdaptiveAvgPool2d(1)),
    "GlobalMaxPool": _to_module(lambda: nn.AdaptiveMaxPool2d(1)),
    "Greater": _to_function(torch.gt),
    "GreaterOrEqual": _to_function(torch.ge),
    "GridSample": _grid_sample,
    "HardSwish": _to_module(nn.Hardswish),
    "Identity": _to_module(nn.Identity),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda node: (nn.LeakyReLU(node.attributes.get("alpha", 0.01)), node.inputs),
    "Less": _to_function(torch.lt),
    "LessOrEqual": _to_function(torch.le),
    "Log": _to_function(torch.log),
    "MatMul": _to_function(torch.matmul),
    "Max": _to_function(torch.maximum),
    "MaxPool": _maxpool,
    "Min": _to_function(torch.minimum),
    "Mish": _to_module(nn.Mish),
    "Mod": _mod,
    "Mul": _to_module(modules.Product),
    "Neg": _to_function(torch.neg),
    "Not": _to_function(torch.logical_not),
    "Or": _to_function(torch.logical_or),
    "Pad": _pad,
    "Pow": _to_function(torch.pow),
    "PRelu": _to_function(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "QuantizeLinear": _make_step(modules.Quantize),
    "Reciprocal": _to_function(torch.reciprocal),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Relu": _to_module(nn.ReLU),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": _to_module(nn.Sigmoid),
    "Slice": _slice,
    "Softmax": lambda node: (nn.Softmax(dim=node.attributes.get("axis", -1)), node.inputs),
    "Softplus": _to_module(nn.Softplus),
    "Split": _split,
    "Sqrt": _to_function(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _to_function(torch.sub),
    "Sum": _to_module(modules.Sum),
    "Tanh": _to_module(nn.Tanh),
    "Tile": _tile,
    "TopK": _top,
    "Transpose": lambda node: (modules.Permute(node.attributes.get("perm", [])), node.inputs),
    "Unsqueeze": _unsqueeze,
    "Where": _to_function(torch.where),
    "Xor": _to_function(torch.logical_xor),
}
