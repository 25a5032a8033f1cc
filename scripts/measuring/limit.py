"""End-to-end FPS compared with the machine's limit.

No loop can be faster than its longest serial stage, or than its CPU time spread evenly over all
cores. The CPU time is that of the leanest configuration of the same engine and precision: it has
one thread per request, so no thread of the engine spins or waits for another. This way, CPU time
that a run wastes does not lower its own limit.
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
LEANEST = {  # one request with one thread, in the plain loop and in the overlapped loop
    PLAIN: ("--sync", "--threads", 1),
    LEAN: ("--concurrency", 1, "--threads", 1),
}
# The threshold is high, because networks with random weights detect objects everywhere.
RANDOM = ("--random-weights", 0, "--conf", 0.95)
NETWORKS: dict[str, tuple[Any, ...]] = {
    "street@608x352": ("--model", "street"),
    "street-1@416x256": ("--model", "street-1"),
    "yolov4-tiny@416": ("--model", SHARED / "weights/yolov4-tiny-person-vehicle.cfg", *RANDOM),
    "yolov5n@640": ("--model", SHARED / "weights/yolov5n.pt", "--size", "640x640"),
}


def alone_ms(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return stage -> milliseconds per frame in the plain loop, where one stage runs at a time.
    The time that other processes took from the stage is subtracted."""
    from detector.core.session.codec import from_builtins
    from detector.core.session.document import Summary

    document: Any = from_builtins(summary, Summary, "the summary")
    blame = _foreign_share(document.cpu.libraries)
    return {
        # A stage takes at least its CPU time, spread over all cores.
        name: max(stage.cpu_s / document.cpu.cores, stage.busy_s - blame * _ready_s(document, name))
        * (1e3 / document.frames.written)
        for name, stage in document.stages.items()
        if stage.calls
    }


def _foreign_share(libraries: Any) -> float:
    """Estimate from CPU times which share of the waits for a core was caused by other processes.

    Our libraries' threads caused the other waits, which count as the stage's time. If the system
    does not report CPU times, we blame other processes for all waits.
    """
    if libraries is None or libraries.others_s is None:
        return 1.0
    return libraries.others_s / ((libraries.others_s + libraries.process_s) or 1.0)


def _ready_s(document: Any, name: str) -> float:
    """Return how many seconds a stage was ready to run but not scheduled: the wait of its own
    thread plus that of its library threads. For inference, return the longer of the two waits."""
    stage, libraries = document.stages[name], document.cpu.libraries
    threads_of_stage = [
        document.threads[thread] for thread in stage.threads if thread in document.threads
    ]
    ready, cpu = (
        sum(thread.ready_s or 0.0 for thread in threads_of_stage),
        sum(thread.cpu_s for thread in threads_of_stage),
    )
    own_ready_s = stage.cpu_s * ready / cpu if cpu else 0.0
    library_threads = None if libraries is None else libraries.stages.get(name)
    library_ready_s = 0.0
    if library_threads is not None and library_threads.calls and name != "read":
        library_ready_s = library_threads.ready_s / library_threads.calls * stage.calls
    return max(own_ready_s, library_ready_s) if name == INFER else own_ready_s + library_ready_s


def serial_ms(alone: Mapping[str, float], concurrency: int) -> dict[str, float]:
    """Return stage -> milliseconds per frame of a loop that only this stage limits.
    ``concurrency``: the number of the engine's requests, which infer at the same time."""
    return {name: ms / (concurrency if name == INFER else 1) for name, ms in alone.items()}


def limit_of(serial: Mapping[str, float], lean_cpu_ms: float, cores: int) -> tuple[float, str]:
    """Return the highest possible FPS, and what limits it: a stage, or "all cores"."""
    stage = max(serial, key=lambda name: serial[name])
    spread_ms = lean_cpu_ms / cores
    if serial[stage] > spread_ms:
        return 1e3 / serial[stage], stage
    return 1e3 / spread_ms, "all cores"


def judge(rows: Sequence[Row]) -> list[str]:
    """Return the table cells that sum up all rounds of one network, engine and precision."""
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
    "limited by",
    "end-to-end FPS",
    "limit, FPS",
    "share of the limit",
    "leanest CPU, ms per frame",
    "CPU of the run / leanest CPU",
    f">= {AIM:g}",
)


@click.command()
@click.option("--clip", "path", type=GIVEN_CLIP, help="[default: 720p]")
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)))
@click.option("--engines", default="ort,openvino")
@click.option("--precisions", default="fp32,int8")
@click.option("--frames", default=300)
@click.option("--rounds", default=5)
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
    """Compare end-to-end FPS with 1 / max(longest serial stage, CPU seconds per frame / cores).

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
                arguments = [*NETWORKS[name], "--engine", engine, "--precision", precision]
                if precision == "int8" and not name.startswith("street"):
                    arguments += ["--calibrate", STREET, "--calibrate-frames", 16]
                title = f"{name} {engine} {precision}"
                rows, limiter = _measured(title, [source, *arguments], frames, rounds, quick)
                table.append([name, f"{engine} {precision}", limiter, *judge(rows)])
    click.echo("\n" + markdown(HEAD, table))


def _missing(options: Sequence[Any]) -> Path | None:
    return next(
        (option for option in options if isinstance(option, Path) and not option.is_file()), None
    )


def _measured(
    title: str, arguments: Sequence[Any], frames: int, rounds: int, quick: bool
) -> tuple[list[Row], str]:
    """Return the rounds of one case, and what limits most of them."""
    detect_video(*arguments, "--frames", 2, "--no-video")  # export and calibrate in advance
    summaries: dict[str, list[dict[str, Any]]] = {RUN: [], **{name: [] for name in LEANEST}}

    def measure(name: str, options: Sequence[Any]) -> Row:
        summaries[name].append(detect_video(*arguments, "--frames", frames, *options))
        return rates(summaries[name][-1])

    click.echo(f"\n{title}")
    variants: dict[str, Callable[[], Row]] = {
        name: partial(measure, name, options) for name, options in {RUN: (), **LEANEST}.items()
    }
    rows_by_variant = interleave(variants, rounds, warm_up=0 if quick else 1)
    cores = len(os.sched_getaffinity(0))
    rows, limiters = [], []
    for number, run in enumerate(rows_by_variant[RUN]):
        summary, plain = (summaries[name][-rounds:][number] for name in (RUN, PLAIN))
        # With one engine thread per request, the run itself is a lean configuration.
        candidates = [run["cpu_ms"]] if summary["engine_threads"] == 1 else []
        lean = min([rows_by_variant[name][number]["cpu_ms"] for name in LEANEST] + candidates)
        fps, limiter = limit_of(serial_ms(alone_ms(plain), summary["concurrency"]), lean, cores)
        rows.append({**run, "limit": fps, "lean_cpu_ms": lean})
        limiters.append(limiter)
    return rows, statistics.mode(limiters)
