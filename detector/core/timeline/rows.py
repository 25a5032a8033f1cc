"""Store a row for each call of a span: index, start, end, its thread's time off a core, and so on.
``SpanRows`` keeps the first rows, packed to some 16 bytes each; a ``Spool`` stores them on disk.
``Ring`` keeps the last rows in memory. ``SpanRows`` and ``Ring`` have a ``Block``, to which a span
writes. They return single columns, so that the writer of a session never holds all rows twice.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096  # rows packed at once

Column = Literal["index", "start", "end", "off_cpu", "ready", "library"]
COLUMNS: tuple[Column, ...] = ("index", "start", "end", "off_cpu", "ready", "library")
SUMS: tuple[Column, ...] = COLUMNS[3:]  # stored as running sums
NOT_KNOWN = -1

_ROW = struct.Struct("7q")
_LIBRARY = struct.Struct("q")  # the second-to-last value of a row
ROW_BYTES = _ROW.size


class Spool:
    """Packed rows of all spans in an unnamed file, so that a long run does not hold them in memory.
    The file is created in ``folder`` (on the disk of the run's session) when the first block is
    stored. Without a folder, or if the file cannot be written, rows stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0  # bytes in use
        self._lock = threading.Lock()

    def put(self, values: NDArray[np.generic]) -> NDArray[np.generic] | _Stored:
        """Store ``values`` in the file; return them unchanged if that fails."""
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
    """An array [count] in a spool."""

    spool: Spool
    at: int
    count: int
    dtype: np.dtype[np.generic]

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[np.generic]:
        data = self.spool.read(self.at, self.count * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype)


class Block:
    """A buffer for the rows of ``size`` calls. A span calls ``write(written, at, ...)`` with an
    offset in bytes, a value for each of COLUMNS, and the call's duration without nested spans. This
    takes half the time of appending each value to its own array."""

    __slots__ = ("_table", "size", "taken", "write", "written")

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0  # number of calls whose durations were taken
        self._table = np.zeros((size, len(COLUMNS) + 1), np.int64)
        self.written = self._table.data.cast("B")
        self.write = _ROW.pack_into

    def add_late(self, at: int, booked: int) -> None:
        """Set the running sum of library time in the last row, which ends at byte ``at``. If ``at``
        is 0, that row is packed already, and the time counts for the next row."""
        if at:
            _LIBRARY.pack_into(self.written, at - 2 * _LIBRARY.size, booked)

    def take_durations(self, calls: int) -> NDArray[np.int64]:
        """Return the durations [N] that were not taken yet. ``calls``: number of all calls so far.
        Call it at the latest when the block is full."""
        first = self.taken % self.size
        durations = self._table[first : first + calls - self.taken, -1]
        self.taken = calls
        return durations

    def column(self, name: Column) -> NDArray[np.int64]:
        return self._table[:, COLUMNS.index(name)]


class SpanRows:
    """Keeps the rows of the first ``room`` calls, in order. ``off_cpu``, ``ready`` and (if
    ``booked``) ``library`` are written as running sums. Full blocks are packed, since a row takes
    56 bytes in a block."""

    __slots__ = ("_blocks", "_booked", "_room", "_spool", "block")

    def __init__(self, room: int, spool: Spool | None = None, booked: bool = False) -> None:
        self.block = Block(BLOCK)
        self._room, self._booked = room, booked
        self._blocks: list[_Packed] = []
        self._spool = Spool() if spool is None else spool

    def __len__(self) -> int:
        return min(self.block.taken, self._room)

    def take(self, calls: int) -> NDArray[np.int64]:
        """Return the result of ``Block.take_durations``. Pack the block if it is full."""
        durations = self.block.take_durations(calls)
        if len(durations) and not calls % BLOCK and (room_left := self._room - calls + BLOCK) > 0:
            columns = {name: self.block.column(name)[:room_left] for name in COLUMNS}
            if not self._booked:
                del columns["library"]
            self._blocks.append(_Packed.of(columns, self._spool))
        return durations

    def column(self, name: Column) -> NDArray[np.int64]:
        """Return the column [N]. All values of "library" are NOT_KNOWN without ``booked``."""
        if name == "library" and not self._booked:
            return np.full(len(self), NOT_KNOWN)
        values = np.empty(len(self), np.int64)
        at = 0
        for block in self._blocks:
            block.unpack(name, values[at : at + block.count])
            at += block.count
        values[at:] = self.block.column(name)[: len(values) - at]
        return np.diff(values, prepend=0) if name in SUMS else values


@dataclass(frozen=True, slots=True)
class _Packed:
    """Rows stored as differences, each column in the smallest type that holds it."""

    count: int
    # Column (not "end") -> its first value, and its steps [count - 1], or [1] if all are equal.
    steps: dict[Column, tuple[int, NDArray[np.generic] | _Stored]]
    durations: NDArray[np.generic] | _Stored  # [count]

    @classmethod
    def of(cls, columns: Mapping[Column, NDArray[np.int64]], spool: Spool) -> _Packed:
        packed: dict[Column, tuple[int, NDArray[np.generic] | _Stored]] = {}
        for name, column in columns.items():
            if name != "end":
                steps = _steps(column)
                packed[name] = int(column[0]), steps if len(steps) == 1 else spool.put(steps)
        durations = columns["end"] - columns["start"]
        return cls(len(columns["index"]), packed, spool.put(_narrow(durations)))

    def unpack(self, name: Column, into: NDArray[np.int64]) -> None:
        first, steps = self.steps["start" if name == "end" else name]
        into[0] = first
        into[1:] = np.asarray(steps)
        np.cumsum(into, out=into)
        if name == "end":
            into += np.asarray(self.durations).astype(np.int64)


def _steps(column: NDArray[np.int64]) -> NDArray[np.generic]:
    steps = np.diff(column)
    return _narrow(steps[:1] if (steps == steps[:1]).all() else steps)


def _narrow(values: NDArray[np.int64]) -> NDArray[np.generic]:
    if not len(values) or values.min() < 0:
        return values
    return values.astype(np.min_scalar_type(int(values.max())))


class Ring:
    """Keeps the rows of the last ``size`` calls. Its memory is fixed, so that it does not hide
    leaks of a long run."""

    __slots__ = ("block",)

    def __init__(self, size: int) -> None:
        self.block = Block(size)

    def __len__(self) -> int:
        return min(self.block.taken, self.block.size)

    def take(self, calls: int) -> NDArray[np.int64]:
        return self.block.take_durations(calls)

    def column(self, name: Column) -> NDArray[np.int64]:
        if name in SUMS:  # unknown, since the sum before the oldest row is overwritten
            return np.full(len(self), NOT_KNOWN)
        column, at = self.block.column(name), self.block.taken % self.block.size
        if len(self) < len(column):
            return column[:at].copy()
        return np.concatenate([column[at:], column[:at]])
