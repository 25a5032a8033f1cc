"""Events as JSON documents, the same for all receivers. docs/live.md lists the fields."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, get_args

import msgspec

from detector.core.errors.secrets import redact
from detector.live.base import Event, format_utc

OBJECT_FIELDS = ("track", "zone", "direction")


class EventDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a class, an object or a camera. An event of an object with an id (--track) also
    has ``track``, ``zone`` and ``direction``; the last two may be null."""

    event: str
    camera: str
    class_name: str | None = msgspec.field(name="class", default=None)
    count: int | None = None
    time_utc: str
    since_utc: str
    snapshot: str | None = None
    reason: str | None = None
    track: int | msgspec.UnsetType = msgspec.UNSET
    zone: str | msgspec.UnsetType | None = msgspec.UNSET
    direction: str | msgspec.UnsetType | None = msgspec.UNSET
    side: str | msgspec.UnsetType = msgspec.UNSET  # the line's name for that direction


FIELDS = msgspec.structs.fields(EventDocument)
NULLABLE = {one.name for one in FIELDS if type(None) in get_args(one.type)}


def as_document(event: Event) -> dict[str, Any]:
    document = asdict(event)
    for name in ("time", "since"):
        document[f"{name}_utc"] = format_utc(document.pop(f"{name}_s"))
    for name in ("class_name", "reason"):
        document[name] = None if document[name] is None else redact(document[name])
    absent = OBJECT_FIELDS if event.track is None else ()
    fields = {
        name: value
        for name, value in document.items()
        if name not in absent and (value is not None or name in NULLABLE)
    }
    return dict(msgspec.to_builtins(EventDocument(**fields)))


def as_json(event: Event) -> str:
    """Return one line without its newline, in ASCII, which every receiver can read."""
    return json.dumps(as_document(event), separators=(", ", ": "))
