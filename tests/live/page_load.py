"""Measure what viewers of the page cost a run: requests, slow clients and a frozen browser.

python -m tests.live.page_load PORT CAMERA REQUESTS    sends requests until standard input ends
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.lab.report.browser import Browser, chromium
from tests.live.checking import measure_ages, quantile
from tests.live.page.client import Client
from tests.live.program import ROOT, Program, write_cameras
from tests.live.servers import make_clip, rtsp
from tests.processes import command_line, descendants

FPS = 25.0
CAMERAS = 4
PATHS = ("/api/streams", "/metrics")
SLOW_READERS, SLOW_HEADS = 5, 3
SETTLE_S = 3.0  # between the start of a load and the measurement


@dataclass(slots=True)
class Phase:
    fps: float
    rss_mb: float
    cores: float


@dataclass(slots=True)
class Answers:
    seconds: float = 0.0
    ok: int = 0
    other: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    cut: int = 0  # slow clients that the page cut off


@dataclass(slots=True)
class Pair:
    without: Phase
    loaded: Phase
    answers: Answers

    @property
    def ratio(self) -> float:
        return self.loaded.fps / self.without.fps


@dataclass(slots=True)
class Outcome:
    most: float  # pictures per second that this machine can process, one at a time
    rate: float  # pictures per second requested from all cameras together
    browser: bool
    pairs: list[Pair] = field(default_factory=list)
    exit_code: int | None = None


def check_page(
    folder: Path,
    pairs: int,
    seconds: float,
    requests: int,
    engine: str,
    report: Callable[[Pair], None],
) -> Outcome:
    """Run four cameras that together need half of this machine's capacity. Phases with and without
    the load alternate, and every second pair begins with the load."""
    idle = measure_ages(10.0, 8.0, engine, "latest", 5.0)
    most = 1e3 / (sum(idle.busy_ms) / len(idle.busy_ms))
    rate = round(min(FPS, most / 2 / CAMERAS), 2)
    outcome = Outcome(most, rate * CAMERAS, chromium() is not None)
    clip = make_clip(folder / "clip.mp4", 250, size=(640, 360), gop=25)
    with ExitStack() as running:
        names = [f"cam{number}" for number in range(CAMERAS)]
        servers = [running.enter_context(rtsp({"x": clip})) for _ in names]
        urls = {name: server.url("x") for name, server in zip(names, servers, strict=True)}
        cameras = folder / "cameras.yaml"
        write_cameras(cameras, urls, rate)
        program = Program(folder, cameras, ("--engine", engine, "--serve", "127.0.0.1:0"))
        running.callback(program.kill)
        program.wait_for_cameras(names)
        port = page_port(program)
        for number in range(pairs):
            parts: dict[bool, Phase] = {}
            answers = Answers()
            for is_loaded in (False, True) if number % 2 == 0 else (True, False):
                if not is_loaded:
                    time.sleep(SETTLE_S)
                    parts[False] = measure(program, names, seconds)
                    continue
                with frozen_browser(port), load(port, names[0], requests, answers):
                    time.sleep(SETTLE_S)
                    parts[True] = measure(program, names, seconds)
            pair = Pair(parts[False], parts[True], answers)
            outcome.pairs.append(pair)
            report(pair)
        program.end()
        outcome.exit_code = program.exit_code
    return outcome


def page_port(program: Program) -> int:
    def ports() -> list[str]:
        return re.findall(r"http://127\.0\.0\.1:(\d+)", "\n".join(program.error_lines()))

    program.wait_until(lambda: bool(ports()), 30)
    return int(ports()[0])


def measure(program: Program, names: list[str], seconds: float) -> Phase:
    before, first, began = count_rows(program, names), program.sample(), time.monotonic()
    place = len(program.samples)
    program.watch(seconds)
    rows, last = count_rows(program, names) - before, program.sample()
    passed = time.monotonic() - began
    return Phase(
        rows / passed,
        median(sample.rss_mb for sample in program.samples[place:]),
        (last.cpu_s - first.cpu_s) / passed,
    )


def count_rows(program: Program, names: list[str]) -> int:
    return sum(
        path.read_bytes().count(b"\n")
        for name in names
        for path in (program.out / name).glob("detections-*.jsonl")
    )


@contextmanager
def frozen_browser(port: int) -> Iterator[None]:
    """Show the page in Chromium for some seconds. Then freeze Chromium while the block runs."""
    if chromium() is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="live-check-") as folder:
        browser = Browser(Path(folder))
        try:
            browser.visit(f"http://127.0.0.1:{port}/")
            time.sleep(SETTLE_S)
            stopped = [pid for pid in descendants(os.getpid()) if "chrom" in command_line(pid)]
            try:
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                yield
            finally:
                for pid in stopped:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
        finally:
            browser.close()


@contextmanager
def load(port: int, camera: str, requests: int, answers: Answers) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.live.page_load", str(port), camera, str(requests)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield
        results = json.loads(process.communicate(timeout=60)[0])  # this ends the process's input
        for name, value in results.items():
            setattr(answers, name, value)
    finally:
        process.kill()
        process.wait()


# The process that sends requests.


class Crowd:
    """Send requests and keep connections open with little traffic, until ``over``."""

    def __init__(self, port: int, camera: str) -> None:
        self.client, self.camera = Client(port), camera
        self.answers, self.over = Answers(), threading.Event()
        self._lock = threading.Lock()

    def ask(self, path: str) -> None:
        began = time.monotonic()
        try:
            ok = self.client.ask(path).status == 200
        except OSError:
            ok = False
        with self._lock:
            self.answers.ok += ok
            self.answers.other += not ok
            self.answers.latencies_ms.append((time.monotonic() - began) * 1e3)

    def read_slowly(self) -> None:
        path = f"/api/streams/{self.camera}/stream.mjpg"
        while not self.over.is_set():
            with suppress(OSError, IndexError), self.client.stream(path, 4096) as connection:
                while connection.socket.recv(256) and not self.over.wait(0.5):
                    pass
            self._count_disconnect()

    def write_slowly(self) -> None:
        while not self.over.is_set():
            with suppress(OSError), self.client.connect() as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n")
                while not self.over.wait(1.0):
                    connection.sendall(b"x")
            self._count_disconnect()

    def _count_disconnect(self) -> None:
        if not self.over.wait(0.5):
            with self._lock:
                self.answers.cut += 1

    def run(self, requests: int) -> None:
        for job in [self.read_slowly] * SLOW_READERS + [self.write_slowly] * SLOW_HEADS:
            threading.Thread(target=job, daemon=True).start()
        began, number = time.monotonic(), 0
        with ThreadPoolExecutor(16) as pool:
            while not self.over.wait(max(0.0, began + number / requests - time.monotonic())):
                pool.submit(self.ask, PATHS[number % len(PATHS)])
                number += 1
        self.answers.seconds = time.monotonic() - began


def ask_until_closed(port: int, camera: str, requests: int) -> Answers:
    crowd = Crowd(port, camera)
    threading.Thread(target=lambda: (sys.stdin.read(), crowd.over.set()), daemon=True).start()
    crowd.run(requests)
    return crowd.answers


def p99(answers: Answers) -> float:
    return quantile(answers.latencies_ms, 0.99)


if __name__ == "__main__":
    report = ask_until_closed(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    print(json.dumps({name: getattr(report, name) for name in Answers.__slots__}))
