"""How a frame's cost grows with the size of the picture, the batch, the number of candidates and
classes, and the length of the run.

Each median cost is printed next to the expected cost a + b x**e. The expected curve goes through
the first and last medians; if e = 0, it is constant. The measured exponent is the slope of a line
fitted to the logarithms of x and cost. It is computed for the whole curve, and for its upper half,
where a constant part of the cost lowers the exponent less.
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

from measuring.clips import looped_copy, street_clip
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
OBJECTS = 30  # candidates form clusters around this many objects, as in a network's output
CELLS = 8400  # grid cells of a network with a 640x640 input
TINY = 90  # height of the clip for long runs; its frames cost next to nothing
SLACK = 0.1  # how far an exponent may exceed the expected exponent
FLAT = 1.05  # resident memory may grow by this factor from the second to the last quarter


def slope(points: Mapping[float, float]) -> float:
    """Return the exponent: the slope of a line fitted to the logarithms of x -> cost."""
    xs, ys = [math.log(x) for x in points], [math.log(cost) for cost in points.values()]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    square = sum((value - x) ** 2 for value in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / square if square else 0.0


class Curve(NamedTuple):
    """A curve. ``expected``: exponent, without SLACK. ``x_of``: number in the first column -> x."""

    title: str
    what: str
    expected: float
    why: str
    x_of: Callable[[int], float] = float


HEAD = ("cost, CPU ms per frame", "expected", "exponent between this row and the one above")


def curve_table(curve: Curve, measured: Mapping[int, Sequence[Row]]) -> str:
    """Return a table of measured and expected costs, followed by the conclusion."""
    costs = {
        curve.x_of(number): [row["cpu_ms"] for row in rows] for number, rows in measured.items()
    }
    medians = {x: statistics.median(values) for x, values in costs.items()}
    expected_costs, previous, lines = expected(curve.expected, medians), None, []
    for number, (x, values) in zip(measured, costs.items(), strict=True):
        local_exponent = "-"
        if previous is not None:
            local_exponent = (
                f"{math.log(medians[x] / medians[previous]) / math.log(x / previous):+.2f}"
            )
        cells = [str(number), spread(values), f"{expected_costs[x]:.3g}", local_exponent]
        lines.append([*cells, *_memory(measured[number])])
        previous = x
    head = [curve.what, *HEAD, *(["peak memory, MB"] if _memory(measured[number]) else [])]
    return f"{curve.title}\n\n{markdown(head, lines)}\n\n{conclusion(curve, costs)}"


def expected(exponent: float, medians: Mapping[float, float]) -> dict[float, float]:
    """Return x -> cost: a + b x**e through the first and last points, or the median if e = 0."""
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
    verdict = "as expected" if max(whole, half) <= curve.expected + SLACK else "steeper"
    return (
        f"exponent {whole:+.2f}, in the upper half {half:+.2f}; expected: at most "
        f"{curve.expected:g} ({curve.why}): {verdict}"
    )


# ----------------------------------------------------------------------
# The command

PARTS = ("size", "batch", "candidates", "classes", "frames")


@click.command()
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="[default: all]")
@click.option("--frames", default=300, help="Frames per run, for size and batch.")
@click.option("--longest", default=LENGTHS[-1], help="Frames of the longest run.")
@click.option("--rounds", default=3)
@quick_option
def growth(only: tuple[str, ...], frames: int, longest: int, rounds: int, quick: bool) -> None:
    """Measure how a frame's cost depends on size, batch, candidates, classes and length of the run.

    For size and batch, the whole command runs; for candidates only NMS; for classes only the head.
    Long runs use the null engine on a clip of 160x90; their memory is measured, too.
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
    measure: Callable[[int], Row], numbers: Sequence[int], rounds: int, warm_up: int = 1
) -> dict[int, list[Row]]:
    measured = interleave(
        {str(number): partial(measure, number) for number in numbers}, rounds, warm_up
    )
    return {int(name): rows for name, rows in measured.items()}


def _cost(*arguments: Any, **options: Any) -> Row:
    summary, finished = job(*arguments, **options)
    return {**rates(summary), "peak_mb": finished.peak_mb}


# ----------------------------------------------------------------------
# Whole runs


def pixels_of(lines: int) -> float:
    return lines * lines * 16 / 9


def by_size(frames: int, rounds: int, quick: bool) -> None:
    for engine, expected, why in (
        ("null", 1.0, "decoding, drawing and encoding touch every pixel"),
        ("ort", 1.0, "drawing touches every pixel; inference costs the same at every size"),
    ):

        def run_at(height: int, engine: str = engine) -> Row:
            options = ("--engine", engine, "--precision", "fp32", "--frames", frames)
            return _cost(street_clip(height, frames), *options)

        measured = _turns(run_at, SIZES, rounds, warm_up=0 if quick else 1)
        curve = Curve(f"{engine}, the video written", "lines", expected, why, pixels_of)
        click.echo("\n" + curve_table(curve, measured))


