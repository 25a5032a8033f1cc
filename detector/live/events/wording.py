"""An event as a JSON document of one line. The fields stand in docs/live.md."""

from __future__ import annotations

import json

from detector.core.errors.secrets import redact
from detector.live.base import Event, utc_text


def as_document(event: Event) -> dict[str, str | int | None]:
    of_object = {"track": event.track, "zone": event.zone, "direction": event.direction}
    return {
        "event": event.event,
        "camera": event.camera,
        "class": event.class_name,
        "count": event.count,
        "time_utc": utc_text(event.time_s),
        "since_utc": utc_text(event.since_s),
        "snapshot": event.snapshot,
        "reason": None if event.reason is None else redact(event.reason),
        **({} if event.track is None else of_object),
        **({} if event.side is None else {"side": event.side}),
    }


def as_json(event: Event) -> str:
    """One line, without its end. ASCII alone, so that any receiver can read it."""
    return json.dumps(as_document(event), separators=(", ", ": "))
