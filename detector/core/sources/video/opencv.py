"""Read video with cv2.VideoCapture, the fastest reader of whole files as BGR."""

from __future__ import annotations

import weakref
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from detector.core.errors import SourceError
from detector.core.errors.holding import name_to_open
from detector.core.errors.text import counted
from detector.core.sources._cv2 import cv2, fits, upright
from detector.core.sources.base import ANY, Choice, SteppingSource
from detector.core.sources.video import _complaints
from detector.core.sources.video._check import Check, check_packets
from detector.core.sources.video._clock import Clock
from detector.core.sources.video._container import RACY_CODECS, VideoInfo, probe
from detector.core.sources.video.av import AvSource, HandOverMixin
from detector.core.types import Frame, Image

if TYPE_CHECKING:
    from detector.core.sources.video._seek import Landing

CV2_SEEK_BACK = 16  # CvCapture_FFMPEG::seek goes back this many frames from the requested one


def open(
    path: str, stride: int = 1, frames: int | None = None, pixels: str = "bgr", choice: Choice = ANY
) -> SteppingSource:
    """Open a video with cv2 alone. Raises SourceError if cv2 returns no frame."""
    source = OpenCVSource(probe(path, replace(choice, reduce=None)), stride, frames)
    if pixels != "bgr":
        source.why_no_planes = "opencv returns nothing else"
    if source.hold_first():
        return source
    source.close()
    why = source.video.not_for_opencv or f"opencv cannot decode it (codec {source.info.codec})"
    raise SourceError(f"{path}: {why}; use --decoder auto or --decoder av")


