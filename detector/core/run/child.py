"""Run a child process and talk to it through a pipe. ``batch`` runs its workers in this way, and
``compare`` runs its variants. The child ends with its parent, and its output goes to a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from detector.core.run.parent import child_command, end_abandoned_worker
from detector.core.session import codec

GRACE_S = 5.0  # we wait this long for a child to exit before we kill it
MAX_BYTES = 64 << 20  # largest message
LAST_OUTPUT = 300  # characters of a child's output that an error quotes

Message = TypeVar("Message")


class Child:
    """A child process. ``command`` takes the file descriptor of the child's end of the pipe, and
    returns the command line. ``output``: file for the child's output. ``more``: further arguments
    of Popen."""

    def __init__(self, command: Callable[[int], list[str]], output: Path, **more: Any) -> None:
        self._output = output
        self.pipe, child_end = Pipe()
        with child_end, open(output, "ab") as file:
            self.process = subprocess.Popen(
                command(child_end.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[child_end.fileno()],
                start_new_session=True,  # otherwise a Ctrl-C in the terminal would reach it too
                **more,
            )

    def read_output(self) -> str:
        try:
            return self._output.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def describe_death(self, name: str, doing: str) -> str:
        """Return ``NAME was ended by signal 11 (SIGSEGV) DOING; its last output: ...``."""
        code = self.process.wait()
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        text = f"{name} {how} {doing}"
        if code == -signal.SIGKILL:
            text += "; the system may have killed it because memory ran out"
        if words := " ".join(self.read_output().split()):
            text += f"; its last output: {words[-LAST_OUTPUT:]}"
        return text

    def signal(self, number: int) -> None:
        """Send a signal to the child's process group, if any process in it is alive."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number} (unknown)"


def end(children: Sequence[Child], *, alone_s: float = 0.0) -> None:
    """Give processes ``alone_s`` seconds to exit. Send SIGTERM; wait GRACE_S; send SIGKILL."""
    _wait_for(children, alone_s)
    for child in children:
        child.signal(signal.SIGTERM)
    _wait_for(children, GRACE_S)
    for child in children:
        child.signal(signal.SIGKILL)
        child.process.wait()
        child.pipe.close()


def _wait_for(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))


def python_command(module: str, pipe: int, folder: Path | None, first: str = "") -> list[str]:
    """Return a command line that calls the module's ``main`` with the pipe's descriptor. ``folder``
    and ``first``: see ``child_command``."""
    text = None if folder is None else str(folder)
    return child_command(f"from {module} import main; main({pipe})", text, first)


# ---- Messages between the processes. They are JSON, not pickles: a child has read untrusted files,
# ---- so unpickling its messages could run code.


def send(pipe: Connection, message: Any) -> None:
    """Send a message without hiding its secrets. Raises OSError."""
    pipe.send_bytes(json.dumps(codec.to_builtins(message)).encode())


def receive(pipe: Connection, kind: type[Message]) -> Message:
    """Receive a message. Raises EOFError or OSError if the other process is gone."""
    return codec.from_json(pipe.recv_bytes(MAX_BYTES), kind, "a message of another process")


def open_pipe(number: int) -> Connection:
    """Open the child's end of the pipe. The child's own children will not inherit it."""
    os.set_inheritable(number, False)
    return Connection(os.dup(number))


def listen(
    parent: Connection, kind: type[Message], is_last: Callable[[Message], bool]
) -> Callable[[], Message]:
    """Return a function that waits for a message. If the pipe closes before the last message, the
    process exits."""
    messages: SimpleQueue[Message] = SimpleQueue()

    def read_messages() -> None:
        with suppress(EOFError, OSError):
            while True:
                message = receive(parent, kind)
                messages.put(message)
                if is_last(message):
                    return
        end_abandoned_worker()

    threading.Thread(target=read_messages, daemon=True).start()
    return messages.get
