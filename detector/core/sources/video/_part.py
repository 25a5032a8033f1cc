"""The frames of one part of a file, numbered and timed as in the whole, for runs that share a file.
Adjacent parts overlap by one picture, which both decode, bit for bit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from detector.core.errors import SourceError
from detector.core.sources.base import Source
from detector.core.sources.video._seek import Landing
from detector.core.sources.video.av import AvSource
from detector.core.sources.video.opencv import OpenCVSource
from detector.core.types import Frame, Image, Picture, Planes


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range from ``start_pts`` to before ``end_pts`` (None: the end), in ticks of the source's
    time base. ``landing``: where to start decoding; None: at the beginning."""

    start_pts: int
    end_pts: int | None
    landing: Landing | None


class PartSource(Source):
    """One part. ``first_digest``: of its first picture; ``behind_digest``: of the one after."""

    def __init__(self, source: Source, stretch: Stretch) -> None:
        """Take over ``source``, unread. Raises SourceError if the part has no frames."""
        if not isinstance(source, OpenCVSource | AvSource):
            raise SourceError(f"{source.info.path}: is not a video file, so it has no parts")
        self._source = source
        self.info, self.counts, self.notes = source.info, source.counts, source.notes
        self.decoder, self.pixels, self.no_planes = source.decoder, source.pixels, source.no_planes
        self.first_digest = self.behind_digest = ""
        base, start, end = self.info.time_base, stretch.start_pts, stretch.end_pts
        source.landing = stretch.landing
        said = list(self.notes)
        begin_s = (start - self.info.start_pts) * base
        source.restrict(begin_s, None if end is None else (end - start) * base)
        self.notes[:] = said  # the user did not type this start

    def read(self, into: Image | None = None) -> Frame | None:
        frame = self._source.read(into)
        self.decoder = self._source.decoder
        if frame is None:
            behind = self._source.read_behind()
            if behind is not None:
                self.behind_digest = digest(behind.picture)
        elif not self.first_digest:
            self.first_digest = digest(frame.picture)
        return frame

    def close(self) -> None:
        self._source.close()


def digest(picture: Picture) -> str:
    """Return the digest of a picture's size and pixels: u8 BGR [h, w, 3], or planes of YUV."""
    arrays = (picture.y, picture.u, picture.v) if isinstance(picture, Planes) else (picture,)
    found = hashlib.sha256(repr([array.shape for array in arrays]).encode())
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
