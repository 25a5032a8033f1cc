"""One function an ONNX operator: node -> (torch module, names of the tensors that it is called with)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from detector.engines.torch_graph import modules
from detector.engines.torch_graph.arrays import ARRAYS
from detector.engines.torch_graph.selection import SELECTION
from detector.errors import EngineError

if TYPE_CHECKING:
    import onnx

Made = tuple[nn.Module | list[nn.Module], list[str]]  # a list: of a node with several outputs, one module an output


class Node:
    """An ONNX node with its attributes as a mapping and its constant inputs as arrays."""

    def __init__(self, proto: onnx.NodeProto, constants: Mapping[str, NDArray[Any]]) -> None:
        from onnx import helper

        self.name, self.operator = proto.name, proto.op_type
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}
        self._constants = constants

    def constant(self, at: int) -> NDArray[Any] | None:
        """Input number ``at``; None where it is absent. Raises where it is not a constant."""
        if at >= len(self.inputs) or not self.inputs[at]:
            return None
        if self.inputs[at] not in self._constants:
            raise self.error(f"input {self.inputs[at]} is computed, only constants are supported there")
        return self._constants[self.inputs[at]]

    def is_constant(self, at: int) -> bool:
        return self.inputs[at] in self._constants

    def numbers(self, at: int) -> list[int]:
        """Input number ``at``, a list of whole numbers that must be given."""
        value = self.constant(at)
        if value is None:
            raise self.error(f"its input {at} must be given")
        return [int(number) for number in value.ravel()]

    def scalar(self, at: int) -> float | None:
        value = self.constant(at)
        return None if value is None else float(value.item())

    def error(self, text: str) -> EngineError:
        return EngineError(f"engine torch: node {self.name} ({self.operator}): {text}; use --engine ort")

    def refuse(self, **allowed: tuple[Any, ...]) -> None:
        """Attributes with values that are not written here; an absent one is allowed."""
        for key, values in allowed.items():
            if key in self.attributes and self.attributes[key] not in values:
                raise self.error(f"{key}={self.attributes[key]!r} is not supported")


def _plain(make: Callable[[], nn.Module]) -> Callable[[Node], Made]:
    """An operator without settings."""
    return lambda node: (make(), node.inputs)


def _conv(node: Node) -> Made:
    weight, bias = node.constant(1), node.constant(2)
    if weight is None or weight.ndim != 4:
        raise node.error("only convolutions over pictures are supported")
    node.refuse(auto_pad=(b"NOTSET",))
    groups = node.attributes.get("group", 1)
    top, left, bottom, right = node.attributes.get("pads", [0] * 4)
    if (top, left) != (bottom, right):
        raise node.error(f"unequal padding {top, left, bottom, right} is not supported")
    # skip_init: the numbers come from the graph, drawing others first would double the time to load.
    module = nn.utils.skip_init(
        nn.Conv2d,
        weight.shape[1] * groups,
        weight.shape[0],
        kernel_size=tuple(weight.shape[2:]),
        stride=tuple(node.attributes.get("strides", [1, 1])),
        padding=(top, left),
        dilation=tuple(node.attributes.get("dilations", [1, 1])),
        groups=groups,
        bias=bias is not None,
        dtype=torch.tensor(weight[:0]).dtype,  # half in exports of half precision
    )
    with torch.no_grad():
        module.weight.copy_(torch.tensor(weight))
        if bias is not None:
            module.bias.copy_(torch.tensor(bias))
    return module, node.inputs[:1]


def _maxpool(node: Node) -> Made:
    node.refuse(auto_pad=(b"NOTSET",), ceil_mode=(0,), storage_order=(0,), dilations=([1, 1],))
    kernel = tuple(node.attributes["kernel_shape"])
    stride = tuple(node.attributes.get("strides", [1] * len(kernel)))
    top, left, bottom, right = node.attributes.get("pads", [0] * 4)
    if (top, left) == (bottom, right) and 2 * top <= kernel[0] and 2 * left <= kernel[1]:
        return nn.MaxPool2d(kernel, stride, (top, left)), node.inputs
    return modules.PaddedMaxPool(kernel, stride, (left, right, top, bottom)), node.inputs


def _resize(node: Node) -> Made:
    node.refuse(mode=(b"nearest",), coordinate_transformation_mode=(b"asymmetric",), nearest_mode=(b"floor",))
    scales = node.constant(2)
    if scales is None or scales.shape != (4,) or scales[0] != 1 or scales[1] != 1:
        raise node.error("only enlarging height and width by given scales is supported")
    if node.attributes.get("mode") != b"nearest" or (scales % 1).any():
        raise node.error("only the nearest pixel at whole scales is supported")
    return nn.Upsample(scale_factor=(float(scales[2]), float(scales[3])), mode="nearest"), node.inputs[:1]


def _slice(node: Node) -> Made:
    starts, ends, axes, steps = (node.constant(at) for at in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise node.error("starts and ends must be given")
    if steps is None:
        steps = np.ones(len(starts), np.int64)
    elif (steps < 1).any():
        raise node.error("steps backwards are not supported")
    if (starts < 0).any() or (ends < 0).any() or (ends >= np.iinfo(np.int32).max).any():
        raise node.error("bounds that count from the end are not supported")
    dims = range(len(starts)) if axes is None else [int(axis) for axis in axes]
    ranges = [
        (dim, int(start), int(end), int(step)) for dim, start, end, step in zip(dims, starts, ends, steps, strict=True)
    ]
    return modules.Narrow(ranges), node.inputs[:1]


def _cast(node: Node) -> Made:
    types = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64}
    node.refuse(to=tuple(types))  # numbers of TensorProto
    return modules.ToType(types[node.attributes["to"]]), node.inputs


def _stepped(make: Callable[[float, int, torch.dtype], nn.Module]) -> Callable[[Node], Made]:
    """QuantizeLinear and DequantizeLinear of what is computed; of constants, torch_graph folds them."""

    def made(node: Node) -> Made:
        scale, zero = node.constant(1), node.constant(2)
        if scale is None or scale.size != 1:
            raise node.error("only one scale for the whole tensor is supported")
        if zero is None or zero.dtype not in (np.uint8, np.int8):
            raise node.error("only u8 and s8 with their zero point given are supported")
        dtype = torch.uint8 if zero.dtype == np.uint8 else torch.int8
        return make(float(scale.item()), int(zero.item()), dtype), node.inputs[:1]

    return made


def _clip(node: Node) -> Made:
    return modules.Clamp(node.scalar(1), node.scalar(2)), node.inputs[:1]


OPERATORS: dict[str, Callable[[Node], Made]] = (
    ARRAYS
    | SELECTION
    | {
        "Add": _plain(modules.Sum),
        "Cast": _cast,
        "Clip": _clip,
        "Concat": lambda node: (modules.Concat(node.attributes["axis"]), node.inputs),
        "Conv": _conv,
        "DequantizeLinear": _stepped(modules.Dequantize),
        "Elu": lambda node: (nn.ELU(node.attributes.get("alpha", 1.0)), node.inputs),
        "GlobalAveragePool": _plain(lambda: nn.AdaptiveAvgPool2d(1)),
        "HardSwish": _plain(nn.Hardswish),
        "Identity": _plain(nn.Identity),
        "LeakyRelu": lambda node: (nn.LeakyReLU(node.attributes.get("alpha", 0.01)), node.inputs),
        "MaxPool": _maxpool,
        "Mul": _plain(modules.Product),
        "QuantizeLinear": _stepped(modules.Quantize),
        "Relu": _plain(nn.ReLU),
        "Resize": _resize,
        "Sigmoid": _plain(nn.Sigmoid),
        "Slice": _slice,
        "Softplus": _plain(nn.Softplus),
        "Sum": _plain(modules.Sum),
        "Tanh": _plain(nn.Tanh),
        "Transpose": lambda node: (modules.Permute(list(node.attributes["perm"])), node.inputs),
    }
)
