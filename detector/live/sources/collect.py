"""Collects the pictures of all cameras for the loop: picks the next picture, and fills batches.

``Collector.arrive`` waits for a picture and takes it from its feed. ``read`` turns it into a Frame.
So the timeline separates waiting from work. The camera that was served longest ago comes next.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np

from detector.core.timeline.spans import WAIT_INPUT, OffTrack, ThreadTrack
from detector.core.types import Arrival, Frame, Image, SourceInfo
from detector.live.base import run_concurrently
from detector.live.sources.base import (
    ENDED,
    LIVE,
    STOPPED,
    WAITING,
    Camera,
    Feed,
    FeedFacts,
    Picture,
)

CAMERA = "camera"  # the name of the reader's waits in the timeline

SECOND = 1_000_000_000
SLICE_NS = SECOND // 4  # longest wait before the loop can stop
# Shortest and longest wait for the rest of a batch.
WINDOW_NS = (2_000_000, 100_000_000)
# A batch does not wait for a camera that has been silent for this many of its frame intervals.
SILENT_PERIODS = 3
CHECK_NS = SECOND // 4  # between checks of all feeds
BUSY = 0.8  # if inference is busy for more than this share, a batch waits for more pictures
SMOOTHING = 0.1  # weight of the latest batch in the mean execution time
BACK_S = 1.0  # if stamps step back further, the camera's clock was set
AHEAD_S = 10.0  # stamps may be this far ahead of arrivals: servers first send buffered pictures
GAVE_UP = "; a run with --wait keeps trying"
NO_FACTS = FeedFacts(ENDED, 0)
SPARE_PICTURES = 32  # at most this many unused buffers are kept for later pictures


class ContinuousPts:
    """Makes the stamps of a camera's pictures continuous across new connections and clock jumps.

    If stamps restart, fall back (MPEG-TS wraps after 26.5 hours) or run ahead, the time between
    arrivals is used instead. Not thread-safe."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._last_s = self._shift_s = 0.0
        self._last_ns = 0
        self._lead_s = 0.0  # how far stamps were ahead of arrival at the last restart

    def shift(self, picture: Picture) -> int:
        """Return the picture's continuous pts, which is its own pts until the first jump."""
        arrival, base = picture.arrival, picture.time_base
        time_s = float(picture.pts * base) + self._shift_s
        lead_s = time_s - arrival.arrived_ns / 1e9
        is_new = arrival.epoch != self._epoch
        if is_new or time_s < self._last_s - BACK_S or lead_s > self._lead_s + AHEAD_S:
            if self._epoch is not None:
                passed_s = max(0, arrival.arrived_ns - self._last_ns) / 1e9
                self._shift_s += self._last_s + passed_s - time_s
                time_s = self._last_s + passed_s
            self._epoch, self._lead_s = arrival.epoch, time_s - arrival.arrived_ns / 1e9
        self._last_s, self._last_ns = time_s, arrival.arrived_ns
        return picture.pts + round(self._shift_s / base)


@dataclass(slots=True)
class Member:
    """A camera, with counts that continue if it is removed and added again."""

    feed: Feed
    began_ns: int = 0  # when the camera was added
    first: int = 0  # pictures that earlier feeds received, added to the feed's picture numbers
    epoch: int = 0  # connections of earlier feeds, added to the feed's epochs
    earlier: FeedFacts = NO_FACTS  # the sums of the earlier feeds
    handed: int = 0  # pictures that became frames, from all its feeds
    dropped: Counter[str] = field(default_factory=Counter)  # dropped by the collector
    served: int = 0  # serial number of its last picture, over all cameras
    last_ns: int = 0  # arrival of its last picture
    fps: float | None = None  # at the last check
    live: bool = False
    stamps: ContinuousPts = field(default_factory=ContinuousPts)
    _info: SourceInfo | None = None

    @property
    def camera(self) -> Camera:
        return self.feed.camera

    def info(self, picture: Picture) -> SourceInfo:
        """Return a frame's source: a new object if the picture's size or time base changed."""
        info = self._info
        now = (picture.width, picture.height, picture.time_base)
        if info is None or (info.width, info.height, info.time_base) != now:
            fps = Fraction(self.fps or 0).limit_denominator(1000)
            self._info = info = SourceInfo(
                self.camera.address.shown, "live", picture.width, picture.height, fps, now[2]
            )
        return info

    def facts(self) -> FeedFacts:
        return add_facts(self.feed.facts(), self.earlier, self.dropped)


