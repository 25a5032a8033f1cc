"""End-to-end FPS compared with the machine's limit.

No loop can be faster than its longest serial stage, nor than all of its work spread over all cores.
The cost of the work comes from the leanest configuration of the same engine and precision: one
thread per request, so that no thread of the engine spins or waits for another. So a run that wastes
CPU time does not lower its own limit.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from measuring.clips import GIVEN_CLIP, clip
from measuring.rounds import (
    QUICK_FRAMES,
    SHARED,
    STREET,
    Row,
    against,
    detect_video,
    interleave,
    markdown,
    quick_option,
    rates,
    say_machine,
    spread,
)

AIM = 0.90
INFER = "infer"
RUN, PLAIN, LEAN = "run", "lean, plain loop", "lean, overlapped"
LEANEST = {  # one thread per request: in the plain loop, and overlapped with one request
    PLAIN: ("--sync", "--threads", 1),
    LEAN: ("--concurrency", 1, "--threads", 1),
}
RANDOM = ("--random-weights", 0, "--conf", 0.95)  # high: random weights detect everywhere
NETWORKS: dict[str, tuple[Any, ...]] = {
    "street@608x352": ("--model", "street"),
    "street-1@416x256": ("--model", "street-1"),
    "yolov4-tiny@416": ("--model", SHARED / "weights/yolov4-tiny-person-vehicle.cfg", *RANDOM),
    "yolov5n@640": ("--model", SHARED / "weights/yolov5n.pt", "--size", "640x640"),
}


def alone_ms(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return stage -> milliseconds per frame in the plain loop, where every stage has the computer
    to itself, minus the time that other processes had its core."""
    from detector.core.session.codec import from_builtins
    from detector.core.session.document import Summary

    document: Any = from_builtins(summary, Summary, "the summary")
    blame = _foreign_share(document.cpu.libraries)
    return {
        # At least the CPU time, spread over all cores.
        name: max(stage.cpu_s / document.cpu.cores, stage.busy_s - blame * _ready_s(document, name))
        * (1e3 / document.frames.written)
        for name, stage in document.stages.items()
        if stage.calls
    }


def _foreign_share(libraries: Any) -> float:
    """Return the share of waits for a core that other processes caused, by CPU time.

    Only a stage's own libraries run at the same time; waiting for them is part of the stage's time.
    If the system does not report it, others caused all of it.
    """
    if libraries is None or libraries.others_s is None:
        return 1.0
    return libraries.others_s / ((libraries.others_s + libraries.process_s) or 1.0)


def _ready_s(document: Any, name: str) -> float:
    """Return the seconds while the stage's thread, or its busiest library thread, was ready but not
    scheduled."""
    stage, libraries = document.stages[name], document.cpu.libraries
    own = [document.threads[thread] for thread in stage.threads if thread in document.threads]
    ready, cpu = sum(thread.ready_s or 0.0 for thread in own), sum(thread.cpu_s for thread in own)
    mine = stage.cpu_s * ready / cpu if cpu else 0.0
    threads = None if libraries is None else libraries.stages.get(name)
    theirs = 0.0
    if threads is not None and threads.calls and name != "read":
        theirs = threads.ready_s / threads.calls * stage.calls
    return max(mine, theirs) if name == INFER else mine + theirs


def serial_ms(alone: Mapping[str, float], at_once: int) -> dict[str, float]:
    """Return stage -> milliseconds per frame that cannot be spread.

    ``at_once``: concurrent requests inside the engine; each call counts with its part.
    """
    return {name: ms / (at_once if name == INFER else 1) for name, ms in alone.items()}


def limit_of(serial: Mapping[str, float], lean_cpu_ms: float, cores: int) -> tuple[float, str]:
    """Return the highest possible FPS, and what sets it: a stage, or "all cores"."""
    stage = max(serial, key=lambda name: serial[name])
    spread_ms = lean_cpu_ms / cores
    if serial[stage] > spread_ms:
        return 1e3 / serial[stage], stage
    return 1e3 / spread_ms, "all cores"


