"""The rules that turn frames and states of cameras into events.

Decisions use the monotonic clock, because the wall clock may jump. An event has two times of the
wall clock, ``since_s`` and ``time_s``. If the clock jumped in between, ``since_s`` is recomputed:
the two then differ by the time that really passed.

If objects have ids (--track), each has its own events (objects.py). Otherwise a class appears and
leaves as a whole, however many objects it has. It leaves if no frame shows it for ``GONE_NS``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from detector.core.types import Detections, Frame
from detector.live.base import APPEARS, CAMERA_DOWN, CAMERA_UP, LEAVES, Event
from detector.live.events.objects import GONE_NS, Moment, Objects
from detector.live.sources.base import ENDED, LIVE, WAITING, FeedFacts

LEAST_SEEN, WINDOW = 3, 5  # a class appears when 3 of the last 5 frames show it
NEVER = Moment(0, 0.0)


@dataclass(slots=True)
class _Presence:
    recent: deque[tuple[bool, Moment]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    present: bool = False
    since: Moment = NEVER
    last_seen_ns: int = 0
    most: int = 0  # highest number of objects at once


@dataclass(slots=True)
class _CameraPresence:
    classes: dict[str, _Presence] = field(default_factory=dict)
    objects: Objects | None = None  # with --track
    up: bool | None = None  # None: no picture and no failure yet
    changed: Moment = NEVER  # last change of ``up``, or the start of the run
    down_ns: int = 0  # when it last went down; objects in earlier pictures are treated as gone

    def end(self, camera: str, now: Moment, why: str) -> list[Event]:
        present = [(name, one) for name, one in self.classes.items() if one.present]
        self.classes.clear()
        objects = [] if self.objects is None else self.objects.end(now, why)
        return [*(_leave(camera, name, one, now, why) for name, one in present), *objects]


class EventRules:
    """The rules of one run. Not thread-safe. Each camera's frames must be in order."""

    def __init__(self, started_ns: int, started_s: float) -> None:
        self._started = Moment(started_ns, started_s)
        self._cameras: dict[str, _CameraPresence] = {}

    def _get_state(self, camera: str) -> _CameraPresence:
        if camera not in self._cameras:
            self._cameras[camera] = _CameraPresence(changed=self._started)
        return self._cameras[camera]

    def update(self, frame: Frame, detections: Detections) -> list[Event]:
        """Return the events of a camera's frame; with --track, those of single objects."""
        arrival = frame.arrival
        assert arrival is not None
        state, now = self._get_state(arrival.camera), Moment(arrival.arrived_ns, arrival.utc_s)
        is_late = arrival.arrived_ns < state.down_ns
        if detections.track_ids is not None:
            state.objects = state.objects or Objects(arrival.camera)
            return state.objects.update(frame, detections, now, is_late=is_late)
        if is_late:
            return []
        counts = _count_names(detections)
        for name in counts.keys() - state.classes.keys():
            state.classes[name] = _Presence()
        events: list[Event] = []
        for name, presence in list(state.classes.items()):
            count = counts.get(name, 0)
            presence.recent.append((count > 0, now))
            if count:
                presence.last_seen_ns = arrival.arrived_ns
                presence.most = max(presence.most, count)
            if (
                not presence.present
                and sum(visible for visible, _ in presence.recent) >= LEAST_SEEN
            ):
                presence.present = True
                presence.since = next(moment for visible, moment in presence.recent if visible)
                since_s = presence.since.unix_time_at(now)
                events.append(Event(APPEARS, arrival.camera, now.utc_s, since_s, name, count))
            elif presence.present and arrival.arrived_ns - presence.last_seen_ns >= GONE_NS:
                events.append(_leave(arrival.camera, name, presence, now))
            if not presence.present and not any(visible for visible, _ in presence.recent):
                del state.classes[name]
        return events

    def feed_changed(self, camera: str, facts: FeedFacts, now_ns: int, now_s: float) -> list[Event]:
        """Return the events of a camera's new state. Its objects leave when it goes down. A new
        camera is neither up nor down before its first picture or failure."""
        state = self._get_state(camera)
        is_up = facts.state == LIVE
        if is_up == state.up or (state.up is None and facts.state not in (LIVE, WAITING, ENDED)):
            return []
        state.up = is_up
        changed = Moment(min(facts.since_ns, now_ns), now_s - max(0, now_ns - facts.since_ns) / 1e9)
        changed_s, since_s = changed.utc_s, state.changed.unix_time_at(changed)
        state.changed = changed
        if state.up:
            return [Event(CAMERA_UP, camera, changed_s, since_s)]
        state.down_ns = changed.ns
        down = Event(CAMERA_DOWN, camera, changed_s, since_s, reason=facts.error)
        return [down, *state.end(camera, changed, "the camera is down")]

    def forget(
        self, camera: str, now_ns: int, now_s: float, why: str = "the camera was removed"
    ) -> list[Event]:
        """Return the events of a camera that was removed or ends with the run."""
        state, now = self._cameras.pop(camera, None), Moment(now_ns, now_s)
        if state is None:
            return []
        events = state.end(camera, now, why)
        if state.up:
            since_s = state.changed.unix_time_at(now)
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
    presence.present, presence.most = False, 0
    presence.recent.clear()
    return event
