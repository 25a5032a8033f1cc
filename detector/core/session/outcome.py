"""The results of a run, source by source: the facts behind its summary and session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, DetectVideoError
from detector.core.errors.text import counted
from detector.core.timeline import OffTimeline, Timeline
from detector.core.types import ReadCounts, SourceInfo

if TYPE_CHECKING:
    from detector.core.session.document import (
        Exit,
        InputShapes,
        LoopSizes,
        SceneHistory,
        ZoneTotals,
    )


@dataclass(slots=True)
class SourceRun:
    """``cut``: detections dropped by --max-det; ``partial``: files of a failed run. ``live_s``:
    seconds in which a camera was live, the base of a live run's rates."""

    spec: str
    timeline: Timeline | OffTimeline
    info: SourceInfo | None = None
    decoder: str = ""
    pixels: str = ""  # that it gave: "yuv420p", "bgr", "bgr: why no planes"
    read: int = 0
    written: int = 0
    reused: int = 0
    coasted: int = 0
    counts: ReadCounts = field(default_factory=ReadCounts)
    run_s: float = 0.0
    live_s: float | None = None
    process_cpu_s: float = 0.0
    main_thread_cpu_s: float = 0.0
    device_ms: float | None = None  # of all batches; None where the device reports no time
    by_class: Counter[int] = field(default_factory=Counter)
    loop: LoopSizes = field(default_factory=dict)  # type: ignore[assignment]
    cut: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    partial: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: DetectVideoError | None = None
    sha256: str | None = None  # of the file that was read
    zones: list[ZoneTotals] = field(default_factory=list)
    scenes: list[SceneHistory] = field(default_factory=list)

    @property
    def inferred(self) -> int:
        """Return how many written frames the network saw."""
        return self.written - self.reused - self.coasted


def exit_of(
    runs: Sequence[SourceRun],
    stop_code: int | None = None,
    unwritten: Sequence[DetectVideoError] = (),
) -> Exit:
    """Exit code and reason of a run. Nothing else decides them.

    An interruption (``stop_code``) comes first, then the first source that failed, then the first
    session file that could not be written (``unwritten``), then damage in a source.
    """
    from detector.core.session.document import Exit

    if stop_code is not None:
        return Exit(
            code=stop_code, reason="interrupted; what was read so far was written and closed"
        )
    failed = [run.error for run in runs if run.error is not None]
    for error in [*failed, *unwritten]:
        return Exit(code=error.exit_code, reason=str(error))
    for run in runs:
        if run.counts.damaged:
            return Exit(code=EXIT_DAMAGED, reason=_describe_damage(run))
    return Exit(code=EXIT_DONE, reason="done")


def _describe_damage(run: SourceRun) -> str:
    """Which part of a damaged source did not come out whole."""
    counts, what = run.counts, []
    if counts.bad:
        pictures = run.info is not None and run.info.kind == "pictures"
        noun = "bad picture" if pictures else "bad packet"
        what.append(f"{counted(counts.bad, noun, 'was')} skipped")
    if counts.corrupt:
        what.append(f"{counted(counts.corrupt, 'frame')} decoded with damage")
    if counts.ended_early:
        what.append("the file ended early, or its container is damaged")
    return f"finished, but {' and '.join(what)}"


@dataclass(frozen=True, slots=True)
class ExecutedLayer:
    """``macs`` and ``elements`` (numbers read and written) are of a whole batch."""

    name: str
    precision: str  # fp32, tf32, bf16, fp16, int8, or another type's name
    macs: int
    elements: int


@dataclass(frozen=True, slots=True)
class RunFacts:
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
    # The option that says how the video is encoded, and its value; None: none was given.
    encoding: tuple[str, str] | None = None
    layers: tuple[ExecutedLayer, ...] = ()  # empty: the engine cannot tell what it ran
    # Height and width of the next smaller one that the model was trained for; None: it has none.
    smaller_input: tuple[int, int] | None = None
    input_shapes: InputShapes | None = None  # of --rect
    # A stage between nms and annotate -> what it does, and which options take work out of it.
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tiles: int = 1  # inputs of the network that a frame is (--tiles)
    device: str = ""  # of the engine; "" is the CPU
    device_name: str = ""  # in full; "" where the engine's library gives none
