"""Tensors of a file as numpy arrays, made when they are asked for. Number types are called as in safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ByteOrder = Literal["<", ">"]
DTYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of stored numbers. ``load`` gives the bytes; strides and offset count elements."""

    kind: str  # of DTYPES
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    stored: int  # elements behind ``load``
    load: Callable[[], bytes]
    byte_order: ByteOrder = "<"

    def __post_init__(self) -> None:
        self._check()

    def __setstate__(self, state: Any) -> None:  # a pickle must not change what was checked
        raise ValueError("state for a tensor")

    def _check(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            raise ValueError("a tensor whose shape is none")
        reach = self.offset + sum((side - 1) * step for side, step in zip(self.shape, self.strides, strict=True))
        if self.size and reach >= self.stored:
            raise ValueError(f"a tensor that reaches {reach + 1} numbers into a storage of {self.stored}")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def array(self) -> NDArray[Any]:
        """A contiguous copy in this machine's byte order; bfloat16 becomes float32."""
        self._check()
        if self.size > self.stored:  # one number stretched over many: weights are never stored like that
            raise ValueError(f"a tensor of {self.size} numbers in a storage of {self.stored}")
        numbers = np.frombuffer(self.load(), np.dtype(DTYPES[self.kind]).newbyteorder(self.byte_order), self.stored)
        steps = [step * numbers.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, steps, writeable=False)
        if self.kind == "BF16":  # the upper half of a float32
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(view.dtype.newbyteorder("="), order="C")


def item_bytes(kind: str) -> int:
    return np.dtype(DTYPES[kind]).itemsize
