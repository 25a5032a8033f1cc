"""A timeline's sums as plain data, for one source or merged over several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from detector.core.session.document import LibraryStage, LibraryThreads, StageFigures, ThreadFigures
from detector.core.timeline import (
    STAGES,
    WAIT_INPUT,
    WAIT_OUTPUT,
    WORK,
    Burnt,
    OffTimeline,
    Timeline,
)
from detector.core.timeline.histogram import Histogram
from detector.core.timeline.native import StageThreads
from detector.core.timeline.order import in_order
from detector.core.timeline.spans import INFER, Span


@dataclass(slots=True)
class StageSum:
    """All calls of one stage. Times in nanoseconds."""

    threads: list[str] = field(default_factory=list)
    calls: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    durations: Histogram = field(default_factory=Histogram)

    def figures(self) -> StageFigures:
        return StageFigures(
            thread=",".join(self.threads),
            calls=self.calls,
            busy_s=self.busy_ns / 1e9,
            cpu_s=self.cpu_ns / 1e9,
            p50_ms=_ms(self.durations.percentile(50)),
            p90_ms=_ms(self.durations.percentile(90)),
            p99_ms=_ms(self.durations.percentile(99)),
            max_ms=_ms(self.durations.maximum) if self.calls else None,
        )


@dataclass(slots=True)
class ThreadSum:
    """One thread's wall time and its parts: busy + waits + other = wall. Nanoseconds."""

    busy_ns: int = 0
    wait_input_ns: int = 0
    wait_output_ns: int = 0
    other_ns: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    ready_ns: int | None = None
    waits: dict[str, int] = field(default_factory=dict)  # what it waited for -> ns

    def self_check(self) -> None:
        total = self.busy_ns + self.wait_input_ns + self.wait_output_ns + self.other_ns
        if total != self.wall_ns:
            raise AssertionError(
                f"a thread's ledger does not add up: {total} ns of {self.wall_ns} ns"
            )

    def figures(self) -> ThreadFigures:
        return ThreadFigures(
            busy_s=self.busy_ns / 1e9,
            wait_input_s=self.wait_input_ns / 1e9,
            wait_output_s=self.wait_output_ns / 1e9,
            other_s=self.other_ns / 1e9,
            wall_s=self.wall_ns / 1e9,
            cpu_s=self.cpu_ns / 1e9,
            ready_s=None if self.ready_ns is None else self.ready_ns / 1e9,
            waits={what: ns / 1e9 for what, ns in sorted(self.waits.items())},
        )


@dataclass(slots=True)
class Recording:
    stages: dict[str, StageSum] = field(default_factory=dict)
    threads: dict[str, ThreadSum] = field(default_factory=dict)
    infer_ns: int = 0  # time in which at least one infer was running
    # CPU time of libraries' own threads; None where the system does not tell.
    burnt: Burnt | None = None

    def self_check(self) -> None:
        for thread in self.threads.values():
            thread.self_check()


def record(timeline: Timeline | OffTimeline) -> Recording:
    """The sums of a finished timeline. Checks that every thread's times add up to its wall time."""
    recording = Recording({stage: StageSum() for stage in STAGES})
    if isinstance(timeline, OffTimeline):
        return recording
    for name, track in timeline.tracks.items():
        thread = recording.threads[name] = ThreadSum(
            other_ns=track.other_ns,
            wall_ns=track.wall_ns,
            cpu_ns=track.cpu_ns,
            ready_ns=track.ready_ns,
        )
        for (what, kind), span in track.spans.items():
            if kind == WORK:
                thread.busy_ns += span.self_ns
                _add(recording.stages.setdefault(what, StageSum()), name, span)
            else:
                thread.waits[what] = thread.waits.get(what, 0) + span.self_ns
                thread.wait_input_ns += span.self_ns if kind == WAIT_INPUT else 0
                thread.wait_output_ns += span.self_ns if kind == WAIT_OUTPUT else 0
    recording.stages = _ordered(recording.stages)
    recording.infer_ns = timeline.meters[INFER].total_ns
    recording.burnt = timeline.burnt()
    recording.self_check()
    return recording


def _ordered(stages: dict[str, StageSum]) -> dict[str, StageSum]:
    return {name: stages[name] for name in in_order(stages)}


def _add(stage: StageSum, thread: str, span: Span) -> None:
    stage.threads.append(thread)
    stage.calls += span.calls
    stage.busy_ns += span.self_ns
    stage.cpu_ns += span.cpu_ns
    stage.durations.merge(span.durations())


def merge_recordings(recordings: Iterable[Recording]) -> Recording:
    """The sums of several sources, one after the other."""
    total = Recording({stage: StageSum() for stage in STAGES})
    for recording in recordings:
        total.infer_ns += recording.infer_ns
        if recording.burnt is not None:
            total.burnt = _add_burnt(total.burnt or Burnt(others_ns=0), recording.burnt)
        for name, stage in recording.stages.items():
            into = total.stages.setdefault(name, StageSum())
            into.threads = list(dict.fromkeys([*into.threads, *stage.threads]))
            into.calls += stage.calls
            into.busy_ns += stage.busy_ns
            into.cpu_ns += stage.cpu_ns
            into.durations.merge(stage.durations)
        for name, thread in recording.threads.items():
            _merge_thread(total.threads.setdefault(name, ThreadSum()), thread)
    total.stages = _ordered(total.stages)
    return total


def _add_burnt(one: Burnt, other: Burnt) -> Burnt:
    """Two sources, one after the other: the sums, and the larger number of threads."""
    others = (
        None
        if one.others_ns is None or other.others_ns is None
        else one.others_ns + other.others_ns
    )
    stages = {}
    for name in (*one.stages, *other.stages):
        a, b = (burnt.stages.get(name, StageThreads()) for burnt in (one, other))
        stages[name] = StageThreads(
            a.calls + b.calls,
            max(a.threads, b.threads),
            a.cpu_ns + b.cpu_ns,
            a.busiest_ns + b.busiest_ns,
            a.ready_ns + b.ready_ns,
        )
    return Burnt(
        one.wall_ns + other.wall_ns,
        one.process_ns + other.process_ns,
        one.unknown_ns + other.unknown_ns,
        others,
        stages,
    )


def library_threads(burnt: Burnt | None) -> LibraryThreads | None:
    """CPU seconds of libraries' threads in the steady state, by the stage that they work for."""
    if burnt is None:
        return None
    return LibraryThreads(
        wall_s=burnt.wall_ns / 1e9,
        process_s=burnt.process_ns / 1e9,
        unknown_s=burnt.unknown_ns / 1e9,
        others_s=None if burnt.others_ns is None else burnt.others_ns / 1e9,
        stages={
            name: LibraryStage(
                threads=stage.threads,
                calls=stage.calls,
                cpu_s=stage.cpu_ns / 1e9,
                busiest_s=stage.busiest_ns / 1e9,
                ready_s=stage.ready_ns / 1e9,
            )
            for name, stage in sorted(burnt.stages.items())
        },
    )


def _merge_thread(into: ThreadSum, thread: ThreadSum) -> None:
    for key in ("busy_ns", "wait_input_ns", "wait_output_ns", "other_ns", "wall_ns", "cpu_ns"):
        setattr(into, key, getattr(into, key) + getattr(thread, key))
    if thread.ready_ns is not None:
        into.ready_ns = (into.ready_ns or 0) + thread.ready_ns
    for what, ns in thread.waits.items():
        into.waits[what] = into.waits.get(what, 0) + ns


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
