"""A process that a job starts, and the pipe to it.

It is a worker of this machine, or the process that speaks to Ray, and ends with the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from detector.core.run.signals import ROOT

GRACE_S = 5.0  # to leave in order before it is killed


class Child:
    """``command``: of the number of its end of the pipe. ``said``: the file for all that it prints.
    ``more``: as of subprocess.Popen."""

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
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the job
                **more,
            )

    def read_said(self) -> str:
        try:
            return self._said.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def signal(self, number: int) -> None:
        """To its process group: all that it has started, as long as any of that lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def end(children: Sequence[Child], *, alone_s: float = 0.0) -> None:
    """Ends processes in order, and kills those that do not, with what they have started.
    ``alone_s``: how long they may take to leave by themselves."""
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


def python(main: str, pipe: int, shared: Path, first: str = "") -> list[str]:
    """A command that runs ``main``, the name of a module, with its end of the pipe. It ends with
    this process, and then removes ``shared``, a folder of this process alone. ``first``: what it
    does before it imports anything that takes a while."""
    code = (
        f"import os, sys; sys.path.insert(0, {ROOT!r}); {first}"
        "from detector.core.run.signals import end_with_parent; "
        f"end_with_parent({os.getpid()}, {str(shared)!r}); "
        f"from {main} import main; main({pipe})"
    )
    # -P: a folder called detector in the current directory must not be taken for this package.
    return [sys.executable, "-P", "-c", code]


def open_pipe(number: int) -> Connection:
    """The process's own end. ``number`` stays open until the process is really over, so that who
    reads of its end knows how it ended. What it starts does not get the pipe."""
    os.set_inheritable(number, False)
    return Connection(os.dup(number))
