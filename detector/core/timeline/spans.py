"""What one thread records: a ``Track`` of ``Span``s, one for each stage and each kind of wait.

Only its own thread writes to a track, so it needs no lock. From top to bottom: the names of stages
and kinds, the meter that several threads share, a span, a track, and their stand-ins for a timeline
that is off.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Any

from detector.core.timeline.histogram import Histogram
from detector.core.timeline.native import Natives, times_of
from detector.core.timeline.nvtx_ranges import ThreadRange
from detector.core.timeline.rows import BLOCK, Ring, Rows, Spool

# The seven stages of a frame's life. JSON, NVTX, tables and verdicts use the same names.
READ = "read"
PREPROCESS = "preprocess"
INFER = "infer"
HEAD = "head"
NMS = "nms"
ANNOTATE = "annotate"
WRITE = "write"

STAGES = (READ, PREPROCESS, INFER, HEAD, NMS, ANNOTATE, WRITE)

WORK = "work"  # a stage's own call
WAIT_INPUT = "wait_input"  # nothing to do yet: the stage before is not ready
WAIT_OUTPUT = "wait_output"  # no room: the stage after has not given buffers or queue places back
OTHER = "other"  # what lies between spans

KINDS = (WORK, WAIT_INPUT, WAIT_OUTPUT, OTHER)


class Meter:
    """How long at least one of several threads was inside a stage: the length of a union of
    intervals.

    Inference FPS is frames / seconds in which at least one ``infer`` was running. So neither a slow
    reader nor several requests at once distort it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0
        self.total_ns = 0

    def enter(self, now: int) -> None:
        with self._lock:
            if not self._inside:
                # A thread may read its clock and be overtaken before it gets the lock. ``max``
                # keeps time from being counted twice.
                self._since = max(now, self._since)
            self._inside += 1

    def leave(self, now: int) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self.total_ns += max(0, now - self._since)
                self._since = now

    def so_far(self, now: int) -> int:
        """``total_ns`` with what has been spent inside since the last time that nobody was."""
        with self._lock:
            return self.total_ns + (max(0, now - self._since) if self._inside else 0)


