"""The pool of a cluster, in the job's process: it starts the process that talks to Ray."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.batch.cluster.messages import Hello, Load, Open, Turn, Turned
from detector.batch.documents import WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.pool import TICK_S, Event, Failed, Finished, Gone
from detector.batch.settings import LoadedFacts
from detector.core.errors import (
    EXIT_ENGINE,
    DetectVideoError,
    EngineError,
    OutputError,
    UsageError,
    error_of_code,
)
from detector.core.errors.machine import usable_cores
from detector.core.run.child import GRACE_S, Child, end, python_command
from detector.core.run.parent import ROOT
from detector.core.run.signals import Stop, Stopped
from detector.core.sources._addresses import is_address, parse_address

INSTALL = "--on ray needs ray; install it with: pip install 'detect-video[ray]'"
RAY = "ray"
CLIENT = "ray://"
OPENING_S = 180.0
ANSWER_S = 60.0  # time limit for an answer; the wait of a ``Turn`` is added
REACHING_S = 5.0  # time limit for connecting to the cluster
CLOSING_S = 20.0
MOST_PATHS = 100  # each node checks at most this many paths
LAST_WORDS = 300  # characters of Ray's output that a message quotes
LONGEST_FOLDER = 30  # Ray adds 60 characters for its sockets, and a socket's path has at most 107

# Variables of the process that talks to Ray, and of its children. Without them Ray sends usage
# statistics, and uploads the project folder of a program started by `uv run`.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
# With this, a Ray that we start listens on 127.0.0.1 only, not on all addresses of the machine. The
# name speaks of Windows and macOS, because on these systems 0 is the default.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray kills our process if the cluster's head is silent for this long. The job ends earlier: see
# HEAD_S in workers.py.
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}

LOG_LINE = re.compile(r"\[20[^]]*\] ")  # [2026-11-23 02:06:54,047 C 28345 28375]


class ConnectionLostError(Exception):
    """The process that talks to Ray ended, or does not answer. The message gives the reason."""


def check_on(on: str) -> None:
    host, _, port = on.removeprefix(CLIENT).rpartition(":")
    if on != RAY and not (on.startswith(CLIENT) and host and port.isdecimal()):
        raise UsageError(f"--on {on}: give local, ray, or ray://HOST:PORT (Ray's port is 10001)")
    if importlib.util.find_spec("ray") is None:
        raise UsageError(INSTALL)


def address_of(on: str) -> str | None:
    """Return the cluster's address from --on or RAY_ADDRESS; None if Ray must be started here."""
    if on != RAY:
        return on
    address = os.environ.get("RAY_ADDRESS", "").strip()
    return None if address in ("", "local") else address


