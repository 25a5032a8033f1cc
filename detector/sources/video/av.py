"""Video by PyAV, packet by packet: slower than cv2, but it reads past damage and decodes AV1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from detector.sources._cv2 import fits, upright
from detector.sources.base import SteppingSource
from detector.sources.video._container import (
    CUT_OFF,
    Video,
    is_truncated,
    no_frame,
    open_container,
    probe,
)
from detector.types import Frame, Image

# As ITU-T H.273 numbers them. What cv2's conversion brings to BT.709; kept as they are, colours
# look washed out.
BT709, HDR_TRANSFERS, WIDE_PRIMARIES = 1, (16, 18), (9, 11, 12)  # PQ and HLG; BT.2020 and both P3
MAX_FLUSH_ERRORS = 64  # a decoder that refuses to be emptied so often has nothing left


def open(path: str, stride: int = 1, frames: int | None = None) -> SteppingSource:
    """PyAV alone. Raises SourceError when not one frame can be decoded."""
    source = AvSource(probe(path), stride, frames)
    if source.hold_first():
        return source
    source.close()
    raise no_frame(source.video, source.counts.bad)


class AvSource(SteppingSource):
    """Counts the packets that the decoder refuses in ``counts.bad`` and goes on with the next."""

    decoder = "av"

    def __init__(
        self,
        video: Video,
        stride: int = 1,
        frames: int | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """``size``: displayed (width, height) of all frames; None: that of the first."""
        super().__init__(stride, frames)
        self.video = video
        self.info = video.info
        self.pts = video.info.start_pts - video.ticks  # of the picture grabbed last
        self._size = size
        # One for all pictures: a picture's own would make its tables anew, 2 ms each, and 1.3 s for
        # HDR's.
        self._reformatter = VideoReformatter()
        self._picture: Any = None  # av.VideoFrame
        self._container = open_container(video.path)
        self._stream = self._container.streams[video.stream]
        self._is_avi = self._container.format.name == "avi"
        self._pictures = self._decode()

    def grab(self) -> bool:
        self._picture = next(self._pictures, None)
        if self._picture is None:
            return False
        if self._size is None:
            self._learn_size()
        self.counts.corrupt += self._picture.is_corrupt
        # AVI stores no pts: with B-frames FFmpeg's guess comes out of order, the dts of the output
        # does not.
        pts = self._picture.dts if self._is_avi else self._picture.pts
        self.pts = self.pts + self.video.ticks if pts is None else pts
        return True

    def _learn_size(self) -> None:
        picture = self._picture
        self.video.set_displayed(picture.width, picture.height, picture.rotation)
        self._size = (self.info.width, self.info.height)

    def _decode(self) -> Iterator[Any]:
        """av.VideoFrame after av.VideoFrame, with what the decoder still held at the end."""
        if not self.video.decodable:
            return
        # Frame threading would change which pictures survive an error; slices do not.
        self._stream.thread_type = "SLICE"
        for packet in self._packets():
            yield from self._decode_packet(packet)
        yield from self._flush()
        if is_truncated(self._container, self._stream):
            self.ended_early = True
            self.notes.append(CUT_OFF)

    def _packets(self) -> Iterator[Any]:
        try:
            for packet in self._container.demux(self._stream):
                if packet.size:  # the empty one at the end is the flush, which is ours
                    yield packet
        except av.error.FFmpegError as error:
            self.ended_early = True
            self.notes.append(f"the data stops before its end ({error.strerror})")

    def _decode_packet(self, packet: Any) -> list[Any]:
        try:
            pictures: list[Any] = self._stream.codec_context.decode(packet)
        except av.error.FFmpegError:
            self.counts.bad += 1
            return []
        return pictures

    def _flush(self) -> list[Any]:
        for _ in range(MAX_FLUSH_ERRORS):
            try:
                pictures: list[Any] = self._stream.codec_context.decode(None)
            except av.error.EOFError:
                break
            except av.error.FFmpegError:
                self.counts.bad += 1
                continue
            return pictures
        return []

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        picture, self._picture = self._picture, None
        stored = self._convert(picture)  # [h, w, 3], a view of the picture's memory
        image = self._copy(stored, into)
        return Frame(index, self.pts, float(self.pts * self.info.time_base), image)

    def _convert(self, picture: Any) -> Image:
        width, height = self._stored_size()
        # Bicubic also for the chroma planes: then the pixels are cv2's own.
        bgr = self._reformatter.reformat(
            picture,
            width=width,
            height=height,
            format="bgr24",
            interpolation="BICUBIC",
            **_colours_of(picture),
        )
        plane: Any = bgr.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(height, plane.line_size)
        return rows[:, : width * 3].reshape(height, width, 3)

    def _stored_size(self) -> tuple[int, int]:
        width, height = self._size or (self.info.width, self.info.height)
        return (height, width) if self.info.rotation in (90, 270) else (width, height)

    def _copy(self, stored: Image, into: Image | None) -> Image:
        if not fits(into, self.info.width, self.info.height):
            into = None
        if self.info.rotation or self.info.mirrored:
            return upright(stored, self.info.rotation, self.info.mirrored, into)
        image = np.empty(stored.shape, np.uint8) if into is None else into
        np.copyto(image, stored)
        return image

    def close(self) -> None:
        super().close()
        self._picture = None
        self._pictures.close()  # type: ignore[attr-defined]
        self._container.close()


def _colours_of(picture: Any) -> dict[str, int]:
    """Transfer and primaries that ``reformat`` is to convert to; nothing for ordinary pictures."""
    hdr, wide = picture.color_trc in HDR_TRANSFERS, picture.color_primaries in WIDE_PRIMARIES
    if not (hdr or wide):
        return {}
    return {
        "dst_color_trc": BT709 if hdr else int(picture.color_trc),
        "dst_color_primaries": BT709 if wide else int(picture.color_primaries),
    }
