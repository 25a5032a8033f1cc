"""One kind of span on one thread: a stage's calls, or one sort of wait, with two clock reads each."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from detector.timeline.histogram import Histogram
from detector.timeline.meter import Meter
from detector.timeline.ranges import ThreadRange

if TYPE_CHECKING:
    from detector.timeline.track import Track

WORK = "work"  # a stage's own call
WAIT_INPUT = "wait_input"  # nothing to do yet: the stage before is not ready
WAIT_OUTPUT = "wait_output"  # no room: the stage after has not given buffers or queue places back
OTHER = "other"  # what lies between spans

KINDS = (WORK, WAIT_INPUT, WAIT_OUTPUT, OTHER)

# Durations go into the histogram in blocks: one numpy call for 4096 of them costs 0.05 us each, one by one 0.5 us.
BLOCK = 4096


class Span:
    """Context manager around one call after the other. Made once for each stage and kind on a track, then used again
    for every call, so that a call allocates nothing. Nested spans count once, in the innermost: the outer keeps the
    rest. A stage cannot nest in itself.

    Totals: ``calls``, ``self_ns`` (without what nested spans took), ``cpu_ns``. Rows: ``indices``, ``starts``,
    ``ends``.
    """

    __slots__ = (
        "_cpu_clock", "_cpu_start", "_durations", "_histogram", "_meter", "_outer", "_pending", "_range", "_start",
        "_track", "calls", "cpu_ns", "ends", "index", "indices", "inner_cpu_ns", "inner_ns", "kind", "room", "self_ns",
        "stage", "starts",
    )  # fmt: skip

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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return None
