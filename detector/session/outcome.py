"""What happened in a run, source by source: the facts that summary and session are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from detector.errors import EXIT_DAMAGED, EXIT_DONE, DetectVideoError
from detector.timeline import OffTimeline, Timeline
from detector.types import SourceInfo


@dataclass(slots=True)
class SourceRun:
    """What happened to one source. ``cut``: detections that --max-det left out; ``partial``: files of a failed run
    that were kept under their temporary names."""

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
    device_ms: float | None = (
        None  # of all batches, as the device reports it; None where it reports none
    )
    by_class: Counter[int] = field(default_factory=Counter)
    loop: dict[str, Any] = field(
        default_factory=dict
    )  # the sizes that bound it: analysis.activities.LoopShape
    cut: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    partial: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: DetectVideoError | None = None

    def exit(self) -> tuple[int, str]:
        """Exit code and reason of this source alone, interruption apart."""
        if self.error is not None:
            return self.error.exit_code, str(self.error)
        if self.bad or self.ended_early:
            kind = (
                "pictures" if self.info is not None and self.info.kind == "pictures" else "packets"
            )
            what = [f"{self.bad} bad {kind} were skipped"] if self.bad else []
            what += ["the file ended early"] if self.ended_early else []
            return EXIT_DAMAGED, f"finished, but {' and '.join(what)}"
        return EXIT_DONE, "done"


@dataclass(frozen=True, slots=True)
class ExecutedLayer:
    """One layer as the engine ran it, with what it costs on the graph. ``macs`` and ``elements`` (numbers read and
    written) are of a whole batch."""

    name: str
    precision: str  # fp32, tf32, bf16, fp16, int8, or another type's name
    macs: int
    elements: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is the same for all sources of a run."""

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
    model_facts: dict[str, Any] = field(default_factory=dict)
    layers: tuple[ExecutedLayer, ...] = ()  # empty: the engine cannot tell what it ran
