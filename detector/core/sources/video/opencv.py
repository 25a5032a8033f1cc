"""Video by cv2.VideoCapture, which reads whole files where pictures are wanted as BGR."""

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
from detector.core.sources.video._clock import Clock
from detector.core.sources.video._complaints import Complaints
from detector.core.sources.video._container import VideoInfo, probe
from detector.core.sources.video._packets import Check, check_packets
from detector.core.sources.video.av import AvSource, HandingOver
from detector.core.types import Frame, Image

if TYPE_CHECKING:
    from detector.core.sources.video._seek import Landing

# With a thread for each frame, FFmpeg's decoder notices the same damage in some runs only.
RACING = ("mpeg4",)
CV2_GOES_BACK = 16  # frames, in CvCapture_FFMPEG::seek


def open(
    path: str, stride: int = 1, frames: int | None = None, pixels: str = "bgr", choice: Choice = ANY
) -> SteppingSource:
    """Open a video with cv2 alone, whatever happens. Raises SourceError if cv2 gives no frame."""
    source = OpenCVSource(probe(path, replace(choice, reduce=None)), stride, frames)
    if pixels != "bgr":
        source.no_planes = "opencv returns nothing else"
    if source.hold_first():
        return source
    source.close()
    why = source.video.not_for_opencv or f"opencv cannot decode it (codec {source.info.codec})"
    raise SourceError(f"{path}: {why}; use --decoder auto or --decoder av")


