"""SIGINT and SIGTERM end a run in order: the frames that were read are finished and written.

A second signal ends it at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from detector.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class Stop(threading.Event):
    """Set by a signal; ``exit_code`` then says which."""

    exit_code: int | None = None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Handles signals during the block; outside the main thread Python allows no handlers."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.exit_code = _CODES[signal.Signals(number)]
        stop.set()

    before = {number: signal.signal(number, handle) for number in _CODES}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminated_as_exception() -> Iterator[None]:
    """Lets SIGTERM unwind the block as Ctrl-C does.

    So the processes that the block started are ended, and the files that it wrote are removed.
    """

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(_CODES[signal.Signals(number)])

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
