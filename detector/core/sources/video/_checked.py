"""cv2's frames as long as all is well, then the rest from PyAV.

cv2 gives no reason when it stops, be it at the end of the file or at the first packet that it
cannot decode, and says nothing of a picture that its FFmpeg patched up or could not convert. PyAV
knows what becomes of each packet. It takes over in two cases: at once when cv2's FFmpeg logs an
error, and at cv2's end when the packets of the file do not add up. It decodes from the start and
drops as many frames as cv2 handed out. A false alarm costs time and nothing else.
"""

from __future__ import annotations

from fractions import Fraction

from detector.core.errors.text import counted
from detector.core.sources.video._handing_over import HandingOver
from detector.core.sources.video.av import AvSource
from detector.core.sources.video.opencv import OpenCVSource
from detector.core.types import Frame, Image


class CheckedSource(HandingOver, OpenCVSource):
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
        # It may be about a picture that cv2 has not handed out yet, since it decodes ahead.
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
        """PyAV reads on behind cv2's ``whole`` frames, the last at ``last_pts``. False: the end."""
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
