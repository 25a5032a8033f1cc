"""Add up the times of a timeline, for one source or for several sources together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from detector.core.session.document import (
    LibraryStage,
    LibraryThreads,
    StageFigures,
    ThreadFigures,
    ThreadTime,
)
from detector.core.timeline.histogram import Histogram
from detector.core.timeline.native import Burnt, StageThreads
from detector.core.timeline.order import in_order
from detector.core.timeline.spans import (
    INFER,
    KINDS,
    OTHER,
    STAGES,
    WAIT_INPUT,
    WAIT_OUTPUT,
    WORK,
    Span,
)
from detector.core.timeline.timeline import OffTimeline, Timeline


@dataclass(slots=True)
class SplitSum:
    """How a thread spent some time, in ns: on a core, ready but waiting for a core, or blocked."""

    on_cpu_ns: int = 0
    ready_ns: int = 0
    blocked_ns: int = 0

    def add(self, all_ns: int, on_cpu_ns: int, ready_ns: int) -> None:
        self.on_cpu_ns += on_cpu_ns
        self.ready_ns += ready_ns
        self.blocked_ns += all_ns - on_cpu_ns - ready_ns

    def merge(self, other: SplitSum) -> None:
        self.on_cpu_ns += other.on_cpu_ns
        self.ready_ns += other.ready_ns
        self.blocked_ns += other.blocked_ns

    @property
    def all_ns(self) -> int:
        return self.on_cpu_ns + self.ready_ns + self.blocked_ns

    def figures(self) -> ThreadTime:
        return ThreadTime(
            on_cpu_s=self.on_cpu_ns / 1e9,
            ready_s=self.ready_ns / 1e9,
            blocked_s=self.blocked_ns / 1e9,
        )


@dataclass(slots=True)
class StageSum:
    """A stage's sums, in ns. ``split`` is valid only if ``has_split``: some kernels do not report
    waits for a core. ``library_ns``: CPU time of the engine's own threads, if it was measured."""

    threads: list[str] = field(default_factory=list)
    calls: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    durations: Histogram = field(default_factory=Histogram)
    split: SplitSum = field(default_factory=SplitSum)
    has_split: bool = False
    library_ns: int | None = None

    def figures(self, burnt: Burnt | None = None, name: str = "") -> StageFigures:
        """Return figures of the stage ``name``. ``burnt``: CPU time of libraries' threads in the
        steady state, which we scale to all calls."""
        libraries = None if burnt is None else burnt.stages.get(name, StageThreads())
        calls = self.calls / libraries.calls if libraries is not None and libraries.calls else 0.0
        library_ns = None if libraries is None else libraries.cpu_ns * calls
        if self.library_ns is not None:
            library_ns = self.library_ns
        return StageFigures(
            thread=",".join(self.threads),
            calls=self.calls,
            busy_s=self.busy_ns / 1e9,
            cpu_s=self.cpu_ns / 1e9,
            p50_ms=_ms(self.durations.percentile(50)),
            p90_ms=_ms(self.durations.percentile(90)),
            p99_ms=_ms(self.durations.percentile(99)),
            max_ms=_ms(self.durations.maximum) if self.calls else None,
            split=self.split.figures() if self.has_split else None,
            library_cpu_s=None if library_ns is None else library_ns / 1e9,
            library_ready_s=None if libraries is None else libraries.ready_ns * calls / 1e9,
        )


@dataclass(slots=True)
class ThreadSum:
    """A thread's sums: wall = busy + waits + other. ``splits``: kind of span -> its SplitSum."""

    busy_ns: int = 0
    wait_input_ns: int = 0
    wait_output_ns: int = 0
    other_ns: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    ready_ns: int | None = None
    waits: dict[str, int] = field(default_factory=dict)  # what the thread waited for -> ns
    splits: dict[str, SplitSum] = field(
        default_factory=lambda: {kind: SplitSum() for kind in KINDS}
    )

    @property
    def unplaced_ns(self) -> int:
        """How far the kernel's CPU and ready times are from the sums of the splits, in total."""
        parts = self.splits.values()
        cpu = sum(part.on_cpu_ns for part in parts)
        ready = sum(part.ready_ns for part in parts)
        return abs(self.cpu_ns - cpu) + abs((self.ready_ns or 0) - ready)

    def self_check(self) -> None:
        total = self.busy_ns + self.wait_input_ns + self.wait_output_ns + self.other_ns
        if total != self.wall_ns:
            raise AssertionError(
                f"a thread's ledger does not add up: {total} ns of {self.wall_ns} ns"
            )
        parts = sum(split.all_ns for split in self.splits.values())
        if self.ready_ns is not None and parts != self.wall_ns:
            raise AssertionError(f"a thread's split is {parts} ns of {self.wall_ns} ns")

    def figures(self, burnt: Burnt | None = None) -> ThreadFigures:
        """Return the thread's figures. ``burnt``: CPU time of other threads and programs."""
        waits = SplitSum()
        for kind in (WAIT_INPUT, WAIT_OUTPUT):
            waits.merge(self.splits[kind])
        is_split = self.ready_ns is not None
        return ThreadFigures(
            busy_s=self.busy_ns / 1e9,
            wait_input_s=self.wait_input_ns / 1e9,
            wait_output_s=self.wait_output_ns / 1e9,
            other_s=self.other_ns / 1e9,
            wall_s=self.wall_ns / 1e9,
            cpu_s=self.cpu_ns / 1e9,
            ready_s=None if self.ready_ns is None else self.ready_ns / 1e9,
            waits={what: ns / 1e9 for what, ns in sorted(self.waits.items())},
            busy_split=self.splits[WORK].figures() if is_split else None,
            wait_split=waits.figures() if is_split else None,
            other_split=self.splits[OTHER].figures() if is_split else None,
            unplaced_s=self.unplaced_ns / 1e9 if is_split else None,
            foreign_share=self._foreign_share(burnt) if is_split else None,
        )

    def _foreign_share(self, burnt: Burnt | None) -> float | None:
        """Return other programs' share of the core time that all threads but this one used."""
        if burnt is None or burnt.others_ns is None or not self.wall_ns:
            return None
        own = self.cpu_ns * min(1.0, burnt.wall_ns / self.wall_ns)
        competing = max(0.0, burnt.process_ns - own) + burnt.others_ns
        return round(burnt.others_ns / competing, 4) if competing else None


