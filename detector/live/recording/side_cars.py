"""Writes side-cars: boxes and labels as ASS subtitles, for recordings that copy the stream. A
side-car has the recording's name, so players load it automatically.

Detections arrive later than their packets, often after the recording is finished. So a side-car
stays open until a picture after the recording's end is detected.

With 20 people in every picture, the text would be as large as a small video. So a picture's
lines also serve later pictures, for up to ``STAY_NS``, if no box has moved visibly (``TOLERANCE``)
or if the side-car exceeds its ``SHARE`` of the video's bytes.

A picture's lines are written with one call, when the next detected picture determines their end. So
a kill loses at most one picture's lines.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from detector.core.sinks.overlay import ass
from detector.core.stages.annotate import Style, lay_out
from detector.core.types import Detections
from detector.live.camera_folder import append_whole, open_file
from detector.live.recording.mp4 import Mp4
from detector.live.recording.names import RECORDINGS, side_car
from detector.live.recording.samples import LATEST_NS, NS, USUAL_NS, Sample

# Boxes stay until the next detected picture, but at most for the longer of two times: SHORTEST_NS,
# and INTERVALS times the last interval between pictures.
INTERVALS, SHORTEST_NS = 2, NS
# If a detected picture is not in the file, a picture up to this much earlier shows its boxes.
FAR_NS = NS
# Lines start this much earlier, because ASS has centiseconds and players round them.
EARLY_NS = 2_000_000
CENTISECOND_NS = 10_000_000
MOST_BYTES = 4_000_000  # limit for detections kept for a clip that may begin later
MOST_LINES = 1000  # most lines to keep until the video's first fragment is written
MOST_PICTURES = 4096  # if more are kept, the older half may be dropped

# Limit of a side-car, as a share of its video so far. The docs say 0.1, because the last lines
# may exceed this share.
SHARE = 0.09
FREE_BYTES = 16_000  # every side-car may have this size, even with a short video
STAY_NS = NS  # longest time for which lines stay unchanged
TOLERANCE = 1 / 400  # share of a picture's longer side: about the width of a box's outline

Size = tuple[int, int]
Notice = Callable[[str], None]


@dataclass(slots=True)
class _Caption:
    arrived_ns: int
    detections: Detections
    size: Size  # height, width
    hold_ns: int  # longest time to show the detections

    @property
    def bytes(self) -> int:
        return 500 + 24 * len(self.detections)


class SideCars:
    """The side-cars of one camera. Not thread-safe. Never raises a disk error."""

    def __init__(self, camera: str, style: Style, before_s: float, notice: Notice) -> None:
        """``before_s``: how long before its first detection a clip begins."""
        self._camera, self._notice = camera, notice
        self._formatter = _AssFormatter(style)
        self._keep_ns = round(before_s * NS) + LATEST_NS
        self._cars: list[_SideCar] = []
        self._recent: deque[_Caption] = deque()
        self._recent_bytes = 0
        self._paused = False

    def begin(self, file: Mp4, size: Size | None) -> None:
        """Start a side-car for ``file``. ``size``: width, height; None: the detected picture's."""
        for car in self._cars:
            car.is_full = True
        self._cars.append(_SideCar(file, size, self._formatter, self._recent, self._keep_ns))

    def add_picture(self, file: Mp4, sample: Sample, at_ns: int) -> None:
        for car in self._cars:
            if car.file is file:
                car.add_picture(sample, at_ns)

    def end(self, file: Mp4) -> None:
        for car in self._cars:
            if car.file is file:
                car.end()
        self._remove_closed()

    def add_detections(self, arrived_ns: int, detections: Detections, size: Size) -> None:
        """Add a picture's detections; called in display order. ``size``: height, width."""
        if min(size) <= 0:
            return
        hold_ns = SHORTEST_NS
        if self._recent:
            interval_ns = abs(arrived_ns - self._recent[-1].arrived_ns)
            hold_ns = min(max(SHORTEST_NS, INTERVALS * interval_ns), LATEST_NS)
        caption = _Caption(arrived_ns, detections, size, hold_ns)
        self._remember(caption)
        for car in self._cars:
            car.add_detections(caption)
        self._remove_closed()

    def _remember(self, caption: _Caption) -> None:
        self._recent.append(caption)
        self._recent_bytes += caption.bytes
        oldest_ns = caption.arrived_ns - self._keep_ns
        while self._recent and (
            self._recent_bytes > MOST_BYTES or self._recent[0].arrived_ns < oldest_ns
        ):
            self._recent_bytes -= self._recent.popleft().bytes

    def close_overdue(self, now_ns: int) -> None:
        """Close side-cars whose last detections are overdue. Called about once a second."""
        for car in self._cars:
            car.close_overdue(now_ns)
        self._remove_closed()

    def finish(self) -> None:
        for car in self._cars:
            car.close()
        self._remove_closed()

    def _remove_closed(self) -> None:
        """Forget closed side-cars, and report a disk error once."""
        error = next((car.error for car in self._cars if car.error is not None), None)
        wrote = any(car.wrote for car in self._cars)
        if error is not None and not self._paused:
            self._paused = True
            self._notice(
                f"{self._camera}: writing subtitles with boxes is paused: {error.strerror or error}"
            )
        elif wrote and error is None:
            self._paused = False
        for car in self._cars:
            car.error, car.wrote = None, False
        self._cars = [car for car in self._cars if not car.closed]


