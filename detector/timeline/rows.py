"""The rows of a span: index, start and end of its calls.

``Rows`` keeps the first ones, in some 8 bytes each; ``Ring`` the last ones. Both hand out one
column at a time, so that whoever writes all rows of a run need not hold them twice.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096  # rows that are packed at once

Column = Literal["index", "start", "end"]
COLUMNS: tuple[Column, ...] = ("index", "start", "end")


class Rows:
    """Rows in their order. Their span appends to ``indices``, ``starts`` and ``ends``, and calls
    ``pack`` from time to time: a run of hours would keep 24 bytes a call otherwise.
    """

    __slots__ = ("_blocks", "ends", "indices", "starts")

    def __init__(self) -> None:
        self.indices, self.starts, self.ends = array("q"), array("q"), array("q")
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return sum(block.count for block in self._blocks) + len(self.indices)

    def pack(self) -> None:
        if len(self.indices) >= BLOCK:
            self._blocks.append(_Block.of(self.indices, self.starts, self.ends))
            self.indices, self.starts, self.ends = array("q"), array("q"), array("q")

    def column(self, name: Column) -> NDArray[np.int64]:
        """[N] int64."""
        found = np.empty(len(self), np.int64)
        at = 0
        for block in self._blocks:
            block.unpack(name, found[at : at + block.count])
            at += block.count
        found[at:] = {"index": self.indices, "start": self.starts, "end": self.ends}[name]
        return found


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows as what changes from one to the next, each column in the smallest type that holds it."""

    count: int
    first_index: int
    index_steps: NDArray[np.generic]  # [count - 1], or [1] if all are the same
    first_start: int
    start_steps: NDArray[np.generic]
    durations: NDArray[np.generic]  # [count]

    @classmethod
    def of(cls, indices: array[int], starts: array[int], ends: array[int]) -> _Block:
        started = np.array(starts)
        return cls(
            len(indices),
            indices[0],
            _steps(np.array(indices)),
            starts[0],
            _steps(started),
            _narrow(np.array(ends) - started),
        )

    def unpack(self, name: Column, into: NDArray[np.int64]) -> None:
        """``into``: [count]."""
        index = name == "index"
        into[0] = self.first_index if index else self.first_start
        into[1:] = self.index_steps if index else self.start_steps
        np.cumsum(into, out=into)
        if name == "end":
            into += self.durations.astype(np.int64)


def _steps(column: NDArray[np.int64]) -> NDArray[np.generic]:
    steps = np.diff(column)
    return _narrow(steps[:1] if (steps == steps[0]).all() else steps)


def _narrow(values: NDArray[np.int64]) -> NDArray[np.generic]:
    if values.min() < 0:
        return values
    return values.astype(np.min_scalar_type(int(values.max())))


class Ring:
    """The last ``size`` rows. All of its memory is taken at the start: a run of months that grows
    for its first half hour cannot be told from one that leaks.
    """

    __slots__ = ("_columns", "_next", "_size", "_whole")

    def __init__(self, size: int) -> None:
        self._columns = tuple(array("q", bytes(8 * size)) for _ in COLUMNS)
        self._size, self._next, self._whole = size, 0, False

    def __len__(self) -> int:
        return self._size if self._whole else self._next

    def put(self, index: int, start: int, end: int) -> None:
        at = self._next
        indices, starts, ends = self._columns
        indices[at], starts[at], ends[at] = index, start, end
        self._next = at + 1
        if self._next == self._size:
            self._next, self._whole = 0, True

    def column(self, name: Column) -> NDArray[np.int64]:
        """[N] int64, the oldest first."""
        column, at = np.array(self._columns[COLUMNS.index(name)]), self._next
        return np.concatenate([column[at:], column[:at]]) if self._whole else column[:at]
