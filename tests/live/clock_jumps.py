"""Cameras while the machine's clock jumps by hours: libfaketime lies to the program alone.

It stands in front of the C library and adds what a file says to every time of day. The monotonic
clock is left alone, as a real jump leaves it alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import av

from detector.live.recording.names import FOLDER, list_recordings
from tests.live.program import (
    Program,
    ProgramEndedError,
    UnavailableError,
    in_seconds,
    write_cameras,
)
from tests.live.servers import make_clip, rtsp

GOP = 25  # pictures of the cameras between two key frames
HOURS = 40.0  # the longest random jump
YEAR = 8766.0  # hours
# Where summer time begins and ends: the machine's zone is another one than that of the rows.
ZONE = "Europe/Berlin"
LATE_S = 15.0  # by which a dwell may be longer than what passed, on a busy machine
NAMES = ("cam0", "cam1")
ALONE = "machine: no libfaketime (apt install libfaketime)"


@dataclass(slots=True)
class CameraOutcome:
    """Of one camera: what the run counted, and what lies in its folder."""

    name: str
    received: int = 0
    processed: int = 0
    rows: int = 0
    row_files: int = 0
    pictures: int = 0  # in recordings, decoded
    recordings: int = 0
    said_recordings: int = 0
    said_pictures: int = 0
    events: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    mode: str
    jumps: list[float]  # hours
    days: int = 0  # sessions
    exit_code: int | None = None
    cameras: list[CameraOutcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    shaken: list[str] = field(default_factory=list)  # what a busy machine may cause as well


class FakeClock:
    """What the program takes for the time: ours, and ``hours`` more. Raises UnavailableError."""

    def __init__(self, folder: Path) -> None:
        found = list(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
        if not found:
            raise UnavailableError(ALONE)
        self._file = folder / "faketime"
        self.environment = {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",  # files keep their true times
        }
        self.set(5)
        print_time = "import time; print(time.time())"
        told = subprocess.run(
            [sys.executable, "-c", print_time],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        self.set(0)
        try:
            ahead_s = float(told.stdout) - time.time()
        except ValueError:
            raise UnavailableError(f"machine: libfaketime fails: {told.stderr.strip()}") from None
        if abs(ahead_s - 5 * 3600) > 600:
            raise UnavailableError(
                f"machine: libfaketime moved the clock by {ahead_s:.0f} s, not 5 h"
            )

    def set(self, hours: float) -> None:
        """In one step: the program may read at any moment."""
        whole = self._file.with_suffix(".new")
        whole.write_text(f"{round(hours * 3600):+d}\n")
        whole.replace(self._file)


def planned(now_s: float) -> list[float]:
    """Hours: a day, an hour, a year, ahead and back, and two seconds before summer time begins and
    ends."""
    hours = [24.0, 0.0, 1.0, 0.0, YEAR, 0.0, -YEAR, 0.0]
    for change_s in clock_changes(now_s):
        hours += [(change_s - 2 - now_s) / 3600, 0.0]
    return hours


def clock_changes(now_s: float) -> list[float]:
    """Unix times of the next two changes of ZONE's clocks."""
    zone, found = ZoneInfo(ZONE), []
    hour = now_s // 3600 * 3600

    def ahead(at_s: float) -> timedelta | None:
        return datetime.fromtimestamp(at_s, zone).utcoffset()

    while len(found) < 2:
        hour += 3600
        if ahead(hour) != ahead(hour - 3600):
            found.append(hour)
    return found


