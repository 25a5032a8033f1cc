"""Read one part of a file, for runs that share a file. Frames keep their numbers and times in the
whole file. A part's reader also decodes the next part's first frame. We compare this picture with
the one that the next part's reader decodes."""

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
    """A part of a file: ``start_pts`` up to but not including ``end_pts`` (None: the end), in ticks
    of the source. ``landing``: where to start decoding; None: at the beginning."""

    start_pts: int
    end_pts: int | None
    landing: Landing | None


class PartSource(Source):
    """``first_digest``, ``behind_digest``: hashes of the first frames of this and the next part."""

    def __init__(self, source: Source, stretch: Stretch) -> None:
        """``source`` must not have been read. Raises SourceError if the part has no frames."""
        if not isinstance(source, OpenCVSource | AvSource):
            raise SourceError(f"{source.info.path}: is not a video file, so it has no parts")
        self._source = source
        self.info, self.counts, self.notes = source.info, source.counts, source.notes
        self.decoder, self.pixels = source.decoder, source.pixels
        self.why_no_planes = source.why_no_planes
        self.first_digest = self.behind_digest = ""
        base, start, end = self.info.time_base, stretch.start_pts, stretch.end_pts
        source.landing = stretch.landing
        notes = list(self.notes)
        begin_s = (start - self.info.start_pts) * base
        source.restrict(begin_s, None if end is None else (end - start) * base)
        self.notes[:] = notes  # without a note on --start, which the user did not type

    def read(self, into: Image | None = None) -> Frame | None:
        frame = self._source.read(into)
        self.decoder = self._source.decoder
        if frame is None:
            if (following := self._source.read_past_limit()) is not None:
                self.behind_digest = compute_digest(following.picture)
        elif not self.first_digest:
            self.first_digest = compute_digest(frame.picture)
        return frame

    def close(self) -> None:
        self._source.close()


def compute_digest(picture: Picture) -> str:
    """Return the SHA-256 of a picture's size and pixels: u8 BGR [h, w, 3], or YUV planes."""
    arrays = (picture.y, picture.u, picture.v) if isinstance(picture, Planes) else (picture,)
    digest = hashlib.sha256(repr([array.shape for array in arrays]).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
