"""Items that end the process which opens them: by abort(), as a library's bug does; by SIGKILL, as
the kernel's killer does where memory is short; and by memory that a limit refuses.

``scripts/batch_check deaths`` and ``scripts/cluster_check deaths`` run a thousand; tests a few.
"""

from __future__ import annotations

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

ENDS = ("abort", "kill", "limit")
HOG = "hog"  # takes memory until somebody ends it, which Ray's monitor does
MARK = b"DEADLY:"  # after a picture, where decoders ignore it; the kind of end follows
SETTINGS = (
    *("--engine", "null", "--model", "dots.onnx", "--engines-dir", "engines"),
    *("--save", "jsonl", "--no-video"),
)
PATIENCE_S = 1800.0
LONG = 30 << 20  # bytes that a limit refuses
HOG_BYTES, HOG_S = 3 << 30, 30

# In every process; only a worker decodes a picture by this.
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
            numpy.ones({LONG}, numpy.uint8)
        if end == b"hog":
            import time
            taken = numpy.ones({HOG_BYTES}, numpy.uint8)
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
    """Make ``count`` pictures in place/in, some of them ``deadly``, and return their names."""
    folder = place / "in"
    folder.mkdir(parents=True)
    inputs.picture(place / "p.png", 3, (48, 32))
    inputs.dots(place / "dots.onnx")
    sound = (place / "p.png").read_bytes()
    step = count // (len(deadly) + 1)
    at = {step * (number + 1): how for number, how in enumerate(deadly)}
    for number in range(count):
        more = MARK + at[number].encode() if number in at else b""
        (folder / f"p{number:04d}.png").write_bytes(sound + more)
    (place / "tmp").mkdir()
    hook = place / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    return [f"p{number:04d}.png" for number in at]


def run_job(place: Path, *words: str, env: dict[str, str] | None = None) -> Ended:
    log = place / "deaths.log"
    log.unlink(missing_ok=True)
    surroundings = {
        **os.environ,
        "DETECT_VIDEO_SELF_TIMING": "0",
        "PYTHONPATH": f"{place / 'hook'}:{CHECKOUT}",
        "DEATHS_LOG": str(log),
        "TMPDIR": str(place / "tmp"),  # the pool's folder is named in its workers' commands
        **(env or {}),
    }
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "detector", "batch", "in", "-o", "out", "--json", *words, *SETTINGS],
        cwd=place, env=surroundings, capture_output=True, text=True, check=False,
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
    """List what went wrong. Empty if all other items are done, each deadly one is named, and no
    process is left. ``patience_s``: for processes whose parent was killed."""
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
    # Two tries: one in turn, and one at the end.
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


def told_of(ended: Ended, name: str) -> str:
    return next((one["error"] for one in ended.result["failures"] if one["name"] == name), "")


def _list_left(place: Path, patience_s: float) -> list[str]:
    deadline = time.monotonic() + patience_s
    while True:
        lines = map(command_line, all_pids())
        left = [f"still there: {line}" for line in lines if str(place) in line]
        # Lock files of cores stay: jobs share a machine through them.
        names = [path.name for path in (place / "tmp").iterdir() if "-cores-" not in path.name]
        left += [f"left in TMPDIR: {name}" for name in names]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)
