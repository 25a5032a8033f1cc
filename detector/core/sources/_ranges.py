"""Read an object in a store as a random-access file, by byte ranges, without a copy on disk. All
openings of a video share one ``RangedObject`` and its bounded cache of blocks."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detector.core.errors import DetectVideoError, SourceError
from detector.core.errors.holding import hold_as
from detector.core.sources._addresses import Addressed, Location
from detector.core.sources._storage import explain, open_store, path_in_store

BLOCK = 1 << 20  # bytes; the last block of an object has fewer
MOST_AT_ONCE = 4  # blocks in one request during sequential reading
CACHED_BLOCKS = 32
PAUSES_S = (0.5, 2.0)  # before each retry


class RangedObject:
    """An object in a store, which several threads may read. ``received``: bytes received so far."""

    most_at_once = MOST_AT_ONCE
    keeps_part = False  # whether the bytes before an error are accepted as a shorter object

    def __init__(self, place: Addressed) -> None:
        self.place = place
        self.received = 0
        self.error: DetectVideoError | None = None  # once set, every read fails
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._expected, self._at_once = 0, 1  # next block of a sequential read; blocks per request
        self._file = self._retry(self._open)
        self.size = int(self._file.size or 0)

    def _open(self) -> Any:
        """Open the object; return a file with ``size``, ``seek``, ``read``, ``close``."""
        raise NotImplementedError

    @property
    def block(self) -> int:
        return BLOCK

    def read(self, start: int, length: int) -> bytes:
        """Return 1 to ``length`` bytes from ``start``; b"" at the end. Raises SourceError."""
        if start >= self.size or length <= 0:
            return b""
        number, within = divmod(start, self.block)
        with self._lock:
            block = self._get_block(number)
        return block[within : within + length]

    def _get_block(self, number: int) -> bytes:
        if self.error is not None:
            raise self.error
        if number not in self._blocks:
            self._fetch_blocks(number)
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _fetch_blocks(self, number: int) -> None:
        is_sequential = number == self._expected
        self._at_once = min(self.most_at_once, self._at_once * 2) if is_sequential else 1
        start = number * self.block
        end = min(self.size, start + self._at_once * self.block)
        self._expected = number + self._at_once
        data = self._retry(lambda: self._request(start, end))
        for at in range(0, len(data), self.block):
            self._blocks[number + at // self.block] = data[at : at + self.block]
            self._blocks.move_to_end(number + at // self.block)
        while len(self._blocks) * self.block > CACHED_BLOCKS * BLOCK:
            self._blocks.popitem(last=False)

    def _request(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        data = bytes(self._file.read(end - start))
        self.received += len(data)
        if len(data) != end - start:
            raise ConnectionError(f"received only {len(data)} of {end - start} bytes")
        return data

    def _retry(self, action: Any) -> Any:
        """Call ``action``, retrying transient errors. A final error stays in ``error``."""
        for pause_s in (*PAUSES_S, None):
            try:
                return action()
            except DetectVideoError as error:
                self.error = error
                raise
            except Exception as error:
                meaning = explain(error, self.place.scheme)
                if pause_s is None or not meaning.is_transient:
                    self.error = SourceError(f"{self.place}: {meaning.text}")
                    raise self.error from error
                time.sleep(pause_s)
        raise AssertionError("unreachable")

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def open(self, name: str = "") -> RangeFile:
        return RangeFile(self, name)

    def close(self) -> None:
        self._blocks.clear()
        self._file.close()


class StoredObject(RangedObject):
    place: Location

    def _open(self) -> Any:
        # fsspec's cache is off, because all openings share our own cache.
        file = open_store(self.place).open(
            path_in_store(self.place), "rb", block_size=BLOCK, cache_type="none"
        )
        if file.size is None or not file.seekable():
            file.close()
            raise SourceError(
                f"{self.place}: the server supports no byte ranges, or states no length; copy the "
                "file first"
            )
        return file


class RangeFile:
    """A file for PyAV. FFmpeg guesses raw formats by the suffix of ``name``."""

    def __init__(self, stored: RangedObject, name: str) -> None:
        self.name, self._stored, self._at = name, stored, 0

    @property
    def size(self) -> int:
        return self._stored.size

    def read(self, length: int = -1) -> bytes:
        """Return some of the next bytes; b"" at the end."""
        data = self._stored.read(self._at, self.size if length < 0 else length)
        self._at += len(data)
        return data

    def pread(self, length: int, start: int) -> bytes:
        """Return ``length`` bytes, or fewer at the end, like os.pread."""
        parts: list[bytes] = []
        while length > 0 and (data := self._stored.read(start, length)):
            parts.append(data)
            start += len(data)
            length -= len(data)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = min(max(0, base + offset), 2**63 - 1)  # FFmpeg's limit
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the object is shared and stays open."""


@contextmanager
def holding(stored: RangedObject) -> Iterator[str]:
    """Yield a name by which the object can be opened. Close the object at the end."""
    try:
        with hold_as(str(stored.place), stored.open) as name:
            yield name
    finally:
        stored.close()