class _SideCar:
    def __init__(
        self,
        file: Mp4,
        size: Size | None,
        writing: _AssFormatter,
        recent: deque[_Caption],
        keep_ns: int,
    ) -> None:
        self.file = file
        self.is_full = False  # the file gets no more pictures
        self.closed = self.wrote = False
        self.error: OSError | None = None
        self._size, self._formatter, self._keep_ns = size, writing, keep_ns
        self._shape: Size | None = None  # width and height of the script
        self._waiting = deque(recent)
        # The file's pictures: arrival, display time, and decode time since the first picture.
        self._arrived: list[int] = []
        self._shown_ns: list[int] = []
        self._decoded: list[int] = []
        self._first_ns = self._first_dts_ns = 0  # arrival and dts of the first picture
        self._end_ns = 0  # end of the last picture
        self._video_bytes = self._own_bytes = 0
        self._current: tuple[_Caption, int, int] | None = None  # caption, start, latest end
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._fd = -1
        self._path = ""
        self._ended = False  # the file has its final name
        self._passed = False  # a picture after the file's end was detected

    def add_picture(self, sample: Sample, at_ns: int) -> None:
        arrived_ns = sample.arrived_ns
        if not self._arrived:
            self._first_ns, self._first_dts_ns = arrived_ns, sample.dts_ns
        self._video_bytes += len(sample.data)
        self._arrived.append(arrived_ns)
        self._shown_ns.append(at_ns)
        self._decoded.append(sample.dts_ns - self._first_dts_ns)
        self._end_ns = max(self._end_ns, at_ns + (sample.duration_ns or USUAL_NS))
        half = MOST_PICTURES // 2
        if len(self._arrived) > MOST_PICTURES and self._arrived[half] < arrived_ns - self._keep_ns:
            del self._arrived[:half], self._shown_ns[:half], self._decoded[:half]

    def add_detections(self, caption: _Caption) -> None:
        if not self._passed:
            self._waiting.append(caption)
            self._process_waiting()

    def _process_waiting(self) -> None:
        while self._waiting and not self._passed:
            caption = self._waiting.popleft()
            if self.is_full and (not self._arrived or caption.arrived_ns > self._arrived[-1]):
                self._passed = True
                self._waiting.clear()
                self._write_current(self._end_ns)
                break
            times = self._find_time(caption)
            if times is not None:
                self._show(caption, *times)
        if self._passed and self._ended:
            self.close()

    def _find_time(self, caption: _Caption) -> tuple[int, int] | None:
        """Return when the file shows this picture, and how long its boxes may stay."""
        number = bisect_right(self._arrived, caption.arrived_ns) - 1
        if number >= 0:
            if caption.arrived_ns == self._arrived[number]:
                return max(self._shown_ns[number], 0), caption.hold_ns
            if caption.arrived_ns - self._arrived[number] > FAR_NS:
                return None
            # With B-frames, pictures arrive in decoding order, so use the decode time.
            return self._decoded[number], caption.hold_ns
        if not self._arrived or caption.arrived_ns >= self._first_ns:
            return None  # too late: the picture was dropped from the lists
        # The picture is older than the file, but its boxes may still be current.
        rest_ns = caption.hold_ns - (self._first_ns - caption.arrived_ns)
        return (0, rest_ns) if rest_ns > 0 else None

    def _show(self, caption: _Caption, at_ns: int, hold_ns: int) -> None:
        if self._current is not None:
            current, since_ns, _ = self._current
            if at_ns < since_ns:
                return  # the camera set its clock back
            if at_ns - since_ns < STAY_NS and self._may_keep(current, caption):
                self._current = current, since_ns, at_ns + hold_ns
                return
            self._write_current(at_ns)
        self._current = caption, at_ns, at_ns + hold_ns

    def _may_keep(self, current: _Caption, caption: _Caption) -> bool:
        """Return whether the current lines may stay. False if either picture has no objects."""
        if not len(caption.detections.shown) or not len(current.detections.shown):
            return False
        if self._own_bytes > max(FREE_BYTES, SHARE * self._video_bytes):
            return True
        return _look_alike(current, caption)

    def _write_current(self, until_ns: int) -> None:
        if self._current is None:
            return
        caption, at_ns, latest_ns = self._current
        self._current = None
        begin, end = _centiseconds(at_ns), _centiseconds(min(until_ns, latest_ns))
        if begin >= end:
            return
        if self._shape is None:
            self._shape = _upright(self._size, caption.size)
        lines = self._formatter.lines(caption, self._shape, _ass_time(begin), _ass_time(end))
        if lines:
            self._own_bytes += len(lines)
            self._lines.append(lines)
            self._store()

    def _store(self) -> None:
        if not self._lines or self.file.path is None or self._shape is None:
            return
        data = b"".join(self._lines)
        self._lines.clear()
        try:
            if self._fd < 0:
                self._create()
            if not os.fstat(self._fd).st_size:
                data = self._formatter.header(self._shape) + data
            append_whole(self._fd, data)
            self.wrote = True
        except OSError as error:
            self.error = error

    def _create(self) -> None:
        assert self.file.path is not None
        path = side_car(self.file.path)
        self._fd = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_EXCL, RECORDINGS)
        self._path = str(path)

    def end(self) -> None:
        self.is_full = self._ended = True
        if self.file.path is None:  # the file stayed empty
            self._lines.clear()
            self._current = None
            if self._path:
                with suppress(OSError):
                    os.unlink(self._path)
            self.close()
            return
        path = str(side_car(self.file.path))
        if self._path and self._path != path:
            with suppress(OSError):  # it may have been removed
                os.rename(self._path, path)
                self._path = path
        self._process_waiting()

    def close_overdue(self, now_ns: int) -> None:
        self._store()
        if self._ended and (not self._arrived or now_ns - self._arrived[-1] > LATEST_NS):
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self._write_current(self._end_ns)
        self._store()
        self.closed = True
        if self._fd >= 0:
            with suppress(OSError):
                if not os.fstat(self._fd).st_size:  # the disk was full
                    os.unlink(self._path)
                os.close(self._fd)
            self._fd = -1


