"""A track: everything that one thread recorded. Only its own thread writes to it, so it needs no lock."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Any

from detector.timeline.histogram import Histogram
from detector.timeline.meter import Meter
from detector.timeline.ranges import ThreadRanges
from detector.timeline.spans import WORK, OffSpan, Span

# Rows of (stage code, index, start, end), 32 bytes each: 16 MB a thread at most, some 40,000 frames of the busiest
# thread. Sums and percentiles go on beyond it; the session says how many rows it kept.
MAX_ROWS = 500_000


def _ready_ns() -> int | None:
    """Nanoseconds that the calling thread spent on a run queue: the second number of its schedstat (Linux)."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None


class Totals:
    """Sums of one stage (or one wait) on one thread, in nanoseconds."""

    __slots__ = ("calls", "cpu_ns", "durations", "self_ns")

    def __init__(self) -> None:
        self.calls = 0
        self.self_ns = 0
        self.cpu_ns = 0
        self.durations = Histogram()


class Track:
    """``with timeline.track("reader") as track:`` around a thread's life, ``with track.span(READ, i):`` in it.

    The same name may be entered again later (the next source); its sums go on.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], int],
        cpu_clock: Callable[[], int],
        meters: dict[str, Meter],
        ranges: ThreadRanges | None,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.name = name
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.meters = meters
        self.ranges = ranges
        self.innermost: Span | None = None
        self.last_end = 0
        self.other_ns = 0
        self.wall_ns = 0
        self.cpu_ns = 0
        self.ready_ns: int | None = None  # runnable but not scheduled, where the kernel tells
        self.totals: dict[tuple[str, str], Totals] = {}
        self.rows = array("q")
        self.lives = array("q")  # start and end of each time the track was entered
        self.spans_seen = 0
        self._codes: dict[tuple[str, str], int] = {}
        self._max_values = max_rows * 4
        self._start = self._cpu_start = 0
        self._ready_start: int | None = None

    def __enter__(self) -> Track:
        self._ready_start = _ready_ns()
        self._cpu_start = self.cpu_clock()
        self._start = self.last_end = self.clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        end = self.clock()
        self.other_ns += end - self.last_end
        self.wall_ns += end - self._start
        self.cpu_ns += self.cpu_clock() - self._cpu_start
        self.lives.extend((self._start, end))
        ready = _ready_ns()
        if ready is not None and self._ready_start is not None:
            self.ready_ns = (self.ready_ns or 0) + ready - self._ready_start

    def span(self, stage: str, index: int, kind: str = WORK) -> Span:
        return Span(self, stage, index, kind)

    def record(self, span: Span, end: int, self_ns: int, cpu_ns: int) -> None:
        """Called by a span as it ends; ``self_ns`` and ``cpu_ns`` leave out what nested spans took."""
        key = (span.kind, span.stage)
        totals = self.totals.get(key)
        if totals is None:
            totals = self.totals[key] = Totals()
            self._codes[key] = len(self._codes)
        totals.calls += 1
        totals.self_ns += self_ns
        totals.cpu_ns += cpu_ns
        totals.durations.add(self_ns)
        self.spans_seen += 1
        if len(self.rows) < self._max_values:
            self.rows.extend((self._codes[key], span.index, span.start, end))

    @property
    def codes(self) -> list[tuple[str, str]]:
        """(kind, stage) of each code in ``rows``."""
        return list(self._codes)

    def busy_ns(self, kind: str = WORK) -> int:
        return sum(totals.self_ns for (k, _), totals in list(self.totals.items()) if k == kind)


_OFF_SPAN = OffSpan()


class OffTrack:
    """The track of a timeline that is off: nothing is timed, nothing is kept."""

    def __enter__(self) -> OffTrack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return None

    def span(self, stage: str, index: int, kind: str = WORK) -> OffSpan:
        return _OFF_SPAN
