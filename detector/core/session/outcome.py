"""The results of each source of a run, from which the summary and the session are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, DetectVideoError
from detector.core.errors.text import counted
from detector.core.timeline.timeline import OffTimeline, Timeline
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
    """The result of one source. ``cut``: number of detections that --max-det dropped. ``partial``:
    files that a failed run left. ``live_s``: how long a camera was live; used for its rates."""

    spec: str
    timeline: Timeline | OffTimeline
    info: SourceInfo | None = None
    decoder: str = ""
    pixels: str = ""  # see ``document.Video.pixels``
    read: int = 0
    written: int = 0
    reused: int = 0
    coasted: int = 0
    counts: ReadCounts = field(default_factory=ReadCounts)
    run_s: float = 0.0
    live_s: float | None = None
    process_cpu_s: float = 0.0
    main_thread_cpu_s: float = 0.0
    device_ms: float | None = None  # sum over all batches; None if the device reports no time
    by_class: Counter[int] = field(default_factory=Counter)
    loop: LoopSizes = field(default_factory=dict)  # type: ignore[assignment]
    cut: int = 0
    empty: int = 0  # frames without detections
    outputs: dict[str, str] = field(default_factory=dict)
    partial: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: DetectVideoError | None = None
    sha256: str | None = None  # digest of the file that was read
    zones: list[ZoneTotals] = field(default_factory=list)
    scenes: list[SceneHistory] = field(default_factory=list)

    @property
    def inferred(self) -> int:
        """Number of written frames that the network ran on."""
        return self.written - self.reused - self.coasted


def exit_of(
    runs: Sequence[SourceRun],
    stop_code: int | None = None,
    unwritten: Sequence[DetectVideoError] = (),
) -> Exit:
    """Return the exit code and reason of a run.

    Order of precedence: an interruption (``stop_code``), the first source that failed, the first
    session file that could not be written (``unwritten``), damage in a source.
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
    counts, losses = run.counts, []
    if counts.bad:
        pictures = run.info is not None and run.info.kind == "pictures"
        noun = "bad picture" if pictures else "bad packet"
        losses.append(f"{counted(counts.bad, noun, 'was')} skipped")
    if counts.corrupt:
        losses.append(f"{counted(counts.corrupt, 'frame')} decoded with damage")
    if counts.ended_early:
        losses.append("the file ended early, or its container is damaged")
    return f"finished, but {' and '.join(losses)}"


@dataclass(frozen=True, slots=True)
class ExecutedLayer:
    """A layer as it ran. ``macs`` and ``elements`` (values read and written) are per batch."""

    name: str
    precision: str  # fp32, tf32, bf16, fp16, int8, or another type's name
    macs: int
    elements: int


@dataclass(frozen=True, slots=True)
class RunSettings:
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
    # The user's option for encoding the video, and its value; None if the user gave none.
    encoding: tuple[str, str] | None = None
    layers: tuple[ExecutedLayer, ...] = ()  # empty if the engine does not report its layers
    # Height and width of the next smaller input that the model was trained for, if any.
    smaller_input: tuple[int, int] | None = None
    input_shapes: InputShapes | None = None  # with --rect
    # Name of a stage between nms and annotate -> what the stage does, options that reduce its work.
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tiles: int = 1  # network inputs per frame (--tiles)
    device: str = ""  # the engine's device; "" for the CPU
    device_name: str = ""  # full name; "" if the engine's library gives none
