"""Filters of events for the webhook, MQTT, snapshots and clips: ``events:`` in cameras.yaml.

Without a filter, a receiver gets all events of its ``KINDS`` except those that the run's planned
end causes. If a camera has lines or zones (--zones), only their events and ``CAMERA_EVENTS`` are
sent. Events that a filter held back are counted; the camera's files contain all events.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from detector.core.config import option
from detector.core.config.levels import read_value
from detector.core.errors import UsageError
from detector.core.errors.parsing import quote, refuse_unknown
from detector.core.run.selection import class_ids
from detector.live import base
from detector.live.base import Event, to_utc

if TYPE_CHECKING:
    from detector.live.sources.base import Camera

WEBHOOK, MQTT, SNAPSHOTS, CLIPS = "webhook", "mqtt", "snapshots", "clips"
CAMERA_EVENTS = {base.CAMERA_UP, base.CAMERA_DOWN}
ZONE_EVENTS = {base.CROSSES, base.ENTERS, base.STAYS, base.ENDS}
TIMED = (base.LEAVES, base.STAYS, base.ENDS)  # events that have a duration
PICTURED = (base.APPEARS, base.CROSSES, base.ENTERS, base.STAYS)  # the object is then in view
# Receiver -> default kinds of events.
KINDS = {WEBHOOK: base.EVENTS, MQTT: base.EVENTS, SNAPSHOTS: PICTURED, CLIPS: PICTURED}
NO_ZONE = "away from lines and zones"  # why an event is held back although no filter was given
MINUTE_S = 60.0
PASSED, FILTERED, LIMITED = "passed", "filter", "per_minute"
_HOURS = re.compile(r"(([01]\d|2[0-3]):[0-5]\d)-(?!\1)(([01]\d|2[0-3]):[0-5]\d|24:00)")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The keys of a filter. None: any value, but ``_complete`` replaces ``kinds`` and ``view``."""

    kinds: tuple[str, ...] | None = option(None, "Kinds of events.", choices=base.EVENTS)
    classes: tuple[str, ...] | None = option(None, "Names or ids of classes.")
    zones: tuple[str, ...] | None = option(None, "Names of lines and zones.")
    view: bool | None = option(None, "Whether to send events that name no line or zone.")
    stay: float = option(0.0, "Least seconds, for kinds in TIMED.", at_least=0.0, at_most=86400.0)
    hours: tuple[str, ...] | None = option(None, "Times of the local day: 22:00-06:00.")
    per_minute: int | None = option(None, "Most events of a camera in any minute.", at_least=1)
    run_end: bool = option(False, "Whether to send the events that the run's planned end causes.")

    def matches(self, event: Event) -> bool:
        if event.event not in (self.kinds or ()) or not self._is_time(event.time_s):
            return False
        if event.event in CAMERA_EVENTS:  # they have no class or zone
            return True
        if event.event in TIMED and event.time_s - event.since_s < self.stay:
            return False
        if self.classes is not None and event.class_name not in self.classes:
            return False
        if event.zone is None:
            return bool(self.view)
        return self.zones is None or event.zone in self.zones

    def _is_time(self, time_s: float) -> bool:
        now = to_utc(time_s).astimezone().strftime("%H:%M")
        spans = [span.split("-") for span in self.hours or ("00:00-24:00",)]
        return any(
            begin <= now < end or (end < begin and not end <= now < begin) for begin, end in spans
        )


