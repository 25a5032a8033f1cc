"""A child process and the pipe to it: a worker of ``batch``, a variant of ``compare``. It ends with
its parent; its output goes to a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from detector.core.run.signals import ROOT, leave_unwanted
from detector.core.session import codec

GRACE_S = 5.0  # time to exit on its own before it is killed
MOST_BYTES = 64 << 20  # of a message
LAST_WORDS = 300  # characters of its output that a message quotes

Message = TypeVar("Message")


class Child:
    """A child process. ``command``: made from its end of the pipe. ``said``: file of its output."""

    def __init__(self, command: Callable[[int], list[str]], said: Path, **more: Any) -> None:
        self._said = said
        self.pipe, theirs = Pipe()
        with theirs, open(said, "ab") as file:
            self.process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # otherwise a Ctrl-C in the terminal would reach it too
                **more,
            )

    def read_said(self) -> str:
        try:
            return self._said.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def describe_death(self, name: str, doing: str) -> str:
        """Return ``its worker was ended by signal 11 (SIGSEGV) while it loaded; the last ...``."""
        code = self.process.wait()
        how = f"was ended by {_name(-code)}" if code < 0 else f"ended with status {code}"
        text = f"{name} {how} {doing}"
        if code == -signal.SIGKILL:
            text += "; the system may have killed it because memory ran out"
        if words := " ".join(self.read_said().split()):
            text += f"; its last output: {words[-LAST_WORDS:]}"
        return text

    def signal(self, number: int) -> None:
        """Send a signal to its process group, while any process in it lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number} (unknown)"


def end(children: Sequence[Child], *, alone_s: float = 0.0) -> None:
    """End processes in order; kill those that do not exit within ``alone_s``."""
    _wait(children, alone_s)
    for child in children:
        child.signal(signal.SIGTERM)
    _wait(children, GRACE_S)
    for child in children:
        child.signal(signal.SIGKILL)
        child.process.wait()
        child.pipe.close()


def _wait(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))


def python(main: str, pipe: int, shared: Path | None, first: str = "") -> list[str]:
    """Return a command that runs a module, ``main``, with its end of the pipe; it ends with this
    process, and then removes ``shared``. ``first``: code to run before any import."""
    code = (
        f"import os, sys; sys.path.insert(0, {ROOT!r}); {first}"
        "from detector.core.run.signals import end_with_parent; "
        f"end_with_parent({os.getpid()}, {None if shared is None else str(shared)!r}); "
        f"from {main} import main; main({pipe})"
    )
    # -P: a folder called detector in the current directory must not replace this package.
    return [sys.executable, "-P", "-c", code]


# ---- Messages between the processes, as JSON: one of them may have read untrusted files


def send(pipe: Connection, message: Any) -> None:
    """Send a document unredacted. Raises OSError."""
    pipe.send_bytes(json.dumps(codec.to_builtins(message)).encode())


def receive(pipe: Connection, kind: type[Message]) -> Message:
    """Receive a document. Raises EOFError or OSError if the other process is gone."""
    return codec.from_json(pipe.recv_bytes(MOST_BYTES), kind, "a message of another process")


# ---- In the child process


def open_pipe(number: int) -> Connection:
    """Open the child's end, not inherited. ``number`` stays open until the process ends."""
    os.set_inheritable(number, False)
    return Connection(os.dup(number))


def listen(
    parent: Connection, kind: type[Message], is_last: Callable[[Message], bool]
) -> Callable[[], Message]:
    """Return a function for the next message. The process exits if the pipe closes early."""
    messages: SimpleQueue[Message] = SimpleQueue()

    def hear() -> None:
        with suppress(EOFError, OSError):
            while True:
                message = receive(parent, kind)
                messages.put(message)
                if is_last(message):
                    return
        leave_unwanted()

    threading.Thread(target=hear, daemon=True).start()
    return messages.get
