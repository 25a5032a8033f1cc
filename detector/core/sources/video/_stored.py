"""With PyAV, read a video from an object store or a web server by ranges. In a batch job, a lost
connection is an error rather than the end of the video (``RangedObject.keeps_part``)."""

from __future__ import annotations

from contextlib import ExitStack

from detector.core.errors import SourceError
from detector.core.sources._ranges import RangedObject, holding
from detector.core.sources.base import ANY, Choice, SteppingSource
from detector.core.sources.video._container import VideoInfo, probe, require_frame
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
            stored.raise_error()  # a lost connection may have caused the error
            raise
        # PyAV on all cores is fastest for planes and reduced sizes, as it is with files.
        as_planes = pixels != "bgr" and not video.why_no_planes
        if decoder == "auto" and video.decodable and (as_planes or video.factor > 1):
            source = StoredThreaded(video, stride, frames, pixels)
        else:
            source = StoredAv(video, stride, frames, pixels=pixels)
        source.own(stored, stack.pop_all())
    return require_frame(source, video, stored.raise_error)


class StoredStepping(SteppingSource):
    """Keeps the object open while it is read. Subclasses list this mix-in before their reader."""

    _object: RangedObject
    _stack: ExitStack
    video: VideoInfo

    def own(self, stored: RangedObject, stack: ExitStack) -> None:
        self._object, self._stack = stored, stack

    def read(self, into: Image | None = None) -> Frame | None:
        frame = super().read(into)
        error = self._object.error
        if frame is not None or error is None or self._handed_out == self._frames:
            return frame
        if not (self._object.keeps_part and self._handed_out):
            raise error
        self.counts.ended_early = True
        if str(error) not in self.notes:
            self.notes.append(str(error))
        return None

    def close(self) -> None:
        super().close()
        self._stack.close()


class StoredAv(StoredStepping, AvSource):
    """Reads packet by packet."""


class StoredThreaded(StoredStepping, ThreadedSource):
    """Reads on all cores until the first error, then packet by packet."""
