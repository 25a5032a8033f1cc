"""Read video with PyAV, packet by packet, so that the result of each packet is known."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from copy import copy
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
from av.codec.context import Flags
from av.video.reformatter import VideoReformatter

from detector.core.sources._bgr import MATRICES, is_deep_grey, nearest_matrix, to_bgr
from detector.core.sources._cv2 import fits, upright
from detector.core.sources._planes import PlanesReader
from detector.core.sources.base import ANY, Choice, SteppingSource
from detector.core.sources.video._clock import Clock
from detector.core.sources.video._complaints import Complaints
from detector.core.sources.video._container import (
    Demuxed,
    VideoInfo,
    decode_reduced,
    demux,
    open_container,
    probe,
    reduced_size,
    require_frame,
)
from detector.core.sources.video._packets import PictureRule
from detector.core.sources.video._structure import find_damage
from detector.core.sources.video._tally import DecodeTally
from detector.core.types import Frame, Image, Picture, Reduced

if TYPE_CHECKING:
    from detector.core.sources.video._seek import Landing, LandingKey

MAX_FLUSH_ERRORS = 64  # after this many errors, we assume that the decoder is empty


def open(
    path: str, stride: int = 1, frames: int | None = None, pixels: str = "bgr", choice: Choice = ANY
) -> SteppingSource:
    """Open a video with PyAV alone. Raises SourceError if no frame can be decoded."""
    video = probe(path, choice)
    return require_frame(AvSource(video, stride, frames, pixels=pixels), video)


class AvSource(SteppingSource):
    """Continues after a packet that the decoder rejects. Records the result of each packet."""

    decoder = "av"
    landing: Landing | None = None  # where ``seek`` starts decoding, if already known

    def __init__(
        self,
        video: VideoInfo,
        stride: int = 1,
        frames: int | None = None,
        size: tuple[int, int] | None = None,
        pixels: str = "bgr",
        planes: PlanesReader | None = None,
    ) -> None:
        """``size``: displayed (width, height), if known. ``planes``: reader of planes, or None."""
        super().__init__(stride, frames)
        self.video = video
        self.planes = planes
        if pixels != "bgr":
            self.why_no_planes = video.why_no_planes
            self.planes = None if self.why_no_planes else PlanesReader()
        self.pixels = "bgr" if self.planes is None else "yuv420p"
        self.info = video.info
        self.notes += video.notes
        self.pts = video.info.start_pts - video.ticks  # time stamp of the last grabbed picture
        self._size = size
        self._noted_turned = self._noted_size = False
        # All pictures share one reformatter: building its tables takes 2 ms, and 1.3 s for HDR.
        self._reformatter = VideoReformatter()
        self._picture: Any = None  # av.VideoFrame
        self._complaints = Complaints(*video.log_names)
        weakref.finalize(self, self._complaints.close)
        self._begin(open_container(video.path), Demuxed())
        self._is_avi = self._container.format.name == "avi"
        if video.complaint:
            self.note_damage(f"the file's structure is damaged: {video.complaint}")

    def _begin(self, container: Any, demuxed: Demuxed, *, at_open_gop: bool = False) -> None:
        """Start decoding at the position of ``container``; ``demuxed``: the packets before it."""
        self._container, self._demuxed, self._at_open_gop = container, demuxed, at_open_gop
        self._stream = container.streams[self.video.stream]
        if self.video.factor > 1:
            decode_reduced(self._stream.codec_context, self.video.factor)
        self._clock = Clock(self.video)
        self._pictures = self._decode()

    def seek(self, start_s: Fraction) -> int | None:
        from detector.core.sources.video._seek import find_landing

        landing = self.landing or find_landing(self.video, start_s)
        if landing is None:
            return None
        self.close_container()
        container = open_container(self.video.path)
        key = _seek_to_key(container, container.streams[self.video.stream], landing)
        if key is not None:
            self._begin(container, copy(key.demuxed), at_open_gop=key.is_open)
            number = landing.number(key.pts)
            if self.step() and self.pts == key.pts and number is not None:
                return number
            self.close_container()
        else:
            container.close()
        self._begin(open_container(self.video.path), Demuxed())
        self.pts = self.info.start_pts - self.video.ticks
        return 0 if self.step() else None

    def grab(self) -> bool:
        return self.step()

    def step(self) -> bool:
        self._picture = next(self._pictures, None)
        if self._picture is None:
            return False
        if self._size is None:
            self._read_size()
        self._tally.show(self._picture)
        if self.video.rotation is not None and self._picture.rotation % 360 != self.video.rotation:
            self._note_turned(self._picture.rotation % 360)
        if self._picture.colorspace not in MATRICES:
            self._note_matrix(self._picture)
        # AVI stores no pts. With B-frames, the pts that FFmpeg guesses are out of order, unlike its
        # dts.
        pts = self._picture.dts if self._is_avi else self._picture.pts
        if self.info.has_computed_pts:
            pts = None  # a raw stream has no pts; the demuxer invents them for 25 FPS
        self.pts = self._clock.place(pts, self.notes)
        size = self._picture.width, self._picture.height
        if not self._noted_size and size != reduced_size(self._stored_size(), self.video.factor):
            self._note_size(*(side * self.video.factor for side in size))
        return True

    def _read_size(self) -> None:
        picture = self._picture
        stated = self.video.rotation
        rotation = picture.rotation if stated is None else stated
        is_whole = self.video.factor == 1
        width, height = (picture.width, picture.height) if is_whole else self._stored_size()
        self.video.set_displayed(width, height, rotation)
        self._size = (self.info.width, self.info.height)

    def _note_turned(self, degrees: int) -> None:
        """Note a picture with another rotation, as in MJPEG of a camera that was turned."""
        if not self._noted_turned:
            self._noted_turned = True
            self.notes.append(
                f"a picture is marked as turned by {degrees} degrees, the first one by "
                f"{self.video.rotation}: all were turned like the first"
            )

    def _note_matrix(self, picture: Any) -> None:
        nearest, own = nearest_matrix(picture), int(picture.colorspace)
        note = f"colour matrix {own} of H.273 cannot be converted; matrix {nearest} was used"
        if nearest is not None and note not in self.notes:
            self.notes.append(note)

    def _note_size(self, width: int, height: int) -> None:
        """Note a picture of another size, as in recordings of calls and broadcasts."""
        self._noted_size = True
        since, first = float(self.pts * self.info.time_base), self._stored_size()
        about = "about " if self.video.factor > 1 else ""
        note = (
            f"pictures are {about}{width}x{height} from {since:.3f} s on, but the first one is "
            f"{first[0]}x{first[1]}: all were scaled to its size, and boxes are in its pixels"
        )
        if note not in self.notes:  # the reader before the hand-over may have noted it
            self.notes.append(note)

    def _decode(self) -> Iterator[Any]:
        if not self.video.decodable:
            return
        codec = self._stream.codec_context
        self._tally = self.set_up(codec)
        if self.info.codec == "hevc":
            # Show and count pictures that lack a reference, instead of omitting them. Not for
            # H.264: its decoder would also show undecodable pictures at the start.
            codec.flags |= Flags.output_corrupt
        for packet in self._packets():
            yield from self._decode_packet(packet)
        yield from self.flush()
        self._tally.end()
        if damage := find_damage(self._container, self._stream, self._demuxed):
            self.note_damage(damage)

    def set_up(self, codec: Any) -> DecodeTally:
        """Set the decoder's threads; return a tally of its packets."""
        # With slice threads, the same pictures survive an error in every run.
        self._stream.thread_type = "SLICE"
        codec.flags |= Flags.copy_opaque
        return DecodeTally(self.picture_rule(codec), self.counts)

    def picture_rule(self, codec: Any) -> PictureRule:
        return PictureRule(self.info.codec, codec.extradata, at_open_gop=self._at_open_gop)

    def demux(self) -> Iterator[Any]:
        """Yield the video's packets, and an empty one at the end."""
        return demux(self._container, self._stream)

    def _packets(self) -> Iterator[Any]:
        try:
            for packet in self.demux():
                if packet.size:  # ``flush`` replaces the empty packet at the end
                    self._demuxed.add(packet)
                    yield packet
        except av.error.FFmpegError as error:
            self.note_damage(f"the data ends early ({error.strerror})")

    def note_damage(self, what: str) -> None:
        """Note damage to the file rather than to a picture."""
        self.counts.ended_early = True
        if what not in self.notes:
            self.notes.append(what)

    def _decode_packet(self, packet: Any) -> list[Any]:
        self.check_log()
        self._tally.send(packet)
        try:
            pictures: list[Any] = self._stream.codec_context.decode(packet)
        except av.error.FFmpegError as error:
            self._complaints.take()
            self._tally.complain(str(error.strerror))
            return []
        if errors := self._complaints.take():
            self._tally.complain(errors[0][1])
        return pictures

    def check_log(self) -> None:
        """Check the errors that FFmpeg has logged since the last packet was decoded."""
        for name, message in self._complaints.take():
            if name == self._container.format.name:
                self.note_damage(f"the file's structure is damaged: {message}")

    def flush(self) -> list[Any]:
        self.check_log()
        for _ in range(MAX_FLUSH_ERRORS):
            try:
                pictures: list[Any] = self._stream.codec_context.decode(None)
            except av.error.EOFError:
                break
            except av.error.FFmpegError as error:
                self._tally.complain(str(error.strerror))
                continue
            return pictures
        return []

    def finish_at_limit(self) -> None:
        self._tally.end(self._clock.stated)

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        picture, self._picture = self._picture, None
        if self.planes is not None:
            return self._clock.frame(index, self.read_planes(self.planes, picture))
        stored = self._convert(picture)  # [h, w, 3], a view of the picture's memory
        image, info = self._copy(stored, into), self.info
        frame = self._clock.frame(index, image)
        if self.video.factor > 1:
            frame.reduced = Reduced(image, self.video.factor, info.width, info.height)
        return frame

    def read_planes(self, planes: PlanesReader, picture: Any) -> Picture:
        # Damaged parts of a picture show what its buffer held before. We copy each picture and
        # release its buffer at once, so the decoder reuses the buffers in the same order in every
        # run, and the result is the same.
        return planes.read(picture).copy()

    def _convert(self, picture: Any) -> Image:
        width, height = reduced_size(self._stored_size(), self.video.factor)
        if self.video.grey is not None and is_deep_grey(picture):
            from detector.core.sources._grey import to_bgr_of_grey

            return to_bgr_of_grey(picture, self.video.grey, width, height)
        return to_bgr(self._reformatter, picture, width, height)

    def _stored_size(self) -> tuple[int, int]:
        width, height = self._size or (self.info.width, self.info.height)
        return (height, width) if self.info.rotation in (90, 270) else (width, height)

    def _copy(self, stored: Image, into: Image | None) -> Image:
        if not fits(into, *reduced_size((self.info.width, self.info.height), self.video.factor)):
            into = None
        if self.info.rotation or self.info.mirrored:
            return upright(stored, self.info.rotation, self.info.mirrored, into)
        image = np.empty(stored.shape, np.uint8) if into is None else into
        np.copyto(image, stored)
        return image

    def close(self) -> None:
        super().close()
        self._complaints.close()
        self.close_container()

    def close_container(self) -> None:
        self._picture = None
        self._pictures.close()  # type: ignore[attr-defined]
        self._container.close()


