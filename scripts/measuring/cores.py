"""Measure the speed of the loop when it is pinned to 1, 2, 4 ... cores of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from measuring.clips import GIVEN_CLIP, clip
from measuring.rounds import (
    OURS,
    QUICK_FRAMES,
    Row,
    detect_video,
    interleave,
    markdown,
    quick_option,
    rates,
    ratios,
    say_machine,
    spread,
)

JOBS: dict[str, dict[str, Any]] = {  # name -> options of the configuration
    "video": {},
    "overlay": {"save": "overlay"},
    "no video": {"no_video": True},
}


@click.command()
@click.option("--clip", "path", type=GIVEN_CLIP, help="[default: 720p]")
@click.option("--engine", default="ort")
@click.option("--precision", default="fp32")
@click.option("--frames", default=300)
@click.option("--rounds", default=5)
@quick_option
def cores(
    path: Path | None, engine: str, precision: str, frames: int, rounds: int, quick: bool
) -> None:
    """Measure the loop's speed when taskset pins it to 1, 2, 4 ... and all cores of the machine."""
    say_machine(quick)
    frames, rounds = (QUICK_FRAMES, 1) if quick else (frames, rounds)
    if shutil.which("taskset") is None:
        raise click.ClickException("taskset is not installed: apt install util-linux")
    core_ids = sorted(os.sched_getaffinity(0))
    source = path or clip(720, frames)
    common = {"engine": engine, "precision": precision, "frames": frames}
    click.echo(f"\n{source.name}, {engine} {precision}, {frames} frames")
    variants = {
        f"{name}, {count} cores": partial(_pinned, core_ids[:count], source, common | job_options)
        for name, job_options in JOBS.items()
        for count in _counts(len(core_ids))
    }
    rows = interleave(variants, rounds, warm_up=0 if quick else 1)
    click.echo("\n" + markdown(*_pinned_table(rows, _counts(len(core_ids)))))


def _counts(core_count: int) -> list[int]:
    """Return 1, 2, 4 ... and ``core_count``."""
    return sorted({*(1 << power for power in range(6) if 1 << power <= core_count), core_count})


def _pinned(core_ids: Sequence[int], source: Path, options: Mapping[str, Any]) -> Row:
    command = ["taskset", "-c", ",".join(map(str, core_ids)), *OURS]
    return rates(detect_video(source, *flags(options), program=command))


def flags(options: Mapping[str, Any]) -> list[str]:
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return arguments


def _pinned_table(
    measured: Mapping[str, Sequence[Row]], counts: Sequence[int]
) -> tuple[list[str], list[list[str]]]:
    lines = []
    for name in JOBS:
        fewest = measured[f"{name}, {counts[0]} cores"]
        for count in counts:
            rows = measured[f"{name}, {count} cores"]
            fps, cpu = ([row[key] for row in rows] for key in ("fps", "cpu_ms"))
            lines.append([name, str(count), *map(spread, (fps, ratios(rows, fewest, "fps"), cpu))])
    relative = f"FPS relative to {counts[0]} core"
    head = ["job", "cores", "end-to-end FPS", relative, "CPU, ms per frame"]
    return head, lines