class EventFilters:
    """The filters of a run. ``names``: classes of the network. ``zones_of`` returns a camera's
    lines and zones. ``clock``: monotonic seconds. Not thread-safe."""

    def __init__(
        self,
        names: Sequence[str] = (),
        zones_of: Callable[[str], Sequence[str]] = lambda camera: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names, self._list_zones, self._clock = names, zones_of, clock
        self._filters: dict[tuple[str, str], EventFilter] = {}  # (receiver, camera) -> filter
        self._own: set[str] = set()  # receivers for which the user gave a filter
        # Events that passed in the last minute, by receiver and camera, with monotonic times.
        self._recent: dict[tuple[str, str], deque[tuple[float, Event]]] = defaultdict(deque)
        self.counts: Counter[tuple[str, str]] = Counter()  # (receiver, result) -> count

    def take(self, cameras: Sequence[Camera]) -> None:
        """Set the filters of these cameras. Raises UsageError for unknown names."""
        zones = [zone for camera in cameras for zone in self._list_zones(camera.name)]
        known = tuple(dict.fromkeys(zones))
        self._own |= {receiver for camera in cameras for receiver in camera.events}
        self._filters |= {
            (receiver, camera.name): self._complete(receiver, camera, known)
            for camera in cameras
            for receiver in KINDS
        }

    def _complete(self, receiver: str, camera: Camera, known: Sequence[str]) -> EventFilter:
        """Return the camera's filter with all defaults. ``known``: all lines and zones."""
        own: EventFilter = camera.events.get(receiver, EventFilter())
        where = f"camera {camera.name}: events.{receiver}"
        if not known and (own.zones or ZONE_EVENTS.intersection(own.kinds or ())):
            raise UsageError(f"{where}: there are no lines or zones; add --zones FILE")
        refuse_unknown(f"{where}.zones", "line or zone", own.zones or (), known)
        ids = class_ids(f"{where}.classes", own.classes, self._names)
        kinds = (*TIMED, *CAMERA_EVENTS) if own.stay else KINDS[receiver]
        return replace(
            own,
            kinds=kinds if own.kinds is None else own.kinds,
            classes=None if ids is None else tuple(self._names[one] for one in ids),
            view=not self._list_zones(camera.name) if own.view is None else own.view,
        )

    def choose_clips(self, camera: Camera) -> bool:
        """Return whether events start the camera's clips; otherwise detections do."""
        return CLIPS in camera.events or bool(self._list_zones(camera.name))

    def passes(self, receiver: str, event: Event) -> bool:
        """Return whether the receiver gets this event, and count the result."""
        key = receiver, event.camera
        limits, result = self._filters[key], PASSED
        if event.reason == base.RUN_ENDED and not limits.run_end:
            return False
        if not limits.matches(event):
            result = FILTERED
        elif event.event not in CAMERA_EVENTS and not self._has_room(key, limits, event):
            result = LIMITED
        if result == PASSED or event.event in KINDS[receiver]:
            self.counts[receiver, result] += 1
        return result == PASSED

    def _has_room(self, key: tuple[str, str], limits: EventFilter, event: Event) -> bool:
        """Return whether ``per_minute`` allows this event. One event is reserved for each line or
        zone that had none in the last minute. For snapshots and clips, simultaneous events
        count once, since they share a picture."""
        if limits.per_minute is None:
            return True
        now, recent = self._clock(), self._recent[key]
        while recent and now - recent[0][0] >= MINUTE_S:
            recent.popleft()
        if key[0] in (SNAPSHOTS, CLIPS) and any(one.time_s == event.time_s for _, one in recent):
            return True
        zones = limits.zones or self._list_zones(event.camera)
        silent = {*zones}.difference(one.zone for _, one in recent)
        reserved = 0 if event.zone in silent or not recent else len(silent)
        if len(recent) + reserved >= limits.per_minute:
            return False
        recent.append((now, event))
        return True

    def line(self) -> str:
        """Return a line for the user with the numbers of events held back, if any."""
        parts = [
            f"{count} for {receiver} ({result if receiver in self._own else NO_ZONE})"
            for (receiver, result), count in sorted(self.counts.items())
            if result != PASSED
        ]
        return f"events held back: {', '.join(parts)}" if parts else ""


def read_filters(where: str, given: Any) -> dict[str, EventFilter]:
    """Parse ``events:`` into receiver -> filter. Raises UsageError with the key's path."""
    keys = {leaf.name: leaf for leaf in fields(EventFilter)}
    filters = {}
    for receiver, section in _mapping(where, given, list(KINDS)).items():
        here = f"{where}.{receiver}"
        given = _mapping(here, section, list(keys)).items()
        values = {key: read_value(f"{here}.{key}", keys[key], value) for key, value in given}
        filters[receiver] = one = EventFilter(**values)
        if receiver in (SNAPSHOTS, CLIPS) and CAMERA_EVENTS.intersection(one.kinds or ()):
            raise UsageError(f"{here}.kinds: camera_up and camera_down have no picture; omit them")
        if one.stay and not {*(one.kinds or TIMED)} & {*TIMED}:
            raise UsageError(f"{here}.stay: only for {', '.join(TIMED)}; add one of these to kinds")
        for hours in one.hours or ():
            if not _HOURS.fullmatch(hours):
                raise UsageError(f"{here}.hours: {quote(hours)} is not a span such as 22:00-06:00")
    return filters


def _mapping(where: str, given: Any, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UsageError(f"{where}: {quote(given)} is not a mapping; known: {', '.join(known)}")
    refuse_unknown(where, "key", given, known)
    return given
