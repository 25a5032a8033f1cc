# mypy: allow-subclassing-any
"""Operators that torch offers as functions only, as modules: so that hooks and profilers see them by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class ToType(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class Permute(nn.Module):
    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class Concat(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.dim)


class Narrow(nn.Module):
    """Elements start..stop-1 along dimensions, every ``step``-th, a view."""

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
    """Max pooling whose sides are padded unequally, which nn.MaxPool2d cannot. ``pads``: left, right, top, bottom."""

    def __init__(self, kernel: tuple[int, ...], stride: tuple[int, ...], pads: tuple[int, int, int, int]) -> None:
        super().__init__(kernel, stride)
        self.pads = pads

    def forward(self, x: Tensor) -> Tensor:
        padded: Tensor = super().forward(nn.functional.pad(x, self.pads, value=float("-inf")))
        return padded


class Called(nn.Module):
    """A function of torch as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *parts: Tensor) -> Tensor:
        return self.function(*parts)


class Reshape(nn.Module):
    """To a shape in ONNX's words: 0 keeps a side, -1 takes what is left."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape([x.shape[at] if side == 0 else side for at, side in enumerate(self.shape)])


class Picked(nn.Module):
    """Places along an axis, by a list of indices."""

    indices: Tensor

    def __init__(self, axis: int, indices: Tensor) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("indices", indices)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.axis, self.indices % x.shape[self.axis])
