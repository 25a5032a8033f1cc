"""Read PyAV's decoded pictures as YUV planes without a copy, and copy them for drawing.

A decoder may still use the pictures that it has returned, so their planes are read-only. Boxes are
drawn into the pictures of ``Easel``, which an encoder then reads.
"""

from __future__ import annotations

import itertools
import threading
from operator import attrgetter
from typing import Any

import numpy as np

from detector.core.sources._bgr import (
    FORMATS,
    FULL,
    HDR_TRANSFERS,
    LIMITED,
    LUMA,
    WIDE_PRIMARIES,
    colours_of,
    pixels_of,
    to_bgr,
)
from detector.core.types import Colours, Frame, Image, Picture, Planes

TAGS = ("colorspace", "color_range", "color_trc", "color_primaries", "interlaced_frame")
kind_of = attrgetter(*TAGS, "format.name", "width", "height")


def why_no_planes(picture: Any) -> str:
    """Return why a video must be read as BGR, or "". ``picture``: the video's first picture; None
    if that comes late."""
    if picture is None:
        return "its first picture comes late"
    name = picture.format.name
    if name not in FORMATS:
        return f"its pixels are {name}"
    if picture.width % 2 or picture.height % 2:
        return f"its size is odd, {picture.width}x{picture.height}"
    if picture.rotation:  # -180 to 180
        return f"it is turned by {picture.rotation % 360} degrees"
    if picture.interlaced_frame:
        return "it is interlaced"
    if picture.color_trc in HDR_TRANSFERS or picture.color_primaries in WIDE_PRIMARIES:
        return "its colours are HDR or of a wide gamut"
    if picture.colorspace not in LUMA:
        return f"its colour matrix is number {picture.colorspace} of H.273"
    if any(plane.line_size < plane.width for plane in picture.planes):
        return "it is stored upside down"
    return ""


class PlanesReader:
    """Reads a video's pictures as planes. ``made`` counts conversions to BGR."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self.made = 0
        self._lock = threading.Lock()
        self._to_bgr, self._to_first = VideoReformatter(), VideoReformatter()
        self._size: tuple[int, int] | None = None  # width, height of the first picture
        self._kind: tuple[Any, ...] = ()  # kind of the last picture
        self._colours: Colours | None = None  # None if pictures must become BGR

    def read(self, picture: Any) -> Picture:
        """Return PyAV's ``picture`` as views of its planes, or as BGR if that is impossible."""
        kind = kind_of(picture)
        width, height = self._size = self._size or (picture.width, picture.height)
        if kind != self._kind:
            self._kind = kind
            self._colours = None if why_no_planes(picture) else colours_of(picture)
        if self._colours is None:
            return to_bgr(self._to_first, picture, width, height).copy()
        if kind[-2:] != self._size:
            picture = self._to_first.reformat(picture, width, height, interpolation="BICUBIC")
        y, u, v = (pixels_of(plane) for plane in picture.planes)
        for plane in (y, u, v):
            plane.flags.writeable = False
        return Planes(y, u, v, self._colours, self.make_bgr, picture)

    def make_bgr(self, planes: Planes) -> Image:
        """Return [h, w, 3] u8, the same pixels as if the video were read as BGR."""
        picture = blank_like(planes, planes).picture if planes.picture is None else planes.picture
        height, width = planes.y.shape
        with self._lock:
            self.made += 1
            return to_bgr(self._to_bgr, picture, width, height)


def blank_like(planes: Planes, filled: Planes | None = None) -> Planes:
    """Return writeable planes of the same size and colours. ``filled``: planes to copy to them."""
    import av  # imported here, because an easel for photos needs no PyAV

    height, width = planes.y.shape
    colours, picture = planes.colours, av.VideoFrame(width, height, "yuv420p")
    picture.colorspace, picture.color_primaries = colours.matrix, colours.primaries
    picture.color_trc = colours.transfer
    picture.color_range = FULL if colours.full_range else LIMITED
    y, u, v = (pixels_of(plane) for plane in picture.planes)
    blank = Planes(y, u, v, colours, planes.convert, picture)
    if filled is not None:
        copy_planes(filled, blank)
    return blank


def copy_planes(source: Planes, target: Planes) -> None:
    np.copyto(target.y, source.y)
    np.copyto(target.u, source.u)
    np.copyto(target.v, source.v)


class Easel:
    """Pictures to draw boxes into, used in turn. If the writer draws, one picture is enough: the
    writer encodes a frame before it draws the next. If other ``threads`` draw, each needs three:
    for the frame being drawn, a frame in the queue, and a drawn frame that waits for its turn."""

    def __init__(self, *, bgr: bool = False, threads: int = 0) -> None:
        """``bgr``: an output needs BGR with boxes, so boxes are drawn into BGR."""
        self._bgr = bgr
        self._planes: list[Planes | None] = [None] * max(1, 3 * threads)
        self._turns = itertools.count()

    def put(self, frame: Frame) -> None:
        """Replace a frame's planes with a copy or a BGR picture. Either may be drawn into."""
        given = frame.picture
        if not isinstance(given, Planes):
            return
        if self._bgr:
            frame.picture = given.to_bgr()
            return
        at = next(self._turns) % len(self._planes)
        planes = self._planes[at]
        if planes is None or (planes.y.shape, planes.colours) != (given.y.shape, given.colours):
            planes = self._planes[at] = blank_like(given)
        copy_planes(given, planes)
        frame.picture = planes