def _seek_to_key(container: Any, stream: Any, landing: Landing) -> LandingKey | None:
    """Seek to the landing's key frame or an earlier one, and return it; None if that fails."""
    reached: dict[int, int] = {}
    for target in (landing.key_dts, landing.key_pts):  # an index contains dts or pts
        try:
            container.seek(target, stream=stream)
            first = next(demux(container, stream), None)
        except av.error.FFmpegError:
            continue
        if first is not None and landing.find(first.pts) is not None:
            reached[first.pts] = target
    if not reached:
        return None
    container.seek(reached[max(reached)], stream=stream)
    return landing.find(max(reached))


class HandOverMixin(SteppingSource):
    """Lets PyAV continue packet by packet when a fast reader fails. Subclasses list this mix-in
    before their reader. ``_successor``: the PyAV source after the hand-over."""

    _successor: AvSource | None = None

    def hand_over(
        self, successor: AvSource, count: int, last_pts: int | None, stopped: str, how: str = ""
    ) -> bool:
        """Let ``successor`` skip ``count`` frames, then all up to ``last_pts``, and grab the next.
        Return False if there is none. A note says why the fast reader ``stopped``, and ``how`` PyAV
        continues."""
        self._successor = successor
        grabbed = all(successor.grab() for _ in range(count + 1))
        while grabbed and last_pts is not None and successor.pts <= last_pts:
            self.counts.bad += 1  # the fast reader lost this frame; PyAV skips it: pts must rise
            grabbed = successor.grab()
        goes_on = f"takes over{how}" if grabbed else "found no further frame either"
        self.notes.append(f"{stopped}; PyAV {goes_on}")
        return grabbed

    def grabbed_pts(self) -> int:
        return super().grabbed_pts() if self._successor is None else self._successor.grabbed_pts()

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        if self._successor is None:
            return super().retrieve(index, into)
        return self._successor.retrieve(index, into)

    def finish_at_limit(self) -> None:
        if self._successor is not None:
            self._successor.finish_at_limit()

    def close(self) -> None:
        super().close()
        if self._successor is not None:
            self._successor.close()
