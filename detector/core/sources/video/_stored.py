"""A video in an object store or on a web server, read by ranges with PyAV. In a batch job a lost
connection ends in an error, never in a shorter video (``RangedObject.keeps_part``)."""

from __future__ import annotations

from contextlib import ExitStack

from detector.core.errors import SourceError
from detector.core.sources._ranges import RangedObject, holding
from detector.core.sources.base import ANY, Choice, SteppingSource
from detector.core.sources.video._container import VideoInfo, no_frame, probe
from detector.core.sources.video._threaded import ThreadedSource
from detector.core.sources.video.av import AvSource
from detector.core.types import Frame, Image


def open_stored(
    stored: RangedObject,
    decoder: str = "auto",
    stride: int = 1,
    frames: int | None = None,
    pixels: str = "bgr",
    choice: Choice = ANY,
) -> StoredStepping:
    """Open the video. Raises SourceError if it cannot be read, or no frame can be decoded."""
    source: StoredStepping
    with ExitStack() as stack:
        name = stack.enter_context(holding(stored))
        try:
            video = probe(name, choice)
        except SourceError:
            stored.raise_error()  # why so little of it arrived
            raise
        # For planes and reduced sizes, the fastest is PyAV on all cores, as for files.
        as_planes = pixels != "bgr" and not video.not_for_planes
        if decoder == "auto" and video.decodable and (as_planes or video.factor > 1):
            source = StoredThreaded(video, stride, frames, pixels)
        else:
            source = StoredAv(video, stride, frames, pixels=pixels)
        source.keep(stored, stack.pop_all())
    try:
        if source.hold_first():
            return source
        stored.raise_error()
        raise no_frame(video, source.counts.bad)
    except BaseException:
        source.close()
        raise


class StoredStepping(SteppingSource):
    """A mixin placed before a reader among the bases, which holds the object while it is read."""

    _read_from: RangedObject
    _kept: ExitStack
    video: VideoInfo

    def keep(self, stored: RangedObject, kept: ExitStack) -> None:
        self._read_from, self._kept = stored, kept

    def read(self, into: Image | None = None) -> Frame | None:
        frame = super().read(into)
        error = self._read_from.error
        if frame is not None or error is None or self._handed_out == self._frames:
            return frame
        if not (self._read_from.keeps_part and self._handed_out):
            raise error
        self.counts.ended_early = True
        if str(error) not in self.notes:
            self.notes.append(str(error))
        return None

    def close(self) -> None:
        super().close()
        self._kept.close()


class StoredAv(StoredStepping, AvSource):
    """PyAV reading packet by packet."""


class StoredThreaded(StoredStepping, ThreadedSource):
    """PyAV on all cores, then packet by packet after the first trouble."""
