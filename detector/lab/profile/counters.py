"""Read the processor's counters with ``perf stat`` around one more run of the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from detector.core.errors import EXIT_DAMAGED, EXIT_DONE
from detector.core.errors.machine import NotHereError
from detector.core.errors.writing import temporary_folder
from detector.core.run.parent import child_command
from detector.lab.profile.base import Occasion, Pass, output_within
from detector.lab.session.passes import CountersFacts, Execution
from detector.lab.session.read import read_session

EVENTS = (
    "task-clock",
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branch-misses",
)
TIMEOUT_S = 600
NOTHING = [sys.executable, "-I", "-S", "-c", ""]


def count_events(occasion: Occasion) -> CountersFacts:
    perf = shutil.which("perf")
    if perf is None:
        raise NotHereError("perf is not installed; on Debian: apt install linux-perf")
    with temporary_folder("detect-video-pass-") as folder:
        # Try an empty command first, to fail early: most virtual machines cannot count cycles.
        refuse_no_cycles(_count(perf, NOTHING, Path(folder, "trial.csv")))
        counts = _count(perf, _command(occasion, folder), Path(folder, "perf.csv"))
        session = read_session(Path(folder, "run"))
        occasion.executions.append(Execution.of(session.document))
        return compute_rates(counts, occasion.frames, occasion.slowdown(session))


def _count(perf: str, command: list[str], report: Path) -> dict[str, float]:
    options = ["stat", "-x", ";", "-o", str(report), "-e", ",".join(EVENTS), "--"]
    prefix = child_command("os.execvp(sys.argv[1], sys.argv[1:])")
    try:
        done = subprocess.run(
            [*prefix, perf, *options, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise NotHereError(
            f"the run under perf stat took more than {TIMEOUT_S} s; use fewer --frames"
        ) from None
    if done.returncode not in (EXIT_DONE, EXIT_DAMAGED) or not report.is_file():
        output = " ".join((done.stderr or done.stdout).split())[:200]
        reason = output or f"its run ended with exit code {done.returncode}"
        cure = "; as root: sysctl kernel.perf_event_paranoid=1" if "ermission" in reason else ""
        raise NotHereError(f"perf stat failed: {reason}{cure}")
    return read_perf(report.read_text(encoding="utf-8"))


def _command(occasion: Occasion, folder: Path) -> list[str]:
    import yaml

    config = occasion.config
    output = output_within(folder, config.output)
    options = json.loads(json.dumps(replace(config, output=output).as_dict()))  # lists, not tuples
    file = Path(folder, "options.yaml")
    file.write_text(yaml.safe_dump(options), encoding="utf-8")
    command = [sys.executable, "-m", "detector", "detect", occasion.source]
    return [*command, "--config", str(file), "--quiet"]


def read_perf(text: str) -> dict[str, float]:
    """Return event -> count from the lines of ``perf stat -x ;``. Omit unsupported events."""
    counts = {}
    for line in text.splitlines():
        fields = line.split(";")
        if len(fields) > 2 and fields[2].split(":")[0] in EVENTS:
            try:
                counts[fields[2].split(":")[0]] = float(fields[0])
            except ValueError:
                continue  # <not supported>, <not counted>
    return counts


def refuse_no_cycles(counts: dict[str, float]) -> None:
    if not counts.get("cycles"):
        raise NotHereError("this machine provides no cycle counter (virtual machines rarely do)")


def compute_rates(counts: dict[str, float], frames: int, slowdown: float) -> CountersFacts:
    refuse_no_cycles(counts)
    instructions, references = counts.get("instructions"), counts.get("cache-references")
    misses = counts.get("cache-misses")
    return CountersFacts(
        counts=counts,
        ipc=instructions / counts["cycles"] if instructions else None,
        cache_miss_rate=misses / references if misses is not None and references else None,
        instructions_per_frame=instructions / frames if instructions and frames else None,
        includes="start-up and loading included",
        slowdown=slowdown,
    )


PASS = Pass(order=110, what="CPU counters, by perf stat", facts=CountersFacts, run=count_events)
