"""Compute time stamps that keep rising when the container's clock overflows, or jumps because
recordings were joined."""

from __future__ import annotations

from detector.core.errors.text import counted
from detector.core.sources.video._container import VideoInfo
from detector.core.types import BACK_S, Frame, Picture

# Ticks after which a format's clock overflows to 0: in MPEG after 26.5 hours, in FLV after 49 days.
# FFmpeg only corrects the first overflow, and only if the recording began shortly before it.
WRAP_TICKS = {"mpegts": 1 << 33, "mpeg": 1 << 33, "flv": 1 << 32}
JUMPS = "time stamps repeat or jump at "


class Clock:
    """Computes the time stamps of one reader's frames, in order.

    A stamp must be later than the last one, but not by more than the longest allowed pause.
    Otherwise its frame is placed one frame's duration after the last frame. After a large jump, all
    later stamps are shifted. After a small step back, each stamp is replaced until one is later
    than the last frame's time. ``jumps``: number of jumps and steps back.
    """

    def __init__(self, video: VideoInfo) -> None:
        self._info, self._ticks = video.info, video.ticks
        self._wrap = WRAP_TICKS.get(video.log_names[0], 0)  # 0: does not overflow
        self._back_ticks = round(BACK_S / self._info.time_base)
        self._gap_ticks = round(self._info.longest_gap_s / self._info.time_base) + self._ticks
        self.jumps = self._rewinds = self._shift = 0
        self._offset = 0  # added to stamps after overflows
        self._latest: int | None = None  # the last stamp plus ``_offset``
        self._last: int | None = None  # pts of the last frame
        self._replaced = 0  # stamps replaced in a row

    @property
    def stated(self) -> int:
        """The last frame's time by the container's clock, in ticks."""
        return (self._last or 0) + self._shift - self._offset

    def place(self, stated: int | None, notes: list[str]) -> int:
        """Return the pts of the next frame. ``stated``: the container's pts, or None."""
        last = self._info.start_pts - self._ticks if self._last is None else self._last
        gap = self._ticks if stated is None else self._unwrap(stated) - self._shift - last
        if self._last is None or 0 < gap <= self._gap_ticks:
            self._last = last + gap
            self._replaced = 0 if stated is not None else self._replaced
            return self._last
        self._last = last + self._ticks
        self._replaced += 1
        if not -self._back_ticks <= gap <= 0 or self._replaced * self._ticks > self._back_ticks:
            self._shift += gap - self._ticks
            self._rewinds += gap < -self._back_ticks
        if self._replaced == 1:
            self.jumps += 1
            # Replace the last note on jumps, which the reader before this one may have written.
            notes[:] = [note for note in notes if not note.startswith(JUMPS)]
            places = counted(self.jumps, "place")
            notes.append(f"{JUMPS}{places}, as in joined recordings; times were made continuous")
        return self._last

    def frame(self, index: int, picture: Picture) -> Frame:
        pts = self._last or 0
        at_s, behind = float(pts * self._info.time_base), self._shift - self._offset
        return Frame(index, pts, at_s, picture, behind=behind, rewinds=self._rewinds)

    def _unwrap(self, pts: int) -> int:
        """Return the pts as if the container's clock did not overflow."""
        if self._wrap and self._latest is not None:
            if pts + self._offset < self._latest - self._wrap // 2:
                self._offset += self._wrap
                self._rewinds += 1
            elif pts + self._offset > self._latest + self._wrap // 2 and self._offset:
                return pts + self._offset - self._wrap  # stamped before the overflow
        self._latest = pts + self._offset
        return self._latest
