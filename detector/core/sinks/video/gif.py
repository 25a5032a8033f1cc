"""A looping GIF; each frame has its own 256 colours."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av

from detector.core.errors.text import counted
from detector.core.sinks.video.canvas import fit_inside
from detector.core.sinks.video.file import VideoFile
from detector.core.sinks.video.stamps import Stamps
from detector.core.types import Frame

HUNDREDTH = Fraction(1, 100)
SHORTEST = 2  # hundredths of a second per frame; browsers slow down shorter frames
LONGEST_S = 600.0  # between two frames; the format stores hundredths in 16 bits


class GifFile(VideoFile):
    tags = ()

    def choose_time_base(self, own: Fraction) -> Fraction:
        return HUNDREDTH

    def make_stamps(self, longest_gap_s: float) -> Stamps:
        self.muxer_options["loop"] = "0"  # endless
        self._last: int | None = None  # time of the last frame, in hundredths
        self._omitted = 0
        self._first_colours = self._colours = b""  # palettes of the first and of the last picture
        return Stamps(self.fps, self.time_base, min(longest_gap_s, LONGEST_S))

    def omits(self, ticks: int) -> bool:
        too_soon = self._last is not None and 0 <= ticks - self._last < SHORTEST
        self._omitted += too_soon
        if not too_soon:
            self._last = ticks
        return too_soon

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        self._size = height, width
        self._graph = _create_palette_graph(height, width)
        stream = container.add_stream("gif", rate=self.fps)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = width, height, "pal8"
        context.time_base = self.time_base
        return stream

    def fill(self, frame: Frame) -> Any:
        picture = av.VideoFrame.from_ndarray(fit_inside(frame.image, *self._size), "bgr24")
        picture.pts, picture.time_base = self.sent, HUNDREDTH
        self._graph.push(picture)
        picture = self._graph.pull()
        colours = bytes(picture.planes[1])
        self._first_colours = self._first_colours or colours
        if colours == self._first_colours and self._colours not in (b"", colours):
            # If a picture's palette equals the file's first palette, FFmpeg encodes only the pixels
            # whose index has changed, even if the last picture has another palette. So we change
            # the palette's transparent entry, which no pixel uses.
            picture.planes[1].update(colours[:-4] + b"\1" + colours[-3:])
        self._colours = colours
        return picture

    def finish(self) -> None:
        super().finish()
        if self._omitted:
            self.notes.append(
                f"{counted(self._omitted, 'frame', 'was')} skipped: a GIF shows at most 50 per "
                "second"
            )


def _create_palette_graph(height: int, width: int) -> Any:
    """Return a filter that reduces a picture to 256 colours. Ordered dither makes files small."""
    graph = av.filter.Graph()
    source = graph.add_buffer(width=width, height=height, format="bgr24", time_base=HUNDREDTH)
    split = graph.add("split")
    palette = graph.add("palettegen", "stats_mode=single")
    use = graph.add("paletteuse", "new=1:dither=bayer:bayer_scale=4")
    sink = graph.add("buffersink")
    source.link_to(split)
    split.link_to(palette, 0, 0)
    split.link_to(use, 1, 0)
    palette.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    return graph
