"""Video by cv2.VideoCapture: the fastest reader for files that are whole."""

from __future__ import annotations

import os

from detector.errors import SourceError
from detector.sources._cv2 import cv2, fits, upright
from detector.sources.base import SteppingSource
from detector.sources.video import _container
from detector.types import Frame, Image


def open(path: str, stride: int = 1, frames: int | None = None) -> SteppingSource:
    """cv2 alone, whatever happens. Raises SourceError when cv2 gives no frame."""
    source = OpenCVSource(_container.probe(path), stride, frames)
    if source.hold_first():
        return source
    source.close()
    why = source.video.not_for_opencv or f"opencv reads no frame of it (codec {source.info.codec})"
    raise SourceError(f"{path}: {why}; use --decoder auto or --decoder av")


class OpenCVSource(SteppingSource):
    """cv2 stops in silence at the first packet that it cannot decode; ``left_behind`` tells that
    from the end.
    """

    decoder = "opencv"

    def __init__(self, video: _container.Video, stride: int = 1, frames: int | None = None) -> None:
        super().__init__(stride, frames)
        self.video = video
        self.info = video.info
        self.pts = video.info.start_pts - video.ticks  # of the picture grabbed last
        self.grabbed = 0
        self._jumped = not video.dated  # pts are no guide to where in the file we are
        self._ended = False
        self._scratch: Image | None = None  # stored (not yet upright) picture, [h, w, 3] u8
        self._capture = self._open_capture()

    def _open_capture(self) -> cv2.VideoCapture:
        if self.video.not_for_opencv:
            return cv2.VideoCapture()  # closed
        path = os.path.abspath(self.video.path)
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        # cv2's own rotation allocates a picture a frame; ours goes into the buffer.
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
        return capture

    def grab(self) -> bool:
        if self._ended:
            return False
        if not self._capture.grab():
            self._ended = True
            return self.at_end()
        if self.grabbed == 0:
            self._learn_size()
        self._note_pts()
        return True

    def _learn_size(self) -> None:
        get = self._capture.get
        size = round(get(cv2.CAP_PROP_FRAME_WIDTH)), round(get(cv2.CAP_PROP_FRAME_HEIGHT))
        # cv2 states the angle clockwise, ffprobe and PyAV counter-clockwise.
        self.video.set_displayed(*size, rotation=-round(get(cv2.CAP_PROP_ORIENTATION_META)))

    def at_end(self) -> bool:
        """cv2 gives no more. True when there is a next picture all the same."""
        left = self.left_behind()
        if left.truncated:
            self.ended_early = True
            self.notes.append(_container.CUT_OFF)
        if left.packets or left.error:
            self.ended_early = True
            what = left.error or f"{left.packets} packets left"
            self.notes.append(
                f"opencv stopped after {self.grabbed} frames ({what}); --decoder auto reads on"
            )
        return False

    def left_behind(self) -> _container.Tail:
        """What the file still holds behind the last frame."""
        return _container.tail(self.video, None if self._jumped else self.pts, self.grabbed)

    def _note_pts(self) -> None:
        pts = self.pts + self.video.ticks
        # POS_MSEC counts from the stream's first timestamp; CAP_PROP_PTS is wrong on several
        # containers. Zero behind the first frame: no timestamp (the last frames of AVI and
        # MPEG-PS).
        seconds = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        if self.video.dated and (seconds != 0 or self.grabbed == 0):
            pts = round(seconds / float(self.info.time_base)) + self.info.start_pts
        self._jumped |= self.grabbed > 0 and pts <= self.pts
        self.pts = pts
        self.grabbed += 1

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        if not fits(into, self.info.width, self.info.height):
            into = None  # cv2 raises on a buffer that it cannot use
        image = (
            self._turned(into)
            if self.info.rotation or self.info.mirrored
            else self._retrieved(into)
        )
        if image is None:
            self.counts.bad += 1
            return None
        return Frame(index, self.pts, float(self.pts * self.info.time_base), image)

    def _retrieved(self, into: Image | None) -> Image | None:
        done, image = self._capture.retrieve(into)  # into itself, where one is given
        return image if done else None

    def _turned(self, into: Image | None) -> Image | None:
        self._scratch = self._retrieved(self._scratch)
        if self._scratch is None:
            return None
        return upright(self._scratch, self.info.rotation, self.info.mirrored, into)

    def close(self) -> None:
        super().close()
        self._capture.release()
        self._scratch = None
