"""One span: a stage call or a wait, on one thread, with two clock reads."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detector.timeline.track import Track

WORK = "work"  # a stage's own call
WAIT_INPUT = "wait_input"  # nothing to do yet: the stage before is not ready
WAIT_OUTPUT = "wait_output"  # no room: the stage after has not given buffers or queue places back
OTHER = "other"  # what lies between spans

KINDS = (WORK, WAIT_INPUT, WAIT_OUTPUT, OTHER)


class Span:
    """Context manager around one call. Nested spans count once, in the innermost: the outer one keeps the rest."""

    __slots__ = ("cpu_start", "index", "inner_cpu_ns", "inner_ns", "kind", "outer", "ranged", "stage", "start", "track")

    def __init__(self, track: Track, stage: str, index: int, kind: str) -> None:
        self.track = track
        self.stage = stage
        self.index = index
        self.kind = kind
        self.inner_ns = 0
        self.inner_cpu_ns = 0

    def __enter__(self) -> Span:
        track = self.track
        self.outer = track.innermost
        track.innermost = self
        self.ranged = track.ranges is not None and track.ranges.push(self.stage, self.kind, self.index)
        self.cpu_start = track.cpu_clock()
        self.start = start = track.clock()
        if self.outer is None:
            track.other_ns += start - track.last_end
        meter = track.meters.get(self.stage)
        if meter is not None and self.kind is WORK:
            meter.enter(start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        track = self.track
        end = track.clock()
        cpu_ns = track.cpu_clock() - self.cpu_start
        meter = track.meters.get(self.stage)
        if meter is not None and self.kind is WORK:
            meter.leave(end)
        if self.ranged and track.ranges is not None:
            track.ranges.pop()
        duration = end - self.start
        outer = track.innermost = self.outer
        if outer is None:
            track.last_end = end
        else:
            outer.inner_ns += duration
            outer.inner_cpu_ns += cpu_ns
        track.record(self, end, duration - self.inner_ns, cpu_ns - self.inner_cpu_ns)


class OffSpan:
    """Shared stand-in of a timeline that is off."""

    __slots__ = ()

    def __enter__(self) -> OffSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return None
