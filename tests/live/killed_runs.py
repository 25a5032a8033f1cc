"""Kill and stop the whole command at any moment while it records two cameras into one folder.

Each run finds the files of the last one, so that adoption and retention have work to do.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import av

from detector.live.recording.names import FOLDER, SIDE_CAR, Recorded, list_recordings
from tests.live.program import Program, write_cameras
from tests.live.servers import make_clip, rtsp

NAMES = ("cam0", "cam1")
MODES = ("copy", "annotated")
MINUTES = "0.05"  # of a segment: 3 s
KEEP_GB = 0.004
# Seconds of video allowed above the limit: half a minute since the last check, one file, and the
# burst when a stopped run resumes.
MORE_S = 60.0
CLIP_S = 10.0
EARLIEST_S, LATEST_S = 0.3, 12.0  # of a kill, from the start of the process
LONGEST_STOP_S = 8.0
PATIENCE_S = 90.0


@dataclass(slots=True)
class Left:
    times: int = 0
    finished: int = 0  # different recordings under their final names, all decoded to their end
    pictures: int = 0  # in them
    damaged: int = 0  # packets in them that arrived damaged: a camera drops data that is not read
    partial: int = 0  # different files in the making that were seen
    empty: int = 0  # of these, without a picture
    adopted: int = 0  # of these, with a final name at the next look; others were removed by then
    removed: int = 0  # by retention, of the finished ones
    lines: int = 0  # of rows and events at the end, all parsed
    cut: int = 0  # last lines that a kill cut
    wrong: list[str] = field(default_factory=list)


class Folder:
    """The folder of outputs. It is checked repeatedly; a file that did not change only once."""

    def __init__(self, out: Path, left: Left) -> None:
        self.out, self.left = out, left
        self._known: dict[Path, tuple[int, int]] = {}
        self._begun: set[Path] = set()  # files in the making

    def recordings(self) -> list[Recorded]:
        return [
            recording for name in NAMES for recording in list_recordings(self.out / name / FOLDER)
        ]

    def check(self, killed: bool) -> None:
        """Check every file. ``killed``: allow partial recordings and cut last lines."""
        self._check_recordings(killed)
        self.left.lines = 0
        for path in sorted(self.out.glob("*/*.jsonl")):
            self._check_lines(path, killed)

    def _check_recordings(self, killed: bool) -> None:
        now = self.recordings()
        for one in now:
            if one.partial:
                if not killed:
                    self.left.wrong.append(f"{one.path.name} is in the making after the end")
                is_empty = self._count(one.path, least=0) == 0
                if one.path not in self._begun:
                    self.left.partial += 1
                    self.left.empty += is_empty
                self._begun.add(one.path)
                continue
            about = one.path.stat()
            stamp = about.st_size, about.st_mtime_ns
            if self._known.get(one.path) != stamp:
                if one.path in self._known:
                    self.left.wrong.append(f"{one.path.name} was changed after it was finished")
                self._known[one.path] = stamp
                self.left.finished += 1
                self.left.pictures += self._count(one.path, least=1)
        gone = self._known.keys() - {one.path for one in now}
        self.left.removed += len(gone)
        for path in gone:
            del self._known[path]
        newest = {path.name: 0 for path in self._known}
        for car in self.out.glob(f"*/{FOLDER}/*{SIDE_CAR}"):
            if not killed and car.with_suffix(".mp4").name not in newest:
                self.left.wrong.append(f"{car.name} has no recording")

    def _count(self, path: Path, least: int) -> int:
        """Count the pictures that a player shows, without damaged ones. A partial file may hold
        none yet."""
        found, damaged = 0, 0
        try:
            with av.open(str(path)) as container:
                for packet in container.demux(video=0):
                    try:
                        found += len(packet.decode())
                    except av.error.InvalidDataError:
                        damaged += 1
        except (av.FFmpegError, IndexError) as error:
            if least:
                self.left.wrong.append(f"{path.name} does not play: {error}")
        if found < least:
            self.left.wrong.append(f"{path.name} holds {found} pictures")
        self.left.damaged += damaged if least else 0
        return found

    def _check_lines(self, path: Path, killed: bool) -> None:
        lines = path.read_bytes().split(b"\n")
        rest = lines.pop()
        if rest:
            self.left.cut += 1
            if not killed:
                self.left.wrong.append(f"{path.name}: its last line is cut")
        for line in lines:
            try:
                json.loads(line)
            except ValueError:
                self.left.wrong.append(f"{path.name}: no line of JSON: {line[:80]!r}")
        self.left.lines += len(lines)

    def check_size(self) -> None:
        size = sum(recording.path.stat().st_size for recording in self.recordings())
        if self.left.times > 20 and not self.left.removed:
            self.left.wrong.append("retention removed nothing")
        clip = (self.out.parent / "clip.mp4").stat().st_size
        if size > KEEP_GB * 1e9 + len(NAMES) * clip * MORE_S / CLIP_S:
            self.left.wrong.append(f"{size} bytes of recordings are kept")

    def rows(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.out.glob("*/detections-*.jsonl"))


@contextmanager
def two_cameras(folder: Path) -> Iterator[Callable[[str], Program]]:
    folder.mkdir(parents=True, exist_ok=True)
    clip = make_clip(folder / "clip.mp4", round(25 * CLIP_S), size=(320, 180), gop=25, noise=True)
    with ExitStack() as running:
        servers = [running.enter_context(rtsp({"x": clip})) for _ in NAMES]
        cameras = folder / "cameras.yaml"
        urls = {name: one.url("x") for name, one in zip(NAMES, servers, strict=True)}
        write_cameras(cameras, urls)

        def start(mode: str) -> Program:
            options = ("--engine", "null", "--record", mode, "--segment", MINUTES)
            program = Program(folder, cameras, (*options, "--keep-gb", str(KEEP_GB)))
            running.callback(program.kill)
            return program

        yield start


def check_kills(
    folder: Path, times: int, seed: int, tell: Callable[[Left], None] = lambda left: None
) -> Left:
    """Kill runs at ``times`` random moments with SIGKILL; the last run ends in order."""
    left, moments = Left(), Random(seed)
    found = Folder(folder / "live", left)
    with two_cameras(folder) as start:
        for number in range(times + 1):
            before = [recording for recording in found.recordings() if recording.partial]
            rows, program = found.rows(), start(MODES[number % 2])
            is_last = number == times
            if is_last:
                _wait_for_rows(program, found, rows)
                program.watch(3.0)
            else:
                time.sleep(moments.uniform(EARLIEST_S, LATEST_S))
            if program.process.poll() is not None:
                left.wrong.append(f"it ended before the kill: {program.errors()}")
            if found.rows() > rows:  # it records: what was left has been seen to
                _check_adopted(before, left)
            _end(program, left) if is_last else program.kill()
            left.times += not is_last
            found.check(killed=not is_last)
            tell(left)
        found.check_size()
    return left


def check_stops(
    folder: Path, times: int, seed: int, tell: Callable[[Left], None] = lambda left: None
) -> Left:
    """Stop one run at ``times`` random moments with SIGSTOP; resume it seconds later."""
    left, moments = Left(), Random(seed)
    found = Folder(folder / "live", left)
    with two_cameras(folder) as start:
        program = start(MODES[seed % 2])
        _wait_for_rows(program, found, 0)
        for _ in range(times):
            program.watch(moments.uniform(0.1, 4.0))
            program.process.send_signal(signal.SIGSTOP)
            time.sleep(moments.uniform(0.2, LONGEST_STOP_S))
            found.check(killed=True)
            rows = found.rows()
            program.process.send_signal(signal.SIGCONT)
            _wait_for_rows(program, found, rows)
            left.times += 1
            tell(left)
        program.watch(3.0)
        _end(program, left)
        found.check(killed=False)
        found.check_size()
    return left


def _wait_for_rows(program: Program, found: Folder, rows: int) -> None:
    if program.wait_until(lambda: found.rows() > rows, PATIENCE_S) is None:
        found.left.wrong.append(f"no picture in {PATIENCE_S:.0f} s: {program.errors()}")


def _check_adopted(before: list[Recorded], left: Left) -> None:
    """Check that no partial recording of the previous run still has its partial name."""
    for one in before:
        if os.path.lexists(one.path):
            left.wrong.append(f"{one.path.name} is still in the making after the next start")
        final = one.path.with_name(one.path.name.replace(".partial", ""))
        left.adopted += final.exists()


def _end(program: Program, left: Left) -> None:
    program.end()
    said = program.errors()
    if program.exit_code != 143:
        left.wrong.append(f"exit code {program.exit_code}: {said}")
    if "internal error" in said or "Traceback" in said:
        left.wrong.append(said)
