"""Record one thread: a ``ThreadTrack`` has a ``Span`` for each stage and kind of wait.

Only its own thread writes to a track, so it needs no lock.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from detector.core.timeline.booking import Booking, EngineCaller
from detector.core.timeline.histogram import Histogram
from detector.core.timeline.native import Natives, RunQueue
from detector.core.timeline.nvtx_ranges import ThreadRange
from detector.core.timeline.rows import ROW_BYTES, Ring, SpanRows, Spool

# The seven stages of a frame. JSON, NVTX, tables and verdicts use the same names.
READ = "read"
PREPROCESS = "preprocess"
INFER = "infer"
HEAD = "head"
NMS = "nms"
ANNOTATE = "annotate"
WRITE = "write"

STAGES = (READ, PREPROCESS, INFER, HEAD, NMS, ANNOTATE, WRITE)

WORK = "work"  # a stage's own call
WAIT_INPUT = "wait_input"  # nothing to do yet: the previous stage is not ready
WAIT_OUTPUT = "wait_output"  # a later stage has not yet returned a buffer or emptied a queue
OTHER = "other"  # time between spans

KINDS = (WORK, WAIT_INPUT, WAIT_OUTPUT, OTHER)


class BusyMeter:
    """The time in which at least one of several threads was inside a stage: the union of their
    intervals. Inference FPS are based on this time, so that a slow reader or parallel requests
    do not distort the FPS."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = self._left = 0
        self.total_ns = 0

    def enter(self, now: int) -> None:
        with self._lock:
            # We read ``now`` before we took the lock. Another thread may have counted later time.
            if not self._inside and now > self._since:
                self._since = now
            self._inside += 1

    def leave(self, now: int) -> None:
        with self._lock:
            self._inside -= 1
            # The thread that gets the lock last need not be the one that left the stage last.
            self._left = max(self._left, now)
            if not self._inside and self._left > self._since:
                self.total_ns += self._left - self._since
                self._since = self._left

    def so_far(self, now: int) -> int:
        """Return ``total_ns`` including the time of calls that are still running."""
        with self._lock:
            return self.total_ns + (max(0, now - self._since) if self._inside else 0)


# After intervals up to this length we do not check whether the thread had a core: a check costs a
# system call, and a thread that loses its core stays off it for about a millisecond (the
# scheduler's slice). If it was off a core after all, the next check finds that time.
QUICK_NS = 50_000


