"""Runs each step in its own process, so that a crash is a finding and affects no other step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpu.findings import Row, row

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/gpu_check"
UNTIL = "DETECT_VIDEO_GPU_CHECK_UNTIL"  # environment variable: time.monotonic() at the step's end
KILLED = -signal.SIGKILL

_running: set[int] = set()  # ids of the sessions that this process started


def child_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "DETECT_VIDEO_SELF_TIMING": "0"}


def left_s() -> float:
    """Return the seconds left for this step."""
    return float(os.environ.get(UNTIL, "inf")) - time.monotonic()


def in_child(
    command: Sequence[str], name: str, seconds: float, tell: Callable[[Row], None]
) -> bool:
    """Run a step; return False if it was stopped after ``seconds``. ``tell`` gets each row as soon
    as the step prints it, so a crash loses no earlier row. A crash or failure becomes a row."""
    environment = {**child_environment(), UNTIL: str(time.monotonic() + seconds)}
    with tempfile.TemporaryFile("w+") as stderr:
        child = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        _running.add(child.pid)
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            kill_session(child.pid)

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            assert child.stdout is not None
            for text in child.stdout:
                if text.startswith("{"):
                    tell(json.loads(text))
            code = child.wait()
        finally:
            timer.cancel()
            kill_session(child.pid)  # its remaining processes
            _running.discard(child.pid)
            child.stdout.close()
            child.wait()
        stderr.seek(0)
        last_lines = stderr.read().strip().splitlines()[-1:]
    if stopped.is_set():
        return False
    if code < 0:
        tell(row(name, f"crashed: {signal.Signals(-code).name}", False))
    elif code:
        tell(row(name, f"failed: {last_lines}", False))
    return True


def kill_session(leader: int) -> None:
    """Kill all processes of a session: the step and its children in all process groups."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue  # it has just ended


def end_all(number: int, _: object) -> None:
    """Kill all steps and exit, on SIGTERM and similar signals. Every row is already written."""
    for leader in list(_running):
        kill_session(leader)
    os._exit(128 + number)


def run(
    command: Sequence[str], seconds: float, cwd: str | Path | None = None, **environment: str
) -> tuple[int, str, str]:
    """Run a program; return its exit status, stdout and stderr. After ``seconds``, or 3 s before
    the step's time ends, the program and its children are killed, and the status is -SIGKILL."""
    limit = max(1.0, min(seconds, left_s() - 3))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env={**child_environment(), **environment},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            process_group=0,
        )
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = KILLED
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def detect_video(*words: str, seconds: float = 120, cwd: str | Path, **environment: str):
    """Run the command as a user types it."""
    return run([sys.executable, "-m", "detector", *words], seconds, cwd=cwd, **environment)
