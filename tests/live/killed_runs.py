"""Kill or suspend the command at random moments while it records two cameras into one folder.

Each run finishes the partial recordings of the run before, and removes old recordings.
"""

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
MINUTES = "0.05"  # length of a recording: 3 s
KEEP_GB = 0.004
# Recordings may exceed the limit of retention by this many seconds of video: the half minute
# between two checks, one unfinished file, and a burst when a stopped run resumes.
MORE_S = 60.0
CLIP_S = 10.0
EARLIEST_S, LATEST_S = 0.3, 12.0  # a process is killed at an age between these
LONGEST_STOP_S = 8.0
PATIENCE_S = 90.0


@dataclass(slots=True)
class Findings:
    times: int = 0
    finished: int = 0  # recordings with final names, each decoded to its end
    pictures: int = 0  # pictures in finished recordings
    damaged: int = 0  # damaged packets in finished files: cameras drop data that is read too late
    partial: int = 0  # partial recordings
    empty: int = 0  # partial recordings without a picture
    adopted: int = 0  # partial recordings that the next run renamed and retention has not removed
    removed: int = 0  # finished recordings that retention removed
    lines: int = 0  # rows and events at the end, which all parse as JSON
    cut: int = 0  # incomplete last lines, because of a kill
    wrong: list[str] = field(default_factory=list)


class Folder:
    """The folder of outputs. A finished recording is decoded again only if it has changed."""

    def __init__(self, out: Path, findings: Findings) -> None:
        self.out, self.findings = out, findings
        self._known: dict[Path, tuple[int, int]] = {}
        self._partial: set[Path] = set()  # partial recordings

    def recordings(self) -> list[Recorded]:
        return [
            recording for name in NAMES for recording in list_recordings(self.out / name / FOLDER)
        ]

    def check(self, killed: bool) -> None:
        """Check every file. ``killed``: allow partial recordings and incomplete last lines."""
        self._check_recordings(killed)
        self.findings.lines = 0
        for path in sorted(self.out.glob("*/*.jsonl")):
            self._check_lines(path, killed)

    def _check_recordings(self, killed: bool) -> None:
        recordings = self.recordings()
        for recording in recordings:
            if recording.partial:
                if not killed:
                    self.findings.wrong.append(f"{recording.path.name} is partial after the end")
                is_empty = self._count(recording.path, least=0) == 0
                if recording.path not in self._partial:
                    self.findings.partial += 1
                    self.findings.empty += is_empty
                self._partial.add(recording.path)
                continue
            status = recording.path.stat()
            version = status.st_size, status.st_mtime_ns
            if self._known.get(recording.path) != version:
                if recording.path in self._known:
                    self.findings.wrong.append(
                        f"{recording.path.name} was changed after it was finished"
                    )
                self._known[recording.path] = version
                self.findings.finished += 1
                self.findings.pictures += self._count(recording.path, least=1)
        removed = self._known.keys() - {recording.path for recording in recordings}
        self.findings.removed += len(removed)
        for path in removed:
            del self._known[path]
        finished_names = {path.name for path in self._known}
        for car in self.out.glob(f"*/{FOLDER}/*{SIDE_CAR}"):
            if not killed and car.with_suffix(".mp4").name not in finished_names:
                self.findings.wrong.append(f"{car.name} has no recording")

    def _count(self, path: Path, least: int) -> int:
        """Count the pictures that a player shows undamaged. A partial file may have none yet."""
        pictures, damaged = 0, 0
        try:
            with av.open(str(path)) as container:
                for packet in container.demux(video=0):
                    try:
                        pictures += len(packet.decode())
                    except av.error.InvalidDataError:
                        damaged += 1
        except (av.FFmpegError, IndexError) as error:
            if least:
                self.findings.wrong.append(f"{path.name} does not play: {error}")
        if pictures < least:
            self.findings.wrong.append(f"{path.name} holds {pictures} pictures")
        self.findings.damaged += damaged if least else 0
        return pictures

    def _check_lines(self, path: Path, killed: bool) -> None:
        lines = path.read_bytes().split(b"\n")
        rest = lines.pop()
        if rest:
            self.findings.cut += 1
            if not killed:
                self.findings.wrong.append(f"{path.name}: its last line is cut")
        for line in lines:
            try:
                json.loads(line)
            except ValueError:
                self.findings.wrong.append(f"{path.name}: this line is not JSON: {line[:80]!r}")
        self.findings.lines += len(lines)

    def check_size(self) -> None:
        size = sum(recording.path.stat().st_size for recording in self.recordings())
        if self.findings.times > 20 and not self.findings.removed:
            self.findings.wrong.append("retention removed nothing")
        clip = (self.out.parent / "clip.mp4").stat().st_size
        if size > KEEP_GB * 1e9 + len(NAMES) * clip * MORE_S / CLIP_S:
            self.findings.wrong.append(f"{size} bytes of recordings are kept")

    def rows(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.out.glob("*/detections-*.jsonl"))


