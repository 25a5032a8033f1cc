"""Helper threads of a stage. Their CPU time is booked to it, like that of a library's threads."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from detector.core.timeline.native import give_name

T = TypeVar("T")


class Pending(Generic[T]):
    """A result that a thread of a ``Crew`` will return."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # raised when the result is requested
            self._error = error
        del self._work  # frees the pictures that it refers to
        self._done.set()

    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Crew:
    """A pool of threads that run submitted work. ``_thread`` starts them, not ``threading``. So
    ``Natives.book_threads`` takes them for native threads and books their CPU time."""

    def __init__(self, name: str, threads: int) -> None:
        self._work: SimpleQueue[Pending[object] | None] = SimpleQueue()
        self._ended = threading.Semaphore(0)
        self._threads = threads
        for at in range(threads):
            _thread.start_new_thread(self._run, (f"{name}-{at}",))

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        pending = Pending(work)
        self._work.put(pending)  # type: ignore[arg-type]
        return pending

    def _run(self, name: str) -> None:
        give_name(name)
        while (pending := self._work.get()) is not None:
            pending.run()
            del pending
        self._ended.release()

    def close(self) -> None:
        """Discard all work not yet begun, and wait until the threads have finished the rest."""
        while not self._work.empty():
            self._work.get()
        for _ in range(self._threads):
            self._work.put(None)
        for _ in range(self._threads):
            self._ended.acquire()
        self._threads = 0
