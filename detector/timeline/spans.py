"""A track: everything that one thread recorded. Only its own thread writes to it, so it needs no
lock.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from detector.timeline.native import Natives, times_of

# ----------------------------------------------------------------------
# The seven stages of a frame's life. The same names stand in JSON, NVTX, tables and verdicts.

READ = "read"
PREPROCESS = "preprocess"
INFER = "infer"
HEAD = "head"
NMS = "nms"
ANNOTATE = "annotate"
WRITE = "write"

STAGES = (READ, PREPROCESS, INFER, HEAD, NMS, ANNOTATE, WRITE)


# ----------------------------------------------------------------------
# How long at least one of several threads was inside a stage.


class Meter:
    """Length of the union of intervals, streaming. Inference FPS stands on it: frames / seconds in
    which at least one ``infer`` was running, so that neither a slow reader nor several requests at
    once distort it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0
        self.total_ns = 0

    def enter(self, now: int) -> None:
        with self._lock:
            if not self._inside:
                # A thread may read its clock and be overtaken before it gets the lock: never count
                # time twice.
                self._since = max(now, self._since)
            self._inside += 1

    def leave(self, now: int) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self.total_ns += max(0, now - self._since)
                self._since = now


# ----------------------------------------------------------------------
# A streaming histogram with bounded relative error, for percentiles over any number of samples.

# Smallest number of samples below which a percentile says nothing: it would be the maximum under
# another name.
SAMPLE_FLOORS = {50: 5, 90: 20, 99: 200}


