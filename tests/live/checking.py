"""Measure how cameras recover, and compare the ages of pictures with a clock drawn in them.

``scripts/live_check`` uses this. Each server is a separate process. The measurements take minutes
and need an otherwise idle machine, so they are not tests.
"""

import json
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from detector import Detector
from tests.live.program import Program, Sample, in_seconds, write_cameras
from tests.live.servers import RtspServer, http, make_clip, rtsp
from tests.live.streams import read_number

PATIENCE_S = 60.0  # time limit for a camera to come back
# Faults of a camera. Silence for 2 s is a stall; after 10 s of silence the feed drops the
# connection and opens a new one.
KILL, STALL, LONG_STALL = "kill", "stall, 3 to 6 s", "stall, 12 to 15 s"
STALLS = {STALL: (3.0, 6.0), LONG_STALL: (12.0, 15.0)}
DOWN = "camera_down"
LOGIN = "admin:sw0rdf1sh"


# Recovery of cameras.


@dataclass(slots=True)
class Recoveries:
    """``seen``: outages that an event reported while they lasted. ``back_s``: seconds from the
    server's restart, or from the end of its stall, to the next picture that has a row; None if no
    picture came in time. Only the first camera has faults. ``quiet_ms`` and ``disturbed_ms``: for
    each other camera, the 99th percentile of picture ages before and during the faults."""

    seen: Counter[str] = field(default_factory=Counter)
    back_s: dict[str, list[float | None]] = field(
        default_factory=lambda: {KILL: [], STALL: [], LONG_STALL: []}
    )
    before: Sample | None = None
    after: Sample | None = None
    quiet_ms: list[float] = field(default_factory=list)
    disturbed_ms: list[float] = field(default_factory=list)
    exit_code: int | None = None


def check_recoveries(
    folder: Path, cameras: int, times: int, quiet_s: float, engine: str, seed: int
) -> Recoveries:
    """Run all cameras for ``quiet_s`` seconds. Then cause each of the three faults in the first
    camera ``times`` times."""
    results, moments = Recoveries(), random.Random(seed)
    clip = make_clip(folder / "clip.mp4", 250, size=(640, 360), gop=25)
    with ExitStack() as running:
        servers = [
            running.enter_context(rtsp({"x": clip}, login=LOGIN if number == 2 else None))
            for number in range(cameras)
        ]
        names = [f"cam{number}" for number in range(cameras)]
        logins = [LOGIN if number == 2 else None for number in range(cameras)]
        urls = {
            name: server.url("x", login)
            for name, server, login in zip(names, servers, logins, strict=True)
        }
        write_cameras(folder / "cameras.yaml", urls, **{names[1]: "udp"})
        run = Program(folder, folder / "cameras.yaml", ("--quiet", "--engine", engine))
        running.callback(run.kill)
        for name in names:
            _wait_for_row(folder, name, time.time(), 4 * PATIENCE_S)
        time.sleep(5)  # until the start is complete
        results.before, began = run.sample(), time.time()
        time.sleep(quiet_s)
        quiet_until = time.time()
        for fault in [KILL, STALL, LONG_STALL] * times:
            time.sleep(moments.uniform(0.5, 3))
            began_s, back_s = _interrupt(servers[0], fault, moments)
            results.back_s[fault].append(_wait_for_row(folder, names[0], back_s, PATIENCE_S))
            results.seen[fault] += _was_down(run, names[0], began_s, back_s)
        ended = time.time()
        results.after = run.sample()
        run.end()
        results.exit_code = run.exit_code
    for name in names[1:]:
        results.quiet_ms.append(_p99(folder, name, began, quiet_until))
        results.disturbed_ms.append(_p99(folder, name, quiet_until, ended))
    return results


