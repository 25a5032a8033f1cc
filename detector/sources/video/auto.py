"""cv2 as long as it reads, then PyAV: every frame that can be decoded, each once.

cv2 gives no reason when it stops, be it at the end of the file or at the first packet that it
cannot decode. So the rest of the file behind its last frame is demuxed, without decoding. If
packets are left, or an error comes up, PyAV decodes from the start, drops as many frames as cv2
gave, and goes on past the damage. A false alarm (hidden frames, two packets per frame) costs time
and nothing else: PyAV then finds no further frame.
"""

from __future__ import annotations

from detector.sources.base import SteppingSource
from detector.sources.video._container import no_frame, probe
from detector.sources.video.av import AvSource
from detector.sources.video.opencv import OpenCVSource
from detector.types import Frame, Image


def open(path: str, stride: int = 1, frames: int | None = None) -> SteppingSource:
    """Raises SourceError when neither cv2 nor PyAV decodes a frame."""
    source = AutoSource(probe(path), stride, frames)
    if source.hold_first():
        return source
    source.close()
    raise no_frame(source.video, source.counts.bad)


class AutoSource(OpenCVSource):
    """cv2's frames, then the rest from PyAV where cv2 gave up."""

    _rest: AvSource | None = None

    def grab(self) -> bool:
        if self._rest is None:
            return super().grab()
        found = self._rest.grab()
        self.ended_early |= self._rest.ended_early
        return found

    def at_end(self) -> bool:
        left = self.left_behind()
        if (left.packets or left.error) and self.video.decodable:
            return self._take_over(left.error or f"{left.packets} packets left")
        return super().at_end()

    def _take_over(self, reason: str) -> bool:
        self._capture.release()
        rest = self._rest = AvSource(
            self.video, size=(self.info.width, self.info.height) if self.grabbed else None
        )
        rest.counts, rest.notes = self.counts, self.notes
        for _ in range(self.grabbed):
            if not rest.grab():
                break
        found = self.grab()
        stopped = (
            self.video.not_for_opencv or f"opencv stopped after {self.grabbed} frames ({reason})"
        )
        if found:
            self.decoder = f"opencv ({self.grabbed} frames) then av" if self.grabbed else "av"
            self.notes.append(f"{stopped}; PyAV reads on from there")
        else:
            self.notes.append(f"{stopped}; PyAV decoded it again and found no further frame")
        return found

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        if self._rest is None:
            return super().retrieve(index, into)
        return self._rest.retrieve(index, into)

    def close(self) -> None:
        super().close()
        if self._rest is not None:
            self._rest.close()
