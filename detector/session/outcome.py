"""What happened in a run, source by source: the facts of which summary and session are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from detector.errors import EXIT_DAMAGED, EXIT_DONE, DetectVideoError
from detector.session.document import Exit, LoopSizes
from detector.timeline import OffTimeline, Timeline
from detector.types import SourceInfo


@dataclass(slots=True)
class SourceRun:
    """What happened to one source. ``cut``: detections that --max-det left out; ``partial``: files
    of a failed run that were kept under their temporary names."""

    spec: str
    timeline: Timeline | OffTimeline
    info: SourceInfo | None = None
    decoder: str = ""
    read: int = 0
    written: int = 0
    bad: int = 0
    corrupt: int = 0
    skipped: int = 0
    ended_early: bool = False
    run_s: float = 0.0
    process_cpu_s: float = 0.0
    main_thread_cpu_s: float = 0.0
    device_ms: float | None = None  # of all batches; None where the device reports no time
    by_class: Counter[int] = field(default_factory=Counter)
    loop: LoopSizes = field(default_factory=LoopSizes)
    cut: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    partial: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: DetectVideoError | None = None


def exit_of(
    runs: Sequence[SourceRun],
    stop_code: int | None = None,
    unwritten: Sequence[DetectVideoError] = (),
) -> Exit:
    """Exit code and reason of a run. Nothing else decides them.

    ``runs``: all its sources, or one of them alone. An interruption (``stop_code``: its exit code)
    comes first, then the first source that failed, then the first session file that could not be
    written (``unwritten``), then damage in a source.
    """
    if stop_code is not None:
        return Exit(
            code=stop_code, reason="interrupted: what was read so far is written and closed"
        )
    failed = [run.error for run in runs if run.error is not None]
    for error in [*failed, *unwritten]:
        return Exit(code=error.exit_code, reason=str(error))
    for run in runs:
        if reason := _damage(run):
            return Exit(code=EXIT_DAMAGED, reason=reason)
    return Exit(code=EXIT_DONE, reason="done")


def _damage(run: SourceRun) -> str | None:
    """Which part of the source did not come out whole; None where nothing is missing."""
    what = []
    if run.bad:
        pictures = run.info is not None and run.info.kind == "pictures"
        noun = ("picture" if pictures else "packet") + ("" if run.bad == 1 else "s")
        what.append(f"{run.bad} bad {noun} {'was' if run.bad == 1 else 'were'} skipped")
    if run.ended_early:
        what.append("the file ended early")
    return f"finished, but {' and '.join(what)}" if what else None


@dataclass(frozen=True, slots=True)
class ExecutedLayer:
    """One layer as the engine ran it, with its cost on the graph. ``macs`` and ``elements``
    (numbers read and written) are of a whole batch."""

    name: str
    precision: str  # fp32, tf32, bf16, fp16, int8, or another type's name
    macs: int
    elements: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts that all sources of a run share."""

    model: str
    family: str
    engine: str
    engine_reason: str | None
    precision: str
    batch: int
    model_input: tuple[int, int]  # height, width
    class_names: tuple[str, ...]
    random_weights: int | None
    threads: int
    concurrency: int
    cores: int
    sync: bool
    notes: list[str]
    preset: str | None = None  # x264 preset of the annotated video
    layers: tuple[ExecutedLayer, ...] = ()  # empty: the engine cannot tell what it ran
