"""The processor's own counters, by ``perf stat`` around a run of the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from detector.errors import EXIT_DAMAGED, EXIT_DONE
from detector.jobs.profile.base import NotHereError, Occasion
from detector.session.read import read_session

ORDER = 110
WHAT = "one more run under perf stat"
EVENTS = (
    "task-clock",
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branch-misses",
)
TIMEOUT_S = 600


def run(occasion: Occasion) -> dict[str, Any]:
    perf = shutil.which("perf")
    if perf is None:
        raise NotHereError("perf is not installed; on Debian: apt install linux-perf")
    with tempfile.TemporaryDirectory(prefix="detect-video-pass-") as folder:
        report = Path(folder, "perf.csv")
        command = [
            perf,
            "stat",
            "-x",
            ";",
            "-o",
            str(report),
            "-e",
            ",".join(EVENTS),
            "--",
            *_command(occasion, folder),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise NotHereError(
                f"the run under perf stat took more than {TIMEOUT_S} s; take fewer --frames"
            ) from None
        if done.returncode not in (EXIT_DONE, EXIT_DAMAGED) or not report.is_file():
            said = (
                " ".join((done.stderr or done.stdout).split())[:200]
                or f"its run ended with exit code {done.returncode}"
            )
            cure = "; as root: sysctl kernel.perf_event_paranoid=1" if "ermission" in said else ""
            raise NotHereError(f"perf stat failed: {said}{cure}")
        slowdown = occasion.slowdown(read_session(Path(folder, "run")))
        return judged(read_perf(report.read_text(encoding="utf-8")), occasion) | {
            "slowdown": slowdown
        }


def _command(occasion: Occasion, folder: str) -> list[str]:
    """The same run in a process of its own, its options in a file."""
    import yaml

    options = occasion.config.as_dict()
    options["output"] |= {"output": f"{folder}/outputs/", "run_dir": f"{folder}/run"}
    file = Path(folder, "options.yaml")
    file.write_text(yaml.safe_dump(_plain(options)), encoding="utf-8")
    return [
        sys.executable,
        "-m",
        "detector",
        "detect",
        occasion.source,
        "--config",
        str(file),
        "--quiet",
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def read_perf(text: str) -> dict[str, float]:
    """Event -> count, of perf's ``-x ;`` lines; events that this machine does not count are left out."""
    found = {}
    for line in text.splitlines():
        fields = line.split(";")
        if len(fields) > 2 and fields[2].split(":")[0] in EVENTS:
            try:
                found[fields[2].split(":")[0]] = float(fields[0])
            except ValueError:
                continue  # <not supported>, <not counted>
    return found


def judged(counts: dict[str, float], occasion: Occasion) -> dict[str, Any]:
    """Rates of what was counted; the start of the program is inside."""
    if not counts.get("cycles"):
        raise NotHereError("this machine hands out no cycle counter (virtual machines rarely do)")
    instructions, references = counts.get("instructions"), counts.get("cache-references")
    misses = counts.get("cache-misses")
    return {
        "counts": counts,
        "ipc": instructions / counts["cycles"] if instructions else None,
        "cache_miss_rate": misses / references if misses is not None and references else None,
        "instructions_per_frame": instructions / occasion.frames
        if instructions and occasion.frames
        else None,
        "includes": "start-up and loading too",
    }