class OpenCVSource(SteppingSource):
    """Reads with cv2, which stops silently at a broken packet and returns patched pictures."""

    decoder = "opencv"
    landing: Landing | None = None  # result of ``seek``, if already known

    def __init__(self, video: VideoInfo, stride: int = 1, frames: int | None = None) -> None:
        super().__init__(stride, frames)
        self.video = video
        self.info = video.info
        self.notes += video.notes
        self.pts = video.info.start_pts - video.ticks  # of the picture grabbed last
        self.grabbed = 0
        self._jumped = not video.dated  # pts do not tell the position in the file
        self._ended = False
        self._scratch: Image | None = None  # stored (not yet upright) picture, [h, w, 3] u8
        self._clock = Clock(video)
        self._complaints = Complaints(*video.names_in_log)
        weakref.finalize(self, self._complaints.close)  # also if what follows fails
        # cv2 returns a picture that could not be converted, black or unchanged.
        self._unconverted = Complaints("swscaler")
        weakref.finalize(self, self._unconverted.close)
        self._capture = self._open_capture()
        # Not left to the garbage collector: it would wait for cv2's threads while holding the
        # interpreter's lock, which a thread with a complaint waits for.
        weakref.finalize(self, _release, self._capture, self._complaints)
        if video.complaint:
            self.counts.ended_early = True
            self.notes.append(f"the file's structure is damaged: {video.complaint}")

    def _open_capture(self) -> cv2.VideoCapture:
        if self.video.not_for_opencv:
            return cv2.VideoCapture()  # closed
        options: list[int] = []
        if self.info.codec in RACING:
            options = [cv2.CAP_PROP_N_THREADS, 1]
        capture = cv2.VideoCapture(name_to_open(self.video.path), cv2.CAP_FFMPEG, options)
        # cv2's own rotation allocates a picture per frame; ours reuses the buffer.
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
        self._complaints.listen_to_cv2()
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
        if self._complaints.heard():
            return self.at_complaint()
        return True

    def seek(self, start_s: Fraction) -> int | None:
        """Seek to a key frame with cv2, which grabs pictures up to about the requested frame."""
        from detector.core.sources.video._seek import find_landing

        landing = None if self._ended else self.landing or find_landing(self.video, start_s)
        if landing is None:
            return None
        self._capture.set(cv2.CAP_PROP_POS_FRAMES, self._number_for_cv2(landing))
        if self._capture.grab():
            self._complaints.take()  # about earlier packets
            self._jumped = False
            self.grabbed, self._clock = 1, Clock(self.video)
            self._note_pts()
            number = landing.number(self.pts)
            if number is not None and self.pts < min(landing.wanted_pts + 1, landing.safe_pts):
                self.grabbed = number + 1
                return number
        return self._begin_anew()

    def _number_for_cv2(self, landing: Landing) -> int:
        """Return the number to seek to. cv2 assumes a constant rate, seeks to some frames before
        the requested one, and decodes as many as it believes to be missing. So we request a frame
        far enough after a key frame that it starts there and decodes just those, whatever the rate
        is; the key frame is one that leaves room for them."""
        rate = self._capture.get(cv2.CAP_PROP_FPS) * float(self.info.time_base)
        limit = min(landing.wanted_pts, landing.safe_pts)
        before = landing.count_before(limit)
        roomy = [
            fit.pts
            for fit in landing.fits
            if before - landing.count_before(fit.pts) > CV2_GOES_BACK + 1
        ]
        key, last = (
            int((pts - self.info.start_pts) * rate)
            for pts in (roomy[-1] if roomy else landing.key_pts, limit)
        )
        aimed = key + CV2_GOES_BACK + 1
        return max(1, aimed if roomy else min(aimed, last - 1))

    def _begin_anew(self) -> int | None:
        self._capture.release()
        self._capture = self._open_capture()
        self._complaints.take()
        self.grabbed, self._clock = 0, Clock(self.video)
        self._jumped = not self.video.dated
        return 0 if self.grab() else None

    def _learn_size(self) -> None:
        get = self._capture.get
        size = round(get(cv2.CAP_PROP_FRAME_WIDTH)), round(get(cv2.CAP_PROP_FRAME_HEIGHT))
        # cv2 knows what the container states, but not what the pictures do. It gives the angle
        # clockwise, ffprobe and PyAV counter-clockwise.
        said = self.video.rotation
        rotation = -round(get(cv2.CAP_PROP_ORIENTATION_META)) if said is None else said
        self.video.set_displayed(*size, rotation=rotation)

    def at_complaint(self) -> bool:
        """Handle a complaint of cv2's FFmpeg about the last picture or one of the next."""
        heard = self._complaints.take()
        if not self.counts.damaged:
            self.notes.append(f"opencv's FFmpeg: {heard[0][1]}; --decoder auto gives details")
        demuxer = self.video.names_in_log[0]
        self.counts.ended_early |= any(who == demuxer for who, _ in heard)
        self.counts.corrupt += any(who != demuxer for who, _ in heard)
        return True

    def at_end(self) -> bool:
        """Handle cv2's end. Return True if there is a next picture after all."""
        if self._complaints.heard():
            self.at_complaint()
        check = self.check()
        self.counts.ended_early |= bool(check.behind or check.error)
        self.counts.bad += check.lost
        if check.reason:
            self.notes.append(
                f"opencv stopped after {counted(self.grabbed, 'frame')} ({check.reason}); "
                "--decoder auto would continue"
            )
        return False

    def check(self) -> Check:
        """Compare the file's packets with the frames. Damage of its structure is noted."""
        check = check_packets(self.video, self.grabbed, None if self._jumped else self.pts)
        if check.damage:
            self.counts.ended_early = True
            self.notes.append(check.damage)
        return check

    def _note_pts(self) -> None:
        stated = None
        # POS_MSEC counts from the stream's first timestamp; CAP_PROP_PTS is wrong on some
        # containers. Zero after the first frame: no timestamp (last frames of AVI and MPEG-PS).
        seconds = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        if self.video.dated and (seconds != 0 or self.grabbed == 0):
            stated = round(seconds / float(self.info.time_base)) + self.info.start_pts
        self.pts = self._clock.place(stated, self.notes)
        self._jumped = self._jumped or self._clock.places > 0
        self.grabbed += 1

    def grabbed_pts(self) -> int:
        return self.pts

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        if not fits(into, self.info.width, self.info.height):
            into = None  # cv2 raises for a buffer that it cannot use
        image = (
            self._turned(into)
            if self.info.rotation or self.info.mirrored
            else self._retrieved(into)
        )
        if image is None:
            return self.at_unconverted(index, into)
        return self._clock.frame(index, image)

    def _retrieved(self, into: Image | None) -> Image | None:
        self._unconverted.take()
        done, image = self._capture.retrieve(into)  # returns ``into`` if it was given
        return image if done and not self._unconverted.heard() else None

    def at_unconverted(self, index: int, into: Image | None) -> Frame | None:
        """Handle a picture that cv2 could not convert. Return one made by another reader."""
        if not self.counts.bad:
            self.notes.append("opencv could not convert some pictures; use --decoder auto")
        self.counts.bad += 1
        return None

    def _turned(self, into: Image | None) -> Image | None:
        self._scratch = self._retrieved(self._scratch)
        if self._scratch is None:
            return None
        return upright(self._scratch, self.info.rotation, self.info.mirrored, into)

    def close(self) -> None:
        super().close()
        _release(self._capture, self._complaints)
        self._unconverted.close()
        self._scratch = None


def _release(capture: cv2.VideoCapture, complaints: Complaints) -> None:
    capture.release()
    complaints.close()


class CheckedSource(HandingOver, OpenCVSource):
    """cv2's frames as long as all is well, then the rest from PyAV.

    cv2 gives no reason when it stops, be it at the end of the file or at the first packet that it
    cannot decode, and says nothing of a picture that its FFmpeg patched up or could not convert.
    PyAV knows what becomes of each packet. It takes over in two cases: at once when cv2's FFmpeg
    logs an error, and at cv2's end when the packets of the file do not add up. It decodes from the
    start and drops as many frames as cv2 handed out. A false alarm costs time and nothing else.
    """

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