@dataclass(slots=True)
class TimelineSums:
    stages: dict[str, StageSum] = field(default_factory=dict)
    threads: dict[str, ThreadSum] = field(default_factory=dict)
    infer_ns: int = 0  # time with at least one inference running
    # CPU time of libraries' own threads; None if the system does not report it.
    burnt: Burnt | None = None

    def self_check(self) -> None:
        for thread in self.threads.values():
            thread.self_check()


def record(timeline: Timeline | OffTimeline, *, durations: bool = True) -> TimelineSums:
    """Return a timeline's sums. Checks that each thread's times add up to its wall time.
    ``durations``: whether to make histograms of the stages' spans, for percentiles."""
    recording = TimelineSums({stage: StageSum() for stage in STAGES})
    if isinstance(timeline, OffTimeline):
        return recording
    for name, track in timeline.tracks.items():
        thread = recording.threads[name] = ThreadSum(
            other_ns=track.other_ns,
            wall_ns=track.wall_ns,
            cpu_ns=track.cpu_ns,
            ready_ns=track.ready_ns,
        )
        other = track.other
        thread.splits[OTHER].add(other.call_ns, other.on_cpu_ns, other.ready_ns)
        for (what, kind), span in track.spans.items():
            thread.splits[kind].add(span.self_ns, span.on_cpu_ns, span.ready_ns)
            if kind == WORK:
                thread.busy_ns += span.self_ns
                stage = recording.stages.setdefault(what, StageSum())
                stage.has_split = track.ready_ns is not None
                _add(stage, name, span)
                if durations:
                    stage.durations.merge(span.durations())
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
    stage.split.add(span.self_ns, span.on_cpu_ns, span.ready_ns)
    if span.is_booked:
        stage.library_ns = (stage.library_ns or 0) + span.library_ns


def merge_recordings(recordings: Iterable[TimelineSums]) -> TimelineSums:
    """Return the sums of several sources that ran one after the other."""
    total = TimelineSums({stage: StageSum() for stage in STAGES})
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
            into.split.merge(stage.split)
            into.has_split |= stage.has_split
            if stage.library_ns is not None:
                into.library_ns = (into.library_ns or 0) + stage.library_ns
        for name, thread in recording.threads.items():
            _merge_thread(total.threads.setdefault(name, ThreadSum()), thread)
    total.stages = _ordered(total.stages)
    return total


def _add_burnt(first: Burnt, second: Burnt) -> Burnt:
    """Add the times of two sources that ran in turn. Keep each stage's larger number of threads."""
    others = (
        None
        if first.others_ns is None or second.others_ns is None
        else first.others_ns + second.others_ns
    )
    stages = {}
    for name in (*first.stages, *second.stages):
        a, b = (burnt.stages.get(name, StageThreads()) for burnt in (first, second))
        stages[name] = StageThreads(
            a.calls + b.calls,
            max(a.threads, b.threads),
            a.cpu_ns + b.cpu_ns,
            a.busiest_ns + b.busiest_ns,
            a.ready_ns + b.ready_ns,
        )
    return Burnt(
        first.wall_ns + second.wall_ns,
        first.process_ns + second.process_ns,
        first.unknown_ns + second.unknown_ns,
        others,
        stages,
    )


def library_threads(burnt: Burnt | None) -> LibraryThreads | None:
    """Return the CPU seconds of libraries' threads in the steady state, by stage."""
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
    for kind, split in thread.splits.items():
        into.splits[kind].merge(split)
    for what, ns in thread.waits.items():
        into.waits[what] = into.waits.get(what, 0) + ns


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