@dataclass(slots=True)
class ClusterPool:
    """A pool of Ray actors. ``folder``: where the job's temporary files go. ``place``: OUT, which
    all nodes must see. ``token_name``: a hidden file in OUT; a node that reads it sees the same
    OUT. ``workers``: None means as many as fit. ``stop``: ends the wait for the first worker."""

    on: str
    folder: Path
    place: str
    token_name: str = ".detect-video-cluster"
    workers: int | None = None
    item_timeout: float | None = None
    gathers: bool = False
    stop: Stop = field(default_factory=Stop)
    command: Callable[[Path, int], list[str]] = field(
        default=lambda folder, pipe: _command_line(folder, pipe)
    )
    _child: Child | None = None
    _rays: Path | None = None
    _token: Path | None = None
    _known: Turned = field(default_factory=Turned)
    _handed: list[Task] = field(default_factory=list)  # tasks to send with the next ``Turn``
    _running: list[Task] = field(default_factory=list)
    _lost: bool = False  # whether the connection is lost

    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        address = address_of(self.on)
        if address is not None:
            _reach(address)
        self._rays = _short_folder()
        load = Load(
            config=config,
            place=self.place,
            pictures=list(pictures),
            resolves=resolves,
            gathers=self.gathers,
            item_timeout=self.item_timeout,
            folder=str(self._rays) if address is None else None,
        )
        wanted = Open(
            address=address,
            cores=usable_cores(),
            folder=str(self._rays),
            workers=self.workers,
            hello=self._make_hello(config, pictures),
            load=load,
        )
        try:
            self._launch(address)
            self._ask(wanted, OPENING_S, stops=True)
            while self._known.facts is None:
                self._turn(Turn(wait=TICK_S), stops=True)
                for event in self._known.events:
                    if isinstance(event, Gone):
                        raise error_of_code(event.exit_code)(event.error)
        except ConnectionLostError as error:
            raise EngineError(f"--on {self.on}: {error}") from error
        return self._known.facts

    def _make_hello(self, config: dict[str, dict[str, Any]], pictures: Sequence[str]) -> Hello:
        values = [value for group in config.values() for value in group.values()]
        named = [value for value in values if isinstance(value, str) and os.path.isabs(value)]
        paths = [path for path in [*pictures, *named] if os.path.exists(path)][:MOST_PATHS]
        addresses = list(
            {parse_address(one)[:2]: one for one in pictures if is_address(one)}.values()
        )
        if is_address(self.place):
            return Hello(place=self.place, paths=paths, addresses=addresses)
        self._token = Path(self.place, self.token_name)
        token = secrets.token_hex(16)
        try:
            self._token.write_text(token, encoding="ascii")
        except OSError as error:
            raise OutputError(f"{self._token}: cannot be written: {error.strerror}") from error
        return Hello(
            place=self.place,
            token_file=self._token.name,
            token=token,
            paths=paths,
            addresses=addresses,
        )

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        self._keep_up(Turn(wait=0.0, start=(config, digest, most)))

    def has_room(self) -> bool:
        return not self._lost and self._known.room > len(self._handed)

    def submit(self, task: Task) -> None:
        self._handed.append(task)
        self._running.append(task)

    def wait(self, seconds: float) -> list[Event]:
        tasks, self._handed = self._handed, []
        events = self._keep_up(Turn(wait=seconds, tasks=tasks))
        ended = {event.task.id for event in events if isinstance(event, Finished | Failed)}
        self._running = [task for task in self._running if task.id not in ended]
        return events

    def _keep_up(self, turn: Turn) -> list[Event]:
        if self._lost:
            return []
        try:
            self._turn(turn)
        except ConnectionLostError as error:
            self._lost = True
            why = f"lost the connection to Ray: {error}"
            lost = [Failed(task, 0, why, EXIT_ENGINE, True, 0.0) for task in self._running]
            return [*lost, Gone(0, f"{why}; continue with --resume", EXIT_ENGINE)]
        return list(self._known.events)

    def states(self) -> list[WorkerState]:
        return self._known.states

    def reports(self) -> list[WorkerReport]:
        return self._known.reports

    def is_alive(self) -> bool:
        return not self._lost and self._known.alive

    def cores(self) -> float:
        return self._known.cores

    def _launch(self, address: str | None) -> None:
        self._child = Child(
            lambda pipe: self.command(self.folder, pipe),
            self.folder / "ray.txt",
            cwd=self._rays,  # our own: Ray's workers import from it first
            env=_environment(address),
        )

    def _turn(self, turn: Turn, *, stops: bool = False) -> None:
        self._known = self._ask(turn, turn.wait + ANSWER_S, stops=stops)

    def _ask(self, message: Open | Turn, seconds: float, *, stops: bool) -> Any:
        """Send ``message`` and wait for the answer. ``stops``: a signal ends the wait."""
        assert self._child is not None
        pipe, until = self._child.pipe, time.monotonic() + seconds
        timeout_s = CLOSING_S if isinstance(message, Turn) and message.closes else GRACE_S
        try:
            pipe.send(message)
            while not pipe.poll(TICK_S):
                if self.stop.is_set():
                    if stops:
                        assert self.stop.exit_code is not None
                        raise Stopped(self.stop.exit_code)
                    until = min(until, time.monotonic() + timeout_s)
                if time.monotonic() > until:
                    raise ConnectionLostError(f"Ray did not respond for {seconds:.0f} s")
            answer = pipe.recv()
        except (EOFError, OSError):
            raise ConnectionLostError(self._describe_death()) from None
        if isinstance(answer, DetectVideoError):
            raise answer
        return answer

    def _describe_death(self) -> str:
        assert self._child is not None
        process = self._child.process
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        text = f"the process that talks to Ray exited with status {process.returncode}"
        words = last_words(self._child.read_output())
        return f"{text}; its last output: {words}" if words else text

    def close(self) -> None:
        if self._child is not None:
            if self._known.facts is not None:
                self._keep_up(Turn(wait=0.0, closes=True))
            self._lost = True
            self._child.pipe.close()  # makes the process end Ray, and then itself
            end([self._child], alone_s=CLOSING_S)
            self._child = None
        if self._rays is not None:
            shutil.rmtree(self._rays, ignore_errors=True)
        if self._token is not None:
            with suppress(OSError):
                self._token.unlink(missing_ok=True)


def last_words(said: str) -> str:
    """Return the last line that has the format of Ray's log, since a long stack of addresses may
    follow it. If no line has this format, return the end of the output."""
    logged = [line for line in said.splitlines() if LOG_LINE.match(line)]
    if logged:
        return LOG_LINE.sub("", logged[-1])[:LAST_WORDS]
    return " ".join(said.split())[-LAST_WORDS:]


def _environment(address: str | None) -> dict[str, str]:
    """Return Ray's environment. If we start Ray, it has our package's path, and a token, since
    other users can reach Ray's ports."""
    given = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    if address is not None:
        return {**given, **QUIET, **PATIENT}
    paths = [ROOT, *filter(None, [given.get("PYTHONPATH")])]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {**given, **QUIET, **ALONE, **token, "PYTHONPATH": os.pathsep.join(paths)}


def _command_line(folder: Path, pipe: int) -> list[str]:
    return python_command("detector.batch.cluster.ray_process", pipe, folder)


def _short_folder() -> Path:
    place = tempfile.gettempdir()
    if len(place) > LONGEST_FOLDER:
        place = "/tmp"
    folder = Path(place, f"dv-ray-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    return folder


def _reach(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto": Ray finds the cluster
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHING_S).close()
    except OSError as error:
        raise EngineError(
            f"{address}: no Ray cluster responds ({error}); check the address, or start a cluster"
        ) from error
