"""Files of web servers: videos with an end, pictures, finished HLS playlists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from detector.core.errors import SourceError, UsageError
from detector.core.sources._forms import is_web
from detector.core.sources.base import ANY, OpenOptions, Source

if TYPE_CHECKING:
    from detector.core.sources._answers import WebKind


class WebSource(Source):
    has_tracks = True
    form = r"https?://.*"
    order = -150  # before cameras, whose addresses look the same
    gives = ("bgr", "yuv420p")

    @classmethod
    def claims(cls, spec: str) -> bool:
        if not is_web(spec):
            return False
        from detector.core.sources._answers import is_file

        return is_file(spec)

    @classmethod
    def check_spec(cls, spec: str) -> None:
        _identify(spec)

    @classmethod
    def open(cls, spec: str, **how: Unpack[OpenOptions]) -> Source:
        from detector.core.sources._answers import PICTURE, PLAYLIST
        from detector.core.sources._web import WebPlace, open_web

        result, place = _identify(spec), WebPlace(spec)
        if how.get("decoder") == "opencv":
            raise UsageError(f"{place}: opencv reads files only; omit --decoder")
        if result.kind in (PICTURE, PLAYLIST):
            how.get("choice", ANY).refuse_tracks(str(place))
        if result.kind == PICTURE:
            from detector.core.sources._web_picture import WebPicture

            source: Source = WebPicture(place, result.codec, **how)
        elif result.kind == PLAYLIST:
            from detector.core.sources.video._listed import open_listed

            source = open_listed(
                place, how.get("stride", 1), how.get("frames"), how.get("pixels", "bgr")
            )
        else:
            from detector.core.sources.video._stored import open_stored

            source = open_stored(open_web(place), **how)
        if result.remark:
            source.notes.append(result.remark)
        return source


def picture_of(spec: str) -> str | None:
    """Return the path that output rows state for a picture at ``spec``; None for other content.
    Raises SourceError."""
    from detector.core.sources._answers import PICTURE
    from detector.core.sources._web import WebPlace

    return str(WebPlace(spec)) if _identify(spec).kind == PICTURE else None


def _identify(spec: str) -> WebKind:
    from detector.core.sources._answers import REFUSED, identify

    result = identify(spec)
    if result.kind == REFUSED:
        raise SourceError(result.error)
    return result
