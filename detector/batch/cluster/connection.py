"""The job's end of the process that speaks to Ray (ray_process.py): it starts it, asks it, and
outlives it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from detector.batch.cluster.messages import ORIGIN, Connect, Connected, Turn, Turned, to_text
from detector.core.errors import EngineError, UsageError, error_of_code
from detector.core.errors.machine import usable_cores
from detector.core.run.signals import ROOT, Stop, Stopped
from detector.core.session import codec

INSTALL = "--on ray needs ray; install it with: pip install 'detect-video[ray]'"
RAY = "ray"
CLIENT = "ray://"
OPENING_S = 180.0
ANSWER_S = 60.0  # beyond what a turn waits by itself
REACHING_S = 5.0  # for a port to answer
CLOSING_S = 20.0
GRACE_S = 5.0
TICK_S = 0.2
LAST_WORDS = 300  # characters
READ_BYTES = 1 << 20
LONGEST_FOLDER = 30  # Ray makes sockets of 60 characters in it, and a socket's path ends at 107

# Of the process and all that it starts. Ray uploads the folder of a program that `uv run` started,
# and asks and tells others, unless it is told not to.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
# Of Ray that is started here: without it, 127.0.0.1 is taken for any address of the machine. The
# name is of the systems where that is the default.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray ends a process that its head does not answer; a job decides that itself, and earlier.
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}

Message = TypeVar("Message")
LOG_LINE = re.compile(r"\[20[^]]*\] ")  # [2026-11-23 02:06:54,047 C 28345 28375]


class ConnectionLostError(Exception):
    """The process is gone, or does not answer. The text says why, in a line."""


class Cluster(Protocol):
    """What the pool needs of a cluster."""

    def open(self) -> None:
        """Raises EngineError where there is none, and Stopped where a signal ends the wait."""

    def turn(self, turn: Turn) -> Turned:
        """Raises ConnectionLostError."""

    def close(self) -> None: ...


def check_on(on: str) -> None:
    """Raises UsageError for what --on cannot be, or where ray is not installed."""
    host, _, port = on.removeprefix(CLIENT).rpartition(":")
    if on != RAY and not (on.startswith(CLIENT) and host and port.isdecimal()):
        raise UsageError(f"--on {on}: give local, ray, or ray://HOST:PORT (Ray's port is 10001)")
    if importlib.util.find_spec("ray") is None:
        raise UsageError(INSTALL)


def address_of(on: str) -> str | None:
    """Of the cluster: what --on says, or RAY_ADDRESS. None where Ray is to be started here."""
    if on != RAY:
        return on
    address = os.environ.get("RAY_ADDRESS", "").strip()
    return None if address in ("", "local") else address


@dataclass(slots=True)
class Connection:
    """``on``: as typed. ``folder``: of the job, for temporary files."""

    on: str
    folder: Path
    stop: Stop
    command: Callable[[Path], list[str]] = field(default=lambda folder: _command_line(folder))
    _process: subprocess.Popen[bytes] | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _unread: bytes = b""
    _rays: Path | None = None

    def open(self) -> None:
        address = address_of(self.on)
        if address is not None:
            _reach(address)
        self._rays = _short_folder()
        with open(self.folder / "ray.txt", "ab") as stderr:
            self._process = subprocess.Popen(
                self.command(self.folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the job
                cwd=self._rays,  # Ray puts this folder before what its workers have installed
                env=_environment(address),
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        connect = Connect(address=address, cores=usable_cores(), folder=str(self._rays))
        try:
            answer = self._ask(connect, Connected, OPENING_S, stops=True)
        except ConnectionLostError as error:
            raise EngineError(f"--on {self.on}: {error}") from error
        if answer.error:
            raise error_of_code(answer.exit_code)(answer.error)

    def turn(self, turn: Turn) -> Turned:
        return self._ask(turn, Turned, turn.wait + ANSWER_S, stops=False)

    def _ask(self, message: Any, kind: type[Message], seconds: float, *, stops: bool) -> Message:
        """``stops``: whether a signal ends the wait at once; otherwise it shortens it."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(to_text(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise ConnectionLostError(self._describe_death()) from None
        end = time.monotonic() + seconds
        while (line := self._read_line()) is None:
            if self.stop.is_set():
                if stops:
                    assert self.stop.exit_code is not None
                    raise Stopped(self.stop.exit_code)
                end = min(end, time.monotonic() + GRACE_S)
            if time.monotonic() > end:
                raise ConnectionLostError(f"Ray did not answer for {seconds:.0f} s")
        return codec.from_json(line, kind, ORIGIN)

    def _read_line(self) -> bytes | None:
        """None where no whole line is there after a moment."""
        assert self._process is not None
        assert self._process.stdout is not None
        if b"\n" not in self._unread and self._selector.select(TICK_S):
            with suppress(BlockingIOError):
                data = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not data:
                    raise ConnectionLostError(self._describe_death())
                self._unread += data
        if b"\n" not in self._unread:
            return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _describe_death(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        text = f"the process that speaks to Ray ended with status {self._process.returncode}"
        with suppress(OSError):
            said = (self.folder / "ray.txt").read_text(encoding="utf-8", errors="replace")
            if words := last_words(said):
                text += f"; the last that it printed: {words}"
        return text

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError, KeyError, ValueError):
                    assert pipe is not None
                    if pipe is process.stdout:
                        self._selector.unregister(pipe)
                    pipe.close()
            _end(process)
        if self._rays is not None:
            shutil.rmtree(self._rays, ignore_errors=True)


def last_words(said: str) -> str:
    """The last line of Ray's log, which a page of addresses may follow; else the end of all."""
    logged = [line for line in said.splitlines() if LOG_LINE.match(line)]
    if logged:
        return LOG_LINE.sub("", logged[-1])[:LAST_WORDS]
    return " ".join(said.split())[-LAST_WORDS:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """It leaves when its pipe is closed: Ray's processes first. What does not is killed, and with
    it, a moment later, what it had started."""
    for seconds, end in ((CLOSING_S, process.terminate), (GRACE_S, process.kill)):
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
        end()
    process.wait()


def _environment(address: str | None) -> dict[str, str]:
    """RAY_ADDRESS has been read. Ray that is started here finds this very package, and asks for a
    token of its own: other users of this machine reach its ports, too."""
    given = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    if address is not None:
        return {**given, **QUIET, **PATIENT}
    paths = [str(ROOT), *filter(None, [given.get("PYTHONPATH")])]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {**given, **QUIET, **ALONE, **token, "PYTHONPATH": os.pathsep.join(paths)}


def _command_line(folder: Path) -> list[str]:
    """It ends with the job, and then removes the job's folder."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "from detector.core.run.signals import end_with_parent; "
        f"end_with_parent({os.getpid()}, {str(folder)!r}); "
        "from detector.batch.cluster.ray_process import main; main()"
    )
    return [sys.executable, "-P", "-c", code]


def _short_folder() -> Path:
    """For Ray's files: its sockets have long names."""
    place = tempfile.gettempdir()
    if len(place) > LONGEST_FOLDER:
        place = "/tmp"
    folder = Path(place, f"dv-ray-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    return folder


def _reach(address: str) -> None:
    """Raises EngineError where nobody answers: Ray itself would try for a minute or more."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto": Ray finds it
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHING_S).close()
    except OSError as error:
        raise EngineError(
            f"{address}: no Ray cluster answers there ({error}); check the address, or start one"
        ) from error
