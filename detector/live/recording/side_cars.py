"""Side-cars: boxes and labels of a copied recording as ASS subtitles of the same name, which
players load automatically.

Detections come later than their packets, often after the file is finished, so a side-car stays open
until the detections have passed the end of its video.

20 people in every picture make as much text as a small video. So lines stay if nothing moved
visibly (``TOLERANCE``), or if the side-car has used its ``SHARE`` of the video's bytes, for up to
``STAY_NS``; changes are shown that much later. The rows have every picture.

A picture's lines are written when the next detected picture sets their end, with one call, so that
a kill loses at most one picture.
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

# Boxes stay until the next detected picture, for at most two of the last intervals.
INTERVALS, SHORTEST_NS = 2, NS
# Boxes of a picture missing in the file go to the packet before it, if at most this much older.
FAR_NS = NS
# Start lines this early, because ASS counts centiseconds and players round.
EARLY_NS = 2_000_000
CENTISECOND_NS = 10_000_000
MOST_BYTES = 4_000_000  # of detections kept for a clip that has not begun
MOST_LINES = 1000  # kept until the video's first fragment is written
TRIMMED = 4096  # positions of pictures; beyond it the older half may be dropped

# Of the video's bytes so far. We promise a tenth; the last lines may exceed this.
SHARE = 0.09
FREE_BYTES = 16_000  # allowed for every side-car
STAY_NS = NS  # longest time to keep lines unchanged
TOLERANCE = 1 / 400  # of a picture's longer side: an outline's width, below the jitter

Size = tuple[int, int]
Notice = Callable[[str], None]


@dataclass(slots=True)
class _Caption:
    arrived_ns: int
    detections: Detections
    size: Size
    hold_ns: int  # longest time to show them

    @property
    def bytes(self) -> int:
        return 500 + 24 * len(self.detections)


class SideCars:
    """The side-cars of one camera, for one thread. Never raises a disk error."""

    def __init__(self, camera: str, style: Style, before_s: float, notice: Notice) -> None:
        """``before_s``: of clips, whose first pictures may have been detected long before."""
        self._camera, self._notice = camera, notice
        self._writing = _Writing(style)
        self._keep_ns = round(before_s * NS) + LATEST_NS
        self._cars: list[_SideCar] = []
        self._recent: deque[_Caption] = deque()
        self._recent_bytes = 0
        self._paused = False

    def begin(self, file: Mp4, size: Size | None) -> None:
        """Start a side-car for ``file``. ``size``: width, height; None: as detected."""
        for car in self._cars:
            car.is_full = True  # no more pictures, though maybe sound
        self._cars.append(_SideCar(file, size, self._writing, self._recent, self._keep_ns))

    def shown(self, file: Mp4, sample: Sample, at_ns: int) -> None:
        for car in self._cars:
            if car.file is file:
                car.shown(sample, at_ns)

    def end(self, file: Mp4) -> None:
        for car in self._cars:
            if car.file is file:
                car.end()
        self._settle()

    def seen(self, arrived_ns: int, detections: Detections, size: Size) -> None:
        """Take the detections of a picture of ``size`` (height, width), in display order."""
        if min(size) <= 0:
            return
        hold_ns = SHORTEST_NS
        if self._recent:
            interval_ns = abs(arrived_ns - self._recent[-1].arrived_ns)
            hold_ns = min(max(SHORTEST_NS, INTERVALS * interval_ns), LATEST_NS)
        seen = _Caption(arrived_ns, detections, size, hold_ns)
        self._remember(seen)
        for car in self._cars:
            car.see(seen)
        self._settle()

    def _remember(self, seen: _Caption) -> None:
        self._recent.append(seen)
        self._recent_bytes += seen.bytes
        oldest_ns = seen.arrived_ns - self._keep_ns
        while self._recent and (
            self._recent_bytes > MOST_BYTES or self._recent[0].arrived_ns < oldest_ns
        ):
            self._recent_bytes -= self._recent.popleft().bytes

    def look(self, now_ns: int) -> None:
        """Stop waiting for detections that are too late. Called about once a second."""
        for car in self._cars:
            car.look(now_ns)
        self._settle()

    def finish(self) -> None:
        for car in self._cars:
            car.close()
        self._settle()

    def _settle(self) -> None:
        """Remove closed side-cars, and report a disk error once."""
        error = next((car.error for car in self._cars if car.error is not None), None)
        wrote = any(car.wrote for car in self._cars)
        if error is not None and not self._paused:
            self._paused = True
            self._notice(
                f"{self._camera}: writing recorded boxes is paused: {error.strerror or error}"
            )
        elif wrote and error is None:
            self._paused = False
        for car in self._cars:
            car.error, car.wrote = None, False
        self._cars = [car for car in self._cars if not car.closed]


class _SideCar:
    def __init__(
        self, file: Mp4, size: Size | None, writing: _Writing, recent: deque[_Caption], keep_ns: int
    ) -> None:
        self.file = file
        self.is_full = False  # its file has all pictures
        self.closed = self.wrote = False
        self.error: OSError | None = None
        self._size, self._writing, self._keep_ns = size, writing, keep_ns
        self._shape: Size | None = None  # width and height of the script
        self._waiting = deque(recent)
        # The file's pictures by arrival: arrival, display time, and decode time since the first.
        self._arrived: list[int] = []
        self._at: list[int] = []
        self._decoded: list[int] = []
        self._first_ns = self._first_dts_ns = 0  # arrival and dts of the first
        self._end_ns = 0  # end of the last picture
        self._video_bytes = self._own_bytes = 0
        self._standing: tuple[_Caption, int, int] | None = None  # with its start and latest end
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._fd = -1
        self._path = ""
        self._ended = False  # its file has its final name
        self._passed = False  # later pictures have been detected

    def shown(self, sample: Sample, at_ns: int) -> None:
        arrived_ns = sample.arrived_ns
        if not self._arrived:
            self._first_ns, self._first_dts_ns = arrived_ns, sample.dts_ns
        self._video_bytes += len(sample.data)
        self._arrived.append(arrived_ns)
        self._at.append(at_ns)
        self._decoded.append(sample.dts_ns - self._first_dts_ns)
        self._end_ns = max(self._end_ns, at_ns + (sample.duration_ns or USUAL_NS))
        half = TRIMMED // 2
        if len(self._arrived) > TRIMMED and self._arrived[half] < arrived_ns - self._keep_ns:
            del self._arrived[:half], self._at[:half], self._decoded[:half]

    def see(self, seen: _Caption) -> None:
        if not self._passed:
            self._waiting.append(seen)
            self._advance()

    def _advance(self) -> None:
        while self._waiting and not self._passed:
            seen = self._waiting.popleft()
            if self.is_full and (not self._arrived or seen.arrived_ns > self._arrived[-1]):
                self._passed = True
                self._waiting.clear()
                self._write_standing(self._end_ns)
                break
            place = self._place(seen)
            if place is not None:
                self._stand(seen, *place)
        if self._passed and self._ended:
            self.close()

    def _place(self, seen: _Caption) -> tuple[int, int] | None:
        """Return when the file shows this picture, and how long its boxes may stay."""
        number = bisect_right(self._arrived, seen.arrived_ns) - 1
        if number >= 0:
            if seen.arrived_ns == self._arrived[number]:
                return max(self._at[number], 0), seen.hold_ns
            if seen.arrived_ns - self._arrived[number] > FAR_NS:
                return None
            # B-frames arrive out of order, so use the decode time since the first picture.
            return self._decoded[number], seen.hold_ns
        if not self._arrived or seen.arrived_ns >= self._first_ns:
            return None  # too late: its position was dropped
        # Detected before the file began: its boxes may still be current.
        rest_ns = seen.hold_ns - (self._first_ns - seen.arrived_ns)
        return (0, rest_ns) if rest_ns > 0 else None

    def _stand(self, seen: _Caption, at_ns: int, hold_ns: int) -> None:
        if self._standing is not None:
            standing, since_ns, _ = self._standing
            if at_ns < since_ns:
                return  # the camera set its clock back
            if at_ns - since_ns < STAY_NS and self._may_stay(standing, seen):
                self._standing = standing, since_ns, at_ns + hold_ns
                return
            self._write_standing(at_ns)
        self._standing = seen, at_ns, at_ns + hold_ns

    def _may_stay(self, standing: _Caption, seen: _Caption) -> bool:
        """Return whether lines stay for ``seen``: not if objects all left, or first came."""
        if not len(seen.detections.shown) or not len(standing.detections.shown):
            return False
        if self._own_bytes > max(FREE_BYTES, SHARE * self._video_bytes):
            return True
        return _same(standing, seen)

    def _write_standing(self, until_ns: int) -> None:
        if self._standing is None:
            return
        seen, at_ns, latest_ns = self._standing
        self._standing = None
        begin, end = _centiseconds(at_ns), _centiseconds(min(until_ns, latest_ns))
        if begin >= end:
            return
        if self._shape is None:
            self._shape = _upright(self._size, seen.size)
        lines = self._writing.lines(seen, self._shape, _to_text(begin), _to_text(end))
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
                data = self._writing.header(self._shape) + data
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
            self._standing = None
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
        self._advance()

    def look(self, now_ns: int) -> None:
        self._store()
        if self._ended and (not self._arrived or now_ns - self._arrived[-1] > LATEST_NS):
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self._write_standing(self._end_ns)
        self._store()
        self.closed = True
        if self._fd >= 0:
            with suppress(OSError):
                if not os.fstat(self._fd).st_size:  # the disk was full
                    os.unlink(self._path)
                os.close(self._fd)
            self._fd = -1


class _Writing:
    """Formats detections as ASS lines, as ``--save overlay`` does."""

    def __init__(self, style: Style) -> None:
        font = style.font
        self._style = style
        # No font is attached: players use that of --font if installed, or their own.
        self._face = (font.family, font.style) if font is not None else (ass.FAMILY, "")
        self._per_scale = ass.font_size(font)

    def header(self, size: Size) -> bytes:
        """Return the header. ``size``: width, height; one ASS pixel is one of the video."""
        script = ass.header(*size, *self._face, round(self._per_scale * 0.64, 1))
        return script.encode(errors="replace")

    def lines(self, seen: _Caption, size: Size, begin: str, end: str) -> bytes:
        """Return one picture's lines, for a video of ``size`` (width, height)."""
        width, height = size
        found = _scale(seen, size)
        layout = lay_out(width, height, found, self._style)
        texts = [(ass.BOXES, ass.boxes_text(layout, width, height))]
        texts += [(ass.LABELS, text) for text in ass.label_texts(layout, found, self._per_scale)]
        lines = [
            f"Dialogue: {layer},{begin},{end},{style},,0,0,0,,{text}\n"
            for layer, (style, text) in enumerate(texts)
            if text
        ]
        return "".join(lines).encode(errors="replace")


