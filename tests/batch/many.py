"""Fake a finished job of very many items, to measure the cost of listing and resuming it.

``scripts/batch_check`` fakes 100,000 items; a test fakes 1,500.
"""

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from detector.batch.dataset import FILE, partition
from detector.batch.documents import ItemRecord
from detector.batch.layout import FILES, MARKER, ROWS
from detector.batch.listing import Item, version_of
from detector.batch.manifest import Manifest
from detector.batch.settings import key_of, read_settings
from detector.core.session.codec import to_json
from detector.core.session.document import Exit

FILES_PER_FOLDER = 1000


class Cost(NamedTuple):
    seconds: float  # wall time of the whole command, including imports and loading the model
    cpu_s: float  # CPU time of the command and its workers
    peak_mb: float  # peak resident memory of the process that lists and resumes
    document: dict[str, Any]


def make_sources(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"day{number // FILES_PER_FOLDER:04d}" / f"clip{number:06d}.mp4"
        if number % FILES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def pretend_done(sources: Path, out: Path, left: int) -> None:
    """Write a manifest, and markers for all items except the last ``left`` ones. The job in ``out``
    must have its settings already. For speed, nothing is synced to disk."""
    settings = read_settings(str(out))
    assert settings is not None
    items = sorted(_items(sources))
    with_keys = [(item, key_of(item.path, item.version, settings.digest)) for item in items]
    manifest = Manifest.open(out / "manifest.sqlite")
    manifest.plan(with_keys)
    for item, key in with_keys[: len(items) - left]:
        record = ItemRecord(
            name=item.name,
            path=item.path,
            size=item.size,
            version=item.version,
            settings=settings.digest,
            key=key,
            frames=1,
            detections=0,
            seconds=0.1,
            exit=Exit(code=0, reason="done"),
            outputs={"jsonl": ROWS},
            sizes={"jsonl": 0},
        )
        folder = out / FILES / item.name
        folder.mkdir(parents=True)
        (folder / MARKER).write_text(to_json(record))
        (folder / ROWS).touch()
        part = partition(str(out), item.name)
        part.mkdir(parents=True)
        (part / FILE).write_bytes(b"rows")
        manifest.finish(record, 1)
    manifest.close()


def _items(sources: Path) -> Iterator[Item]:
    for path in sources.rglob("*.mp4"):
        status = path.stat()
        name = path.relative_to(sources).as_posix()
        yield Item(name, str(path), status.st_size, version_of(status))


def cost_of(*words: str) -> Cost:
    start, before = time.perf_counter(), _cpu_of_children()
    process = subprocess.Popen(
        [sys.executable, "-m", "detector", "batch", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DETECT_VIDEO_SELF_TIMING": "0"},
    )
    peak_kb = 0
    with process:
        assert process.stdout is not None
        text = b""
        # Poll the peak, because the peak that the kernel reports at exit would include the workers.
        while block := _read_for(process.stdout.fileno(), 0.02):
            text += block.strip(b"\0")
            peak_kb = max(peak_kb, _peak_kb(process.pid))
    seconds = time.perf_counter() - start
    cpu_s = _cpu_of_children() - before
    return Cost(seconds, cpu_s, peak_kb * 1024 / 1e6, json.loads(text))


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _read_for(file: int, seconds: float) -> bytes:
    """Read the available bytes. Return NUL after a timeout, and b"" at the end of the file."""
    return os.read(file, 1 << 20) if select.select([file], [], [], seconds)[0] else b"\0"


def _peak_kb(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