def add_facts(now: FeedFacts, earlier: FeedFacts, dropped: Mapping[str, int]) -> FeedFacts:
    """Add the counts of the camera's earlier feeds, and ``dropped``, to ``now``."""
    return replace(
        now,
        received=now.received + earlier.received,
        taken=now.taken + earlier.taken,
        connects=now.connects + earlier.connects,
        reconnects=now.reconnects + earlier.reconnects,
        stalls=now.stalls + earlier.stalls,
        dropped=dict(Counter(now.dropped) + Counter(earlier.dropped) + Counter(dropped)),
    )


class InferencePace:
    """How long inference takes, and for what share of the time it is busy. See ``Arrival``."""

    def __init__(self) -> None:
        self._in_flight: deque[Arrival] = deque(maxlen=256)
        self._last_result_ns = 0
        self.execution_ns: float | None = None
        self.busy = 0.0

    def follow(self, arrival: Arrival) -> None:
        self._in_flight.append(arrival)

    def update(self) -> None:
        while self._in_flight and self._in_flight[0].inferred_ns:
            arrival = self._in_flight.popleft()
            if arrival.inferred_ns <= self._last_result_ns:
                continue  # another picture of this batch was counted
            took = arrival.inferred_ns - arrival.began_ns
            before = self.execution_ns
            self.execution_ns = took if before is None else before + SMOOTHING * (took - before)
            if self._last_result_ns:
                busy_ns = arrival.inferred_ns - max(arrival.began_ns, self._last_result_ns)
                share = busy_ns / max(1, arrival.inferred_ns - self._last_result_ns)
                self.busy += SMOOTHING * (share - self.busy)
            self._last_result_ns = arrival.inferred_ns


class SpareBuffers:
    def __init__(self) -> None:
        self._by_shape: dict[tuple[int, ...], list[Image]] = {}
        self._count = 0

    def swap(self, into: Image | None, shape: tuple[int, ...]) -> Image:
        """Return a buffer of ``shape``: ``into`` if it fits. If not, keep ``into`` for reuse."""
        if into is not None and into.shape == shape:
            return into
        if into is not None and self._count < SPARE_PICTURES:
            self._by_shape.setdefault(into.shape, []).append(into)
            self._count += 1
        elif into is not None:
            self._by_shape.clear()  # most buffers have sizes that are no longer used
            self._count = 0
        if spare := self._by_shape.get(shape):
            self._count -= 1
            return spare.pop()
        return np.empty(shape, np.uint8)


