"""What SIGHUP, SIGINT and SIGTERM do, at every moment of a command.

    from the first line of main        leave_on_signals   the process ends at once: nothing is open
    while a command works              raise_on_signals   ``Stopped`` unwinds it: what it wrote is
                                                          removed, the processes it started end
    while frames run                   stop_on_signals    frames already read are finished
    once the exit code is decided      ignore_signals     the code stays

SIGUSR1 makes a live run read its cameras.yaml again (reload_on_signal). Before and after that, such
as while a model is loaded, it does nothing.

A second signal goes one step further: it raises while frames run, and leaves at once while a
command unwinds. A signal that was ignored when the program began (nohup, a background job of sh)
stays ignored. No exception is raised while Python imports an extension module: the signal waits
until the import is done. This module imports nothing heavy, because it comes first.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from detector.core.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    STOPPED_CODES,
)

TYPE_CHECKING = False  # importing typing would take a quarter of the time until signals are handled
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

    Handler = Callable[[int, FrameType | None], None]
    ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

# SIGTERM last: if it is handled, all are.
_CODES = {
    signal.SIGHUP: EXIT_HUNG_UP,
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
}
_WORDS = {EXIT_HUNG_UP: "hung up", EXIT_INTERRUPTED: "interrupted", EXIT_TERMINATED: "terminated"}
# `timeout` signals its child and then the child's group; a shell repeats the terminal's SIGHUP.
REPEAT_S = 0.2  # signals this close together are one
AGAIN_S = 0.01  # delay before a signal received during an extension's import is sent again
PR_SET_PDEATHSIG = 1  # of Linux's prctl
PARENTS_LAST_THREAD_S = 0.5
PARENTS_LAST_PIPE_S = 0.2  # how long a killed parent may outlive its pipes
PATIENCE_S = 10.0  # for a library call to return whose result is no longer needed
# the folder that holds detector/
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))


class Stopped(BaseException):
    """A signal ends the command; not an Exception. ``writing``: outputs were open, and remain under
    their partial names. ``says``: what became of the command's work."""

    def __init__(self, exit_code: int, *, writing: bool = False) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self.word = _WORDS[exit_code]
        self.writing = writing
        self.says: str | None = None


class Stop(threading.Event):
    exit_code: int | None = None


class _SignalHistory:
    """The signals that this command received. ``code``: of the one that was raised."""

    code: int | None = None
    last = float("-inf")

    def is_repeat(self) -> bool:
        before, self.last = self.last, time.monotonic()
        return self.last - before < REPEAT_S


_seen = _SignalHistory()


def leave_on_signals() -> None:
    """Let signals end the process from here on: one line, its exit code, no traceback."""
    _install(lambda number, _: _leave(_CODES[signal.Signals(number)]))
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        # Not SIG_IGN, which programs that we start would inherit.
        signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.excepthook = _leave_where_stopped(sys.excepthook)
    sys.unraisablehook = _leave_where_unraisable(sys.unraisablehook)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let a signal raise ``Stopped`` in the block."""
    global _seen
    _seen = _SignalHistory()
    with _handled_by(_raise):
        yield


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Let a signal set the Stop during the block; the next one raises ``Stopped``."""
    raise_swallowed()
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.exit_code is not None:
            _raise(number, frame, writing=True)
        elif not _seen.is_repeat():
            stop.exit_code = _CODES[signal.Signals(number)]
            stop.set()

    with _handled_by(handle):
        yield stop


@contextmanager
def reload_on_signal() -> Iterator[threading.Event]:
    """Let SIGUSR1 set the event during the block. It would end the process otherwise."""
    wanted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: wanted.set())
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGUSR1, before)


def ignore_signals() -> None:
    """Ignore signals from here on: everything is written, and the interpreter is about to end."""
    _install(signal.SIG_IGN)


def raise_if_stopped(exit_code: int) -> None:
    """Raise ``Stopped`` if a signal ended a run, so that nothing else starts after it."""
    if exit_code in STOPPED_CODES:
        raise Stopped(exit_code)


def raise_swallowed() -> None:
    """Raise ``Stopped`` again if it was raised before: some library caught it and went on."""
    if _seen.code is not None:
        raise Stopped(_seen.code)


def end_with_parent(parent: int, folder: str | None = None) -> None:
    """Make this process end when ``parent`` ends: on Linux the kernel sends it SIGTERM. ``folder``:
    the parent's temporary files, removed if the parent was killed."""
    signal.signal(signal.SIGTERM, _exit)
    atexit.register(remove_where_orphaned)
    _own.parent, _own.folder = parent, folder
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # the parent ended before that call
        os.kill(os.getpid(), signal.SIGTERM)


class _Own:
    parent = 0
    folder: str | None = None
    terminated = False


_own = _Own()


def leave_unwanted() -> NoReturn:
    """End a worker whose pipe was closed, from another thread, at once."""
    _wait_for_orphaning(PARENTS_LAST_PIPE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    remove_where_orphaned()
    os._exit(EXIT_INTERNAL)


def _wait_for_orphaning(patience_s: float) -> None:
    """Wait for the parent's end: a killed one closes its pipes shortly before it."""
    deadline = time.monotonic() + patience_s
    while os.getppid() == _own.parent and time.monotonic() < deadline:
        time.sleep(0.02)


def remove_where_orphaned() -> None:
    """Remove the folder of ``end_with_parent`` if orphaned, at the interpreter's end."""
    if _own.folder is None:
        return
    if _own.terminated:
        # The kernel's signal comes when the thread that started us ends. Other threads of a killed
        # parent may live a moment longer.
        _wait_for_orphaning(PARENTS_LAST_THREAD_S)
    if os.getppid() == _own.parent:
        return
    import shutil

    shutil.rmtree(_own.folder, ignore_errors=True)


def command_that_ends_with_us() -> list[str]:
    """Return a prefix for another program's command, so that it gets SIGTERM when we end."""
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); "
        f"from detector.core.run.signals import end_with_parent; end_with_parent({os.getpid()}); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-P", "-c", code]


def _exit(number: int, frame: FrameType | None) -> None:
    if _is_in_extension(frame):
        _send_again(number)
        return
    signal.signal(number, signal.SIG_IGN)  # the next signal must not interrupt the cleanup
    _own.terminated = True
    raise SystemExit(EXIT_TERMINATED)


def _raise(number: int, frame: FrameType | None, *, writing: bool = False) -> None:
    if _is_in_extension(frame):
        _send_again(number)
        return
    if _seen.is_repeat():
        return
    if _seen.code is not None:
        _leave(_seen.code)
    _seen.code = _CODES[signal.Signals(number)]
    raise Stopped(_seen.code, writing=writing)


def _is_in_extension(frame: FrameType | None) -> bool:
    """Return whether an extension module is being imported: an exception aborts (onnx 1.23)."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap_external>":
            loader = frame.f_locals.get("self")
            if type(loader).__name__ == "ExtensionFileLoader":
                return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Send this process the same signal after ``AGAIN_S``, so that its handler decides again."""
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
    """Return the previous handlers. Python allows none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in _CODES if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    before = _install(handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _leave_where_stopped(hook: ExceptHook) -> ExceptHook:
    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Stopped):
            _leave(error.exit_code)
        hook(kind, error, traceback)

    return report


def _leave_where_unraisable(hook: Callable[[Any], Any]) -> Callable[[Any], None]:
    def report(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Stopped):
            _leave(unraisable.exc_value.exit_code)
        hook(unraisable)

    return report
