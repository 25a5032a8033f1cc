"""A track: everything that one thread recorded. Only its own thread writes to it, so it needs no lock."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Any

from detector.timeline.meter import Meter
from detector.timeline.native import Natives, times_of
from detector.timeline.ranges import ThreadRange
from detector.timeline.spans import WORK, OffSpan, Span

# Rows of index, start and end, 24 bytes each, for every stage and wait of a track: 7 MB, beyond any clip of three
# hours. Sums and percentiles go on after it; the session says how many rows it kept.
MAX_ROWS = 300_000


class Track:
    """``with timeline.track("reader") as track:`` around a thread's life, ``with track.span(READ, i):`` in it.

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
        self._cpu_clock, self._meters, self._domain, self._max_rows = cpu_clock, meters, domain, max_rows
        self._natives = natives
        self._start = self._cpu_start = 0
        self._ready_start: int | None = None

    def __enter__(self) -> Track:
        self._ready_start = _ready_ns()
        self._cpu_start = self._cpu_clock()
        self._start = self.last_end = self.clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        """To be entered at once: the object is the same for every call of a stage on this track but the first."""
        span = self.spans.get((stage, kind))
        if span is None:
            span = self.spans[stage, kind] = self._make(stage, kind)
            span.index = index
            return FirstCall(span, self._natives) if self._natives is not None and kind == WORK else span
        span.index = index
        return span

    def _make(self, stage: str, kind: str) -> Span:
        work = kind == WORK
        nvtx = ThreadRange(self._domain, stage, kind) if self._domain is not None else None
        meter = self._meters.get(stage) if work else None
        # What a wait burns is not asked: the two clock reads would be most of it.
        return Span(self, stage, kind, self._cpu_clock if work else None, meter, nvtx, self._max_rows)

    def busy_ns(self) -> int:
        return sum(span.self_ns for (_, kind), span in list(self.spans.items()) if kind == WORK)


class FirstCall:
    """A stage's first call on a thread: libraries start their threads in it, which are then known as the stage's."""

    def __init__(self, span: Span, natives: Natives) -> None:
        self._span, self._born = span, natives.born(span.stage)

    def __enter__(self) -> None:
        self._born.__enter__()
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return None

    def span(self, stage: str, index: int, kind: str = WORK) -> OffSpan:
        return _OFF_SPAN
