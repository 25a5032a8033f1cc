"""The growth of a frame's cost with the picture, the batch, the candidates, the classes, and the
length of the run.

Each is a curve of medians, printed with the expected one: cost = a + b x**e, where e = 1 is
proportional and e = 0 constant, through the ends of the curve. The measured exponent is the slope
of a line through the logarithms, over the whole curve and over its upper half, where a constant
part matters least. Such a part lowers the exponent, and never raises it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from measuring.clips import looped_copy, made
from measuring.rounds import (
    QUICK_FRAMES,
    STREET,
    Row,
    interleave,
    job,
    markdown,
    quick_option,
    rates,
    say_machine,
    spread,
)

SIZES = (360, 540, 720, 1080, 1440, 2160)  # lines of a 16:9 picture
BATCHES = (1, 2, 4, 8, 16, 32)
CANDIDATES = (10, 30, 100, 300, 1000, 3000, 10_000)
CLASSES = (1, 2, 5, 10, 20, 40, 80)
LENGTHS = (300, 1000, 3000, 10_000, 30_000, 100_000)
OBJECTS = 30  # candidates crowd around them, as with a network
CELLS = 8400  # in a 640x640 input
TINY = 90  # lines of the clip of long runs: their frames cost next to nothing
SLACK = 0.1  # tolerance of an exponent
FLAT = 1.05  # allowed growth of RSS from the second to the last quarter of a long run


def slope(points: Mapping[float, float]) -> float:
    """Return the exponent: the slope of a least-squares line through the logarithms of x ->
    cost."""
    xs, ys = [math.log(x) for x in points], [math.log(cost) for cost in points.values()]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    square = sum((one - x) ** 2 for one in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / square if square else 0.0


class Curve(NamedTuple):
    """``expected``: the largest allowed exponent. ``x_of``: a variant's number -> what the cost
    grows with."""

    title: str
    what: str
    expected: float
    why: str
    x_of: Callable[[int], float] = float


HEAD = ("cost, ms of CPU a frame", "expected", "exponent from the row above")


def curve_table(curve: Curve, found: Mapping[int, Sequence[Row]]) -> str:
    """Return each cost with the expected one."""
    costs = {curve.x_of(number): [row["cpu_ms"] for row in rows] for number, rows in found.items()}
    medians = {x: statistics.median(values) for x, values in costs.items()}
    wanted, before, lines = expected(curve.expected, medians), None, []
    for number, (x, values) in zip(found, costs.items(), strict=True):
        local = "-"
        if before is not None:
            local = f"{math.log(medians[x] / medians[before]) / math.log(x / before):+.2f}"
        cells = [str(number), spread(values), f"{wanted[x]:.3g}", local]
        lines.append([*cells, *_memory(found[number])])
        before = x
    head = [curve.what, *HEAD, *(["peak memory, MB"] if _memory(found[number]) else [])]
    return f"{curve.title}\n\n{markdown(head, lines)}\n\n{conclusion(curve, costs)}"


def expected(exponent: float, medians: Mapping[float, float]) -> dict[float, float]:
    """Return a + b x**e through the first and the last point; with e = 0 the median of all."""
    if not exponent:
        return dict.fromkeys(medians, statistics.median(medians.values()))
    first, *_, last = medians
    b = (medians[last] - medians[first]) / (last**exponent - first**exponent)
    return {x: medians[first] + b * (x**exponent - first**exponent) for x in medians}


def _memory(rows: Sequence[Row]) -> list[str]:
    return [spread([row["peak_mb"] for row in rows])] if "peak_mb" in rows[0] else []


def conclusion(curve: Curve, costs: Mapping[float, Sequence[float]]) -> str:
    medians = {x: statistics.median(values) for x, values in costs.items()}
    upper = dict(list(medians.items())[len(medians) // 2 :])
    whole, half = slope(medians), slope(upper)
    kept = "kept" if max(whole, half) <= curve.expected + SLACK else "steeper than expected"
    return (
        f"exponent {whole:+.2f}, of the upper half {half:+.2f}; expected at most "
        f"{curve.expected:g} ({curve.why}): {kept}"
    )


# ----------------------------------------------------------------------
# The command

PARTS = ("size", "batch", "candidates", "classes", "frames")


@click.command()
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="[default: all]")
@click.option("--frames", default=300, show_default=True, help="Frames of the other runs.")
@click.option("--longest", default=LENGTHS[-1], show_default=True, help="Frames of the long run.")
@click.option("--rounds", default=3, show_default=True)
@quick_option
def growth(only: tuple[str, ...], frames: int, longest: int, rounds: int, quick: bool) -> None:
    """Measure cost per frame by size, batch, candidates, classes, length; memory of long runs.

    Size and batch are whole runs of the command. Candidates and classes are NMS and the head alone.
    Long runs use the null engine on a clip of 160x90.
    """
    say_machine(quick)
    if quick:
        frames, rounds, longest = QUICK_FRAMES, 1, min(longest, 3000)
    parts: dict[str, Callable[[], None]] = {
        "size": lambda: by_size(frames, rounds, quick),
        "batch": lambda: by_batch(frames, rounds, quick),
        "candidates": lambda: by_candidates(rounds),
        "classes": lambda: by_classes(rounds),
        "frames": lambda: by_length(longest, rounds),
    }
    for name in only or PARTS:
        click.echo(f"\n## {name}")
        parts[name]()


def _turns(
    of: Callable[[int], Row], numbers: Sequence[int], rounds: int, warm_up: int = 1
) -> dict[int, list[Row]]:
    found = interleave({str(number): partial(of, number) for number in numbers}, rounds, warm_up)
    return {int(name): rows for name, rows in found.items()}


def _cost(*arguments: Any, **more: Any) -> Row:
    summary, done = job(*arguments, **more)
    return {**rates(summary), "peak_mb": done.peak_mb}


# ----------------------------------------------------------------------
# Whole runs


def pixels_of(lines: int) -> float:
    return lines * lines * 16 / 9


def by_size(frames: int, rounds: int, quick: bool) -> None:
    for engine, expected, why in (
        ("null", 1.0, "decoding, drawing and encoding touch every pixel"),
        ("ort", 1.0, "as before, and inference costs the same at every size"),
    ):

        def one(height: int, engine: str = engine) -> Row:
            options = ("--engine", engine, "--precision", "fp32", "--frames", frames)
            return _cost(made(height, frames), *options)

        found = _turns(one, SIZES, rounds, warm_up=0 if quick else 1)
        curve = Curve(f"{engine}, the video written", "lines", expected, why, pixels_of)
        click.echo("\n" + curve_table(curve, found))


def by_batch(frames: int, rounds: int, quick: bool) -> None:
    def one(batch: int) -> Row:
        options = ("--engine", "ort", "--precision", "fp32", "--frames", max(frames, 4 * batch))
        return _cost(STREET, *options, "--batch", batch, "--no-video")

    found = _turns(one, BATCHES, rounds, warm_up=0 if quick else 1)
    curve = Curve("ort fp32, no video", "batch", 0.0, "a batch is as many times the work")
    click.echo("\n" + curve_table(curve, found))
    click.echo("Memory grows with the batch: each request holds its pictures and outputs.")


def by_length(longest: int, rounds: int) -> None:
    """Run one long clip; shorter runs stop earlier."""
    source = looped_copy(TINY, longest)
    watched: dict[int, list[float]] = {}

    def one(frames: int) -> Row:
        seen: list[float] = []
        row = _cost(source, "--engine", "null", "--frames", frames, watch=partial(_resident, seen))
        watched[frames] = seen
        return row

    lengths = [one for one in LENGTHS if one < longest] + [longest]
    found = _turns(one, lengths, rounds, warm_up=0)
    curve = Curve(f"null engine, {source.name}, the video written", "frames", 0.0, "frame by frame")
    click.echo("\n" + curve_table(curve, found))
    click.echo(flatness(longest, watched[longest]))


def _resident(seen: list[float], pid: int) -> None:
    """Append a process's resident memory in 10^6 bytes. It may have ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return
    seen.append(pages * 4096 / 1e6)