class Span:
    """Context manager around each call of a stage, or each wait of one kind, on one thread.

    A track makes one span per stage and kind, so that a call costs two clock reads and allocates
    nothing. Time in nested spans counts for the innermost only. A stage cannot nest in itself.

    ``self_ns``: time of all calls, without nested spans. ``off_cpu_ns``: how long the thread had no
    core during ``self_ns``. ``ready_ns``: how long it was runnable during ``off_cpu_ns``.
    ``other_threads_ns``: CPU time of the process's other threads during the calls, if the track
    observes them. ``library_ns``: CPU time that the engine's own threads spent on the calls, as
    ``booked`` counts it. ``call_ns``: ``self_ns`` of the last call. Each call adds a row. We keep
    the first ``room`` rows or, with ``ring``, the last.
    """

    __slots__ = (
        "_at",
        "_booked",
        "_clock",
        "_end",
        "_histogram",
        "_kept",
        "_meter",
        "_outer",
        "_pop",
        "_push",
        "_range",
        "_start",
        "_track",
        "_write",
        "_written",
        "call_ns",
        "calls",
        "index",
        "kind",
        "library_ns",
        "off_cpu_ns",
        "other_threads_ns",
        "ready_ns",
        "self_ns",
        "stage",
    )

    def __init__(
        self,
        track: ThreadTrack,
        stage: str,
        kind: str,
        meter: BusyMeter | None,
        nvtx: ThreadRange | None,
        room: int,
        ring: bool = False,
        spool: Spool | None = None,
        booked: EngineCaller | None = None,
    ) -> None:
        self._booked = booked
        self._track, self.stage, self.kind = track, stage, kind
        self._clock, self._meter = track.clock, meter
        self._range = None if nvtx is None else nvtx.attributes
        if nvtx is not None:
            self._push, self._pop = nvtx.push, nvtx.pop
        self._histogram = Histogram()
        self._start = 0
        self._outer: Span | None = None
        self.index = 0
        self.calls = self.self_ns = self.off_cpu_ns = self.ready_ns = self.other_threads_ns = 0
        self.library_ns = 0
        self.call_ns = 0  # duration of the current call so far
        self._kept = Ring(room) if ring else SpanRows(room, spool, booked is not None)
        block = self._kept.block
        # Cached lookups halve the cost of a call.
        self._written, self._write = block.written, block.write
        self._at, self._end = 0, block.written.nbytes  # where the next row is written

    def __enter__(self) -> None:
        track = self._track
        if self._booked is not None:
            self._add_late(self._booked.enter())
        self._outer = outer = track.innermost
        track.innermost = self
        self.call_ns = 0
        owner = outer or track.other
        start = self._clock()
        passed = start - track.last
        track.last = start
        owner.call_ns += passed
        if passed > QUICK_NS:
            start = track.check_clocks_before_span(owner, passed)
        if self._range is not None:
            self._range.payload = self.index
            self._push(self._range)
        self._start = start
        if self._meter is not None:
            self._meter.enter(start)

    def __exit__(self, kind: object, error: object, trace: object) -> Any:
        track = self._track
        end = self._clock()
        if self._range is not None:
            self._pop()
        if self._meter is not None:
            self._meter.leave(end)
        passed = end - track.last
        track.last = end
        track.innermost = self._outer
        if passed > QUICK_NS:
            track.check_clocks(self, passed)
        if self._booked is not None:
            self.library_ns = self._booked.leave()
        self.call_ns = lasted = self.call_ns + passed
        self.self_ns += lasted
        at = self._at
        self._write(
            self._written,
            at,
            self.index,
            self._start,
            end,
            self.off_cpu_ns,
            self.ready_ns,
            self.library_ns,
            lasted,
        )
        self.calls += 1
        self._at = at = at + ROW_BYTES
        if at == self._end:
            self._take()
            self._at = 0

    @property
    def on_cpu_ns(self) -> int:
        return self.self_ns - self.off_cpu_ns

    @property
    def cpu_ns(self) -> int:
        """CPU time of the stage's thread and of other threads that the track observes."""
        return self.on_cpu_ns + self.other_threads_ns

    @property
    def rows(self) -> SpanRows | Ring:
        """The kept rows in order. Read them from the track's own thread, or after its end."""
        self._take()
        return self._kept

    def settle(self) -> None:
        """Add to the last call the time that the engine's threads have used since it ended."""
        if self._booked is not None:
            self._add_late(self._booked.settle())

    def _add_late(self, booked: int) -> None:
        self.library_ns = booked
        self._kept.block.add_late(self._at, booked)

    @property
    def is_booked(self) -> bool:
        return self._booked is not None and self._booked.readable

    def _take(self) -> None:
        """Add new durations to the histogram. Each takes 0.5 us alone, 0.05 us in a full block."""
        self._histogram.add_many(self._kept.take(self.calls))

    def durations(self) -> Histogram:
        """Return all durations so far. Call it from the track's own thread, or after its end."""
        self._take()
        return self._histogram


