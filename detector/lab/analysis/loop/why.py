"""Explain why single frames were slow, compared with the median frame.

By the rules of ``activities`` we find the call that delayed a slow frame: one of its own calls, or
a call of an earlier frame that it waited for. A call's excess is its time above the
median of its stage. We report the cause that explains most of the excess, if that is at least half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.errors.text import counted
from detector.core.timeline.order import is_after_inference
from detector.core.timeline.spans import INFER, READ, WRITE
from detector.lab.analysis.loop.activities import Activity, Batches, LoopShape, activity_graph
from detector.lab.session.passes import MomentsFacts
from detector.lab.session.why import WhyCause, WhyFrame, WhyPart

GC, CORE, DISK, BOXES, KEY = "gc", "core", "disk", "boxes", "key frame"
CLOCK, WORK, OTHERS, UNKNOWN = "clock", "work", "others", "unknown"
HALF = 0.5  # share of the excess that a cause has to account for
MORE_BOXES, MANY = 2.0, 20  # many: at least MORE_BOXES x the median, and at least MANY above it
SLOWER_CLOCK = 0.95  # share of the median clock; a lower clock counts as a cause
LIBRARY = "library"  # all library threads together, in MomentsFacts.threads


@dataclass(frozen=True, slots=True)
class RunEvidence:
    moments: MomentsFacts | None = None
    boxes: Mapping[int, int] = field(default_factory=dict)
    keys: Collection[int] | None = None
    others: float = 0.0  # share of the cores that other programs used


class ThreadTimes(NamedTuple):
    """Milliseconds that a thread ran on a core (``cpu``) or waited for one (``ready``). If
    they come from moments, ``ready`` is an upper bound; ``spread_ready`` assumes an even spread."""

    cpu: float
    ready: float
    spread_ready: float


class Explanation:
    def __init__(
        self, activities: Sequence[Activity], shape: LoopShape, evidence: RunEvidence
    ) -> None:
        self.activities, self.shape, self.evidence = activities, shape, evidence
        self.graph = activity_graph(activities, shape)
        self._batches = Batches(activities, shape)
        self._clock = _MomentIndex(evidence.moments) if evidence.moments is not None else None
        self._calls: dict[int, list[int]] = defaultdict(list)  # frame -> indexes of its calls
        durations: dict[str, list[float]] = defaultdict(list)
        computed: dict[str, list[float]] = defaultdict(list)
        ready: dict[str, list[float]] = defaultdict(list)
        for at, one in enumerate(activities):
            durations[one.stage].append(_ms(one))
            if (times := self._find_times(one)) is not None:
                computed[one.stage].append(times.cpu + _library_cpu_ms(one))
                ready[one.stage].append(times.ready)
            for frame in self._frames_of(one):
                self._calls[frame].append(at)
        self.medians = {stage: median_low(each) for stage, each in durations.items()}
        self._usual_work = {stage: median_low(each) for stage, each in computed.items()}
        self._usual_ready = {stage: median_low(each) for stage, each in ready.items()}
        self._calls = {
            frame: sorted(calls, key=lambda at: activities[at].end_ns)
            for frame, calls in self._calls.items()
            if _is_whole([activities[at] for at in calls])
        }
        waits: dict[str, list[float]] = defaultdict(list)
        for frame in self._calls:
            for stage, wait_ms, _ in self._waits_of(frame):
                waits[stage].append(wait_ms)
        self._usual_wait = {stage: median_low(each) for stage, each in waits.items()}
        self._usual_boxes = median_low(evidence.boxes.values()) if evidence.boxes else 0.0

    def _frames_of(self, one: Activity) -> Sequence[int]:
        """Return the frames of a call; an inference has all inferred frames of its batch."""
        return [one.number] if one.stage != INFER else [*self._batches.inferred(one.number)]

    @property
    def frames(self) -> list[int]:
        return sorted(self._calls)

    def frame_ms(self, frame: int) -> float:
        calls = [self.activities[at] for at in self._calls[frame]]
        return (max(one.end_ns for one in calls) - min(one.start_ns for one in calls)) / 1e6

    def slowest(self, count: int) -> list[int]:
        return sorted(self._calls, key=lambda frame: -self.frame_ms(frame))[:count]

    def median_ms(self) -> float:
        return median_low(map(self.frame_ms, self._calls))

    def _waits_of(self, frame: int) -> Iterator[tuple[str, float, int]]:
        """Yield each call's stage, the wait before it in ms, and its index, in order."""
        done: int | None = None
        for at in self._calls[frame]:
            one = self.activities[at]
            yield one.stage, 0.0 if done is None else max(0, one.start_ns - done) / 1e6, at
            done = one.end_ns if done is None else max(done, one.end_ns)

    def explain(self, frame: int) -> WhyFrame:
        """Explain a frame. Raises KeyError if it was not recorded from end to end."""
        parts: list[WhyPart] = []
        for stage, wait_ms, at in self._waits_of(frame):
            usual = self._usual_wait[stage]
            if wait_ms > 0 or usual > 0:
                edge = self.graph.binding(at)
                cause = None if edge is None else edge.cause
                after = None if edge is None else self.activities[edge.before]
                waited_for = None if after is None else f"{after.stage} {after.number}"
                parts.append(WhyPart(stage, True, wait_ms, usual, cause, waited_for))
            parts.append(self._describe_call(at))
        calls = [self.activities[at] for at in self._calls[frame]]
        start, end = min(one.start_ns for one in calls), max(one.end_ns for one in calls)
        clock, keys = self._clock, self.evidence.keys
        return WhyFrame(
            frame=frame,
            ms=self.frame_ms(frame),
            boxes=self.evidence.boxes.get(frame),
            key=None if keys is None else frame in keys,
            faults=None if clock is None else clock.faults(start, end),
            disk_faults=None if clock is None else clock.faults(start, end, from_disk=True),
            mhz=None if clock is None else clock.mhz(start, end),
            cause=self._find_cause(self._find_delaying_call(frame)),
            parts=parts,
        )

    def _describe_call(self, at: int) -> WhyPart:
        one = self.activities[at]
        times = self._find_times(one)
        if times is not None:
            times = ThreadTimes(
                times.cpu, min(times.spread_ready, _ms(one) - times.cpu), times.spread_ready
            )
        return WhyPart(
            one.stage,
            False,
            _ms(one),
            self.medians[one.stage],
            cpu_ms=None if times is None else times.cpu,
            ready_ms=None if times is None else times.ready,
            blocked_ms=None if times is None else max(0.0, _ms(one) - times.cpu - times.ready),
            library_cpu_ms=_library_cpu_ms(one) if _has_library_cpu(one) else None,
        )

    def _find_times(self, one: Activity) -> ThreadTimes | None:
        """Return the thread's times in a call, from its span or from moments; None if unknown."""
        if one.spent is not None:
            ready = one.spent.ready_ns / 1e6
            return ThreadTimes(max(0.0, _ms(one) - one.spent.off_cpu_ns / 1e6), ready, ready)
        clock = self._clock
        return clock.find_times(one) if clock is not None and clock.has_thread(one.thread) else None

    def _library_ms(self, one: Activity) -> float:
        if _has_library_cpu(one):
            return _library_cpu_ms(one)
        return 0.0 if self._clock is None else self._clock.find_times(one, LIBRARY).cpu

    # ---- which call delayed the frame

    def _excess(self, at: int) -> float:
        one = self.activities[at]
        return _ms(one) - self.medians[one.stage]

    def _find_delaying_call(self, frame: int) -> int:
        """Return the call with most excess: one of this frame's, or one that these waited for."""
        best, since = self._calls[frame][0], self.activities[self._calls[frame][0]].start_ns
        for stage, wait_ms, at in self._waits_of(frame):
            calls = [at]
            if wait_ms > self._usual_wait[stage]:
                calls += self._trace_back(at, since)
            best = max([best, *calls], key=self._excess)
        return best

    def _trace_back(self, at: int, since: int) -> Iterator[int]:
        while (edge := self.graph.binding(at)) is not None:
            at = edge.before
            if self.activities[at].end_ns <= since:
                return
            yield at

    # ---- why that call was slow

    def _find_cause(self, at: int) -> WhyCause:
        one, excess = self.activities[at], max(0.0, self._excess(at))
        causes = [
            (explains, order, name, text)
            for order, (name, explains, text) in enumerate(self._list_causes(at))
            if excess > 0 and explains >= HALF * excess
        ]
        frame = self._frames_of(one)[0]
        if causes:
            explains, _, name, text = max(causes, key=lambda each: (each[0], -each[1]))
            return WhyCause(name, one.stage, frame, excess, min(explains, excess), text)
        times = self._find_times(one)
        if times is None:
            text = "the spans do not show it; `profile --moments` records more"
        else:
            blocked = max(0.0, _ms(one) - times.cpu - times.ready)
            text = (
                f"computed for {times.cpu:.1f} ms, waited {times.ready:.1f} ms for a core, was "
                f"blocked for {blocked:.1f} ms; no single cause explains half of the delay"
            )
        name = UNKNOWN
        if self.evidence.others >= HALF:
            name, text = (
                OTHERS,
                f"other programs used {self.evidence.others:.0%} of the cores; {text}",
            )
        return WhyCause(name, one.stage, frame, excess, 0.0, text)

    def _list_causes(self, at: int) -> Iterator[tuple[str, float, str]]:
        """Yield (cause, milliseconds that it accounts for, text); the first wins a tie."""
        one, excess, evidence = self.activities[at], self._excess(at), self.evidence
        if self._clock is not None:
            pauses, generation = self._clock.collected(one)
            text = f"Python's garbage collection, generation {generation}: {pauses:.1f} ms"
            yield GC, pauses, text
        if (times := self._find_times(one)) is not None:
            yield from self._list_thread_causes(one, times, excess)
        boxes = evidence.boxes.get(one.number)
        if boxes is not None and is_after_inference(one.stage):
            usual = self._usual_boxes
            if boxes >= max(MORE_BOXES * usual, usual + MANY):
                share = (boxes - usual) / boxes
                text = f"{boxes} boxes; the median frame has {usual:g}"
                yield BOXES, share * self._limit_to_work(one, excess), text
        if evidence.keys is not None and one.stage == READ and one.number in evidence.keys:
            others = [_ms(each) for each in self.activities if self._is_key_read(each, one)]
            usual = median_low(others) - self.medians[READ] if others else excess
            yield KEY, self._limit_to_work(one, min(usual, excess)), "a key frame of the source"

    def _is_key_read(self, each: Activity, but: Activity) -> bool:
        """Return whether ``each`` reads a key frame and is not ``but``. The first frame does not
        count: many readers decode it when they open a file."""
        of_key = each.stage == READ and each.number in (self.evidence.keys or ())
        return of_key and each is not but and each.number > 0

    def _limit_to_work(self, one: Activity, excess: float) -> float:
        """Return the part of an excess that more work can explain: at most the call's CPU time."""
        times = self._find_times(one)
        if times is None:
            return excess
        return min(excess, times.cpu + self._library_ms(one))

    def _list_thread_causes(
        self, one: Activity, times: ThreadTimes, excess: float
    ) -> Iterator[tuple[str, float, str]]:
        clock = self._clock
        waited = times.ready - self._usual_wait_for_core(one)
        # Library threads are mostly the engine's (infer) and the codecs' (read, write).
        held_up = 0.0
        if one.stage in (INFER, READ, WRITE) and clock is not None:
            held_up = clock.held_up(one)
        waited = min(waited + held_up, _ms(one))
        text = f"waited {waited:.1f} ms for a free core"
        if held_up > HALF * waited:
            text = f"library threads {text}"
        yield CORE, waited, text
        if clock is not None:
            yield from self._list_moment_causes(one, times, clock)
        # The cause "more work" comes last and weighs least: it shows what took long, but not why.
        work = times.cpu + _library_cpu_ms(one)
        if work - self._usual_work[one.stage] >= HALF * excess:
            text = f"computed for {work:.1f} ms (median {self._usual_work[one.stage]:.1f} ms)"
            text += "; this first call includes warm-up" if one.number == 0 else ""
            yield WORK, HALF * excess, text

    def _usual_wait_for_core(self, one: Activity) -> float:
        if one.spent is None and self._clock is not None:
            return self._clock.usual_ready(one.thread)
        return self._usual_ready[one.stage]

    def _list_moment_causes(
        self, one: Activity, times: ThreadTimes, clock: _MomentIndex
    ) -> Iterator[tuple[str, float, str]]:
        """Yield the causes that only moments show: a thread blocked while no library works for it,
        and a low core clock."""
        pauses, library = clock.collected(one)[0], clock.find_times(one, LIBRARY)
        disk_faults = clock.faults(one.start_ns, one.end_ns, from_disk=True)
        # CPU time above the library threads' usual rate: we assume that they worked for this call.
        for_it = max(0.0, library.cpu - clock.library_rate * _ms(one))
        blocked = _ms(one) - times.cpu - times.ready - for_it - pauses - clock.held_up(one)
        if one.stage in (READ, WRITE) or disk_faults:
            text = f"{blocked:.1f} ms blocked, waiting for the disk or another device"
            faults = f"; {counted(disk_faults, 'page fault')} on disk" * bool(disk_faults)
            yield DISK, blocked, text + faults
        mhz, usual = clock.mhz(one.start_ns, one.end_ns), clock.median_mhz
        if mhz is not None and usual and mhz < SLOWER_CLOCK * usual:
            slower = _ms(one) * (1 - mhz / usual)
            yield CLOCK, slower, f"core clock {mhz:.0f} MHz; the median is {usual:.0f}"