class Histogram:
    """Counts durations in buckets whose edges grow by a constant factor, so that any quantile is
    within ``error``.

    The scheme of DDSketch (Masson, Rim, Lee, VLDB 2019), sections 2.1 and 2.2: bucket i holds
    (g^(i-1), g^i] with g = (1 + error) / (1 - error), and is reported as 2 g^i / (g + 1). Values
    are integers (nanoseconds), 0 included.
    """

    __slots__ = ("_counts", "_gamma", "_inverse_log", "count", "maximum", "minimum")

    def __init__(self, error: float = 0.01) -> None:
        self._gamma = (1 + error) / (1 - error)
        self._inverse_log = 1 / math.log(self._gamma)
        self._counts: dict[int, int] = {}
        self.count = 0
        self.minimum = 0
        self.maximum = 0

    def add_many(self, values: array[int]) -> None:
        """``values``: array("q")."""
        if not values:
            return
        durations = np.frombuffer(values, np.int64)
        buckets = np.where(
            durations > 0, np.ceil(np.log(np.maximum(durations, 1)) * self._inverse_log), -1
        )
        for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True):
            self._counts[int(bucket)] = self._counts.get(int(bucket), 0) + int(count)
        self.minimum = (
            min(self.minimum, int(durations.min())) if self.count else int(durations.min())
        )
        self.maximum = max(self.maximum, int(durations.max()))
        self.count += len(durations)

    def merge(self, other: Histogram) -> None:
        if not other.count:
            return
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.maximum = max(self.maximum, other.maximum)
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """The value of rank ceil(q * count) (nearest rank), within the relative error; None without
        samples.
        """
        rank = max(1, math.ceil(q * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                estimate = 0.0 if bucket < 0 else 2 * self._gamma**bucket / (self._gamma + 1)
                return float(min(max(estimate, self.minimum), self.maximum))
        return None

    def percentile(self, p: int) -> float | None:
        """Like ``quantile(p / 100)``, but None below the sample floor of p50, p90 and p99."""
        return self.quantile(p / 100) if self.count >= SAMPLE_FLOORS[p] else None


# ----------------------------------------------------------------------
# NVTX: one push/pop range per span on its own thread, in the domain ``detect-video``.
#
# name = stage, payload = frame or batch number, category = span kind. Without a tool attached nvtx
# hands out a domain of its own that does nothing; then no range object is made at all, and a span
# pays for one ``is not None``.

DOMAIN = "detect-video"

_COLORS = {"work": "green", "wait_input": "yellow", "wait_output": "orange"}


class ThreadRange:
    """The ranges of one span on one thread. Attributes are prebuilt (70 ns a range instead of 900)
    and, since their payload changes with each push, never shared between threads.
    """

    __slots__ = ("_attributes", "_push", "pop")

    def __init__(self, domain: Any, stage: str, kind: str) -> None:
        self._attributes = domain.get_event_attributes(
            message=stage, color=_COLORS.get(kind, "gray"), category=kind, payload=0
        )
        self._push = domain.push_range
        self.pop = domain.pop_range

    def push(self, index: int) -> None:
        self._attributes.payload = index
        self._push(self._attributes)


def open_domain() -> Any | None:
    """The NVTX domain, or None where no tool is attached (or nvtx is not installed)."""
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    if (
        domain.get_event_attributes(message="probe") is None
    ):  # what the stand-in without a tool answers
        return None
    return domain


# ----------------------------------------------------------------------
# One kind of span on one thread: a stage's calls, or one sort of wait, with two clock reads each.

WORK = "work"  # a stage's own call
WAIT_INPUT = "wait_input"  # nothing to do yet: the stage before is not ready
WAIT_OUTPUT = "wait_output"  # no room: the stage after has not given buffers or queue places back
OTHER = "other"  # what lies between spans

KINDS = (WORK, WAIT_INPUT, WAIT_OUTPUT, OTHER)

# Durations go into the histogram in blocks: one numpy call for 4096 of them costs 0.05 us each, one
# by one 0.5 us.
BLOCK = 4096


class Span:
    """Context manager around one call after the other. Made once for each stage and kind on a
    track, then used again for every call, so that a call allocates nothing. Nested spans count
    once, in the innermost: the outer keeps the rest. A stage cannot nest in itself.

    Totals: ``calls``, ``self_ns`` (without what nested spans took), ``cpu_ns``. Rows: ``indices``,
    ``starts``, ``ends``.
    """

    __slots__ = (
        "_cpu_clock",
        "_cpu_start",
        "_durations",
        "_histogram",
        "_meter",
        "_outer",
        "_pending",
        "_range",
        "_start",
        "_track",
        "calls",
        "cpu_ns",
        "ends",
        "index",
        "indices",
        "inner_cpu_ns",
        "inner_ns",
        "kind",
        "room",
        "self_ns",
        "stage",
        "starts",
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
    ) -> None:
        self._track, self.stage, self.kind = track, stage, kind
        self._cpu_clock, self._meter, self._range = cpu_clock, meter, nvtx
        self._histogram = Histogram()
        self._pending = array("q")
        self._start = self._cpu_start = 0
        self._outer: Span | None = None
        self.index = 0
        self.calls = self.self_ns = self.cpu_ns = 0
        self.inner_ns = self.inner_cpu_ns = 0
        self.room = room  # rows that may still be kept
        self.indices, self.starts, self.ends = array("q"), array("q"), array("q")

    def __enter__(self) -> None:
        track = self._track
        self._outer = track.innermost
        track.innermost = self
        self.inner_ns = self.inner_cpu_ns = 0
        if self._range is not None:
            self._range.push(self.index)
        if self._cpu_clock is not None:
            self._cpu_start = self._cpu_clock()
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
        if self._meter is not None:
            self._meter.leave(end)
        if self._cpu_clock is not None:
            cpu_ns = self._cpu_clock() - self._cpu_start
            self.cpu_ns += cpu_ns - self.inner_cpu_ns
        else:
            cpu_ns = 0
        if self._range is not None:
            self._range.pop()
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
        self._pending.append(duration)
        if len(self._pending) == BLOCK:
            self._flush()
        if self.room:
            self.room -= 1
            self.indices.append(self.index)
            self.starts.append(self._start)
            self.ends.append(end)

    def _flush(self) -> None:
        self._histogram.add_many(self._pending)
        self._pending = array("q")

    def durations(self) -> Histogram:
        """Of all calls so far. For the track's own thread, or after it has ended."""
        self._flush()
        return self._histogram


class OffSpan:
    """Shared stand-in of a timeline that is off."""

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


# Rows of index, start and end, 24 bytes each, for every stage and wait of a track: 7 MB, beyond any
# clip of three hours. Sums and percentiles go on after it; the session says how many rows it kept.
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
        """To be entered at once: the object is the same for every call of a stage on this track but
        the first.
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
        # What a wait burns is not asked: the two clock reads would be most of it.
        return Span(
            self, stage, kind, self._cpu_clock if work else None, meter, nvtx, self._max_rows
        )

    def busy_ns(self) -> int:
        return sum(span.self_ns for (_, kind), span in list(self.spans.items()) if kind == WORK)


class FirstCall:
    """A stage's first call on a thread: libraries start their threads in it, which are then known
    as the stage's.
    """

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
    """Nanoseconds that the calling thread spent on a run queue, so far."""
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
