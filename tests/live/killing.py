"""Kill a recording process at a random moment, then read every file that it wrote.

``python -m tests.live.killing FOLDER STREAM`` records until it is killed. Camera ``copy`` records
the stream's packets and a boxes file, camera ``annotated`` records numbered pictures, and camera
``rows`` writes only rows. All have 25 FPS. ``kill_once`` starts the process, kills it, and measures
the loss.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import av

from detector.core.errors.addresses import Address
from detector.core.stages.annotate import Style
from detector.core.types import Arrival, Frame
from detector.live.recording.names import list_recordings
from detector.live.recording.recorder import CameraRecorder
from detector.live.rows import CameraRows
from detector.live.sources.base import Camera
from tests.live.record_settings import RecordSettings
from tests.live.streams import draw_picture, make_stream, numbers_of, one_detection
from tests.waiting import wait_for

FPS, SECONDS = 25, 14  # the stream lasts longer than any process lives
CAMERAS = ("annotated", "copy")
MINUTES = 0.05  # length of a recording: 3 s, so that some kills come near its end


@dataclass(frozen=True)
class Loss:
    camera: str
    alive_s: float  # from the first picture to the kill
    files: int
    partial: int  # partial files when the process was killed
    fed: int  # pictures that the recorder received
    kept: int
    dropped: int  # pictures dropped because the machine was too slow
    lost_s: float  # seconds from the arrival of the first lost picture to the kill
    rows: int


def record_until_killed(folder: Path, stream: Path) -> None:
    recorders = {
        name: CameraRecorder(
            folder,
            Camera(name, "network", Address("x")),
            RecordSettings(name, segment=MINUTES),
            print_notice,
            style=Style(),
        )
        for name in CAMERAS
    }
    rows = CameraRows(folder, Camera("rows", "network", Address("x")), print_notice)
    listener = recorders["copy"].listener
    with av.open(str(stream)) as container:
        start_ns, first = time.perf_counter_ns(), None
        listener.opened(container.streams, start_ns, time.time())
        number = 0
        for packet in container.demux():
            if packet.dts is None or packet.pts is None:
                continue
            first = packet.dts if first is None else first
            due_ns = start_ns + round((packet.dts - first) * packet.time_base * 1_000_000_000)
            time.sleep(max(0, due_ns - time.perf_counter_ns()) / 1e9)
            now, utc_s = time.perf_counter_ns(), time.time()
            is_video = packet.stream.type == "video"
            if is_video:
                # Write the line first, so that the output lists every recorded picture.
                shown = round(packet.pts * packet.time_base * FPS)
                os.write(1, f"copy {shown} {now}\nannotated {number} {now}\n".encode())
            listener.packet(packet, now, utc_s)
            if is_video:
                image = draw_picture(number)
                frame = Frame(number, number, number / FPS, image)
                frame.arrival = Arrival("annotated", 1, now, utc_s)
                dropped = recorders["annotated"].counts()["dropped"]
                recorders["annotated"].write(frame, one_detection())
                if recorders["annotated"].counts()["dropped"] > dropped:  # not lost by the kill
                    os.write(1, f"dropped {number} 0\n".encode())
                rows.write(frame, one_detection())
                recorders["copy"].write(frame, one_detection())
                number += 1


def print_notice(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_source(folder: Path, seconds: int = SECONDS) -> Path:
    return make_stream(
        folder / "source.ts",
        count=FPS * seconds,
        gop=FPS,
        sound="aac",
        options={"bf": "2", "preset": "ultrafast"},
    )


def kill_once(
    folder: Path, stream: Path, alive_s: float, ready: Callable[[], bool] = lambda: True
) -> list[Loss]:
    """Record for ``alive_s`` seconds, then until ``ready()``. Kill the process and read its files.
    Raises AssertionError if rows are missing, or if finishing a partial file loses pictures."""
    command = [sys.executable, "-m", "tests.live.killing", str(folder), str(stream)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]  # recording has begun
        time.sleep(alive_s)
        wait_for(ready)
        killed_ns = time.perf_counter_ns()
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    arrived: dict[str, dict[int, int]] = {name: {} for name in (*CAMERAS, "dropped")}
    for line in lines:
        if line.count(" ") == 2 and line.endswith("\n"):
            name, number, at = line.split()
            arrived[name][int(number)] = int(at)
    rows = count_rows(folder)
    assert rows >= len(arrived["annotated"]) - 1
    dropped = {"annotated": set(arrived["dropped"]), "copy": set[int]()}
    return [
        measure(folder, name, arrived[name], dropped[name], killed_ns, rows) for name in CAMERAS
    ]


def holds_pictures(folder: Path) -> bool:
    """Return whether each of CAMERAS has a playable recording and ``copy`` has a boxes file."""
    videos = [folder / name / "video" for name in CAMERAS]
    with suppress(av.FFmpegError, IndexError):  # no whole fragment yet
        played = all(
            any(numbers_of(recording.path) for recording in list_recordings(at)) for at in videos
        )
        return played and any(folder.glob("copy/video/*.ass"))
    return False


def measure(
    folder: Path, name: str, arrived: dict[int, int], dropped: set[int], killed_ns: int, rows: int
) -> Loss:
    first = min(arrived)
    video = folder / name / "video"
    files_left = list_recordings(video)
    before_adoption = {number for recording in files_left for number in numbers_of(recording.path)}
    # The next run finishes partial files without losing a picture.
    CameraRecorder(
        folder, Camera(name, "network", Address("x")), RecordSettings(name), print_notice
    ).close()
    files = list_recordings(video)
    assert len(files) == len(files_left)
    assert not any(recording.partial for recording in files)
    assert not [*video.glob("*.partial.*")]
    if name == "copy":
        check_side_cars(video)
    numbers = {number for recording in files for number in numbers_of(recording.path)}
    assert numbers == before_adoption
    present = numbers | dropped
    missing = next(number for number in range(first, 2**16) if number not in present)
    fed_ns = arrived.get(missing, killed_ns)
    return Loss(
        camera=name,
        alive_s=(killed_ns - min(arrived.values())) / 1e9,
        files=len(files),
        partial=sum(recording.partial for recording in files_left),
        kept=len(numbers),
        fed=len(arrived),
        dropped=len(dropped),
        lost_s=max(0.0, (killed_ns - fed_ns) / 1e9),
        rows=rows,
    )


def check_side_cars(folder: Path) -> None:
    for path in folder.glob("*.ass"):
        assert path.with_suffix(".mp4").exists()
        text = path.read_text()
        assert text.endswith("\n")
        lines = text.partition("[Events]\n")[2].splitlines()[1:]
        assert lines
        assert all(line.startswith("Dialogue: ") and line.count(",") >= 9 for line in lines)


def count_rows(folder: Path) -> int:
    lines = [
        line
        for path in (folder / "rows").glob("detections-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    frames = []
    for position, line in enumerate(lines):
        try:
            frames.append(json.loads(line)["frame"])
        except ValueError:
            assert position == len(lines) - 1
    assert frames == list(range(len(frames)))
    return len(frames)


if __name__ == "__main__":
    record_until_killed(Path(sys.argv[1]), Path(sys.argv[2]))