def _interrupt(server: RtspServer, what: str, moments: random.Random) -> tuple[float, float]:
    began_s = time.time()
    if what == KILL:
        server.kill()
        time.sleep(moments.uniform(0.2, 2))
        server.start()  # returns when the server listens
        return began_s, time.time()
    server.signal(signal.SIGSTOP)
    time.sleep(moments.uniform(*STALLS[what]))
    back_s = time.time()
    server.signal(signal.SIGCONT)
    return began_s, back_s


def _was_down(run: Program, name: str, began_s: float, back_s: float) -> bool:
    """Return whether an event reported the outage while it lasted; wait up to 2 s for the event."""
    while True:
        is_late = time.time() > back_s + 2
        for row in run.lines(name, "events"):
            if row["event"] == DOWN and began_s <= in_seconds(row["time_utc"]) <= back_s + 1:
                return True
        if is_late:
            return False
        time.sleep(0.2)


def _rows(folder: Path, name: str, since: dict[Path, int]) -> Iterator[tuple[float, float]]:
    """Yield (arrival as Unix seconds, age in ms) of each new row. ``since``: path -> bytes already
    read; this function updates it."""
    for path in sorted((folder / "live" / name).glob("detections-*.jsonl")):
        with path.open("rb") as file:
            file.seek(since.get(path, 0))
            for line in file:
                if line.endswith(b"\n"):
                    since[path] = since.get(path, 0) + len(line)
                    row = json.loads(line)
                    yield in_seconds(row["time_utc"]), row["age_ms"]


def _wait_for_row(folder: Path, name: str, after: float, patience_s: float) -> float | None:
    until, since = time.time() + patience_s, dict[Path, int]()
    while time.time() < until:
        for moment, _ in _rows(folder, name, since):
            if moment > after:
                return moment - after
        time.sleep(0.2)
    return None


def _p99(folder: Path, name: str, start: float, end: float) -> float:
    ages = [age for moment, age in _rows(folder, name, {}) if start <= moment < end]
    return quantile(ages, 0.99)


# Ages compared with a clock in the picture.


@dataclass(slots=True)
class Ages:
    """``busy_ms``: time from when the loop took a picture to its result. ``differences_ms``:
    from the time drawn in a picture to its arrival. The age does not include this delay."""

    fps: float
    frames: int
    skipped: int
    ages_ms: list[float]
    inference_ms: list[float]
    busy_ms: list[float]
    differences_ms: list[float]

    @property
    def bound_ms(self) -> float:
        """The limit for ages: three times the interval between pictures, plus one inference."""
        return 3e3 / self.fps + quantile(self.inference_ms, 0.5)


def quantile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else float("nan")


def measure_ages(fps: float, seconds: float, engine: str, policy: str, max_age: float) -> Ages:
    """Process a stream of JPEGs with a burnt-in clock and return their ages and timings."""
    results = Ages(fps, 0, 0, [], [], [], [])
    with (
        _clock_server(fps) as url,
        Detector(engine=engine, policy=policy, max_age=max_age) as detector,
    ):
        started, before = time.monotonic(), None
        for frame, _ in detector.stream(url):
            arrival = frame.arrival
            assert arrival is not None
            if time.monotonic() - started > seconds:
                break
            results.frames += 1
            results.skipped += 0 if before is None else frame.index - before - 1
            before = frame.index
            results.ages_ms.append((arrival.result_ns - arrival.arrived_ns) / 1e6)
            results.inference_ms.append((arrival.inferred_ns - arrival.began_ns) / 1e6)
            results.busy_ms.append((arrival.result_ns - arrival.taken_ns) / 1e6)
            results.differences_ms.append(arrival.utc_s * 1e3 - read_number(frame.image) / 1e3)
    return results


@contextmanager
def _clock_server(fps: float) -> Iterator[str]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, fps))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("over")
        process.join(10)


def _serve(pipe: Connection, fps: float) -> None:
    with http() as server:
        server.fps = fps
        pipe.send(server.url("/mjpeg"))
        pipe.recv()
