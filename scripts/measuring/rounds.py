"""What the commands of scripts/bench share: name the machine, run variants in turns, compare them
within each round, run a command and measure its cost, and print tables for the documents."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared/data"
STREET = ROOT / "videos/street.mp4"
Row = dict[str, float]
Command = Sequence[str | Path]
# A measured run must not time itself first to choose its settings.
ENVIRONMENT = {"DETECT_VIDEO_SELF_TIMING": "0"}

QUICK_FRAMES = 40
quick_option = click.option(
    "--quick",
    is_flag=True,
    help="Smoke test: few frames, one round, no warm-up. Its figures are meaningless.",
)


def say_machine(quick: bool = False) -> None:
    click.echo(machine())
    if quick:
        click.echo("--quick: few frames and one round. These figures are meaningless.")


def machine() -> str:
    from detector.core.run.environment import environment

    facts = environment()
    isa = [
        flag
        for flag in facts["cpu"]["flags"]
        if flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
    ]
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    return f"{facts['cpu']['model']}, {facts['cpu']['cores']} cores, {' '.join(isa)}; {libraries}"


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g} .. {max(values):.3g}]"


def interleave(
    variants: Mapping[str, Callable[[], Row]], rounds: int, warm_up: int = 1
) -> dict[str, list[Row]]:
    """Run every variant once per round: ``warm_up`` rounds without a record, then ``rounds``."""
    rows: dict[str, list[Row]] = {name: [] for name in variants}
    for number in range(1 - warm_up, rounds + 1):
        for name, variant in variants.items():
            row = variant()
            if number > 0:
                rows[name].append(row)
                click.echo(
                    f"round {number} {name:28} "
                    + "  ".join(f"{key} {value:.4g}" for key, value in row.items())
                )
    return rows


def ratios(above: Sequence[Row], below: Sequence[Row], key: str) -> list[float]:
    """Return each round's value of ``key`` in ``above``, divided by that in ``below``."""
    return [a[key] / b[key] for a, b in zip(above, below, strict=True)]


def against(values: Sequence[float], aim: float) -> str:
    """Describe whether the median reaches the aim, or by how much it falls short."""
    median = statistics.median(values)
    if median >= aim:
        return f"reached (>= {aim:g})"
    return f"missed: {median:.2f}, aim {aim:g} ({median / aim - 1:+.0%})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


# ----------------------------------------------------------------------
# Commands


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished command. ``cpu_s`` includes its children; ``peak_mb``: peak resident memory."""

    stdout: str
    stderr: str
    code: int
    wall_s: float
    cpu_s: float
    peak_mb: float


def run(
    command: Command,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Finished:
    """Run a command to its end. ``watch`` gets its process id about ten times a second.

    Raises ClickException if the command fails.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        try:
            usage = _wait(process, watch)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall_s = time.perf_counter() - start
        out.seek(0)
        errors.seek(0)
        finished = Finished(
            out.read().decode(errors="replace"),
            errors.read().decode(errors="replace"),
            process.returncode,
            wall_s,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss * 1024 / 1e6,
        )
    if finished.code:
        lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()
        last = "\n  ".join(lines[-5:]) if lines else "no output"
        raise click.ClickException(f"{' '.join(map(str, command))}: exit {finished.code}\n  {last}")
    return finished


def _wait(process: subprocess.Popen[bytes], watch: Callable[[int], None] | None) -> Any:
    """Wait for the process, calling ``watch`` meanwhile; return its resource usage."""
    while True:
        pid, status, usage = os.wait4(process.pid, 0 if watch is None else os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if watch is not None:
            watch(process.pid)
        time.sleep(0.1)


OURS: Command = (sys.executable, "-m", "detector")


def detect_video(*arguments: Any, program: Command = OURS, **run_options: Any) -> dict[str, Any]:
    """Run the command in an empty folder; return its summary."""
    return job(*arguments, program=program, **run_options)[0]


def job(
    *arguments: Any, program: Command = OURS, **run_options: Any
) -> tuple[dict[str, Any], Finished]:
    """Run the command in an empty folder; return its summary and its cost."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"folder": Path(folder)} | run_options
        finished = run([*program, *map(str, arguments), "--json"], **options)
        summary: dict[str, Any] = json.loads(finished.stdout)
        return summary, finished


def cpu_by_stage(summary: Mapping[str, Any], stages: Sequence[str]) -> Row:
    """Return stage -> CPU ms per frame. Our threads are measured over the whole run, libraries'
    threads only over the steady state. The key ``process`` has the whole process."""
    written, libraries = summary["frames"]["written"], summary["cpu"]["libraries"] or {"stages": {}}
    row = {"process": summary["cpu"]["process_s"] * 1e3 / written}
    for stage in stages:
        if stage not in summary["stages"]:
            continue
        own = summary["stages"][stage]["cpu_s"] / written
        library_s = libraries["stages"].get(stage, {"cpu_s": 0.0})["cpu_s"] / max(1, written - 1)
        row[stage] = (own + library_s) * 1e3
    return row


def rates(summary: Mapping[str, Any]) -> Row:
    """Return the end-to-end ``fps``, and ``cpu_ms``, the CPU time of the process per frame."""
    written = summary["frames"]["written"]
    return {
        "fps": summary["fps"]["end_to_end"],
        "cpu_ms": summary["cpu"]["process_s"] * 1e3 / written,
    }
