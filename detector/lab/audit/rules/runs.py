"""Mistakes in our own runs. Every run is checked for these, and only these, as it ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import UNSET

from detector.core.analysis.verdict import describe_others
from detector.core.errors import EXIT_DAMAGED, EXIT_DONE
from detector.core.errors.text import counted
from detector.core.session.document import Disturbances, Summary
from detector.lab.audit.rule import Hit, rule

MUCH = 0.1  # share of the cores, or of a thread's time
LEAST_S = 1.0  # seconds; shares of a shorter run are unreliable
_rule = partial(rule, over="run")


@_rule(
    "error",
    "no layer ran in the requested precision",
    "report the precision that ran, or find an engine for the requested precision with doctor",
)
def run_precision_not_executed(run: Summary) -> Iterator[Hit]:
    if run.precision_effect:
        yield Hit(run.precision_effect)


@_rule(
    "warning",
    "other processes used the cores",
    "stop them, or run compare: it alternates the variants, so that load affects all alike",
)
def cores_taken_by_others(run: Summary) -> Iterator[Hit]:
    libraries = run.cpu.libraries
    if libraries is None or libraries.others_s is None or libraries.wall_s < LEAST_S:
        return
    share = libraries.others_s / (libraries.wall_s * run.cpu.cores)
    if share > MUCH:
        yield Hit(
            f"{libraries.others_s:.1f} CPU seconds of other programs in {libraries.wall_s:.1f} s "
            f"on {run.cpu.cores} cores: {share:.0%}"
        )


@_rule(
    "warning",
    "threads were ready, but other programs had the cores",
    "stop those programs, or run compare, which alternates the variants",
)
def waited_for_cores(run: Summary) -> Iterator[Hit]:
    if waits := _describe_waits(run, foreign=True):
        others = describe_others(run.verdict.others_cores, run.cpu.cores)
        cause = f"{others}; " if others else ""
        yield Hit(f"{cause}threads waited for a core that other programs held: {waits}")


@_rule(
    "note",
    "threads were ready, but other threads of this run had the cores",
    "try a lower --threads or --concurrency; if that is slower, this run fills the cores",
)
def waited_for_own_threads(run: Summary) -> Iterator[Hit]:
    """Check only runs with at least two engine threads, and at least one for each core."""
    threads = run.engine_threads * run.concurrency
    if not 1 < threads >= run.cpu.cores:
        return
    if waits := _describe_waits(run, foreign=False):
        yield Hit(
            f"{threads} engine threads plus reading and writing share {run.cpu.cores} cores; "
            f"threads waited for a core that this run's other threads held: {waits}"
        )


def _describe_waits(run: Summary, *, foreign: bool) -> str:
    """List long waits: if ``foreign``, those due to other programs or unknown causes; else ours."""
    waits = []
    for name, thread in run.threads.items():
        others = 1.0 if thread.foreign_share is None else thread.foreign_share
        ready = (thread.ready_s or 0.0) * (others if foreign else 1 - others)
        if ready > MUCH * thread.busy_s and thread.busy_s > LEAST_S:
            waits.append(f"{name} waited {ready:.2f} s (its stages took {thread.busy_s:.2f} s)")
    return ", ".join(waits)


@_rule(
    "warning",
    "more threads than cores",
    "choose --threads and --concurrency whose product is the number of cores",
)
def more_threads_than_cores(run: Summary) -> Iterator[Hit]:
    threads = run.engine_threads * run.concurrency
    if threads > run.cpu.cores and run.engine_threads > 1:
        yield Hit(
            f"{run.engine_threads} threads x {run.concurrency} requests = {threads} on "
            f"{run.cpu.cores} cores"
        )


def _read_disturbances(run: Summary) -> Disturbances:
    return Disturbances() if run.disturbed is UNSET else run.disturbed


@_rule("warning", "part of the process was in swap", "free memory, or use a smaller --batch")
def swapped(run: Summary) -> Iterator[Hit]:
    if (size := _read_disturbances(run).swapped_mb) > 1:
        yield Hit(f"{size:.0f} MB of this process were in swap at the end")


@_rule(
    "warning",
    "the machine throttled the run",
    "use the performance governor, more cooling, no CPU quota; or report the throttling, too",
)
def slowed_down(run: Summary) -> Iterator[Hit]:
    disturbances = _read_disturbances(run)
    if disturbances.hot:
        yield Hit(f"the cores were throttled by heat {counted(disturbances.hot, 'time')}")
    if disturbances.throttled_s > MUCH * run.seconds.get("run", 0.0) > 0:
        yield Hit(
            f"a CPU quota stopped the process for {disturbances.throttled_s:.1f} of "
            f"{run.seconds['run']:.1f} s"
        )
    if disturbances.governor:
        yield Hit(f"the clock governor is {disturbances.governor!r}")


@_rule(
    "warning",
    "nothing was warmed up before the first frame",
    "keep warm-up on, or exclude the first frames",
)
def no_warm_up(run: Summary) -> Iterator[Hit]:
    if run.frames.written and run.engine != "null" and not run.seconds.get("warmup"):
        yield Hit("no warm-up: the rates include the first inference")


@_rule("warning", "the run did not finish", "run it again before comparing its rates")
def cut_short(run: Summary) -> Iterator[Hit]:
    live = run.streams is not UNSET  # a run of cameras ends by a signal
    if run.exit.code not in (EXIT_DONE, EXIT_DAMAGED) and run.frames.written and not live:
        yield Hit(f"exit {run.exit.code}: {run.exit.reason}; {run.frames.written} frames")


@_rule(
    "note",
    "too few frames for a p99, and one slow moment shifts every rate",
    "use 200 frames for p99; run compare to measure a difference",
)
def few_frames(run: Summary) -> Iterator[Hit]:
    inferred = run.frames.written - _count_not_inferred(run)
    if 0 < inferred < 50 and run.streams is UNSET:
        yield Hit(f"{inferred} frames in {run.seconds.get('run', 0.0):.2f} s")


@_rule(
    "note",
    "end-to-end FPS includes frames without inference",
    "compare runs that use neither --skip-still nor --infer-every",
)
def repeated_detections(run: Summary) -> Iterator[Hit]:
    if count := _count_not_inferred(run):
        share = count / max(1, run.frames.written)
        yield Hit(
            f"{count} of {run.frames.written} frames ({share:.0%}) were not inferred but count in "
            "end-to-end FPS"
        )


def _count_not_inferred(run: Summary) -> int:
    return run.frames.reused + run.frames.coasted


@_rule(
    "note",
    "random weights: times are real, boxes are not; few boxes make nms and drawing cheap",
    "use real weights before you compare the stages head, nms and annotate",
)
def random_weights(run: Summary) -> Iterator[Hit]:
    if run.random_weights is not None:
        yield Hit(f"seed {run.random_weights}: {run.detections.total} detections are meaningless")


@_rule("note", "frames were lost or damaged", "compare only runs over the same frames")
def lost_frames(run: Summary) -> Iterator[Hit]:
    frames = run.frames
    if (lost := frames.bad + frames.corrupt) and run.streams is UNSET:
        yield Hit(f"{lost} of {frames.read + frames.bad} frames were bad or damaged")