def flatness(frames: int, seen: Sequence[float]) -> str:
    """Say whether resident memory grew: the last quarter compared with the second."""
    quarter = len(seen) // 4
    if quarter < 3:
        return f"resident memory: the run of {frames} frames was too short to tell"
    early = statistics.median(seen[quarter : 2 * quarter])
    late = statistics.median(seen[-quarter:])
    verdict = "flat" if late <= early * FLAT else "it grows"
    return (
        f"resident memory of {frames} frames: second quarter {early:.1f} MB, last quarter "
        f"{late:.1f} MB ({late / early - 1:+.1%}): {verdict}"
    )


# ----------------------------------------------------------------------
# Single stages


def cpu_ms(call: Callable[[], object], at_least_s: float = 0.1) -> float:
    """Return CPU milliseconds per call, of this thread: these stages have no others."""
    call()
    calls, start = 0, time.thread_time()
    while (passed := time.thread_time() - start) < at_least_s:
        call()
        calls += 1
    return passed * 1e3 / calls


def by_candidates(rounds: int) -> None:
    from detector.core.stages.nms import nms

    for title, apart, expected, why in (
        (
            f"NMS, candidates around {OBJECTS} objects",
            False,
            1.0,
            "each is compared with what was kept, some 30 boxes, and with its block",
        ),
        (
            "NMS, every candidate an object of its own",
            True,
            2.0,
            "each is compared with all that were kept: the worst case, which no network gives",
        ),
    ):

        def one(count: int, apart: bool = apart) -> Row:
            found = candidates(count, apart)
            return {"cpu_ms": cpu_ms(lambda: nms(found, iou=0.45, max_det=300))}

        curve = Curve(title, "candidates", expected, why)
        click.echo("\n" + curve_table(curve, _turns(one, CANDIDATES, rounds, warm_up=0)))


