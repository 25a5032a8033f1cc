"""Collects the pictures of all cameras for the loop: which is next, and how long a batch waits.

``Collector.arrive`` waits for a picture and takes it from its feed; ``read`` turns it into a Frame,
so that waiting and work are timed separately. The camera that was served longest ago is next.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from detector.core.timeline import WAIT_INPUT, OffTrack, ThreadTrack
from detector.core.types import Arrival, Frame, Image, SourceInfo
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

AUTO, EVERY, FRESHEST = "auto", "every", "freshest"
CAMERA = "camera"  # cause of the reader's waits, in the ledger

SECOND = 1_000_000_000
SLICE_NS = SECOND // 4  # longest part of a wait, so that the loop can stop
# Shortest and longest wait of a batch: cameras pause 400 to 500 ms at key frames.
WINDOW_NS = (2_000_000, 100_000_000)
# A batch does not wait for a camera that was silent for this many of its periods.
SILENT_PERIODS = 3
LOOK_NS = SECOND // 4  # between checks of all feeds
# Busy share of inference above which waiting for a fuller batch pays.
BUSY = 0.8
SMOOTHING = 0.1  # weight of the latest batch in the mean execution time
BACK_S = 1.0  # a larger step back is a clock that was set; a smaller one is disorder
AHEAD_S = 10.0  # by which stamps may run ahead of arrival: servers send the last seconds at once
GAVE_UP = "; use --wait to keep trying"
SPARE_PICTURES = 32  # most buffers of other sizes kept for reuse


class SteadyStamps:
    """The time of a camera's pictures, which goes on through new connections and jumps of a clock.
    Where stamps begin anew, fall back (MPEG-TS wraps after 26.5 hours) or run ahead, arrival
    counts. For one thread."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._last_s = self._shift_s = 0.0
        self._last_ns = 0
        self._lead_s = 0.0  # of the stamps before arrival, when they were believed last

    def move(self, picture: Picture) -> int:
        """Return the picture's continuous pts; as stored until the first jump."""
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
    """A camera with counts that continue if it is added again. ``epoch``: earlier connections."""

    feed: Feed
    began_ns: int = 0  # when it was added
    first: int = 0
    epoch: int = 0
    earlier: FeedFacts | None = None
    handed: int = 0  # pictures that became frames, from all its feeds
    dropped: Counter[str] = field(default_factory=Counter)  # dropped by the collector
    served: int = 0  # serial number of its last picture, over all cameras
    last_ns: int = 0  # arrival of its last picture
    fps: float | None = None  # at the last check
    live: bool = False
    stamps: SteadyStamps = field(default_factory=SteadyStamps)
    _info: SourceInfo | None = None

    @property
    def camera(self) -> Camera:
        return self.feed.camera

    def info(self, picture: Picture) -> SourceInfo:
        """Return the source of its frames, renewed if size or time base change."""
        info = self._info
        now = (picture.width, picture.height, picture.time_base)
        if info is None or (info.width, info.height, info.time_base) != now:
            fps = Fraction(self.fps or 0).limit_denominator(1000)
            self._info = info = SourceInfo(
                self.camera.address.shown, "live", picture.width, picture.height, fps, now[2]
            )
        return info

    def facts(self) -> FeedFacts:
        return add_up(self.feed.facts(), self.earlier, self.dropped)


def add_up(now: FeedFacts, earlier: FeedFacts | None, dropped: Mapping[str, int]) -> FeedFacts:
    """Add counts of the camera's former feeds, and pictures dropped elsewhere, to ``now``."""
    counts = Counter(now.dropped)
    counts.update(dropped)
    if earlier is not None:
        counts.update(earlier.dropped)
    return replace(
        now,
        received=now.received + (earlier.received if earlier else 0),
        taken=now.taken + (earlier.taken if earlier else 0),
        connects=now.connects + (earlier.connects if earlier else 0),
        stalls=now.stalls + (earlier.stalls if earlier else 0),
        dropped={reason: count for reason, count in counts.items() if count},
    )


class Pace:
    """The duration and busy share of inference, from times noted on each picture."""

    def __init__(self) -> None:
        self._in_flight: deque[Arrival] = deque(maxlen=256)
        self._until = 0
        self.execution_ns: float | None = None
        self.busy = 0.0

    def follow(self, arrival: Arrival) -> None:
        self._in_flight.append(arrival)

    def look(self) -> None:
        while self._in_flight and self._in_flight[0].inferred_ns:
            one = self._in_flight.popleft()
            if one.inferred_ns <= self._until:
                continue  # its batch has been counted
            took = one.inferred_ns - one.began_ns
            before = self.execution_ns
            self.execution_ns = took if before is None else before + SMOOTHING * (took - before)
            if self._until:
                alone = one.inferred_ns - max(one.began_ns, self._until)
                share = alone / max(1, one.inferred_ns - self._until)
                self.busy += SMOOTHING * (share - self.busy)
            self._until = one.inferred_ns


