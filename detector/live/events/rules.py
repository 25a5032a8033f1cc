"""The rules that turn frames and states of cameras into events.

Decisions use the monotonic clock, because a computer's wall clock jumps. Events carry wall time. If
it jumped since something began, the beginning is recomputed from the current time, so that the two
times of an event differ by what really passed.

If objects have ids (--track), each has its own events (objects.py). Otherwise a class is in view or
not, however many objects it has; it leaves after ``GONE_NS`` of frames without it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from detector.core.types import Detections, Frame
from detector.live.base import APPEARS, CAMERA_DOWN, CAMERA_UP, LEAVES, Event
from detector.live.events.objects import GONE_NS, Moment, Objects
from detector.live.sources.base import ENDED, LIVE, STATES, WAITING, FeedFacts

SEEN, OF_FRAMES = 3, 5  # a class appears when 3 of the last 5 frames show it
NEVER = Moment(0, 0.0)


@dataclass(slots=True)
class _Presence:
    seen: deque[tuple[bool, Moment]] = field(default_factory=lambda: deque(maxlen=OF_FRAMES))
    there: bool = False
    since: Moment = NEVER
    last_seen_ns: int = 0
    most: int = 0  # objects at once


@dataclass(slots=True)
class _CameraPresence:
    classes: dict[str, _Presence] = field(default_factory=dict)
    objects: Objects | None = None  # with --track
    up: bool | None = None  # None: no picture and no failure yet
    changed: Moment = NEVER  # last change of ``up``, or the start of the run

    def end(self, camera: str, now: Moment, why: str) -> list[Event]:
        there = [(name, one) for name, one in self.classes.items() if one.there]
        self.classes.clear()
        objects = [] if self.objects is None else self.objects.end(now, why)
        return [*(_leave(camera, name, one, now, why) for name, one in there), *objects]


class EventRules:
    """The rules of one run. Frames of a camera come in order; all calls from one thread."""

    def __init__(self, started_ns: int, started_s: float) -> None:
        self._started = Moment(started_ns, started_s)
        self._places: dict[str, _CameraPresence] = {}

    def _place(self, camera: str) -> _CameraPresence:
        if camera not in self._places:
            self._places[camera] = _CameraPresence(changed=self._started)
        return self._places[camera]

    def update(self, frame: Frame, detections: Detections) -> list[Event]:
        """Return the events of a camera's frame: classes or objects that appear or left."""
        arrival = frame.arrival
        assert arrival is not None, "events are of cameras"
        place, now = self._place(arrival.camera), Moment(arrival.arrived_ns, arrival.utc_s)
        if detections.track_ids is not None:
            place.objects = place.objects or Objects(arrival.camera)
            return place.objects.update(frame, detections, now)
        counts = _count_names(detections)
        for name in counts.keys() - place.classes.keys():
            place.classes[name] = _Presence()
        events: list[Event] = []
        for name, presence in list(place.classes.items()):
            count = counts.get(name, 0)
            presence.seen.append((count > 0, now))
            if count:
                presence.last_seen_ns = arrival.arrived_ns
                presence.most = max(presence.most, count)
            if not presence.there and sum(seen for seen, _ in presence.seen) >= SEEN:
                presence.there = True
                presence.since = next(moment for seen, moment in presence.seen if seen)
                since_s = presence.since.unix_time_at(now)
                events.append(Event(APPEARS, arrival.camera, now.utc_s, since_s, name, count))
            elif presence.there and arrival.arrived_ns - presence.last_seen_ns >= GONE_NS:
                events.append(_leave(arrival.camera, name, presence, now))
            if not presence.there and not any(seen for seen, _ in presence.seen):
                del place.classes[name]
        return events

    def feed_changed(self, camera: str, facts: FeedFacts, now_ns: int, now_s: float) -> list[Event]:
        """Return the events of a camera's new state. One that goes down loses its objects; a new
        one is neither up nor down until it sends a picture or fails."""
        assert facts.state in STATES
        place = self._place(camera)
        is_up = facts.state == LIVE
        if is_up == place.up or (place.up is None and facts.state not in (LIVE, WAITING, ENDED)):
            return []
        place.up = is_up
        changed = Moment(min(facts.since_ns, now_ns), now_s - max(0, now_ns - facts.since_ns) / 1e9)
        changed_s, since_s = changed.utc_s, place.changed.unix_time_at(changed)
        place.changed = changed
        if place.up:
            return [Event(CAMERA_UP, camera, changed_s, since_s)]
        down = Event(CAMERA_DOWN, camera, changed_s, since_s, reason=facts.error)
        return [down, *place.end(camera, changed, "the camera is down")]

    def forget(
        self, camera: str, now_ns: int, now_s: float, why: str = "the camera was removed"
    ) -> list[Event]:
        """Return the events of a camera that is removed, or that ends with the run."""
        place, now = self._places.pop(camera, None), Moment(now_ns, now_s)
        if place is None:
            return []
        events = place.end(camera, now, why)
        if place.up:
            since_s = place.changed.unix_time_at(now)
            events.append(Event(CAMERA_DOWN, camera, now_s, since_s, reason=why))
        return events


def _count_names(detections: Detections) -> dict[str, int]:
    ids, counts = np.unique(detections.class_ids, return_counts=True)
    names = detections.names
    return {
        names[one] if one < len(names) else str(one): count
        for one, count in zip(ids.tolist(), counts.tolist(), strict=True)
    }


def _leave(
    camera: str, name: str, presence: _Presence, now: Moment, reason: str | None = None
) -> Event:
    since_s = presence.since.unix_time_at(now)
    event = Event(LEAVES, camera, now.utc_s, since_s, name, presence.most, reason=reason)
    presence.there, presence.most = False, 0
    presence.seen.clear()
    return event