def candidates(count: int, apart: bool) -> Any:
    """Return boxes of two classes: crowds around objects, or a grid of separate boxes."""
    import numpy as np

    from detector.core.types import Candidates

    rng = np.random.default_rng(0)
    if apart:
        side = math.ceil(math.sqrt(count))
        corners = np.stack(np.divmod(np.arange(count), side), axis=1).astype(np.float32) * 20
    else:
        places = rng.uniform(0, 4000, (OBJECTS, 2))
        corners = (places[np.arange(count) % OBJECTS] + rng.normal(0, 0.3, (count, 2))).astype(
            np.float32
        )
    boxes = np.hstack([corners, corners + 15]).astype(np.float32)
    scores = rng.uniform(0.25, 1, count).astype(np.float32)
    return Candidates(boxes, scores, np.arange(count) % OBJECTS % 2)


def by_classes(rounds: int) -> None:
    import numpy as np

    from detector.core.models.layouts.anchor_free import anchor_free
    from detector.core.stages.readings import read_rows

    def one(classes: int) -> Row:
        rng = np.random.default_rng(classes)
        output = rng.uniform(0, 0.2, (1, 4 + classes, CELLS)).astype(np.float32)
        output[0, 4, :: CELLS // OBJECTS] = 0.9
        return {"cpu_ms": cpu_ms(lambda: read_rows([output], 0.25, reading=anchor_free()))}

    why = "one pass over the scores of all cells"
    curve = Curve(f"head of {CELLS} cells, one box a cell", "classes", 1.0, why)
    click.echo("\n" + curve_table(curve, _turns(one, CLASSES, rounds, warm_up=0)))