class Span:
    """Context manager around each call of a stage, or each wait of one kind, on one thread.

    It is made once per stage and kind of a track and used for every call, so that a call costs two
    clock reads and allocates nothing. Time in nested spans counts for the innermost only. A stage
    cannot nest in itself.

    Totals: ``calls``, ``self_ns`` (without what nested spans took), ``cpu_ns``; ``last_ns``: of the
    last call, as ``self_ns``. One row per call: the first ``room``, or with ``ring`` the last.
    """

    __slots__ = (
        "_cpu_clock",
        "_cpu_start",
        "_histogram",
        "_kept",
        "_meter",
        "_outer",
        "_pending",
        "_range",
        "_ring",
        "_start",
        "_track",
        "calls",
        "cpu_ns",
        "index",
        "inner_cpu_ns",
        "inner_ns",
        "kind",
        "last_ns",
        "room",
        "self_ns",
        "stage",
    )

    def __init__(
        self,
        track: Track,
        stage: str,
        kind: str,
        cpu_clock: Callable[[], int] | None,
        meter: Meter | None,
        nvtx: ThreadRange | None,
        room: int,
        ring: bool = False,
        spool: Spool | None = None,
    ) -> None:
        self._track, self.stage, self.kind = track, stage, kind
        self._cpu_clock, self._meter, self._range = cpu_clock, meter, nvtx
        self._histogram = Histogram()
        self._pending = array("q")
        self._start = self._cpu_start = 0
        self._outer: Span | None = None
        self.index = 0
        self.calls = self.self_ns = self.cpu_ns = self.last_ns = 0
        self.inner_ns = self.inner_cpu_ns = 0
        self.room = 0 if ring else room  # rows that may still be kept
        self._ring = Ring(room) if ring else None
        self._kept = Rows(spool)

    def __enter__(self) -> None:
        track = self._track
        self._outer = track.innermost
        track.innermost = self
        self.inner_ns = self.inner_cpu_ns = 0
        if self._cpu_clock is not None:
            self._cpu_start = self._cpu_clock()
        # Next to the clock, here and at the end: asking for the thread's CPU time is a system call,
        # at which a busy machine takes the core away, and the range would hold that time too.
        if self._range is not None:
            self._range.push(self.index)
        self._start = start = track.clock()
        if self._outer is None:
            track.other_ns += start - track.last_end
        if self._meter is not None:
            self._meter.enter(start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        track = self._track
        end = track.clock()
        if self._range is not None:
            self._range.pop()
        if self._meter is not None:
            self._meter.leave(end)
        if self._cpu_clock is not None:
            cpu_ns = self._cpu_clock() - self._cpu_start
            self.cpu_ns += cpu_ns - self.inner_cpu_ns
        else:
            cpu_ns = 0
        duration = end - self._start
        outer = track.innermost = self._outer
        if outer is None:
            track.last_end = end
        else:
            outer.inner_ns += duration
            outer.inner_cpu_ns += cpu_ns
        duration -= self.inner_ns
        self.calls += 1
        self.self_ns += duration
        self.last_ns = duration
        self._pending.append(duration)
        if len(self._pending) == BLOCK:
            self._flush()
        if self.room:
            self.room -= 1
            kept = self._kept
            kept.indices.append(self.index)
            kept.starts.append(self._start)
            kept.ends.append(end)
        elif self._ring is not None:
            self._ring.put(self.index, self._start, end)

    @property
    def rows(self) -> Rows | Ring:
        """Index, start and end of each call that was kept, in their order."""
        return self._kept if self._ring is None else self._ring

    def _flush(self) -> None:
        """Durations and rows are taken in blocks: 0.05 us each for 4096 of them, 0.5 us each one by
        one."""
        self._histogram.add_many(self._pending)
        self._pending = array("q")
        self._kept.pack()

    def durations(self) -> Histogram:
        """Of all calls so far. For the track's own thread, or after it has ended."""
        self._flush()
        return self._histogram


class OffSpan:
    """The span of a timeline that is off; all calls share one."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        return None


# Rows (index, start, end: some 8 bytes) that are kept for every stage and kind of wait of a track:
# 2.4 MB, more than a clip of three hours needs. Sums and percentiles go on after that; the session
# says how many rows it kept.
MAX_ROWS = 300_000


class Track:
    """``with timeline.track("reader") as track:`` around a thread's life, ``with track.span(READ,
    i):`` in it.

    The same name may be entered again later; its sums go on.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], int],
        cpu_clock: Callable[[], int],
        meters: dict[str, Meter],
        domain: Any | None,
        max_rows: int = MAX_ROWS,
        natives: Natives | None = None,
        ring: bool = False,
        spool: Spool | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.innermost: Span | None = None
        self.last_end = 0
        self.other_ns = 0
        self.wall_ns = 0
        self.cpu_ns = 0
        self.ready_ns: int | None = None  # runnable but not scheduled, where the kernel tells
        self.spans: dict[tuple[str, str], Span] = {}  # (stage, kind) -> span
        self.lives = array("q")  # start and end of each time the track was entered
        self._cpu_clock, self._meters, self._domain, self._max_rows = (
            cpu_clock,
            meters,
            domain,
            max_rows,
        )
        self._natives = natives
        self._ring = ring
        self._spool = spool
        self._start = self._cpu_start = 0
        self._ready_start: int | None = None

    def __enter__(self) -> Track:
        self._ready_start = _ready_ns()
        self._cpu_start = self._cpu_clock()
        self._start = self.last_end = self.clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        end = self.clock()
        self.other_ns += end - self.last_end
        self.wall_ns += end - self._start
        self.cpu_ns += self._cpu_clock() - self._cpu_start
        self.lives.extend((self._start, end))
        ready = _ready_ns()
        if ready is not None and self._ready_start is not None:
            self.ready_ns = (self.ready_ns or 0) + ready - self._ready_start
        if self._natives is not None:
            self._natives.left()

    def span(self, stage: str, index: int, kind: str = WORK) -> Span | FirstCall:
        """The context manager for one call; enter it at once.

        It is the same object for every call of a stage on this track after the first.
        """
        span = self.spans.get((stage, kind))
        if span is None:
            span = self.spans[stage, kind] = self._make(stage, kind)
            span.index = index
            return (
                FirstCall(span, self._natives)
                if self._natives is not None and kind == WORK
                else span
            )
        span.index = index
        return span

    def _make(self, stage: str, kind: str) -> Span:
        work = kind == WORK
        nvtx = ThreadRange(self._domain, stage, kind) if self._domain is not None else None
        meter = self._meters.get(stage) if work else None
        # A wait's CPU time is not measured: the two clock reads would be most of it.
        cpu_clock = self._cpu_clock if work else None
        return Span(
            self, stage, kind, cpu_clock, meter, nvtx, self._max_rows, self._ring, self._spool
        )

    def last_ms(self, stage: str) -> float:
        """How long this thread's last call of a stage took."""
        return self.spans[stage, WORK].last_ns / 1e6

    def busy_ns(self) -> int:
        return sum(span.self_ns for (_, kind), span in list(self.spans.items()) if kind == WORK)


class FirstCall:
    """A stage's first call on a thread. Threads that libraries start in it are the stage's."""

    def __init__(self, span: Span, natives: Natives) -> None:
        self._span, self._born = span, natives.born(span.stage)

    def __enter__(self) -> None:
        self._born.__enter__()
        self._span.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self._span.__exit__(kind, error, trace)
        self._born.__exit__(None, None, None)


def _ready_ns() -> int | None:
    """Nanoseconds that the calling thread has spent on a run queue so far."""
    times = times_of()
    return None if times is None else times.ready


_OFF_SPAN = OffSpan()


class OffTrack:
    """The track of a timeline that is off: nothing is timed, nothing is kept."""

    def __enter__(self) -> OffTrack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        return None

    def span(self, stage: str, index: int, kind: str = WORK) -> OffSpan:
        return _OFF_SPAN

    def last_ms(self, stage: str) -> float:
        raise AssertionError("nothing is timed: Parts.timed is for a timeline that measures")