@contextmanager
def two_cameras(folder: Path) -> Iterator[Callable[[str], Program]]:
    folder.mkdir(parents=True, exist_ok=True)
    clip = make_clip(folder / "clip.mp4", round(25 * CLIP_S), size=(320, 180), gop=25, noise=True)
    with ExitStack() as running:
        servers = [running.enter_context(rtsp({"x": clip})) for _ in NAMES]
        cameras = folder / "cameras.yaml"
        urls = {name: server.url("x") for name, server in zip(NAMES, servers, strict=True)}
        write_cameras(cameras, urls)

        def start(mode: str) -> Program:
            options = ("--engine", "null", "--record", mode, "--segment", MINUTES)
            program = Program(folder, cameras, (*options, "--keep-gb", str(KEEP_GB)))
            running.callback(program.kill)
            return program

        yield start


def check_kills(
    folder: Path, times: int, seed: int, tell: Callable[[Findings], None] = lambda findings: None
) -> Findings:
    """Kill runs at ``times`` random moments with SIGKILL; the last run ends with SIGTERM."""
    findings, moments = Findings(), Random(seed)
    outputs = Folder(folder / "live", findings)
    with two_cameras(folder) as start:
        for number in range(times + 1):
            before = [recording for recording in outputs.recordings() if recording.partial]
            rows, program = outputs.rows(), start(MODES[number % 2])
            is_last = number == times
            if is_last:
                _wait_for_rows(program, outputs, rows)
                program.watch(3.0)
            else:
                time.sleep(moments.uniform(EARLIEST_S, LATEST_S))
            if program.process.poll() is not None:
                findings.wrong.append(f"the run ended before the kill: {program.errors()}")
            if outputs.rows() > rows:  # rows are written after partial files are renamed
                _check_adopted(before, findings)
            _end(program, findings) if is_last else program.kill()
            findings.times += not is_last
            outputs.check(killed=not is_last)
            tell(findings)
        outputs.check_size()
    return findings


def check_stops(
    folder: Path, times: int, seed: int, tell: Callable[[Findings], None] = lambda findings: None
) -> Findings:
    """Stop one run at ``times`` random moments with SIGSTOP; resume it seconds later."""
    findings, moments = Findings(), Random(seed)
    outputs = Folder(folder / "live", findings)
    with two_cameras(folder) as start:
        program = start(MODES[seed % 2])
        _wait_for_rows(program, outputs, 0)
        for _ in range(times):
            program.watch(moments.uniform(0.1, 4.0))
            program.process.send_signal(signal.SIGSTOP)
            time.sleep(moments.uniform(0.2, LONGEST_STOP_S))
            outputs.check(killed=True)
            rows = outputs.rows()
            program.process.send_signal(signal.SIGCONT)
            _wait_for_rows(program, outputs, rows)
            findings.times += 1
            tell(findings)
        program.watch(3.0)
        _end(program, findings)
        outputs.check(killed=False)
        outputs.check_size()
    return findings


def _wait_for_rows(program: Program, outputs: Folder, rows: int) -> None:
    if program.wait_until(lambda: outputs.rows() > rows, PATIENCE_S) is None:
        outputs.findings.wrong.append(f"no picture in {PATIENCE_S:.0f} s: {program.errors()}")


def _check_adopted(before: list[Recorded], findings: Findings) -> None:
    """Check that no partial recording of the previous run still has its partial name."""
    for recording in before:
        if os.path.lexists(recording.path):
            findings.wrong.append(f"{recording.path.name} is still partial after the next start")
        final = recording.path.with_name(recording.path.name.replace(".partial", ""))
        findings.adopted += final.exists()


def _end(program: Program, findings: Findings) -> None:
    program.end()
    errors = program.errors()
    if program.exit_code != 143:
        findings.wrong.append(f"exit code {program.exit_code}: {errors}")
    if "internal error" in errors or "Traceback" in errors:
        findings.wrong.append(errors)
