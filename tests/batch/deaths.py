"""Deadly items, which end the process that opens them. Some call abort(), like a bug in a library;
some send SIGKILL, like the kernel's out-of-memory killer; some allocate more than the memory limit.

``scripts/batch_check deaths`` and ``scripts/cluster_check deaths`` put them among a thousand items;
a test puts them among a few.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.batch.layout import FILES, SCRATCH
from tests.batch.killing import count_done
from tests.conftest import CHECKOUT
from tests.golden import inputs
from tests.processes import all_pids, command_line

WAYS_TO_DIE = ("abort", "kill", "limit")
HOG = "hog"  # allocates so much that Ray's memory monitor ends the process
MARK = b"DEADLY:"  # appended to a picture, where decoders ignore it; one of WAYS_TO_DIE follows
SETTINGS = (
    *("--engine", "null", "--model", "dots.onnx", "--engines-dir", "engines"),
    *("--save", "jsonl", "--no-video"),
)
PATIENCE_S = 1800.0
REFUSED_BYTES = 30 << 20  # an allocation that the memory limit refuses
HOG_BYTES, HOG_S = 3 << 30, 30

# Every process imports this as sitecustomize; only workers get the deadly decoder.
HOOK = f"""
import os, sys
if "detector.batch.worker" in " ".join(sys.orig_argv):
    import resource, signal
    import cv2, numpy
    decode = cv2.imdecode
    def deadly(data, *more):
        _, mark, end = bytes(data[-20:]).partition({MARK!r})
        if mark:
            with open(os.environ["DEATHS_LOG"], "a") as log:
                log.write(end.decode() + "\\n")
        if end == b"abort":
            os.abort()
        if end == b"kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == b"limit":
            pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (pages + (1 << 20), -1))
            numpy.ones({REFUSED_BYTES}, numpy.uint8)
        if end == b"hog":
            import time
            memory = numpy.ones({HOG_BYTES}, numpy.uint8)
            time.sleep({HOG_S})
        return decode(data, *more)
    cv2.imdecode = deadly
"""


@dataclass(slots=True)
class Ended:
    code: int
    seconds: float
    stderr: str
    result: dict[str, Any] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)


def make_items(place: Path, count: int, deadly: Sequence[str]) -> list[str]:
    """Make ``count`` pictures in place/in. One picture kills in each of the ways ``deadly``; return
    the names of these pictures."""
    folder = place / "in"
    folder.mkdir(parents=True)
    inputs.picture(place / "p.png", 3, (48, 32))
    inputs.dots(place / "dots.onnx")
    valid = (place / "p.png").read_bytes()
    step = count // (len(deadly) + 1)
    at = {step * (number + 1): way for number, way in enumerate(deadly)}
    for number in range(count):
        more = MARK + at[number].encode() if number in at else b""
        (folder / f"p{number:04d}.png").write_bytes(valid + more)
    (place / "tmp").mkdir()
    hook = place / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    return [f"p{number:04d}.png" for number in at]


def run_job(place: Path, *words: str, env: dict[str, str] | None = None) -> Ended:
    log = place / "deaths.log"
    log.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "DETECT_VIDEO_SELF_TIMING": "0",
        "PYTHONPATH": f"{place / 'hook'}:{CHECKOUT}",
        "DEATHS_LOG": str(log),
        "TMPDIR": str(place / "tmp"),  # so that the command lines of workers contain ``place``
        **(env or {}),
    }
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "detector", "batch", "in", "-o", "out", "--json", *words, *SETTINGS],
        cwd=place, env=environment, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    ended = Ended(done.returncode, time.monotonic() - start, done.stderr)
    with suppress(ValueError):
        ended.result = json.loads(done.stdout)
    if log.exists():
        ended.deaths.update(log.read_text().split())
    return ended


def list_faults(
    place: Path, ended: Ended, count: int, deadly: Sequence[str], patience_s: float = 0.0
) -> list[str]:
    """Return the faults of a job: none if exactly the ``deadly`` items failed, and no file or
    process is left. ``patience_s``: time for processes to end once their parent was killed."""
    items = ended.result.get("items", {})
    failed = {one["name"]: one for one in ended.result.get("failures", ())}
    faults = []
    if ended.code != 7:
        faults.append(f"exit {ended.code}: {ended.stderr[-300:]}")
    if items.get("done", 0) + items.get("skipped", 0) != count - len(deadly):
        faults.append(f"{items} of {count} items with {len(deadly)} deadly ones")
    if count_done(place / "out") != count - len(deadly):
        faults.append(f"{count_done(place / 'out')} markers")
    if sorted(failed) != sorted(deadly):
        faults.append(f"failed: {sorted(failed)}, not {sorted(deadly)}")
    # Each item has two tries: one in its turn, and one at the end.
    faults += [f"{name}: {one['tries']} tries" for name, one in failed.items() if one["tries"] != 2]
    if sum(ended.deaths.values()) != 2 * len(deadly):
        faults.append(f"processes died {dict(ended.deaths)}")
    faults += [f"{name}: {one['error']!r}" for name, one in failed.items() if "\n" in one["error"]]
    if "Traceback" in ended.stderr:
        faults.append("a traceback")
    if left := [path.name for path in (place / "out").glob(f"{SCRATCH}*")]:
        faults.append(f"left: {left}")
    faults += _list_left(place, patience_s)
    for name in deadly:
        if (place / "out" / FILES / name).exists():
            faults.append(f"{name}: has results")
    return faults


def error_of(ended: Ended, name: str) -> str:
    return next((one["error"] for one in ended.result["failures"] if one["name"] == name), "")


def _list_left(place: Path, patience_s: float) -> list[str]:
    deadline = time.monotonic() + patience_s
    while True:
        lines = map(command_line, all_pids())
        left = [f"still running: {line}" for line in lines if str(place) in line]
        # Lock files of cores stay, since all jobs on a machine share them.
        names = [path.name for path in (place / "tmp").iterdir() if "-cores-" not in path.name]
        left += [f"left in TMPDIR: {name}" for name in names]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)
