# mypy: allow-subclassing-any
"""Operators that torch offers as functions only, as modules: so that hooks and profilers see them by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ToFloat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)


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
    """Elements start..stop-1 along dimensions, a view."""

    def __init__(self, ranges: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.ranges = ranges  # dimension, start, stop

    def forward(self, x: Tensor) -> Tensor:
        for dim, start, stop in self.ranges:
            x = x.narrow(dim, start, stop - start)
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
