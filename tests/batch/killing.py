"""Kill workers and whole jobs of ``batch`` at random moments, and check all results.

``scripts/batch_check`` kills a job of 300 clips; a test kills a small one.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from detector.batch.dataset import FOLDER, is_installed, partition
from detector.batch.layout import FILES, MARKER, SCRATCH
from detector.batch.manifest import DONE, FAILED, Manifest, manifests
from detector.batch.pieces import PARTS, RECORD
from tests.processes import children_of, command_line

COMMAND = [sys.executable, "-m", "detector"]
ENVIRONMENT = {"DETECT_VIDEO_SELF_TIMING": "0"}
PATIENCE_S = 1800.0
DELAY_S = (0.05, 1.5)  # shortest and longest delay before a kill
MOST_RUNS = 40
LAST_KILL = 0.7  # no kill waits for more than this share of the items; a random delay follows
NAMES = ("people.mp4", "traffic.mp4")

# Kills a worker of the given job's process. Returns False if none has started yet.
KillWorker = Callable[[subprocess.Popen[str], random.Random], bool]


# ---- clips


def make_clips(
    videos: Path,
    folder: Path,
    count: int,
    width: int = 320,
    names: Sequence[str] = NAMES,
    nasty: bool = True,
) -> list[Path]:
    """Cut ``count`` clips of 8 to 24 frames from the videos in ``names``, into three folders. If
    ``nasty``, also copy the nasty videos narrower than 8192 pixels. Return all paths, sorted."""
    paths: list[Path] = []
    delays = random.Random(0)
    sources = [_pictures(videos / name, width) for name in names]
    for number in range(count):
        pictures = sources[number % len(sources)]
        length = delays.randint(8, 24)
        start = delays.randint(0, len(pictures) - length)
        path = folder / f"cam{number % 3}" / f"clip{number:04d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        _encode(path, pictures[start : start + length])
        paths.append(path)
    for path in sorted((videos / "nasty").iterdir()) if nasty else ():
        if path.suffix not in (".md",) and path.name[:2] not in ("27", "28"):
            target = folder / "nasty" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            paths.append(target)
    return sorted(paths)


def make_three_second_clips(videos: Path, folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = []
    for number in range(count):
        name = NAMES[number % 2]
        pictures = _pictures(videos / name, 640, 75 + number)
        _encode(folder / f"clip{number:02d}.mp4", pictures[-75:])
        paths.append(folder / f"clip{number:02d}.mp4")
    return paths


def _pictures(path: Path, width: int, most: int = 120) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        pictures = []
        for frame in container.decode(video=0):
            height = width * frame.height // frame.width // 2 * 2
            pictures.append(frame.reformat(width=width, height=height, format="yuv420p"))
            if len(pictures) == most:
                break
    return pictures


def _encode(path: Path, pictures: list[av.VideoFrame]) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height = pictures[0].width, pictures[0].height
        stream.pix_fmt, stream.options = "yuv420p", {"preset": "ultrafast", "threads": "1"}
        for number, picture in enumerate(pictures):
            picture.pts, picture.time_base = number, Fraction(1, 25)  # replace another clip's times
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


# ---- kills


@dataclass(slots=True)
class Killed:
    """Numbers of killed ``workers`` (processes of the pool) and ``jobs`` (commands); the result."""

    workers: int = 0
    jobs: int = 0
    runs: int = 0
    exit_code: int | None = None
    result: dict[str, Any] = field(default_factory=dict)


def run_with_kills(
    sources: Path,
    out: Path,
    *options: str,
    worker_kills: int,
    job_kills: int,
    items: int,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    count: Callable[[Path], int] | None = None,
    delay_s: tuple[float, float] = DELAY_S,
    kill_worker: KillWorker | None = None,
) -> Killed:
    """Run a job to its end while sending SIGKILL at random moments; resume it if it was killed.

    Each kill waits for a number of finished items, and then for a random time in ``delay_s``. A
    kill may come while a model loads, during an item, or between items. ``count`` counts finished
    items in OUT (by default, their markers). By default, ``kill_worker`` kills a local worker.
    """
    count, kill_worker = count or count_done, kill_worker or _kill_a_worker
    delays, killed = random.Random(seed), Killed()
    kinds = ["worker"] * worker_kills + ["job"] * job_kills
    # No late kills: items that lost a worker are retried last, and fail if they lose another.
    due = sorted((delays.randint(0, round(LAST_KILL * items)), kind) for kind in kinds)
    while killed.exit_code is None:
        killed.runs += 1
        assert killed.runs < MOST_RUNS, killed.result
        process = _start(sources, out, *options)
        while due and _wait_for_items(process, due[0][0], lambda: count(out)):
            _, kind = due.pop(0)
            time.sleep(delays.uniform(*delay_s))
            done = count(out)
            if kind == "worker" and not kill_worker(process, delays):
                due.insert(0, (done, kind))  # no worker has started yet
                continue
            say(f"{kind} killed with {done} done")
            killed.workers += kind == "worker"
            if kind == "job":
                killed.jobs += 1
                process.kill()
                break
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
        if process.returncode == -signal.SIGKILL:
            continue
        assert stdout, stderr
        killed.result = json.loads(stdout)
        if "items" in killed.result and not killed.result["items"]["left"]:
            killed.exit_code = process.returncode
        else:  # three workers in a row were killed while loading, which ends the job
            say(f"resumed after exit {killed.result['exit']}")
    return killed


def _start(sources: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    resumes = ["--resume"] if (out / "job.json").exists() else []
    return subprocess.Popen(
        [*COMMAND, "batch", str(sources), "-o", str(out), "--json", *options, *resumes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )


def _wait_for_items(
    process: subprocess.Popen[str], expected: int, count: Callable[[], int]
) -> bool:
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        if count() >= expected:
            return True
        assert time.monotonic() < end, "the job makes no progress"
        time.sleep(0.02)
    return False


def _kill_a_worker(process: subprocess.Popen[str], delays: random.Random) -> bool:
    victims = [pid for pid in children_of(process.pid) if is_worker(pid)]
    if not victims:
        return False
    with suppress(ProcessLookupError):
        os.kill(delays.choice(victims), signal.SIGKILL)
        return True
    return False


def count_done(out: Path) -> int:
    return sum(1 for _ in (out / FILES).rglob(MARKER)) if out.exists() else 0


def count_parts(out: Path) -> int:
    return sum(1 for _ in out.glob(f"{PARTS}*/part-*/{RECORD}"))


def is_worker(pid: int) -> bool:
    return "detector.batch.worker" in command_line(pid)


# ---- checks of the results


def list_faults(sources: Path, out: Path, clips: list[Path]) -> list[str]:
    """Return the faults of a job that ended. A job has no fault if every item is listed once and
    has complete results, and no other file is left."""
    return [
        *_faults_of_items(sources, out, clips),
        *_faults_of_files(out),
        *(_faults_of_dataset(out) if is_installed() else ()),
    ]


def _faults_of_items(sources: Path, out: Path, clips: list[Path]) -> Iterator[str]:
    names = sorted(clip.relative_to(sources).as_posix() for clip in clips)
    states: Counter[str] = Counter()
    listed: list[str] = []
    for path in manifests(str(out)):
        with Manifest.reading(path) as manifest:
            for row in manifest.rows():
                listed.append(row.name)
                states[row.state] += 1
                if (row.state == DONE) != (out / FILES / row.name / MARKER).exists():
                    yield f"{row.name}: the manifest says {row.state}, its marker does not"
    if sorted(listed) != names:
        odd = (Counter(listed) - Counter(names)) + (Counter(names) - Counter(listed))
        yield f"items that are missing or listed twice: {sorted(odd)[:5]}"
    if set(states) - {DONE, FAILED}:
        yield f"items that are neither done nor failed: {states}"
    failed = [
        json.loads(line)["name"] for line in (out / "failures.jsonl").read_text().splitlines()
    ]
    if len(failed) != states[FAILED] or len(set(failed)) != len(failed):
        yield f"failures.jsonl has {len(failed)} items, the manifest {states[FAILED]}"


def _faults_of_files(out: Path) -> Iterator[str]:
    for path in out.rglob("*"):
        name = path.name
        if name.startswith((SCRATCH, PARTS)) or ".partial" in name or name.endswith(".tmp"):
            yield f"{path}: a temporary file was left"
    for marker in (out / FILES).rglob(MARKER):
        record = json.loads(marker.read_text())
        folder = marker.parent
        expected = {*record["outputs"].values(), MARKER}
        if {path.name for path in folder.iterdir()} != expected:
            yield f"{folder}: its files differ from those in its marker"
        rows = (folder / "detections.jsonl").read_bytes()
        if rows.count(b"\n") != record["frames"] or not rows.endswith(b"\n"):
            yield f"{folder}: {rows.count(bytes([10]))} rows for {record['frames']} frames"


def _faults_of_dataset(out: Path) -> Iterator[str]:
    import pyarrow.parquet

    expected = {}
    for marker in (out / FILES).rglob(MARKER):
        record = json.loads(marker.read_text())
        expected[partition(str(out), record["name"]).name] = record["detections"]
    present = {path.name for path in (out / FOLDER).iterdir()}
    for name in present ^ expected.keys():
        yield f"{FOLDER}/{name}: a partition without an item, or an item without its partition"
    for name in present & expected.keys():
        (file,) = (out / FOLDER / name).iterdir()
        rows = pyarrow.parquet.read_metadata(file).num_rows
        if rows != expected[name]:
            yield f"{file}: {rows} rows for {expected[name]} detections"


def read_dataset(out: Path) -> dict[str, list[dict[str, Any]]]:
    import pyarrow.parquet

    rows: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(path for path in (out / FOLDER).rglob("*") if path.is_file()):
        table = pyarrow.parquet.read_table(file, partitioning=None)
        rows.setdefault(file.parent.name, []).extend(table.to_pylist())
    return rows


def list_differences(
    out: Path, folder: Path, names: list[str], cores: list[int] | None = None
) -> list[str]:
    """Return the items whose detections differ in any byte from those of a single run with the
    job's settings. ``cores``: the cores of the single runs; None: all. A decoder may conceal damage
    differently on another number of cores."""
    cores_used = sorted(os.sched_getaffinity(0)) if cores is None else cores
    different = []
    for name in names:
        record = json.loads((out / FILES / name / MARKER).read_text())
        place = folder / f"single-{len(list(folder.iterdir()))}"
        words = ["--config", f"{out}/settings.yaml", "--save", "jsonl", "--quiet"]
        done = subprocess.run(
            [*COMMAND, record["path"], *words, "-o", f"{place}/", "--run-dir", f"{place}/session"],
            env={**os.environ, **ENVIRONMENT},
            preexec_fn=lambda: os.sched_setaffinity(0, cores_used),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 7), done.stderr
        (rows,) = place.glob("*.jsonl")
        if rows.read_bytes() != (out / FILES / name / "detections.jsonl").read_bytes():
            different.append(name)
        shutil.rmtree(place)
    return different
