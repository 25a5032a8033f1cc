"""Where the time of a single frame went: its calls, and what it waited for between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from detector.core.timeline.spans import INFER, READ
from detector.lab.analysis.loop.activities import Activity, Batches, LoopShape


@dataclass(frozen=True, slots=True)
class FramePart:
    """A call of ``stage``, or the wait before it (``waits``)."""

    stage: str
    ms: float
    waits: bool = False

    @property
    def text(self) -> str:
        return f"waits for {self.stage}" if self.waits else self.stage


def frame_parts(
    activities: Sequence[Activity], shape: LoopShape, frames: Collection[int]
) -> dict[int, list[FramePart]]:
    """The parts of each frame, in order, from the start of its read to the end of its last stage. A
    batch's inference is in each of its frames."""
    own: dict[int, list[Activity]] = {frame: [] for frame in frames}
    batches = Batches(activities, shape)
    for one in activities:
        numbers = batches.inferred(one.number) if one.stage == INFER else (one.number,)
        for number in numbers:
            if number in own:
                own[number].append(one)
    return {frame: _parts(calls) for frame, calls in own.items() if _is_whole(calls)}


def _is_whole(calls: Sequence[Activity]) -> bool:
    return any(one.stage == READ for one in calls) and len(calls) > 1


def _parts(calls: Sequence[Activity]) -> list[FramePart]:
    parts: list[FramePart] = []
    done = 0
    for one in sorted(calls, key=lambda one: (one.start_ns, one.end_ns)):
        start = max(one.start_ns, done) if parts else one.start_ns
        if parts and start > done:
            parts.append(FramePart(one.stage, (start - done) / 1e6, waits=True))
        parts.append(FramePart(one.stage, max(0, one.end_ns - start) / 1e6))
        done = max(done, one.end_ns)
    return parts
