"""Handle SIGHUP, SIGINT and SIGTERM. Their effect depends on the phase of a command:

    from the first line of main        leave_on_signals   the process ends at once: nothing is open
    while a command works              raise_on_signals   ``Stopped`` ends the command, which
                                                          removes its output and ends its children
    while frames run                   stop_on_signals    the run finishes frames already read
    once the exit code is decided      ignore_signals     signals are ignored: the code stays

While frames run, SIGUSR1 makes a live run read its cameras.yaml again (reload_on_signal). At other
times, such as while a model is loaded, it does nothing.

A second signal does more: it raises ``Stopped`` while frames run, and ends the process at once
while a command cleans up. A signal that was ignored when the program began (by nohup, or in a
background job of sh) stays ignored. While Python imports an extension module, we raise nothing, but
send the signal again later. This module imports nothing slow, so that it can be imported first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from detector.core.errors import EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED, STOPPED_CODES

TYPE_CHECKING = False  # importing typing would take a quarter of the time until signals are handled
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

    Handler = Callable[[int, FrameType | None], None]

# SIGTERM is last: once it has a handler, all other signals have one.
_CODES = {
    signal.SIGHUP: EXIT_HUNG_UP,
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
}
_WORDS = {EXIT_HUNG_UP: "hung up", EXIT_INTERRUPTED: "interrupted", EXIT_TERMINATED: "terminated"}
# Two signals within this time count as one: `timeout` sends one to its child and then one to the
# child's group, and a shell repeats the terminal's SIGHUP.
REPEAT_S = 0.2
AGAIN_S = 0.01  # delay before a signal received during an extension's import is sent again


class Stopped(BaseException):
    """Raised to end a command after a signal. ``writing``: whether outputs were open. (They remain
    under their partial names.) ``says``: a sentence on what remains of the command's work."""

    def __init__(self, exit_code: int, *, writing: bool = False) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self.word = _WORDS[exit_code]
        self.writing = writing
        self.says: str | None = None


class Stop(threading.Event):
    exit_code: int | None = None


class _SignalHistory:
    """The signals that this command received. ``code``: exit code of ``Stopped``, once raised."""

    code: int | None = None
    last = float("-inf")

    def is_repeat(self) -> bool:
        before, self.last = self.last, time.monotonic()
        return self.last - before < REPEAT_S


_history = _SignalHistory()


def leave_on_signals() -> None:
    """From now on, a signal ends the process with the signal's exit code and a line on stderr."""
    _install(lambda number, _: _leave(_CODES[signal.Signals(number)]))
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        # Programs that we start would inherit SIG_IGN, but they do not inherit a handler.
        signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.excepthook = _wrap_hook(sys.excepthook, lambda kind, error, traceback: error)
    sys.unraisablehook = _wrap_hook(sys.unraisablehook, lambda unraisable: unraisable.exc_value)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let a signal raise ``Stopped`` in the block."""
    global _history
    _history = _SignalHistory()
    with _handled_by(_raise_stopped):
        yield


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """In the block, let a signal set the yielded event, and the next signal raise ``Stopped``."""
    raise_swallowed()
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.exit_code is not None:
            _raise_stopped(number, frame, writing=True)
        elif not _history.is_repeat():
            stop.exit_code = _CODES[signal.Signals(number)]
            stop.set()

    with _handled_by(handle):
        yield stop


@contextmanager
def reload_on_signal() -> Iterator[threading.Event]:
    """Let SIGUSR1 set the yielded event in the block."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGUSR1, before)


def ignore_signals() -> None:
    """Ignore signals from now on. Call this when everything is written."""
    _install(signal.SIG_IGN)


def raise_if_stopped(exit_code: int) -> None:
    """Raise ``Stopped`` if a signal decided a run's exit code, so that nothing else starts."""
    if exit_code in STOPPED_CODES:
        raise Stopped(exit_code)


def raise_swallowed() -> None:
    """Raise ``Stopped`` again if it was raised before and a library caught it."""
    if _history.code is not None:
        raise Stopped(_history.code)


def _raise_stopped(number: int, frame: FrameType | None, *, writing: bool = False) -> None:
    if is_in_extension(frame):
        send_again(number)
        return
    if _history.is_repeat():
        return
    if _history.code is not None:
        _leave(_history.code)
    _history.code = _CODES[signal.Signals(number)]
    raise Stopped(_history.code, writing=writing)


def is_in_extension(frame: FrameType | None) -> bool:
    """Return whether Python is importing an extension module; exceptions must not interrupt it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap_external>":
            loader = frame.f_locals.get("self")
            if type(loader).__name__ == "ExtensionFileLoader":
                return True
        frame = frame.f_back
    return False


def send_again(number: int) -> None:
    again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    try:
        again.start()
    except RuntimeError:  # the system has no more threads
        _leave(_CODES[signal.Signals(number)])


def _leave(exit_code: int) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"detect-video: {_WORDS[exit_code]}\n".encode())
    os._exit(exit_code)


def _install(handler: Handler | signal.Handlers) -> dict[signal.Signals, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    handled = [number for number in _CODES if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in handled}


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    before = _install(handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _wrap_hook(hook: Callable[..., Any], error_of: Callable[..., object]) -> Callable[..., None]:
    """Return a hook that ends the process on ``Stopped``, and calls ``hook`` for other errors."""

    def report(*arguments: Any) -> None:
        error = error_of(*arguments)
        if isinstance(error, Stopped):
            _leave(error.exit_code)
        hook(*arguments)

    return report