class Spares:
    """Buffers of pictures by shape, reused by cameras of different sizes."""

    def __init__(self) -> None:
        self._by_shape: dict[tuple[int, ...], list[Image]] = {}
        self._count = 0

    def swap(self, into: Image | None, shape: tuple[int, ...]) -> Image:
        """Return a buffer of ``shape``: ``into`` if it fits, else ``into`` is kept for later."""
        if into is not None and into.shape == shape:
            return into
        if into is not None and self._count < SPARE_PICTURES:
            self._by_shape.setdefault(into.shape, []).append(into)
            self._count += 1
        elif into is not None:
            self._by_shape.clear()  # mostly sizes that are no longer used
            self._count = 0
        if kept := self._by_shape.get(shape):
            self._count -= 1
            return kept.pop()
        return np.empty(shape, np.uint8)


class Collector:
    """Hands the pictures of all cameras to one loop, in batches of ``batch`` rows.

    The loop's reader calls ``arrive`` and ``read``. ``gather``: "every" and "freshest" take each
    camera once per batch and wait for the others, "freshest" before it takes the first; "auto"
    waits only if inference is busy. ``give_up_s``: end without a first picture; None: never.
    ``clock``: ns.
    """

    def __init__(
        self,
        cameras: Iterable[Camera],
        make: Callable[[Camera, Callable[[], None]], Feed],
        *,
        batch: int = 1,
        gather: str = AUTO,
        frames: int | None = None,
        give_up_s: float | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._clock, self._batch, self._gather = clock, batch, gather
        self._give_up_ns = None if give_up_s is None else round(give_up_s * SECOND)
        self._gave_up = False
        self._left = frames
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self.gone: dict[str, Member] = {}  # removed cameras
        self._serial = 0
        self._rows: list[str] = []  # cameras in the current batch
        self._began_ns = 0  # when its first picture was taken
        self._held: tuple[Member, Picture] | None = None
        self._ends_ns: int | None = None
        self._closed = False
        self._looked_ns = -SECOND
        self._all_ended = False
        self._spares = Spares()
        self.pace = Pace()
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
            facts = add_up(before.feed.facts(), before.earlier, {})
            member.first, member.epoch, member.earlier = facts.received, facts.connects, facts
            member.handed, member.dropped = before.handed, before.dropped
            member.stamps = before.stamps
        with self._changed:
            self._members[camera.name] = member
            self.gone.pop(camera.name, None)
            self._looked_ns = -SECOND
        if start:
            member.feed.start()
        return member.feed

    def remove(self, name: str, timeout_s: float = 1.0) -> bool:
        """Stop one camera without delaying the others; return False if its feed was still busy."""
        with self._changed:
            member = self._members.pop(name)
            self.gone[name] = member
            if self._held is not None and self._held[0] is member:
                self._drop_held()
        ended = member.feed.stop(timeout_s)
        member.dropped[STOPPED] += _unaccounted(member)
        return ended

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
        """End the source and all feeds; return the cameras still running. May be called twice."""
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

        threads = [
            threading.Thread(target=end, args=(member,), name="detect-video stop", daemon=True)
            for member in self.members()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * timeout_s)
        for member in self.members():
            member.dropped[STOPPED] += _unaccounted(member)
        return sorted(late)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def arrive(self, track: ThreadTrack | OffTrack, index: int, row: int) -> bool:
        """Wait, for the first row up to SLICE_NS; return whether to call ``read``."""
        with self._changed:
            if row == 0:
                self.pace.look()
                self._rows = []
            if self._held is not None or self._is_over():
                return True
            once = row > 0 and self._gather != AUTO
            waits = self._wait_ns(row)
            if row or not self._waits_first():
                if self._take(once):
                    return True
                if not waits or not self._hopeful(row):
                    return False
            with track.span(CAMERA, index, WAIT_INPUT):
                return self._wait(row, once, self._clock() + waits)

    def _wait(self, row: int, once: bool, until_ns: int) -> bool:
        """Wait until a picture was taken or the source is over; False at ``until_ns``."""
        while True:
            if self._is_over():
                return True
            if row == 0 and self._waits_first():
                # Freshest: after the first picture, wait for the others, then take the newest.
                if self._somebody_waits():
                    self._let_others_come()
                    if self._take(once=False):
                        return True
            elif self._take(once):
                return True
            elif row and not self._hopeful(row):
                return False
            left = until_ns - self._clock()
            if left <= 0:
                return False
            self._sleep(self._within(left))

    def _let_others_come(self) -> None:
        until = self._clock() + self.window_ns()
        while not self._is_over() and (left := until - self._clock()) > 0:
            missing = [one for one in self._expected() if not one.feed.waiting()]
            if not missing or len(self._expected()) - len(missing) >= self._batch:
                return
            self._sleep(self._within(left))

    def _within(self, ns: int) -> int:
        return ns if self._ends_ns is None else max(0, min(ns, self._ends_ns - self._clock()))

    def _sleep(self, ns: int) -> None:
        self._changed.wait(min(ns, SLICE_NS) / SECOND)

    def read(self, into: Image | None = None) -> Frame | None:
        """Return the next frame, or None at the end. Waits if ``arrive`` has taken no picture."""
        while (taken := self._hand_out()) is None:
            if self.arrive(OffTrack(), 0, 0) and self._has_ended():
                return None
        member, picture = taken
        buffer = self._spares.swap(into, (picture.height, picture.width, 3))
        image = member.feed.convert(picture, buffer)
        arrival = picture.arrival
        arrival.epoch += member.epoch
        self.pace.follow(arrival)
        pts = member.stamps.move(picture)
        return Frame(
            member.first + picture.number,
            pts,
            float(pts * picture.time_base),
            image,
            source=member.info(picture),
            arrival=arrival,
        )

    def _hand_out(self) -> tuple[Member, Picture] | None:
        """Return what ``arrive`` took; None if nothing, or if its camera was removed."""
        with self._changed:
            taken, self._held = self._held, None
            if taken is not None:
                taken[0].handed += 1
                self._left = None if self._left is None else self._left - 1
            return taken

    def _has_ended(self) -> bool:
        with self._changed:
            return self._held is None and self._is_over()

    # With the lock held.

    def window_ns(self) -> int:
        """Return a batch's wait: the fastest camera's period minus the mean execution time."""
        rates = [member.fps for member in self._members.values() if member.live and member.fps]
        shortest, longest = WINDOW_NS
        if not rates:
            return shortest
        rest = SECOND / max(rates) - (self.pace.execution_ns or 0.0)
        return int(min(max(rest, shortest), longest))

    def _wait_ns(self, row: int) -> int:
        if row == 0:
            return SLICE_NS
        if self._gather == AUTO and self.pace.busy < BUSY:
            return 0
        return max(0, self._began_ns + self.window_ns() - self._clock())

    def _waits_first(self) -> bool:
        return self._gather == FRESHEST and self._batch > 1 and len(self._expected()) > 1

    def _hopeful(self, row: int) -> bool:
        if row == 0:
            return True
        return any(member.camera.name not in self._rows for member in self._expected())

    def _expected(self) -> list[Member]:
        now, found = self._clock(), []
        for member in self._members.values():
            if not member.live or not member.fps:
                continue
            silent_ns = SILENT_PERIODS * SECOND / member.fps
            if member.feed.waiting() or now - member.last_ns <= silent_ns:
                found.append(member)
        return found

    def _somebody_waits(self) -> bool:
        return any(member.feed.waiting() for member in self._members.values())

    def _take(self, once: bool) -> bool:
        """Take from the camera served longest ago; ``once``: only cameras not in the batch."""

        def turn(member: Member) -> tuple[bool, int]:
            return member.camera.name in self._rows, member.served

        for member in sorted(self._members.values(), key=turn):
            if once and member.camera.name in self._rows:
                continue
            if member.feed.waiting() and (picture := member.feed.take()) is not None:
                member.last_ns = picture.arrival.arrived_ns
                picture.arrival.taken_ns = self._clock()
                self._hold(member, picture)
                return True
        return False

    def _hold(self, member: Member, picture: Picture) -> None:
        self._held = (member, picture)
        self._serial += 1
        member.served = self._serial
        if not self._rows:
            self._began_ns = self._clock()
        self._rows.append(member.camera.name)

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held[0].dropped[STOPPED] += 1
            self._held = None

    def _is_over(self) -> bool:
        now = self._clock()
        if self._closed or self._left == 0 or (self._ends_ns is not None and now >= self._ends_ns):
            return True
        if now - self._looked_ns >= LOOK_NS:
            self._look(now)
        return self._all_ended or self._gave_up

    def _look(self, now: int) -> None:
        self._looked_ns = now
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
            self._give_up_ns = None  # from now on, errors may be temporary

    def _is_hopeless(self, member: Member, facts: FeedFacts) -> bool:
        """Return whether it sent no picture in time, and no attempt is in progress."""
        if facts.connects or self._give_up_ns is None or facts.state not in (WAITING, ENDED):
            return False
        return self._clock() - member.began_ns >= self._give_up_ns


def _unaccounted(member: Member) -> int:
    """Return the pictures that an ended feed neither handed out nor counted as dropped."""
    facts = member.feed.facts()
    return max(0, facts.received - facts.taken - sum(facts.dropped.values()))
