"""Runs with misbehaving peers: a hostile broker, or page clients that do not read.

A run must keep its rate, without using more memory, threads or descriptors, and end as usual.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.live.hostile_broker import hostile_broker
from tests.live.page.client import Client
from tests.live.page_load import measure, page_port
from tests.live.program import Program, Sample, write_cameras
from tests.live.servers import make_clip, rtsp

RATE = 5.0  # pictures per second: few, so that a busy machine can process all of them
CAMERA = "cam0"
LEAST_RATE = 0.9  # share of RATE
MOST_GROWN_MB = 24.0
STAY_S = 40  # how long clients stay; the page cuts off a client that reads nothing for 20 s
# What a client requests, and what it reads of the response.
WAYS = ("stream.mjpg, a byte a second", "stream.mjpg, nothing", "pictures, nothing",
        "events, nothing")  # fmt: skip


@dataclass(slots=True)
class PeerOutcome:
    kind: str
    fps: float = 0.0
    grown_mb: float = 0.0
    threads: int = 0
    descriptors: int = 0
    lines: int = 0  # lines about the peer on standard error
    visits: int = 0  # connections that the peers made
    exit_code: int | None = None
    end_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def watched_run(folder: Path, *options: str) -> Iterator[Program]:
    folder.mkdir(parents=True, exist_ok=True)
    clip = make_clip(folder / "clip.mp4", 50, size=(320, 180), gop=10)
    with ExitStack() as running:
        server = running.enter_context(rtsp({"x": clip}))
        cameras = folder / "cameras.yaml"
        write_cameras(cameras, {CAMERA: server.url("x")}, RATE)
        program = Program(folder, cameras, ("--engine", "null", *options))
        running.callback(program.kill)
        program.wait_for_cameras([CAMERA])
        yield program


def check_broker(folder: Path, kind: str, seconds: float) -> PeerOutcome:
    outcome = PeerOutcome(kind)
    with hostile_broker(kind) as broker:
        with watched_run(folder, "--mqtt", f"mqtt://127.0.0.1:{broker.port}/x") as program:
            program.watch(2.0)
            first = program.sample()
            outcome.fps = best_rate(program, seconds)
            _compare(outcome, [first], program.samples[-3:])
            _end(outcome, program, "mqtt://")
        outcome.visits = broker.connections
    return outcome


def check_readers(folder: Path, readers: int, minutes: float) -> tuple[PeerOutcome, list[Sample]]:
    """Run with ``readers`` slow readers of each kind. Also return samples, one per second."""
    outcome = PeerOutcome(f"{readers} clients of each kind")
    with watched_run(folder, "--serve", "127.0.0.1:0") as program:
        with slow_readers(page_port(program), readers) as crowd:
            program.watch(min(30.0, 20 * minutes))  # meanwhile all connect, and some are cut off
            place = len(program.samples)
            outcome.fps = best_rate(program, 60 * minutes)
            samples = program.samples[place:]
            third = max(1, len(samples) // 3)
            _compare(outcome, samples[:third], samples[-third:])
            answer = Client(crowd.port).ask("/healthz")
            if answer.status != 200:
                outcome.wrong.append(f"/healthz answers {answer.status}")
            outcome.visits = crowd.visits
        _end(outcome, program, "page")
    return outcome, samples


def best_rate(program: Program, seconds: float) -> float:
    """Return the best of up to three measurements: the machine may stall for a second."""
    best = 0.0
    for _ in range(3):
        best = max(best, measure(program, [CAMERA], seconds).fps)
        if best >= LEAST_RATE * RATE:
            break
    return best


def _compare(outcome: PeerOutcome, before: list[Sample], after: list[Sample]) -> None:
    outcome.grown_mb = median(sample.rss_mb for sample in after) - median(
        sample.rss_mb for sample in before
    )
    outcome.threads = max(sample.threads for sample in after) - max(
        sample.threads for sample in before
    )
    outcome.descriptors = max(sample.descriptors for sample in after) - max(
        sample.descriptors for sample in before
    )
    if outcome.fps < LEAST_RATE * RATE:
        outcome.wrong.append(f"{outcome.fps:.2f} pictures a second of {RATE:g}")
    if outcome.grown_mb > MOST_GROWN_MB:
        outcome.wrong.append(f"{outcome.grown_mb:.0f} MB more")
    if outcome.threads > 1:
        outcome.wrong.append(f"{outcome.threads} threads more")
    if outcome.descriptors > 3:
        outcome.wrong.append(f"{outcome.descriptors} descriptors more")


def _end(outcome: PeerOutcome, program: Program, word: str) -> None:
    program.end()
    outcome.exit_code, outcome.end_s = program.exit_code, program.end_s
    error_lines = program.error_lines()
    outcome.lines = sum(
        (word in line and "retrying" in line) or "refused the" in line for line in error_lines
    )
    if outcome.lines > 1:
        outcome.wrong.append(f"{outcome.lines} lines: {error_lines[-3:]}")
    if any("Traceback" in line or "internal error" in line for line in error_lines):
        outcome.wrong.append("\n".join(error_lines[-20:]))
    if outcome.exit_code != 143:
        outcome.wrong.append(f"exit code {outcome.exit_code}")


class Crowd:
    def __init__(self, port: int, readers: int) -> None:
        self.port, self.visits, self.over = port, 0, threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._visit, args=(way,), daemon=True)
            for way in WAYS
            for _ in range(readers)
        ]
        for thread in self._threads:
            thread.start()

    def _visit(self, way: str) -> None:
        what, _, how = way.partition(", ")
        path = f"/api/streams/{CAMERA}/{what}" if "." in what else f"/api/{what}"
        while not self.over.is_set():
            with suppress(OSError), Client(self.port).connect(4096) as connection:
                connection.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode()
                )
                with self._lock:
                    self.visits += 1
                self._hold_open(connection, reads=how == "a byte a second")
            self.over.wait(0.5)

    def _hold_open(self, connection: socket.socket, reads: bool) -> None:
        """Hold the connection until it is cut off, or for ``STAY_S`` seconds: a client that does
        not read cannot notice the cut."""
        for _ in range(STAY_S):
            if self.over.wait(1.0) or (reads and not connection.recv(1)):
                return

    def close(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def slow_readers(port: int, readers: int) -> Iterator[Crowd]:
    crowd = Crowd(port, readers)
    try:
        yield crowd
    finally:
        crowd.close()
