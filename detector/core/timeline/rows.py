"""The rows of a span: index, start and end of its calls, and where its thread was meanwhile.

``Rows`` keeps the first ones, in some 16 bytes each, which a ``Spool`` holds on disk; ``Ring`` the
last ones, without the latter. Both hand out one column at a time, so that whoever writes all rows
of a run need not hold them twice.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096  # rows that are packed at once

Column = Literal["index", "start", "end", "off_cpu", "ready", "library"]
COLUMNS: tuple[Column, ...] = ("index", "start", "end", "off_cpu", "ready", "library")
SUMS: tuple[Column, ...] = COLUMNS[3:]  # kept as sums so far
NOT_KNOWN = -1


class Spool:
    """Packed rows of all spans, in a file without a name: a long run holds none of them in memory.

    ``folder``: where the file lies, on the disk of the run's session. It is made with the first
    block. Where it cannot be written, or no longer, and without a folder, rows stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0  # bytes that are in use
        self._lock = threading.Lock()

    def put(self, values: NDArray[np.generic]) -> NDArray[np.generic] | _Stored:
        """``values`` in the file; itself, where that is impossible."""
        data = values.tobytes()
        with self._lock:
            if self._folder is None:
                return values
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                    weakref.finalize(self, self._file.close)
                if os.pwrite(self._file.fileno(), data, self._end) != len(data):
                    raise OSError("the disk is full")
            except OSError:
                self._folder = None
                return values
            at, self._end = self._end, self._end + len(data)
        return _Stored(self, at, len(values), values.dtype)

    def read(self, at: int, size: int) -> bytes:
        assert self._file is not None
        data = os.pread(self._file.fileno(), size, at)
        if len(data) != size:
            raise OSError("rows of the timeline were cut off on disk")
        return data


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array [count] that lies in a spool."""

    spool: Spool
    at: int
    count: int
    dtype: np.dtype[np.generic]

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[np.generic]:
        data = self.spool.read(self.at, self.count * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype)


class Rows:
    """Rows in their order. Their span appends to ``indices``, ``starts`` and ``ends``, and what the
    calls had without a core, ready for one, and (``booked``) of the engine's threads so far, to
    ``offs``, ``readies`` and ``libraries``. All stay the same objects. It calls ``pack`` from time
    to time: a run of hours would keep 48 bytes a call otherwise.
    """

    __slots__ = ("_blocks", "_columns", "_spool", "ends", "indices", "libraries", "offs",
                 "readies", "starts")  # fmt: skip

    def __init__(self, spool: Spool | None = None, booked: bool = False) -> None:
        self.indices, self.starts, self.ends = array("q"), array("q"), array("q")
        self.offs, self.readies, self.libraries = array("q"), array("q"), array("q")
        columns = (self.indices, self.starts, self.ends, self.offs, self.readies, self.libraries)
        self._columns = dict(zip(COLUMNS, columns, strict=True))
        if not booked:
            del self._columns["library"]
        self._blocks: list[_Block] = []
        self._spool = Spool() if spool is None else spool

    def __len__(self) -> int:
        return sum(block.count for block in self._blocks) + len(self.indices)

    def pack(self) -> None:
        if len(self.indices) >= BLOCK:
            self._blocks.append(_Block.of(self._columns, self._spool))
            for column in self._columns.values():
                del column[:]

    def add_late(self, booked: int) -> None:
        """What all calls so far were given has become ``booked``: the last one was given more. Once
        it is packed, that goes to the next."""
        if self.libraries:
            self.libraries[-1] = booked

    def column(self, name: Column) -> NDArray[np.int64]:
        """[N] int64; NOT_KNOWN where nothing was booked."""
        if name not in self._columns:
            return np.full(len(self), NOT_KNOWN)
        found = np.empty(len(self), np.int64)
        at = 0
        for block in self._blocks:
            block.unpack(name, found[at : at + block.count])
            at += block.count
        found[at:] = self._columns[name]
        return np.diff(found, prepend=0) if name in SUMS else found


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows as what changes from one to the next, each column in the smallest type that holds it."""

    count: int
    # Of each column but the ends: the first value, and [count - 1] steps, or [1] if all are alike.
    steps: dict[Column, tuple[int, NDArray[np.generic] | _Stored]]
    durations: NDArray[np.generic] | _Stored  # [count]

    @classmethod
    def of(cls, columns: Mapping[Column, array[int]], spool: Spool) -> _Block:
        packed: dict[Column, tuple[int, NDArray[np.generic] | _Stored]] = {}
        for name, column in columns.items():
            if name != "end":
                steps = _steps(np.array(column))
                packed[name] = column[0], steps if len(steps) == 1 else spool.put(steps)
        lasted = np.array(columns["end"]) - np.array(columns["start"])
        return cls(len(columns["index"]), packed, spool.put(_narrow(lasted)))

    def unpack(self, name: Column, into: NDArray[np.int64]) -> None:
        """``into``: [count]."""
        first, steps = self.steps["start" if name == "end" else name]
        into[0] = first
        into[1:] = np.asarray(steps)
        np.cumsum(into, out=into)
        if name == "end":
            into += np.asarray(self.durations).astype(np.int64)


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
        self._columns = {name: array("q", bytes(8 * size)) for name in COLUMNS if name not in SUMS}
        self._size, self._next, self._whole = size, 0, False

    def __len__(self) -> int:
        return self._size if self._whole else self._next

    def put(self, index: int, start: int, end: int) -> None:
        at = self._next
        indices, starts, ends = self._columns.values()
        indices[at], starts[at], ends[at] = index, start, end
        self._next = at + 1
        if self._next == self._size:
            self._next, self._whole = 0, True

    def column(self, name: Column) -> NDArray[np.int64]:
        """[N] int64, the oldest first."""
        if name not in self._columns:
            return np.full(len(self), NOT_KNOWN)
        column, at = np.array(self._columns[name]), self._next
        return np.concatenate([column[at:], column[:at]]) if self._whole else column[:at]