class OffSpan:
    """The span of a timeline that is off; all calls share one."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


# Rows kept per track, stage and kind of wait. They take 5 MB, at some 16 bytes each, and suffice
# for a clip of three hours. Later calls still count in sums and percentiles.
MAX_ROWS = 300_000


class Between:
    """Totals of the time between spans. ``call_ns``: all this time. Other names: see ``Span``."""

    __slots__ = ("call_ns", "off_cpu_ns", "other_threads_ns", "ready_ns")

    def __init__(self) -> None:
        self.call_ns = self.off_cpu_ns = self.ready_ns = self.other_threads_ns = 0

    @property
    def on_cpu_ns(self) -> int:
        return self.call_ns - self.off_cpu_ns


class ThreadTrack:
    """Records one thread, which runs inside ``with timeline.track("reader") as track:`` and wraps
    each call of a stage in ``with track.span(READ, i):``.

    A track may be entered again later; its sums continue. Each beginning or end of a span ends an
    interval. After an interval longer than QUICK_NS we read the thread's ``cpu_clock``, and its run
    queue if it was off a core.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], int],
        cpu_clock: Callable[[], int],
        meters: dict[str, BusyMeter],
        domain: Any | None,
        max_rows: int,
        natives: Natives | None,
        ring: bool,
        spool: Spool,
        process_clock: Callable[[], int] | None,
        run_queue: Callable[[], RunQueue | None],
        bookings: Mapping[str, Booking],
    ) -> None:
        self.name = name
        self._bookings = bookings
        self.clock = clock
        self.innermost: Span | None = None
        self.last = 0  # end of the last interval
        # ``clock`` minus ``cpu_clock`` at the last check: the thread's time without a core so far.
        self._behind = 0
        self.other = Between()
        self.wall_ns = 0
        self.cpu_ns = 0
        self.ready_ns: int | None = None  # runnable but not scheduled; None if unknown
        self.spans: dict[tuple[str, str], Span] = {}  # (stage, kind) -> span
        self.lives = array("q")  # start and end of each ``with`` block of the track
        self._cpu_clock, self._process_clock, self._open_queue = cpu_clock, process_clock, run_queue
        self._meters, self._domain, self._max_rows = meters, domain, max_rows
        self._natives = natives
        self._ring = ring
        self._spool = spool
        self._queue: RunQueue | None = None
        self._start = self._cpu_start = self._ready_start = 0
        self._ready_seen = self._others_seen = 0

    @property
    def other_ns(self) -> int:
        return self.other.call_ns

    def __enter__(self) -> ThreadTrack:
        self._queue = self._open_queue()
        if self._queue is not None:
            self._ready_start = self._ready_seen = self._queue.read()
        self._cpu_start = self._cpu_clock()
        if self._process_clock is not None:
            self._others_seen = self._process_clock() - self._cpu_start
        self._start = self.last = self.clock()
        self._behind = self._start - self._cpu_start
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> Any:
        end = self.clock()
        passed, self.last = end - self.last, end
        self.other.call_ns += passed
        self.check_clocks(self.other, passed)
        self.wall_ns += end - self._start
        self.cpu_ns += self._cpu_clock() - self._cpu_start
        self.lives.extend((self._start, end))
        if self._queue is not None:
            self.ready_ns = (self.ready_ns or 0) + self._queue.read() - self._ready_start
            self._queue.close()
            self._queue = None
        if self._natives is not None:
            for span in self.spans.values():  # while the engine's threads still exist
                span.settle()
            self._natives.note_thread_end()

    def check_clocks(self, owner: Span | Between, passed: int) -> None:
        """Add to ``owner`` how long the thread was off a core in the ``passed`` nanoseconds up to
        ``last``. Also add how much of this time it was ready, not blocked in a call.

        The clocks are read after the interval. The next check adds what they count between the
        interval's end and this reading.
        """
        now = self._cpu_clock()
        missing = self.last - self._behind - now
        if missing < 0:
            missing = 0
        elif missing > passed:
            missing = passed
        owner.off_cpu_ns += missing
        self._behind += missing
        if missing > QUICK_NS and self._queue is not None:
            ready = self._queue.read() - self._ready_seen
            if ready:
                if ready > missing:
                    ready = missing
                owner.ready_ns += ready
                self._ready_seen += ready
        if self._process_clock is not None:
            others_ns = self._process_clock() - now
            owner.other_threads_ns += max(0, others_ns - self._others_seen)
            self._others_seen = others_ns

    def check_clocks_before_span(self, owner: Span | Between, passed: int) -> int:
        """Check the clocks before a span begins; return its start. The span and its NVTX range
        exclude the check: at this system call, a busy machine may take the core away."""
        self.check_clocks(owner, passed)
        now = self.clock()
        spent = now - self.last
        self.last = now
        owner.call_ns += spent
        if spent > QUICK_NS:
            self.check_clocks(owner, spent)
        return now

    def span(self, stage: str, index: int, kind: str = WORK) -> Span | FirstCall:
        """Return the context manager for one call. The next call reuses it, so enter it at once."""
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
        nvtx = ThreadRange(self._domain, stage, kind) if self._domain is not None else None
        meter = self._meters.get(stage) if kind == WORK else None
        booking = self._bookings.get(stage) if kind == WORK else None
        booked = None if booking is None else booking.worker(self.name)
        return Span(self, stage, kind, meter, nvtx, self._max_rows, self._ring, self._spool, booked)

    def last_ms(self, stage: str) -> float:
        """Return how long this thread's last call of a stage took."""
        return self.spans[stage, WORK].call_ns / 1e6

    def busy_ns(self) -> int:
        return sum(span.self_ns for (_, kind), span in list(self.spans.items()) if kind == WORK)


class FirstCall:
    """A thread's first call of a stage. New threads of libraries are booked to this stage."""

    def __init__(self, span: Span, natives: Natives) -> None:
        self._span, self._booked_threads = span, natives.book_threads(span.stage)

    def __enter__(self) -> None:
        self._booked_threads.__enter__()
        self._span.__enter__()

    def __exit__(self, kind: object, error: object, trace: object) -> Any:
        self._span.__exit__(kind, error, trace)
        self._booked_threads.__exit__(None, None, None)


_OFF_SPAN = OffSpan()


class OffTrack:
    """The track of a timeline that is off: it measures and stores nothing."""

    def __enter__(self) -> OffTrack:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def span(self, stage: str, index: int, kind: str = WORK) -> OffSpan:
        return _OFF_SPAN

    def last_ms(self, stage: str) -> float:
        raise AssertionError("nothing is timed: Parts.timed needs a timeline that measures")
