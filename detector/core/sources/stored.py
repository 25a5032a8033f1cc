"""``StoredSource``: a video in an object store or on a web server, read by a batch job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from detector.core.errors import UsageError
from detector.core.sources._addresses import STORES, Location, StoredVideo, parse_address
from detector.core.sources.base import OpenOptions, Source

if TYPE_CHECKING:
    from detector.core.sources._ranges import RangedObject
    from detector.core.sources._storage import ObjectInfo


class StoredSource(Source):
    form = r"[a-z][a-z0-9+.-]*://.*"
    order = -200  # before cameras, whose addresses look the same
    gives = ("bgr", "yuv420p")
    has_tracks = True

    @classmethod
    def claims(cls, spec: str) -> bool:
        return isinstance(spec, StoredVideo)

    @classmethod
    def open(cls, spec: str, **how: Unpack[OpenOptions]) -> Source:
        place = parse_address(spec)
        if how.get("decoder") == "opencv":
            raise UsageError(f"{place}: opencv reads files only; omit --decoder")
        from detector.core.sources.video._stored import open_stored

        return open_stored(open_place(place), **how)


def open_place(place: Location) -> RangedObject:
    """Open an object, or raise SourceError. Reading it raises the same after a lost connection."""
    if place.scheme in STORES:
        from detector.core.sources._ranges import StoredObject

        return StoredObject(place)
    from detector.core.sources._web import WebObject, WebPlace

    stored = WebObject(WebPlace(str(place)))
    stored.keeps_part = False
    return stored


def read_info(place: Location) -> ObjectInfo:
    if place.scheme in STORES:
        from detector.core.sources._storage import read_info as read_store_info

        return read_store_info(place)
    from detector.core.sources._web import WebPlace
    from detector.core.sources._web import read_info as read_server_info

    return read_server_info(WebPlace(str(place)))
