"""The ledger: milliseconds per frame of each stage and each thread, computed from a summary."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from detector.core.session.document import Summary, ThreadTime


@dataclass(frozen=True, slots=True)
class SplitMs:
    on_cpu_ms: float
    ready_ms: float
    blocked_ms: float

    @classmethod
    def of(cls, split: ThreadTime | None, frames: int) -> SplitMs | None:
        if split is None:
            return None
        parts = (split.on_cpu_s, split.ready_s, split.blocked_s)
        return cls(*(seconds * 1e3 / frames for seconds in parts))


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage in the ledger, in milliseconds per frame. ``share``: share (0 to 1) of its threads'
    time in which it was busy. ``on_cpu_ms``, ``ready_ms`` and ``blocked_ms`` add up to ``busy_ms``;
    they are None if unknown. ``cpu_ms``: CPU time, including that of libraries' threads."""

    stage: str
    thread: str
    busy_ms: float
    share: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    cpu_ms: float
    on_cpu_ms: float | None = None
    ready_ms: float | None = None
    blocked_ms: float | None = None

    @property
    def run_by(self) -> str:
        """The stage's threads: ``reader``, or ``3 workers`` for worker-0,worker-1,worker-2."""
        count = len(self.thread.split(","))
        return self.thread if count == 1 else f"{count} workers"


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread in the ledger, in milliseconds per frame: wall = busy + waits + preempted + other.

    ``foreign``: other programs caused this share (0 to 1) of its waiting for a core. ``rest``: the
    unexplained time (``ThreadFigures.unplaced_s``) as a share of the thread's wall time.
    """

    thread: str
    busy_ms: float
    wait_input_ms: float
    wait_output_ms: float
    between_ms: float
    wall_ms: float
    waits: tuple[str, ...]  # names of its waits, the longest first
    busy: SplitMs | None = None
    waiting: SplitMs | None = None
    other: SplitMs | None = None
    foreign: float | None = None
    rest: float | None = None

    @property
    def preempted_ms(self) -> float:
        """Time that the thread waited for a core between stages and waits; 0 if unknown."""
        return 0.0 if self.other is None else self.other.ready_ms

    @property
    def other_ms(self) -> float:
        """The rest of the time between stages and waits: on a core, or waiting for a lock."""
        return self.between_ms - self.preempted_ms

    @property
    def ready_ms(self) -> float | None:
        """All time waiting for a core: in stages, after waits, and between stages and waits."""
        splits = [split for split in (self.busy, self.waiting, self.other) if split is not None]
        return sum(split.ready_ms for split in splits) if splits else None

    @property
    def foreign_ms(self) -> float | None:
        """The part of ``ready_ms`` in which other programs held the core, not our own threads."""
        ready = self.ready_ms
        return None if ready is None or self.foreign is None else ready * self.foreign

    @property
    def lock_ms(self) -> float | None:
        """Time between stages and waits, spent waiting for the interpreter's or a queue's lock."""
        return None if self.other is None else self.other.blocked_ms


def stage_cpu_s(summary: Summary, name: str) -> float:
    """Return CPU seconds of a stage and its library threads; with --sync, of the whole process."""
    stage = summary.stages[name]
    inside = summary.cpu.stages_include_libraries
    return stage.cpu_s + (0.0 if inside else stage.library_cpu_s or 0.0)


def unbooked_cpu_s(summary: Summary) -> float:
    """Return the CPU seconds of libraries' threads that cannot be attributed to a stage."""
    booked = sum(stage.library_cpu_s or 0.0 for stage in summary.stages.values())
    return max(0.0, summary.cpu.library_threads_s - booked)


def stage_rows(summary: Summary, frames: int) -> list[StageRow]:
    rows = []
    for name, stage in summary.stages.items():
        if not stage.calls:
            continue
        wall = sum(summary.threads[thread].wall_s for thread in stage.threads)
        split = SplitMs.of(stage.split, frames)
        rows.append(
            StageRow(
                stage=name,
                thread=stage.thread,
                busy_ms=stage.busy_s * 1e3 / frames,
                share=stage.busy_s / wall if wall else 0.0,
                p50_ms=stage.p50_ms,
                p90_ms=stage.p90_ms,
                p99_ms=stage.p99_ms,
                cpu_ms=stage_cpu_s(summary, name) * 1e3 / frames,
                **({} if split is None else asdict(split)),
            )
        )
    return rows


def thread_rows(summary: Summary, frames: int) -> list[ThreadRow]:
    """Return a row per thread. Raises AssertionError if its times do not sum to its wall time."""
    rows = []
    for name, thread in summary.threads.items():
        wall_s = thread.wall_s
        seconds = (thread.busy_s, thread.wait_input_s, thread.wait_output_s, thread.other_s, wall_s)
        busy, wait_input, wait_output, other, wall = (part_s * 1e3 / frames for part_s in seconds)
        if abs(busy + wait_input + wait_output + other - wall) > 1e-6 * max(1.0, wall):
            raise AssertionError(f"the ledger of thread {name} does not add up: {seconds} s")
        waits = sorted(thread.waits.items(), key=lambda item: -item[1])
        waited_for = tuple(what for what, waited_s in waits if waited_s > 0)
        rows.append(
            ThreadRow(
                name,
                busy,
                wait_input,
                wait_output,
                other,
                wall,
                waited_for,
                busy=SplitMs.of(thread.busy_split, frames),
                waiting=SplitMs.of(thread.wait_split, frames),
                other=SplitMs.of(thread.other_split, frames),
                foreign=thread.foreign_share,
                rest=thread.unplaced_s / wall_s
                if thread.unplaced_s is not None and wall_s
                else None,
            )
        )
    return rows
