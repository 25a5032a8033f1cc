"""A process that this one starts, and the pipe to it: a worker of ``batch``, a variant of
``compare``. It ends with its parent; what it prints goes to a file."""

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

GRACE_S = 5.0  # to leave in order before it is killed
MOST_BYTES = 64 << 20  # of a message
LAST_WORDS = 300  # characters of what it printed, in a message

Message = TypeVar("Message")


class Child:
    """``command``: of its end of the pipe. ``said``: the file for all that it prints."""

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
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the parent
                **more,
            )

    def read_said(self) -> str:
        try:
            return self._said.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def describe_death(self, name: str, doing: str) -> str:
        """``its worker was ended by signal 11 (SIGSEGV) while it loaded; the last that it ...``."""
        code = self.process.wait()
        how = f"was ended by {_name(-code)}" if code < 0 else f"ended with status {code}"
        text = f"{name} {how} {doing}"
        if code == -signal.SIGKILL:
            text += "; the system may have killed it because memory ran out"
        if words := " ".join(self.read_said().split()):
            text += f"; its last output: {words[-LAST_WORDS:]}"
        return text

    def signal(self, number: int) -> None:
        """To its process group: all that it has started, as long as any of that lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number} (unknown)"


def end(children: Sequence[Child], *, alone_s: float = 0.0) -> None:
    """Ends processes in order, and kills those that do not leave within ``alone_s``."""
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
    """A command that runs ``main``, a module, with its end of the pipe; it ends with this process,
    and then removes ``shared``. ``first``: what it does before it imports anything."""
    code = (
        f"import os, sys; sys.path.insert(0, {ROOT!r}); {first}"
        "from detector.core.run.signals import end_with_parent; "
        f"end_with_parent({os.getpid()}, {None if shared is None else str(shared)!r}); "
        f"from {main} import main; main({pipe})"
    )
    # -P: a folder called detector in the current directory must not be taken for this package.
    return [sys.executable, "-P", "-c", code]


# ---- what they say to each other, as JSON: one of them may have read strangers' files


def send(pipe: Connection, message: Any) -> None:
    """A document, with all that is in it: nothing is hidden. Raises OSError."""
    pipe.send_bytes(json.dumps(codec.to_builtins(message)).encode())


def receive(pipe: Connection, kind: type[Message]) -> Message:
    """Raises EOFError or OSError where the other is gone."""
    return codec.from_json(pipe.recv_bytes(MOST_BYTES), kind, "a message of another process")


# ---- in the process


def open_pipe(number: int) -> Connection:
    """Its own end. ``number`` stays open until the process is really over. Not inherited."""
    os.set_inheritable(number, False)
    return Connection(os.dup(number))


def listen(
    parent: Connection, kind: type[Message], is_last: Callable[[Message], bool]
) -> Callable[[], Message]:
    """Gives the next message, in order. The process leaves where the pipe is closed early."""
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
