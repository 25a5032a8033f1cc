"""End a child process when its parent ends. This module imports nothing slow, so that a child can
import it first."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time

from detector.core.errors import EXIT_INTERNAL, EXIT_TERMINATED
from detector.core.run.signals import is_in_extension, send_again

TYPE_CHECKING = False  # importing typing would delay the handling of SIGTERM
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

PR_SET_PDEATHSIG = 1  # an option of Linux's prctl
THREAD_GRACE_S = 0.5  # how long a killed parent may outlive the thread that started us
PIPE_GRACE_S = 0.2  # how long a killed parent may outlive its pipes
TERM_GRACE_S = 10.0  # how long a library call may delay the handling of SIGTERM
# The folder that contains detector/.
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))


def end_with_parent(parent: int, folder: str | None = None) -> None:
    """Make this process end when ``parent`` ends. On Linux the kernel sends us SIGTERM. ``folder``:
    the parent's temporary files, which we remove if the parent was killed."""
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    atexit.register(remove_folder_of_dead_parent)
    _child.parent, _child.folder = parent, folder
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os.kill(os.getpid(), signal.SIGTERM)


class _ChildState:
    """This process, if it is a child that called ``end_with_parent``."""

    parent = 0
    folder: str | None = None
    terminated = False


_child = _ChildState()


def end_abandoned_worker() -> NoReturn:
    """End this worker after its pipe was closed. Do not call this in the main thread."""
    _wait_for_parents_end(PIPE_GRACE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(TERM_GRACE_S)
    remove_folder_of_dead_parent()
    os._exit(EXIT_INTERNAL)


def _wait_for_parents_end(timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while os.getppid() == _child.parent and time.monotonic() < deadline:
        time.sleep(0.02)


def remove_folder_of_dead_parent() -> None:
    """Remove the folder given to ``end_with_parent`` if the parent has ended."""
    if _child.folder is None:
        return
    if _child.terminated:
        # The kernel sends SIGTERM when the parent's thread that started us ends. If the parent was
        # killed, its other threads may end a moment later.
        _wait_for_parents_end(THREAD_GRACE_S)
    if os.getppid() == _child.parent:
        return
    import shutil

    shutil.rmtree(_child.folder, ignore_errors=True)


def child_command(code: str, folder: str | None = None, first: str = "") -> list[str]:
    """Return a command that runs Python code and ends when this process ends. ``folder``: see
    ``end_with_parent``. ``first``: code to run before the imports of this package."""
    code = (
        f"import os, sys; sys.path.insert(0, {ROOT!r}); {first}"
        "from detector.core.run.parent import end_with_parent; "
        f"end_with_parent({os.getpid()}, {folder!r}); {code}"
    )
    # -P: a folder called detector in the current directory must not replace this package.
    return [sys.executable, "-P", "-c", code]


def _exit_on_sigterm(number: int, frame: FrameType | None) -> None:
    if is_in_extension(frame):
        send_again(number)
        return
    signal.signal(number, signal.SIG_IGN)  # the next signal must not interrupt the cleanup
    _child.terminated = True
    raise SystemExit(EXIT_TERMINATED)
