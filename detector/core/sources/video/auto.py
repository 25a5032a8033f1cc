"""The fastest reader until the first trouble, then PyAV: every decodable frame, each once.

For planes the fastest is PyAV on all cores (``_threaded.py``), for BGR cv2. On ARM64 PyAV also
reads BGR if we can make the same pixels as on x86, which cv2's FFmpeg does not.

cv2 gives no reason when it stops, at the end of the file or at the first packet that it cannot
decode, and does not report a picture that its FFmpeg patched up or could not convert. PyAV knows
what becomes of each packet. It takes over in two cases: at once when cv2's FFmpeg logs an error,
and at cv2's end if the packets of the file do not add up. It decodes from the start and drops as
many frames as cv2 returned. A false alarm only costs time.
"""

from __future__ import annotations

from fractions import Fraction

from detector.core.errors.machine import ARM64
from detector.core.errors.text import counted
from detector.core.sources.base import ANY, Choice, SteppingSource
from detector.core.sources.video._container import no_frame, probe
from detector.core.sources.video._handing_over import HandingOver
from detector.core.sources.video._threaded import ThreadedSource
from detector.core.sources.video.av import AvSource
from detector.core.sources.video.opencv import OpenCVSource
from detector.core.types import Frame, Image


def open(
    path: str, stride: int = 1, frames: int | None = None, pixels: str = "bgr", choice: Choice = ANY
) -> SteppingSource:
    """Open a video. Raises SourceError if neither cv2 nor PyAV decodes a frame."""
    video = probe(path, choice)
    source: AvSource | AutoSource
    as_planes = pixels != "bgr" and not video.not_for_planes
    if video.grey is not None:
        source = AvSource(video, stride, frames, pixels=pixels)
    elif not (video.decodable and (as_planes or video.factor > 1 or (ARM64 and video.plain))):
        source = AutoSource(video, stride, frames)
        source.no_planes = "" if pixels == "bgr" else video.not_for_planes or "PyAV has no decoder"
    else:
        source = ThreadedSource(video, stride, frames, pixels)
    if source.hold_first():
        return source
    source.close()
    raise no_frame(source.video, source.counts.bad)


class AutoSource(HandingOver, OpenCVSource):
    """Frames of cv2, then of PyAV after the first trouble."""

    def grab(self) -> bool:
        return super().grab() if self._rest is None else self._rest.grab()

    def seek(self, start_s: Fraction) -> int | None:
        if self._rest is None:
            return super().seek(start_s)
        self._rest.landing = self.landing
        return self._rest.seek(start_s)

    def at_complaint(self) -> bool:
        if not self.video.decodable:
            return super().at_complaint()
        # It may concern a picture that cv2 has not returned yet, since it decodes ahead.
        _, message = self._complaints.take()[0]
        return self._take_over(self.grabbed - 1, message)

    def at_unconverted(self, index: int, into: Image | None) -> Frame | None:
        found = self.video.decodable and self._take_over(self.grabbed - 1, "its scaler failed")
        return self.retrieve(index, into) if found else super().at_unconverted(index, into)

    def at_end(self) -> bool:
        if not self.video.decodable:
            return super().at_end()
        if heard := self._complaints.take():
            return self._take_over(self.grabbed, heard[0][1])
        last_pts = None if self._jumped or not self.grabbed else self.pts
        reason = self.check().reason
        return bool(reason) and self._take_over(self.grabbed, reason, last_pts)

    def _take_over(self, whole: int, reason: str, last_pts: int | None = None) -> bool:
        """Let PyAV go on after cv2's ``whole`` frames, the last at ``last_pts``. False: the end."""
        self._capture.release()
        rest = AvSource(self.video, size=(self.info.width, self.info.height) if whole else None)
        rest.counts, rest.notes = self.counts, self.notes
        found = self.hand_over(rest, whole, last_pts)
        after = f"opencv stopped after {counted(whole, 'frame')} ({reason})"
        stopped = self.video.not_for_opencv or after
        if found:
            self.decoder = f"opencv ({counted(whole, 'frame')}) then av" if whole else "av"
        self.note_handing_over(stopped, found)
        return found
