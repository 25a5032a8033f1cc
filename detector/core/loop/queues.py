"""Channels between the threads of the loop: a pool of buffers, a bounded queue, an ordering queue.

A call that blocks opens a span named after its channel. A ``get`` that need not wait opens no span
and costs two lock operations. ``close`` wakes all waiting threads, which then get ``ClosedError``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from detector.core.timeline.spans import WAIT_INPUT, WAIT_OUTPUT, OffTrack, ThreadTrack

T = TypeVar("T")
AnyTrack = ThreadTrack | OffTrack


class ClosedError(Exception):
    """The run has ended or failed, so the thread that gets this error should end."""


class _Channel:
    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._closed = False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise ClosedError after ``close``. This is for a thread that waits for something else."""
        if self._closed:
            raise ClosedError


class LendingPool(_Channel, Generic[T]):
    """A pool of items, which later stages return. A wait for an item counts as ``wait_output``."""

    def __init__(self, name: str, items: Iterable[T]) -> None:
        super().__init__(name)
        self._items = deque(items)
        self._size = len(self._items)

    def __len__(self) -> int:
        return self._size

    def get(self, track: AnyTrack, index: int) -> T:
        with self._changed:
            if not self._items and not self._closed:
                with track.span(self.name, index, WAIT_OUTPUT):
                    while not self._items and not self._closed:
                        self._changed.wait()
            if self._closed:
                raise ClosedError
            return self._items.popleft()

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()


class Queue(_Channel, Generic[T]):
    """A bounded first-in, first-out queue. When it is finished and empty, ``get`` returns None."""

    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(name)
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._finished = False

    def put(self, track: AnyTrack, index: int, item: T) -> None:
        with self._changed:
            if len(self._items) >= self._capacity and not self._closed:
                with track.span(self.name, index, WAIT_OUTPUT):
                    while len(self._items) >= self._capacity and not self._closed:
                        self._changed.wait()
            if self._closed:
                raise ClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self, track: AnyTrack, index: int) -> T | None:
        with self._changed:
            if not self._items and not self._finished and not self._closed:
                with track.span(self.name, index, WAIT_INPUT):
                    while not self._items and not self._finished and not self._closed:
                        self._changed.wait()
            if self._closed:
                raise ClosedError
            if not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()


class InOrder(_Channel, Generic[T]):
    """A queue that restores order: items are put in any order and leave by number, 0, 1, 2...
    ``put`` blocks if a number is ``capacity`` or more above the next number to leave. The item that
    leaves next is always accepted, so nothing deadlocks."""

    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(name)
        self._capacity = capacity
        self._items: dict[int, T] = {}
        self._next = 0
        self._last: int | None = None

    def put(self, track: AnyTrack, number: int, item: T) -> None:
        with self._changed:
            if number >= self._next + self._capacity and not self._closed:
                with track.span(self.name, number, WAIT_OUTPUT):
                    while number >= self._next + self._capacity and not self._closed:
                        self._changed.wait()
            if self._closed:
                raise ClosedError
            self._items[number] = item
            self._changed.notify_all()

    def get(self, track: AnyTrack) -> T | None:
        """Return the next item in order, or None after the last."""
        with self._changed:
            if not self._ready():
                with track.span(self.name, self._next, WAIT_INPUT):
                    while not self._ready():
                        self._changed.wait()
            if self._closed:
                raise ClosedError
            if self._next == self._last:
                return None
            item = self._items.pop(self._next)
            self._next += 1
            self._changed.notify_all()
            return item

    def peek(self) -> T | None:
        with self._changed:
            return None if self._closed else self._items.get(self._next)

    def _ready(self) -> bool:
        return self._closed or self._next == self._last or self._next in self._items

    def finish(self, count: int) -> None:
        """Set the number of items that the queue will get in all."""
        with self._changed:
            self._last = count
            self._changed.notify_all()