def by_batch(frames: int, rounds: int, quick: bool) -> None:
    def run_with(batch: int) -> Row:
        options = ("--engine", "ort", "--precision", "fp32", "--frames", max(frames, 4 * batch))
        return _cost(STREET, *options, "--batch", batch, "--no-video")

    measured = _turns(run_with, BATCHES, rounds, warm_up=0 if quick else 1)
    curve = Curve("ort fp32, no video", "batch", 0.0, "a frame costs the same in any batch")
    click.echo("\n" + curve_table(curve, measured))
    click.echo("Memory grows with the batch: each request holds its batch's pictures and outputs.")


def by_length(longest: int, rounds: int) -> None:
    """Run on one long clip. A run of N frames reads only the clip's first N frames."""
    source = looped_copy(TINY, longest)
    resident_by_length: dict[int, list[float]] = {}

    def run_for(frames: int) -> Row:
        resident: list[float] = []
        row = _cost(
            source, "--engine", "null", "--frames", frames, watch=partial(_resident, resident)
        )
        resident_by_length[frames] = resident
        return row

    lengths = [run_for for run_for in LENGTHS if run_for < longest] + [longest]
    measured = _turns(run_for, lengths, rounds, warm_up=0)
    why = "a frame costs the same however many came before it"
    curve = Curve(f"null engine, {source.name}, the video written", "frames", 0.0, why)
    click.echo("\n" + curve_table(curve, measured))
    click.echo(flatness(longest, resident_by_length[longest]))


def _resident(samples: list[float], pid: int) -> None:
    """Append a process's resident memory in 10^6 bytes, unless it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return
    samples.append(pages * 4096 / 1e6)


def flatness(frames: int, samples: Sequence[float]) -> str:
    """Describe whether resident memory grew from the second to the last quarter of a run."""
    quarter = len(samples) // 4
    if quarter < 3:
        return f"resident memory: the run of {frames} frames was too short to tell"
    early = statistics.median(samples[quarter : 2 * quarter])
    late = statistics.median(samples[-quarter:])
    verdict = "flat" if late <= early * FLAT else "it grows"
    return (
        f"resident memory of {frames} frames: second quarter {early:.1f} MB, last quarter "
        f"{late:.1f} MB ({late / early - 1:+.1%}): {verdict}"
    )


# ----------------------------------------------------------------------
# Single stages


def cpu_ms(call: Callable[[], object], at_least_s: float = 0.1) -> float:
    """Return this thread's CPU milliseconds per call. The measured calls use no other threads."""
    call()
    calls, start = 0, time.thread_time()
    while (passed_s := time.thread_time() - start) < at_least_s:
        call()
        calls += 1
    return passed_s * 1e3 / calls


def by_candidates(rounds: int) -> None:
    from detector.core.stages.nms import nms

    for title, apart, expected, why in (
        (
            f"NMS, candidates around {OBJECTS} objects",
            False,
            1.0,
            "each is compared with about 30 kept boxes and with the candidates in its block",
        ),
        (
            "NMS, each candidate is a separate object",
            True,
            2.0,
            "each is compared with all kept boxes: a worst case that no network gives",
        ),
    ):

        def measure(count: int, apart: bool = apart) -> Row:
            boxes = candidates(count, apart)
            return {"cpu_ms": cpu_ms(lambda: nms(boxes, iou=0.45, max_det=300))}

        curve = Curve(title, "candidates", expected, why)
        click.echo("\n" + curve_table(curve, _turns(measure, CANDIDATES, rounds, warm_up=0)))


def candidates(count: int, apart: bool) -> Any:
    """Return boxes of two classes: a grid if ``apart`` is true, else clusters around objects."""
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

    def measure(classes: int) -> Row:
        rng = np.random.default_rng(classes)
        output = rng.uniform(0, 0.2, (1, 4 + classes, CELLS)).astype(np.float32)
        output[0, 4, :: CELLS // OBJECTS] = 0.9
        return {"cpu_ms": cpu_ms(lambda: read_rows([output], 0.25, reading=anchor_free()))}

    why = "one pass over the scores of all cells"
    curve = Curve(f"head of {CELLS} cells, one box per cell", "classes", 1.0, why)
    click.echo("\n" + curve_table(curve, _turns(measure, CLASSES, rounds, warm_up=0)))