def judge(rows: Sequence[Row]) -> list[str]:
    """Return the cells for the rounds of one network, engine and precision."""
    shares = [row["fps"] / row["limit"] for row in rows]
    waste = [row["cpu_ms"] / row["lean_cpu_ms"] for row in rows]
    return [
        spread([row["fps"] for row in rows]),
        spread([row["limit"] for row in rows]),
        spread(shares),
        spread([row["lean_cpu_ms"] for row in rows]),
        spread(waste),
        against(shares, AIM),
    ]


HEAD = (
    "network",
    "engine",
    "set by",
    "end-to-end FPS",
    "limit, FPS",
    "share of the limit",
    "leanest CPU, ms a frame",
    "CPU of the run / leanest",
    f">= {AIM:g}",
)


@click.command()
@click.option("--clip", "path", type=GIVEN_CLIP, help="[default: 720p]")
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)))
@click.option("--engines", default="ort,openvino", show_default=True)
@click.option("--precisions", default="fp32,int8", show_default=True)
@click.option("--frames", default=300, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@quick_option
def limit(
    path: Path | None,
    networks: tuple[str, ...],
    engines: str,
    precisions: str,
    frames: int,
    rounds: int,
    quick: bool,
) -> None:
    """Compare end-to-end FPS with max(longest serial stage, CPU seconds per frame / cores).

    The CPU seconds come from the leanest configuration of the same engine and precision. Every
    run writes its video.
    """
    say_machine(quick)
    frames, rounds = (QUICK_FRAMES, 1) if quick else (frames, rounds)
    source, table = path or clip(720, frames), []
    for name in networks or NETWORKS:
        if (missing := _missing(NETWORKS[name])) is not None:
            click.echo(f"{name}: skipped: {missing} does not exist")
            continue
        for engine in engines.split(","):
            for precision in precisions.split(","):
                chosen = [*NETWORKS[name], "--engine", engine, "--precision", precision]
                if precision == "int8" and not name.startswith("street"):
                    chosen += ["--calibrate", STREET, "--calibrate-frames", 16]
                title = f"{name} {engine} {precision}"
                rows, by = _measured(title, [source, *chosen], frames, rounds, quick)
                table.append([name, f"{engine} {precision}", by, *judge(rows)])
    click.echo("\n" + markdown(HEAD, table))


def _missing(options: Sequence[Any]) -> Path | None:
    return next((one for one in options if isinstance(one, Path) and not one.is_file()), None)


def _measured(
    title: str, arguments: Sequence[Any], frames: int, rounds: int, quick: bool
) -> tuple[list[Row], str]:
    """Return the rounds of one case, and what sets its limit in most of them."""
    detect_video(*arguments, "--frames", 2, "--no-video")  # export, calibrate: before the rounds
    summaries: dict[str, list[dict[str, Any]]] = {RUN: [], **{name: [] for name in LEANEST}}

    def one(name: str, options: Sequence[Any]) -> Row:
        summaries[name].append(detect_video(*arguments, "--frames", frames, *options))
        return rates(summaries[name][-1])

    click.echo(f"\n{title}")
    variants: dict[str, Callable[[], Row]] = {
        name: partial(one, name, options) for name, options in {RUN: (), **LEANEST}.items()
    }
    found = interleave(variants, rounds, warm_up=0 if quick else 1)
    cores = len(os.sched_getaffinity(0))
    rows, sets = [], []
    for number, run in enumerate(found[RUN]):
        own, plain = (summaries[name][-rounds:][number] for name in (RUN, PLAIN))
        # On few cores the run itself has one thread per request.
        alike = [run["cpu_ms"]] if own["engine_threads"] == 1 else []
        lean = min([found[name][number]["cpu_ms"] for name in LEANEST] + alike)
        fps, by = limit_of(serial_ms(alone_ms(plain), own["concurrency"]), lean, cores)
        rows.append({**run, "limit": fps, "lean_cpu_ms": lean})
        sets.append(by)
    return rows, statistics.mode(sets)
