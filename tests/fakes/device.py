"""A simulated GPU with its own memory, events, and streams that run only if a caller waits.

Only the device can read its addresses, and no GPU reads another GPU's memory. Access beyond an
allocation is an error. Copies and runs are queued. They execute in stream order when a caller waits
for an event or the stream. So a host array that is read too early is stale. A host array
that is overwritten too early corrupts the upload. Each thread has its own current context.
Durations, parallel streams and a GPU's arithmetic are not simulated.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

FIRST_ADDRESS = 0x7F00_0000_0000
POISON = 0xAB  # fills fresh device memory, so that no test relies on zeros


class DeviceFaultError(Exception):
    """The error that CUDA would call an illegal address or an invalid handle."""


class Device:
    def __init__(self, total: int = 1 << 30) -> None:
        self.total = total
        self.allocations: dict[int, np.ndarray] = {}
        self.owners: dict[int, int] = {}  # address -> number of its GPU
        self.streams: dict[int, Stream] = {}
        self._addresses = itertools.count(FIRST_ADDRESS, 1 << 32)
        self._handles = itertools.count(0x5000, 16)
        self._ticks = itertools.count(1)
        self._current = threading.local()
        self.lock = threading.RLock()

    @property
    def used(self) -> int:
        return sum(len(block) for block in self.allocations.values())

    def allocate(self, size: int) -> int:
        with self.lock:
            if self.used + size > self.total:
                raise MemoryError("out of memory")
            address = next(self._addresses)
            self.allocations[address] = np.full(size, POISON, np.uint8)
            self.owners[address] = self.number
            return address

    def free(self, address: int) -> None:
        with self.lock:
            if self.allocations.pop(address, None) is None:
                raise DeviceFaultError(f"free of {address:#x}: not an allocation")

    def at(self, address: int, size: int, number: int | None = None) -> np.ndarray:
        """Return ``size`` bytes of the allocation at ``address``. ``number``: the accessing GPU."""
        block = self.allocations.get(address)
        if block is None:
            raise DeviceFaultError(f"illegal address {address:#x}")
        if size > len(block):
            raise DeviceFaultError(
                f"{size} bytes at {address:#x}, where {len(block)} were allocated"
            )
        if number not in (None, self.owners[address]):
            raise DeviceFaultError(
                f"illegal address {address:#x}: it is on GPU {self.owners[address]}, not {number}"
            )
        return block[:size]

    def stream(self) -> Stream:
        stream = Stream(self, next(self._handles))
        self.streams[stream.handle] = stream
        return stream

    def tick(self) -> int:
        return next(self._ticks)

    # Each thread has a stack of contexts. The lowest entry is the CUDA runtime's own context.
    def push(self, number: int = 0) -> None:
        self._stack.append(number)

    def pop(self) -> None:
        if not self.depth:
            raise DeviceFaultError("invalid device context: none is current in this thread")
        self._stack.pop()

    @property
    def _stack(self) -> list[int]:
        """Numbers of GPUs: first the GPU of the runtime's context, last the current GPU."""
        if not hasattr(self._current, "stack"):
            self._current.stack = [0]
        stack: list[int] = self._current.stack
        return stack

    @property
    def number(self) -> int:
        return self._stack[-1]

    @number.setter
    def number(self, number: int) -> None:
        self._stack[-1] = number

    @property
    def depth(self) -> int:
        return len(self._stack) - 1

    def require_current(self) -> None:
        if not self.depth:
            raise DeviceFaultError("invalid device context: none is current in this thread")


class Stream:
    def __init__(self, device: Device, handle: int) -> None:
        self.device, self.handle, self.number = device, handle, device.number
        self.waiting: deque[Callable[[], None]] = deque()
        self.lock = threading.RLock()

    def put(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def run_until(self, stop: Callable[[], bool]) -> None:
        with self.lock:
            while not stop() and self.waiting:
                self.waiting.popleft()()

    def upload(self, address: int, host: np.ndarray) -> None:
        def work() -> None:
            source = host.reshape(-1).view(np.uint8)
            self.device.at(address, source.size)[:] = source

        self.put(work)

    def download(self, host: np.ndarray, address: int) -> None:
        def work() -> None:
            target = host.reshape(-1).view(np.uint8)
            target[:] = self.device.at(address, target.size)

        self.put(work)


class Event:
    """An event whose time is a number of ticks. ``ms_since`` counts each tick as a millisecond."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, None

        def work() -> None:
            self.at = stream.device.tick()

        stream.put(work)

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.run_until(lambda: self.at is not None)

    def ms_since(self, earlier: Event) -> float:
        if self.at is None or earlier.at is None:
            raise DeviceFaultError("device not ready: the event has not happened yet")
        return float(self.at - earlier.at)