def _same(before: _Caption, after: _Caption) -> bool:
    if before.size != after.size:
        return False
    one, other = before.detections.shown, after.detections.shown
    if len(one) != len(other):
        return False
    near = TOLERANCE * max(after.size)
    for kind in ("class_ids", "track_ids", "coasting"):
        mine, its = getattr(one, kind), getattr(other, kind)
        if (mine is None) != (its is None):
            return False
        if mine is not None and not np.array_equal(mine, its):
            return False
    return bool((np.abs(one.boxes - other.boxes) <= near).all())


def _scale(seen: _Caption, size: Size) -> Detections:
    """Scale to the video's pixels; it may be another stream of the camera."""
    height, width = seen.size
    shown = seen.detections.shown
    if size == (width, height):
        return shown
    by = np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return replace(shown, boxes=shown.boxes * by)


def _upright(size: Size | None, seen: Size) -> Size:
    """Return width and height as displayed, from ``size`` (as stored) and ``seen`` (upright)."""
    height, width = seen
    if size is None:
        return width, height
    turned = (size[0] > size[1]) != (width > height)
    return (size[1], size[0]) if turned else size


def _centiseconds(at_ns: int) -> int:
    return max(0, at_ns - EARLY_NS) // CENTISECOND_NS


def _to_text(centiseconds: int) -> str:
    seconds, rest = divmod(centiseconds, 100)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:02}"
