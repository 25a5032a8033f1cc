"""``StoredVideo``: a video of an object store or a web server, which only a batch job reads.

FFmpeg gets our file and nothing else: it can open neither files nor addresses that a playlist
names.
"""

from __future__ import annotations

from detector.errors import UsageError
from detector.sources._addresses import StoredVideo, parse_address
from detector.sources.base import ANY, Choice, Source


class StoredSource(Source):
    order = -200  # before cameras, whose addresses look the same
    gives = ("bgr", "yuv420p")
    has_tracks = True

    @classmethod
    def claims(cls, spec: str) -> bool:
        return isinstance(spec, StoredVideo)

    @classmethod
    def open(
        cls,
        spec: str,
        *,
        decoder: str = "auto",
        stride: int = 1,
        frames: int | None = None,
        pixels: str = "bgr",
        choice: Choice = ANY,
    ) -> Source:
        place = parse_address(spec)
        if decoder == "opencv":
            raise UsageError(f"{place}: opencv reads files only; leave --decoder out")
        from detector.sources.video._stored import open_stored

        return open_stored(place, decoder, stride, frames, pixels, choice)
