# mypy: allow-subclassing-any
"""Modules for operators that are functions in torch, so that hooks and profilers can see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ToType(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class Permute(nn.Module):
    """Permute dimensions, as a view, or a copy if ``copies``. An empty order reverses them all."""

    copies = False

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = list(order)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(self.order or list(range(x.ndim))[::-1])
        return x.contiguous() if self.copies else x


class Concat(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.dim)


class Narrow(nn.Module):
    """A slice start:stop:step along each of several dimensions, as a view."""

    def __init__(self, ranges: list[tuple[int, int, int, int]]) -> None:
        super().__init__()
        self.ranges = ranges  # dimension, start, stop, step

    def forward(self, x: Tensor) -> Tensor:
        for dim, start, stop, step in self.ranges:
            x = x[(slice(None),) * dim + (slice(start, stop, step),)]
        return x


class Sum(nn.Module):
    def forward(self, *parts: Tensor) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


class Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Clamp(nn.Module):
    def __init__(self, low: float | None, high: float | None) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, self.low, self.high)


class PaddedMaxPool(nn.MaxPool2d):
    """Max pooling with unequal ``pads`` (left, right, top, bottom), which nn.MaxPool2d lacks."""

    def __init__(
        self, kernel: tuple[int, ...], stride: tuple[int, ...], pads: tuple[int, int, int, int]
    ) -> None:
        super().__init__(kernel, stride)
        self.pads = pads

    def forward(self, x: Tensor) -> Tensor:
        padded: Tensor = super().forward(nn.functional.pad(x, self.pads, value=float("-inf")))
        return padded


class Quantize(nn.Module):
    """A quantiser from float32 to u8 or s8: x / scale rounded half to even, plus zero point."""

    def __init__(self, scale: float, zero: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale, self.zero, self.dtype = scale, zero, dtype
        self.low, self.high = torch.iinfo(dtype).min, torch.iinfo(dtype).max

    def forward(self, x: Tensor) -> Tensor:
        return to_8_bits(
            torch.div(x, self.scale).round_().add_(self.zero).clamp_(self.low, self.high),
            self.dtype,
        )


class Dequantize(nn.Module):
    """A dequantiser from u8 or s8 to float32: (x - zero point) * scale."""

    def __init__(self, scale: float, zero: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale, self.zero, self.dtype = scale, zero, dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32).sub_(self.zero).mul_(self.scale)


def to_8_bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert whole float32 numbers via int32, 3 times as fast as directly (torch 2.13)."""
    return x.to(torch.int32).to(dtype)


class Called(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *parts: Tensor) -> Tensor:
        return self.function(*parts)


class Reshape(nn.Module):
    """A reshape as in ONNX: 0 stands for the input's side, and -1 for an inferred side."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape([x.shape[at] if side == 0 else side for at, side in enumerate(self.shape)])


class Picked(nn.Module):
    """A selection along an axis by a constant list of indexes."""

    indices: Tensor

    def __init__(self, axis: int, indices: Tensor) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("indices", indices)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.axis, self.indices % x.shape[self.axis])