class OpenCVSource(SteppingSource):
    """Reads with cv2, which stops silently at a damaged packet, or conceals damage in pictures."""

    decoder = "opencv"
    landing: Landing | None = None  # where ``seek`` starts decoding, if already known

    def __init__(self, video: VideoInfo, stride: int, frames: int | None) -> None:
        super().__init__(stride, frames)
        self.video = video
        self.info = video.info
        self.notes += video.notes
        self.pts = video.info.start_pts - video.ticks  # time stamp of the last grabbed picture
        self.grabbed = 0
        self._jumped = not video.has_timestamps  # whether pts differ from those in the file
        self._ended = False
        self._scratch: Image | None = None  # stored (not yet upright) picture, [h, w, 3] u8
        self._clock = Clock(video)
        self._complaints = _complaints.Complaints(*video.log_names)
        weakref.finalize(self, self._complaints.close)  # even if the rest of __init__ fails
        # If swscale fails, cv2 returns a black picture or the buffer's old content.
        self._unconverted = _complaints.Complaints("swscaler")
        weakref.finalize(self, self._unconverted.close)
        self._capture = self._open_capture()
        # Garbage collection would hold the GIL while it waits for cv2's threads. A thread that logs
        # a complaint waits for the GIL: a deadlock. So ``release`` runs first, without the GIL.
        weakref.finalize(self, _release, self._capture, self._complaints)
        if video.complaint:
            self.counts.ended_early = True
            self.notes.append(f"the file's structure is damaged: {video.complaint}")

    def _open_capture(self) -> cv2.VideoCapture:
        if self.video.not_for_opencv:
            return cv2.VideoCapture()  # closed
        options: list[int] = []
        if self.info.codec in RACY_CODECS:
            options = [cv2.CAP_PROP_N_THREADS, 1]
        capture = cv2.VideoCapture(name_to_open(self.video.path), cv2.CAP_FFMPEG, options)
        # cv2's own rotation allocates a picture per frame; ours reuses the buffer.
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
        _complaints.CAUGHT_LOG.redirect_cv2()
        return capture

    def grab(self) -> bool:
        if self._ended:
            return False
        if not self._capture.grab():
            self._ended = True
            return self.at_end()
        if self.grabbed == 0:
            self._read_size()
        self._note_pts()
        if self._complaints.has_errors():
            return self.at_complaint()
        return True

    def seek(self, start_s: Fraction) -> int | None:
        """Let cv2 seek to a key frame and decode from there to about the frame at this time."""
        from detector.core.sources.video._seek import find_landing

        landing = None if self._ended else self.landing or find_landing(self.video, start_s)
        if landing is None:
            return None
        self._capture.set(cv2.CAP_PROP_POS_FRAMES, self._choose_seek_number(landing))
        if self._capture.grab():
            self._complaints.take()  # discard errors about earlier packets
            self._jumped = False
            self.grabbed, self._clock = 1, Clock(self.video)
            self._note_pts()
            number = landing.number(self.pts)
            if number is not None and self.pts < min(landing.wanted_pts + 1, landing.safe_pts):
                self.grabbed = number + 1
                return number
        return self._restart()

    def _choose_seek_number(self, landing: Landing) -> int:
        """Return the frame number to request. cv2 assumes a constant rate, seeks to CV2_SEEK_BACK
        frames before that number, and decodes up to it. So we choose a key frame far enough before
        the wanted frame. We request the frame that is CV2_SEEK_BACK + 1 frames after it."""
        rate = self._capture.get(cv2.CAP_PROP_FPS) * float(self.info.time_base)
        limit = min(landing.wanted_pts, landing.safe_pts)
        before = landing.count_before(limit)
        distant = [
            fit.pts
            for fit in landing.fits
            if before - landing.count_before(fit.pts) > CV2_SEEK_BACK + 1
        ]
        key, last = (
            int((pts - self.info.start_pts) * rate)
            for pts in (distant[-1] if distant else landing.key_pts, limit)
        )
        target = key + CV2_SEEK_BACK + 1
        return max(1, target if distant else min(target, last - 1))

    def _restart(self) -> int | None:
        self._capture.release()
        self._capture = self._open_capture()
        self._complaints.take()
        self.grabbed, self._clock = 0, Clock(self.video)
        self._jumped = not self.video.has_timestamps
        return 0 if self.grab() else None

    def _read_size(self) -> None:
        get = self._capture.get
        size = round(get(cv2.CAP_PROP_FRAME_WIDTH)), round(get(cv2.CAP_PROP_FRAME_HEIGHT))
        # cv2 knows the angle of the container, but not of a picture. cv2 states angles clockwise,
        # while ffprobe and PyAV state them counter-clockwise.
        stated = self.video.rotation
        rotation = -round(get(cv2.CAP_PROP_ORIENTATION_META)) if stated is None else stated
        self.video.set_displayed(*size, rotation=rotation)

    def at_complaint(self) -> bool:
        """Handle an error that cv2's FFmpeg logged about the last picture or a later one."""
        errors = self._complaints.take()
        if not self.counts.damaged:
            self.notes.append(f"opencv's FFmpeg: {errors[0][1]}; --decoder auto gives details")
        demuxer = self.video.log_names[0]
        self.counts.ended_early |= any(name == demuxer for name, _ in errors)
        self.counts.corrupt += any(name != demuxer for name, _ in errors)
        return True

    def at_end(self) -> bool:
        """Handle the end of cv2's frames. Return True if another reader grabbed the next one."""
        if self._complaints.has_errors():
            self.at_complaint()
        check = self.check()
        self.counts.ended_early |= bool(check.remaining or check.error)
        self.counts.bad += check.lost
        if check.reason:
            self.notes.append(
                f"opencv stopped after {counted(self.grabbed, 'frame')} ({check.reason}); "
                "--decoder auto would continue"
            )
        return False

    def check(self) -> Check:
        """Compare the file's packets with the frames, and note structural damage."""
        check = check_packets(self.video, self.grabbed, None if self._jumped else self.pts)
        if check.damage:
            self.counts.ended_early = True
            self.notes.append(check.damage)
        return check

    def _note_pts(self) -> None:
        stated = None
        # POS_MSEC counts from the stream's first timestamp; CAP_PROP_PTS is wrong for some
        # containers. After the first frame, 0 means no timestamp (last frames of AVI, MPEG-PS).
        seconds = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        if self.video.has_timestamps and (seconds != 0 or self.grabbed == 0):
            stated = round(seconds / float(self.info.time_base)) + self.info.start_pts
        self.pts = self._clock.place(stated, self.notes)
        self._jumped = self._jumped or self._clock.jumps > 0
        self.grabbed += 1

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        if not fits(into, self.info.width, self.info.height):
            into = None  # cv2 raises for a buffer that it cannot use
        image = (
            self._retrieve_upright(into)
            if self.info.rotation or self.info.mirrored
            else self._retrieve_stored(into)
        )
        if image is None:
            return self.at_unconverted(index, into)
        return self._clock.frame(index, image)

    def _retrieve_stored(self, into: Image | None) -> Image | None:
        self._unconverted.take()
        done, image = self._capture.retrieve(into)  # returns ``into`` if it was given
        return image if done and not self._unconverted.has_errors() else None

    def at_unconverted(self, index: int, into: Image | None) -> Frame | None:
        """Handle a picture that cv2 could not convert. Return another reader's frame, or None."""
        if not self.counts.bad:
            self.notes.append("opencv could not convert some pictures; use --decoder auto")
        self.counts.bad += 1
        return None

    def _retrieve_upright(self, into: Image | None) -> Image | None:
        self._scratch = self._retrieve_stored(self._scratch)
        if self._scratch is None:
            return None
        return upright(self._scratch, self.info.rotation, self.info.mirrored, into)

    def close(self) -> None:
        super().close()
        _release(self._capture, self._complaints)
        self._unconverted.close()
        self._scratch = None