class _MomentIndex:
    """Find moments (recorded once a frame) by time. Between two moments, counts are assumed to rise
    evenly."""

    def __init__(self, moments: MomentsFacts) -> None:
        self._moments = moments
        self._ends: NDArray[np.int64] = np.array([moments.began_ns, *moments.at_ns], np.int64)
        self.median_mhz = median_low(moments.mhz) if moments.mhz else None
        spans = np.diff(self._ends) / 1e6
        library = moments.threads.get(LIBRARY)
        self.library_rate = 0.0  # in cores
        if library is not None and len(spans):
            rates = np.array(library.cpu_ms) / np.maximum(spans, 1e-6)
            self.library_rate = float(np.median(rates))

    def _shares(self, start: int, end: int) -> Iterator[tuple[int, float]]:
        """Yield the index of each moment whose period overlaps this time, and overlap / period."""
        ends = self._ends
        first = max(1, int(np.searchsorted(ends, start, side="right")))
        for row in range(first, len(ends)):
            left, right = int(ends[row - 1]), int(ends[row])
            inside = min(end, right) - max(start, left)
            if inside <= 0:
                return
            yield row - 1, inside / max(1, right - left)

    def find_times(self, one: Activity, thread: str | None = None) -> ThreadTimes:
        times = self._moments.threads.get(thread or one.thread)
        if times is None:
            return ThreadTimes(0.0, 0.0, 0.0)
        shares = list(self._shares(one.start_ns, one.end_ns))
        return ThreadTimes(
            min(_ms(one), sum(times.cpu_ms[row] * share for row, share in shares)),
            min(_ms(one), sum(times.ready_ms[row] for row, _ in shares)),
            sum(times.ready_ms[row] * share for row, share in shares),
        )

    def has_thread(self, thread: str) -> bool:
        return thread in self._moments.threads

    def usual_ready(self, thread: str) -> float:
        """Return the thread's median wait for a core between two moments, in ms."""
        times = self._moments.threads.get(thread)
        return median_low(times.ready_ms) if times is not None and times.ready_ms else 0.0

    def held_up(self, one: Activity) -> float:
        return max(0.0, self.find_times(one, LIBRARY).ready - self.usual_ready(LIBRARY))

    def faults(self, start: int, end: int, from_disk: bool = False) -> int:
        values = self._moments.disk_faults if from_disk else self._moments.faults
        return sum(values[row] for row, _ in self._shares(start, end))

    def mhz(self, start: int, end: int) -> float | None:
        values = self._moments.mhz
        clocks = [values[row] for row, _ in self._shares(start, end)] if values else []
        return sum(clocks) / len(clocks) if clocks else None

    def collected(self, one: Activity) -> tuple[float, int]:
        """Return the ms of garbage collections in a call, and their highest generation."""
        overlaps = [
            (min(one.end_ns, each.end_ns) - max(one.start_ns, each.start_ns), each.generation)
            for each in self._moments.collections
            if each.start_ns < one.end_ns and each.end_ns > one.start_ns
        ]
        return sum(ns for ns, _ in overlaps) / 1e6, max((which for _, which in overlaps), default=0)


def _ms(one: Activity) -> float:
    return (one.end_ns - one.start_ns) / 1e6


def _has_library_cpu(one: Activity) -> bool:
    return one.spent is not None and one.spent.library_ns is not None


def _library_cpu_ms(one: Activity) -> float:
    return 0.0 if one.spent is None else (one.spent.library_ns or 0) / 1e6


def _is_whole(calls: Sequence[Activity]) -> bool:
    stages = {one.stage for one in calls}
    return READ in stages and any(map(is_after_inference, stages))