class Collector:
    """Passes the pictures of all cameras to one loop, in batches.

    The loop's reader calls ``arrive`` and ``read``. A batch waits for the other cameras only if
    inference is busy. ``give_up_s``: end the source after this time without a picture from any
    camera. ``clock``: ns."""

    def __init__(
        self,
        cameras: Iterable[Camera],
        make: Callable[[Camera, Callable[[], None]], Feed],
        *,
        frames: int | None = None,
        give_up_s: float | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._clock = clock
        self._give_up_ns = None if give_up_s is None else round(give_up_s * SECOND)
        self._gave_up = False
        self._frames = frames
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self.gone: dict[str, Member] = {}  # removed cameras
        self._serial = 0
        self._rows: list[str] = []  # cameras in the current batch
        self._began_ns = 0  # when the batch's first picture was taken
        self._held: tuple[Member, Picture] | None = None  # taken by ``arrive``, for ``read``
        self._ends_ns: int | None = None
        self._closed = False
        self._checked_ns = -SECOND
        self._all_ended = False
        self._spares = SpareBuffers()
        self.pace = InferencePace()
        self._make = make
        for camera in cameras:
            self.add(camera, start=False)

    def start(self) -> None:
        for member in self.members():
            member.feed.start()

    def add(self, camera: Camera, *, start: bool = True) -> Feed:
        """Add a camera. If it was removed before, its counts continue."""
        member = Member(self._make(camera, self.wake), self._clock())
        before = self.gone.get(camera.name)
        if before is not None:
            facts = add_facts(before.feed.facts(), before.earlier, {})
            member.first, member.epoch, member.earlier = facts.received, facts.connects, facts
            member.handed, member.dropped = before.handed, before.dropped
            member.stamps = before.stamps
        with self._changed:
            self._members[camera.name] = member
            self.gone.pop(camera.name, None)
            self._checked_ns = -SECOND
        if start:
            member.feed.start()
        return member.feed

    def remove(self, name: str, timeout_s: float = 1.0) -> None:
        """Stop one camera without delaying the other cameras."""
        with self._changed:
            member = self._members.pop(name)
            self.gone[name] = member
            if self._held is not None and self._held[0] is member:
                self._drop_held()
        member.feed.stop(timeout_s)
        member.dropped[STOPPED] += _unaccounted(member)

    def members(self) -> list[Member]:
        with self._changed:
            return list(self._members.values())

    def was_live(self) -> bool:
        with self._changed:
            members = [*self._members.values(), *self.gone.values()]
        return any(member.facts().connects for member in members)

    def failures(self) -> str:
        lines = []
        for member in self.members():
            facts = member.facts()
            lines.append(facts.error or f"{member.camera.address}: {facts.state}, no frame arrived")
        return "; ".join(lines) + (GAVE_UP if self._gave_up else "")

    def end_after(self, seconds: float) -> None:
        self._ends_ns = self._clock() + round(seconds * SECOND)

    def stop(self, timeout_s: float = 1.0) -> list[str]:
        """End the source and all feeds; return the cameras that are still running."""
        with self._changed:
            closed_before, self._closed = self._closed, True
            self._drop_held()
            self._changed.notify_all()
        if closed_before:
            return []
        late: list[str] = []

        def end(member: Member) -> None:
            if not member.feed.stop(timeout_s):
                late.append(member.camera.name)

        members = self.members()
        run_concurrently((partial(end, member) for member in members), 2 * timeout_s)
        for member in members:
            member.dropped[STOPPED] += _unaccounted(member)
        return sorted(late)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def arrive(self, track: ThreadTrack | OffTrack, index: int, row: int) -> bool:
        """Wait for a picture; return whether to call ``read``. For row 0, wait up to SLICE_NS."""
        with self._changed:
            if row == 0:
                self.pace.update()
                self._rows = []
            if self._held is not None or self._has_finished() or self._take():
                return True
            waits = self._wait_ns(row)
            if not waits or not self._may_fill(row):
                return False
            with track.span(CAMERA, index, WAIT_INPUT):
                return self._wait(row, self._clock() + waits)

    def _wait(self, row: int, until_ns: int) -> bool:
        """Wait until a picture is taken or the source has ended; return False at ``until_ns``."""
        while not self._has_finished() and not self._take():
            now = self._clock()
            if now >= until_ns or not self._may_fill(row):
                return False
            end_ns = until_ns if self._ends_ns is None else min(until_ns, self._ends_ns)
            self._sleep(max(0, end_ns - now))
        return True

    def _sleep(self, ns: int) -> None:
        self._changed.wait(min(ns, SLICE_NS) / SECOND)

    def read(self, into: Image | None = None) -> Frame | None:
        """Return the next frame; None at the end. Waits if ``arrive`` took no picture."""
        while (held := self._release_held()) is None:
            if self.arrive(OffTrack(), 0, 0) and self._has_drained():
                return None
        member, picture = held
        buffer = self._spares.swap(into, (picture.height, picture.width, 3))
        image = member.feed.convert(picture, buffer)
        arrival = picture.arrival
        arrival.epoch += member.epoch
        self.pace.follow(arrival)
        pts = member.stamps.shift(picture)
        return Frame(
            member.first + picture.number,
            pts,
            float(pts * picture.time_base),
            image,
            source=member.info(picture),
            arrival=arrival,
        )

    def _release_held(self) -> tuple[Member, Picture] | None:
        """Return the picture that ``arrive`` took, if any; None if its camera was removed."""
        with self._changed:
            held, self._held = self._held, None
            if held is not None:
                held[0].handed += 1
                self._frames = None if self._frames is None else self._frames - 1
            return held

    def _has_drained(self) -> bool:
        with self._changed:
            return self._held is None and self._has_finished()

    # Callers of these methods hold the lock.

    def window_ns(self) -> int:
        """Return how long a batch waits: the shortest frame interval minus the inference time."""
        rates = [member.fps for member in self._members.values() if member.live and member.fps]
        shortest, longest = WINDOW_NS
        if not rates:
            return shortest
        rest = SECOND / max(rates) - (self.pace.execution_ns or 0.0)
        return int(min(max(rest, shortest), longest))

    def _wait_ns(self, row: int) -> int:
        if row == 0:
            return SLICE_NS
        if self.pace.busy < BUSY:
            return 0
        return max(0, self._began_ns + self.window_ns() - self._clock())

    def _may_fill(self, row: int) -> bool:
        """Return whether a camera that is not in the batch yet may send a picture soon."""
        now = self._clock()
        return row == 0 or any(
            now - member.last_ns <= SILENT_PERIODS * SECOND / member.fps
            for member in self._members.values()
            if member.live and member.fps and member.camera.name not in self._rows
        )

    def _take(self) -> bool:
        """Take a picture, if any. Cameras outside the batch come before cameras that are in it."""

        def turn(member: Member) -> tuple[bool, int]:
            return member.camera.name in self._rows, member.served

        for member in sorted(self._members.values(), key=turn):
            if member.feed.waiting() and (picture := member.feed.take()) is not None:
                now = picture.arrival.taken_ns = self._clock()
                self._held = (member, picture)
                self._serial += 1
                member.served, member.last_ns = self._serial, picture.arrival.arrived_ns
                if not self._rows:
                    self._began_ns = now
                self._rows.append(member.camera.name)
                return True
        return False

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held[0].dropped[STOPPED] += 1
            self._held = None

    def _has_finished(self) -> bool:
        now = self._clock()
        if (
            self._closed
            or self._frames == 0
            or (self._ends_ns is not None and now >= self._ends_ns)
        ):
            return True
        if now - self._checked_ns >= CHECK_NS:
            self._check_feeds(now)
        return self._all_ended or self._gave_up

    def _check_feeds(self, now: int) -> None:
        self._checked_ns = now
        self._all_ended = hopeless = bool(self._members)
        for member in self._members.values():
            facts = member.feed.facts()
            member.live, member.fps = facts.state == LIVE, facts.fps
            if facts.state != ENDED or member.feed.waiting():
                self._all_ended = False
            hopeless = hopeless and self._is_hopeless(member, facts)
        if self._give_up_ns is not None and hopeless:
            self._gave_up = not any(
                facts.connects for facts in map(Member.facts, self.gone.values())
            )
        if any(member.live for member in self._members.values()):
            self._give_up_ns = None  # one address works, so never give up

    def _is_hopeless(self, member: Member, facts: FeedFacts) -> bool:
        """Return whether a camera sent no picture in time, and is not connecting now."""
        if facts.connects or self._give_up_ns is None or facts.state not in (WAITING, ENDED):
            return False
        return self._clock() - member.began_ns >= self._give_up_ns


def _unaccounted(member: Member) -> int:
    """Return how many pictures a stopped feed neither returned nor counted as dropped."""
    facts = member.feed.facts()
    return max(0, facts.received - facts.taken - sum(facts.dropped.values()))
