"""Files of web servers: videos that end, pictures, finished HLS playlists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from detector.core.errors import SourceError, UsageError
from detector.core.sources._forms import is_web
from detector.core.sources.base import ANY, OpenOptions, Source

if TYPE_CHECKING:
    from detector.core.sources._answers import Taken


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
        _find_out(spec)

    @classmethod
    def open(cls, spec: str, **how: Unpack[OpenOptions]) -> Source:
        from detector.core.sources._answers import PICTURE, PLAYLIST
        from detector.core.sources._web import WebPlace, open_web

        taken, place = _find_out(spec), WebPlace(spec)
        if how.get("decoder") == "opencv":
            raise UsageError(f"{place}: opencv reads files only; omit --decoder")
        if taken.kind in (PICTURE, PLAYLIST):
            how.get("choice", ANY).refuse_tracks(str(place))
        if taken.kind == PICTURE:
            from detector.core.sources._web_picture import WebPicture

            source: Source = WebPicture(place, taken.codec, **how)
        elif taken.kind == PLAYLIST:
            from detector.core.sources.video._listed import open_listed

            source = open_listed(
                place, how.get("stride", 1), how.get("frames"), how.get("pixels", "bgr")
            )
        else:
            from detector.core.sources.video._stored import open_stored

            source = open_stored(open_web(place), **how)
        if taken.remark:
            source.notes.append(taken.remark)
        return source


def picture_of(spec: str) -> str | None:
    """Return the path in rows of the picture at an address; None if none. Raises SourceError."""
    from detector.core.sources._answers import PICTURE
    from detector.core.sources._web import WebPlace

    return str(WebPlace(spec)) if _find_out(spec).kind == PICTURE else None


def _find_out(spec: str) -> Taken:
    from detector.core.sources._answers import REFUSED, take

    taken = take(spec)
    if taken.kind == REFUSED:
        raise SourceError(taken.error)
    return taken
