"""Events of single objects, for cameras whose objects have ids (--track).

An object appears when it gets its id, and leaves when it has not been detected for ``GONE_NS``.
With --zones, it also crosses lines, and enters, leaves and stays in zones. Ids restart each day, so
two objects of successive days may have the same id.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detector.core.types import Detections, Frame
from detector.live.base import APPEARS, LEAVES, Event

GONE_NS = 2_000_000_000
JUMP_S = 1.0  # smaller differences may arise because one clock is read after the other


class Moment(NamedTuple):
    """A time on two clocks: the monotonic clock, for rules, and the wall clock, for events."""

    ns: int  # monotonic
    utc_s: float

    def unix_time_at(self, now: Moment) -> float:
        """Return this moment's Unix time, corrected if the wall clock jumped before ``now``."""
        passed_s = (now.ns - self.ns) / 1e9
        jumped_s = now.utc_s - self.utc_s - passed_s
        if abs(jumped_s) <= JUMP_S and self.utc_s <= now.utc_s:
            return self.utc_s
        return now.utc_s - passed_s


@dataclass(slots=True)
class _Object:
    class_name: str
    since: Moment
    seen_ns: int


@dataclass(slots=True)
class Objects:
    camera: str
    present: dict[int, _Object] = field(default_factory=dict)

    def update(
        self, frame: Frame, detections: Detections, now: Moment, *, is_late: bool = False
    ) -> list[Event]:
        """Return the events of a frame. ``is_late``: the camera has since gone down, so its objects
        have left. Lines and zones still report events, since they also count this frame."""
        events: list[Event] = []
        for i, track in enumerate(() if is_late else detections.track_list()):
            if track is None:
                continue
            name = detections.name(i)
            known = self.present.get(track)
            if known is not None and known.class_name != name:  # yesterday's object had this id
                events.append(self._remove(track, now))
                known = None
            if known is not None:
                known.seen_ns = now.ns
                continue
            self.present[track] = _Object(name, now, now.ns)
            count = self._count(name)
            events.append(
                Event(APPEARS, self.camera, now.utc_s, now.utc_s, name, count, track=track)
            )
        gone = [track for track, known in self.present.items() if now.ns - known.seen_ns >= GONE_NS]
        events += [self._remove(track, now) for track in gone]
        if detections.scene is not None:
            shift_s = now.utc_s - frame.time_s
            events += [self._zone_event(one, shift_s) for one in detections.scene.events]
        return events

    def end(self, now: Moment, reason: str) -> list[Event]:
        return [self._remove(track, now, reason) for track in list(self.present)]

    def _remove(self, track: int, now: Moment, reason: str | None = None) -> Event:
        known = self.present.pop(track)
        return Event(
            *(LEAVES, self.camera, now.utc_s, known.since.unix_time_at(now), known.class_name),
            self._count(known.class_name),
            reason=reason,
            track=track,
        )

    def _count(self, name: str) -> int:
        return Counter(one.class_name for one in self.present.values())[name]

    def _zone_event(self, event: Any, shift_s: float) -> Event:
        since_s = event.time_s if event.since_s is None else event.since_s
        return Event(
            *(event.event, self.camera, event.time_s + shift_s, since_s + shift_s),
            class_name=event.class_name,
            track=event.track,
            zone=event.zone,
            direction=event.direction or None,
            side=event.side or None,
        )