def check_clock(
    folder: Path, mode: str, times: int, every_s: float, engine: str, seed: int
) -> Outcome:
    """Two cameras, recorded by ``mode``, while the clock jumps ``times`` times: ``planned``, then
    at random. Recordings older than half a day are to be removed: by the right clock there are
    none. Raises UnavailableError."""
    clock, chance, began = FakeClock(folder), random.Random(seed), time.monotonic()
    hours = [*planned(time.time()), *(chance.uniform(-HOURS, HOURS) for _ in range(times))][:times]
    found = Outcome(mode, hours)
    clip = make_clip(folder / "clip.mp4", 250, size=(320, 180), gop=GOP)
    with ExitStack() as running:
        servers = [running.enter_context(rtsp({"x": clip})) for _ in NAMES]
        cameras = folder / "cameras.yaml"
        urls = {name: one.url("x") for name, one in zip(NAMES, servers, strict=True)}
        write_cameras(cameras, urls)
        options = ("--engine", engine, "--record", mode, "--segment", "0.05", "--keep-days", "0.5")
        around = {**clock.environment, "TZ": ZONE}
        program = Program(folder, cameras, options, environment=around)
        running.callback(program.kill)
        try:
            program.wait_for_cameras(NAMES)
            for number, hour in enumerate(hours):
                clock.set(hour)
                program.watch(every_s)
                if number == 0:  # a busy machine may take longer until a picture is of that day
                    program.wait_until(lambda: has_another_day(program), 60)
            program.end()
        except ProgramEndedError as gone:
            found.wrong.append(str(gone))
            return found
    found.exit_code = program.exit_code
    summaries = [json.loads(path.read_text()) for path in program.summaries()]
    found.days = len(summaries)
    for name in NAMES:
        streams = [one for day in summaries for one in day["streams"] if one["name"] == name]
        found.cameras.append(read_camera(program, name, streams, found))
        found.wrong += wrong_dwells(program, name, time.monotonic() - began + LATE_S)
    if found.exit_code != 143:
        found.wrong.append(f"exit code {found.exit_code} after SIGTERM")
    if found.days < 2 or any(one.row_files < 2 for one in found.cameras):
        found.wrong.append("the clock did not reach the program: nothing is of another day")
    found.wrong += [line for line in program.said() if "internal error" in line]
    return found


def has_another_day(program: Program) -> bool:
    """Whether there are two sessions, and rows of two days from each camera."""
    rows = [list((program.out / name).glob("detections-*.jsonl")) for name in NAMES]
    return len(list(program.runs.glob("*"))) > 1 and all(len(files) > 1 for files in rows)


def wrong_dwells(program: Program, name: str, most_s: float) -> list[str]:
    """Events between whose times lies less than nothing, or more than what passed."""
    rows = list(program.lines(name, "events"))
    dwells = [in_seconds(row["time_utc"]) - in_seconds(row["since_utc"]) for row in rows]
    return [
        f"{name}: {row['event']} lasted {dwell:.0f} s"
        for row, dwell in zip(rows, dwells, strict=True)
        if not 0 <= dwell <= most_s
    ]


def read_camera(
    program: Program, name: str, streams: list[dict[str, Any]], found: Outcome
) -> CameraOutcome:
    """Everything that lies in its folder. Adds what is wrong to ``found``."""
    one, wrong = CameraOutcome(name), found.wrong
    counts = [stream["output_counts"]["recording"] for stream in streams]
    one.received = sum(stream["received"] for stream in streams)
    one.processed = sum(stream["processed"] for stream in streams)
    one.said_recordings = sum(count["files"] for count in counts)
    one.said_pictures = sum(count["written"] for count in counts)
    failed = {what: sum(count[what] for count in counts) for what in ("failed", "lost", "refused")}
    folder = program.out / name
    frames: list[int] = []
    for path in folder.glob("detections-*.jsonl"):
        one.row_files += 1
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        frames += [row["frame"] for row in rows]
        strangers = [row for row in rows if row["time_utc"][:10] != path.stem[-10:]]
        if strangers:
            wrong.append(f"{name}: {len(strangers)} rows of other days in {path.name}")
    one.rows = len(frames)
    if len(set(frames)) != len(frames) or len(frames) != one.processed:
        wrong.append(
            f"{name}: {one.processed} pictures detected, {len(frames)} rows, "
            f"{len(set(frames))} different ones"
        )
    recordings = list_recordings(folder / FOLDER)
    one.recordings = len(recordings)
    for recorded in recordings:
        with av.open(str(recorded.path)) as container:
            one.pictures += sum(1 for _ in container.decode(video=0))
    if any(recorded.partial for recorded in recordings) or one.recordings != one.said_recordings:
        wrong.append(f"{name}: {one.recordings} recordings, {one.said_recordings} were finished")
    if one.pictures != one.said_pictures or any(failed.values()):
        wrong.append(
            f"{name}: {one.pictures} pictures in recordings, {one.said_pictures} were written; "
            f"{failed}"
        )
    for row in program.lines(name, "events"):
        one.events[row["event"]] = one.events.get(row["event"], 0) + 1
    if one.events.get("camera_up") != 1 or one.events.get("camera_down") != 1:
        found.shaken.append(f"{name}: events {one.events}, although it was up all the time")
    if any(stream["stalls"] or stream["reconnects"] for stream in streams):
        found.shaken.append(f"{name}: the clock's jumps count as stalls or lost connections")
    return one
