"""The default job before the work on speed and now: whole runs of two versions, in turns."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from measuring.clips import clip, fidelity
from measuring.environments import MissingError, checkout, environment, versions
from measuring.rounds import (
    OURS,
    QUICK_FRAMES,
    ROOT,
    STAGES,
    STREET,
    Command,
    Row,
    against,
    cpu_by_stage,
    interleave,
    job,
    markdown,
    quick_option,
    rates,
    ratios,
    run,
    say_machine,
    spread,
)

COMMIT = "399b9db"  # the last one before the work on speed
BEFORE, BEFORE_INT8 = "before: ort fp32", "before: ort int8"
OVERLAY = ("--save", "overlay")
LIBRARIES = ("numpy", "opencv-python-headless", "av", "onnxruntime", "openvino")


# The model that the older version has by default: the same layers and the same input on both sides.
SAME_MODEL = ("--model", "street-1")


class Job(NamedTuple):
    """``aims``: height -> how many times the default job before it should be. ``model``: options
    that name it; none: the default model."""

    options: tuple[Any, ...]
    old: bool = False
    aims: Mapping[int, float] = {}
    model: tuple[Any, ...] = SAME_MODEL


INT8 = ("--precision", "int8")
FP32 = ("--engine", "ort", "--precision", "fp32")
JOBS = {
    BEFORE: Job(FP32, old=True),
    BEFORE_INT8: Job(("--engine", "ort", *INT8, "--calibrate", STREET), old=True),
    "video, ort fp32": Job(FP32, aims={720: 1.15}),
    "video, ort int8": Job(("--engine", "ort", *INT8), aims={720: 1.5}),
    "video, openvino int8": Job(("--engine", "openvino", *INT8), aims={720: 1.5}),
    "overlay, ort fp32": Job((*FP32, *OVERLAY), aims={720: 1.8, 1080: 2.2, 2160: 3.5}),
    "overlay, ort int8": Job(("--engine", "ort", *INT8, *OVERLAY), aims={720: 3.0}),
    "overlay, openvino int8": Job(("--engine", "openvino", *INT8, *OVERLAY), aims={720: 3.0}),
    "video, ort int8, today's model": Job(("--engine", "ort", *INT8), model=()),
}
LARGEST = 1.3  # times the bytes of the video that was written before


def row_of(found: Mapping[str, Sequence[Row]], name: str, height: int) -> list[str]:
    """Cells of a table: one job beside the default job before, and beside the same precision."""
    rows, job = found[name], JOBS[name]
    base = BEFORE_INT8 if "int8" in name else BEFORE
    times = ratios(rows, found[BEFORE], "fps")
    aim = job.aims.get(height)
    return [
        f"{height}p",
        name,
        spread([row["fps"] for row in rows]),
        spread(times),
        spread(ratios(rows, found[base], "fps")),
        spread(ratios(rows, found[BEFORE], "cpu_s")),
        "-" if aim is None else against(times, aim),
    ]


HEAD = (
    "clip",
    "job",
    "end-to-end FPS",
    "times the default job before, fp32",
    "times the same precision before",
    "CPU of the command, ratio",
    "aim",
)
STAGE_HEAD = ("clip", "CPU, ms a frame", *STAGES, "all of the process")


def stage_row(rows: Sequence[Row], name: str, height: int) -> list[str]:
    """Cells of a table: medians of the rounds."""
    medians = [
        f"{statistics.median(row[stage] for row in rows):.2f}" if stage in rows[0] else "-"
        for stage in (*STAGES, "process")
    ]
    return [f"{height}p", name, *medians]


PICTURES = ("clip", "video written", "PSNR, dB", "SSIM", "bytes, ratio", "verdict")


def picture_rows(height: int, before: Row, now: Row) -> list[list[str]]:
    """PSNR and SSIM against the source, and sizes. Equal is what differs by less than 0.005 dB."""
    times = now["bytes"] / before["bytes"]
    wrong = []
    if now["psnr"] < before["psnr"] - 0.005 and not math.isinf(now["psnr"]):
        wrong.append(f"PSNR {now['psnr'] - before['psnr']:+.2f} dB")
    if times > LARGEST:
        wrong.append(f"larger than {LARGEST:g} times")
    return [
        [f"{height}p", "before", f"{before['psnr']:.2f}", f"{before['ssim']:.4f}", "1", "-"],
        [
            f"{height}p",
            "now",
            f"{now['psnr']:.2f}",
            f"{now['ssim']:.4f}",
            f"{times:.2f}",
            ", ".join(wrong) or "reached",
        ],
    ]


@click.command()
@click.option("--commit", default=COMMIT, show_default=True, help="The commit to compare with.")
@click.option("--heights", default="720,1080,2160", show_default=True)
@click.option("--jobs", help="Only these, separated by semicolons.  [default: all]")
@click.option("--frames", default=300, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@quick_option
def before(
    commit: str, heights: str, jobs: str | None, frames: int, rounds: int, quick: bool
) -> None:
    """The default job of an older version and of this one: video or overlay, fp32 or int8.

    The older version is unpacked into the cache, with an environment of its own in the versions
    that its constraints.txt names. Loading is in no figure. PSNR, SSIM and bytes are those of a
    video in which nothing is drawn (the null engine) against its source.
    """
    say_machine(quick)
    frames, rounds = (QUICK_FRAMES, 1) if quick else (frames, rounds)
    try:
        old = program_of(commit)
    except MissingError as error:
        raise click.ClickException(str(error)) from error
    names = ("now", *OURS[:1]), (f"before, {commit}", old[0])
    for title, python in names:
        told = versions(Path(python), LIBRARIES)
        click.echo(f"{title}: {', '.join(f'{name} {found}' for name, found in told.items())}")
    chosen = JOBS if jobs is None else {name: JOBS[name] for name in _names(jobs)}
    table, stages, pictures = [], [], []
    for height in map(int, heights.split(",")):
        source = clip(height, frames)
        variants: dict[str, Callable[[], Row]] = {
            name: partial(_measured, source, one, old, frames) for name, one in chosen.items()
        }
        click.echo(f"\n{source.name}, the first {frames} frames")
        found = interleave(variants, rounds, warm_up=0 if quick else 1)
        table += [row_of(found, name, height) for name in found]
        stages += [stage_row(rows, name, height) for name, rows in found.items()]
        pictures += picture_rows(
            height, *(_pictures(source, program, frames) for program in (old, OURS))
        )
    click.echo("\n" + markdown(HEAD, table))
    click.echo("\n" + markdown(STAGE_HEAD, stages))
    click.echo("\n" + markdown(PICTURES, pictures))


def _names(jobs: str) -> list[str]:
    """The jobs that were asked for, behind those that they are compared with."""
    asked = [name.strip() for name in jobs.split(";")]
    if wrong := [name for name in asked if name not in JOBS]:
        raise click.BadParameter(f"no job {wrong[0]!r}; known jobs: {'; '.join(JOBS)}")
    return [name for name in JOBS if name in asked or JOBS[name].old]


def program_of(commit: str) -> Command:
    """The command of an older version, with an environment of its own. Raises MissingError."""
    folder = checkout(ROOT, commit)
    constraints = folder / "constraints.txt"
    pinned = ["-c", str(constraints)] if constraints.is_file() else []
    python = environment(f"{folder.name}-python", [*pinned, "-e", f"{folder}[openvino]"])
    own = [python, "-E"]  # PYTHONPATH may name this version
    where = [*own, "-c", "import detector; print(detector.__file__)"]
    told = run(where, python.parent).stdout.strip()  # a folder from which nothing is imported
    if not Path(told).is_relative_to(folder):
        raise MissingError(f"{python} runs {told}, not {folder}: remove {python.parents[1]}")
    return [*own, "-m", "detector"]


def _measured(source: Path, one: Job, old: Command, frames: int) -> Row:
    program, model = (old, ()) if one.old else (OURS, one.model)
    summary, done = job(source, *one.options, *model, "--frames", frames, program=program)
    return {**rates(summary), "cpu_s": done.cpu_s, **cpu_by_stage(summary)}


def _pictures(source: Path, program: Command, frames: int) -> Row:
    """The video that a version writes by default, with nothing drawn in it."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "out.mp4")
        job(source, "--engine", "null", "-o", written, "--frames", frames, program=program)
        return {**fidelity(written, source, frames), "bytes": float(written.stat().st_size)}