def _release(capture: cv2.VideoCapture, complaints: _complaints.Complaints) -> None:
    capture.release()
    complaints.close()


class CheckedSource(HandOverMixin, OpenCVSource):
    """Returns cv2's frames until the first error, then the rest from PyAV.

    cv2 gives no reason when it stops, whether at the end of the file or at a packet that it cannot
    decode. It reports neither concealed damage nor pictures that it could not convert. PyAV reports
    the result of each packet. PyAV takes over as soon as cv2's FFmpeg logs an error, and when cv2
    stops although the file has more packets. PyAV then decodes from the start and discards the
    frames that cv2 has returned. A false alarm only costs time.
    """

    def grab(self) -> bool:
        return super().grab() if self._successor is None else self._successor.grab()

    def seek(self, start_s: Fraction) -> int | None:
        if self._successor is None:
            return super().seek(start_s)
        self._successor.landing = self.landing
        return self._successor.seek(start_s)

    def at_complaint(self) -> bool:
        if not self.video.decodable:
            return super().at_complaint()
        # The error may be about a picture that cv2 has not returned yet, since cv2 decodes ahead.
        _, message = self._complaints.take()[0]
        return self._take_over(self.grabbed - 1, message)

    def at_unconverted(self, index: int, into: Image | None) -> Frame | None:
        grabbed = self.video.decodable and self._take_over(self.grabbed - 1, "its scaler failed")
        return self.retrieve(index, into) if grabbed else super().at_unconverted(index, into)

    def at_end(self) -> bool:
        if not self.video.decodable:
            return super().at_end()
        if errors := self._complaints.take():
            return self._take_over(self.grabbed, errors[0][1])
        last_pts = None if self._jumped or not self.grabbed else self.pts
        reason = self.check().reason
        return bool(reason) and self._take_over(self.grabbed, reason, last_pts)

    def _take_over(self, count: int, reason: str, last_pts: int | None = None) -> bool:
        """Let PyAV continue after cv2's ``count`` frames. Return False if no frame follows."""
        self._capture.release()
        successor = AvSource(
            self.video, size=(self.info.width, self.info.height) if count else None
        )
        successor.counts, successor.notes = self.counts, self.notes
        after = f"opencv stopped after {counted(count, 'frame')} ({reason})"
        stopped = self.video.not_for_opencv or after
        if not self.hand_over(successor, count, last_pts, stopped):
            return False
        self.decoder = f"opencv ({counted(count, 'frame')}) then av" if count else "av"
        return True