class _AssFormatter:
    """Formats detections as ASS lines, like --save overlay."""

    def __init__(self, style: Style) -> None:
        font = style.font
        self._style = style
        # ASS files contain no font: players use the font of --font if installed, or their own.
        self._face = (font.family, font.style) if font is not None else (ass.FAMILY, "")
        self._per_scale = ass.font_size(font)

    def header(self, size: Size) -> bytes:
        """Return the header. ``size``: width, height of the video; coordinates are its pixels."""
        script = ass.header(*size, *self._face, round(self._per_scale * 0.64, 1))
        return script.encode(errors="replace")

    def lines(self, caption: _Caption, size: Size, begin: str, end: str) -> bytes:
        """Return a picture's lines for a video of ``size`` (width, height)."""
        width, height = size
        scaled = _scale(caption, size)
        layout = lay_out(width, height, scaled, self._style)
        texts = [(ass.BOXES, ass.boxes_text(layout, width, height))]
        texts += [(ass.LABELS, text) for text in ass.label_texts(layout, scaled, self._per_scale)]
        lines = [
            f"Dialogue: {layer},{begin},{end},{style},,0,0,0,,{text}\n"
            for layer, (style, text) in enumerate(texts)
            if text
        ]
        return "".join(lines).encode(errors="replace")


def _look_alike(before: _Caption, after: _Caption) -> bool:
    if before.size != after.size:
        return False
    old, new = before.detections.shown, after.detections.shown
    if len(old) != len(new):
        return False
    for name in ("class_ids", "track_ids", "coasting"):
        if not np.array_equal(getattr(old, name), getattr(new, name)):
            return False
    tolerance = TOLERANCE * max(after.size)
    return bool((np.abs(old.boxes - new.boxes) <= tolerance).all())


def _scale(caption: _Caption, size: Size) -> Detections:
    """Scale boxes to the recorded video. Detection may have used another stream."""
    height, width = caption.size
    shown = caption.detections.shown
    if size == (width, height):
        return shown
    by = np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return replace(shown, boxes=shown.boxes * by)


def _upright(size: Size | None, detected: Size) -> Size:
    """Return the displayed size of a video that may be stored rotated. ``size``: stored width,
    height; ``detected``: upright height, width."""
    height, width = detected
    if size is None:
        return width, height
    turned = (size[0] > size[1]) != (width > height)
    return (size[1], size[0]) if turned else size


def _centiseconds(at_ns: int) -> int:
    return max(0, at_ns - EARLY_NS) // CENTISECOND_NS


def _ass_time(centiseconds: int) -> str:
    seconds, rest = divmod(centiseconds, 100)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:02}"
