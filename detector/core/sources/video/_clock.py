"""Time stamps that rise across an overflow of the container's clock, or joined recordings."""

from __future__ import annotations

from detector.core.errors.text import counted
from detector.core.sources.video._container import VideoInfo
from detector.core.types import BACK_S, Frame, Picture

# Ticks after which a format's clock starts again at 0: MPEG's after 26.5 hours, FLV's after 49
# days. FFmpeg only fixes the first overflow, if the recording began shortly before it.
ROUNDS = {"mpegts": 1 << 33, "mpeg": 1 << 33, "flv": 1 << 32}
JUMPS = "time stamps repeat or jump at "


class Clock:
    """The time stamps of one reader's frames, in order.

    A frame that does not follow the last one, or follows it by more than the longest allowed pause,
    is placed one frame's duration after it. After a jump the clock continues from there; after a
    small step back, stamps count again once they are ahead. ``places``: where that happened.
    """

    def __init__(self, video: VideoInfo) -> None:
        self._info, self._ticks = video.info, video.ticks
        self._round = ROUNDS.get(video.names_in_log[0], 0)
        self._back = round(BACK_S / self._info.time_base)
        self._gap = round(self._info.longest_gap_s / self._info.time_base) + self._ticks
        self.places = self._rewinds = self._shift = 0
        self._passed = 0  # ticks of completed rounds
        self._latest: int | None = None  # with them
        self._last: int | None = None
        self._replaced = 0  # in a row

    @property
    def stated(self) -> int:
        """The container's own clock at the last frame."""
        return (self._last or 0) + self._shift - self._passed

    def place(self, stated: int | None, notes: list[str]) -> int:
        """Return the pts of the next frame. ``stated``: the container's, None without one."""
        last = self._info.start_pts - self._ticks if self._last is None else self._last
        gap = self._ticks if stated is None else self._unwrap(stated) - self._shift - last
        if self._last is None or 0 < gap <= self._gap:
            self._last = last + gap
            self._replaced = 0 if stated is not None else self._replaced
            return self._last
        self._last = last + self._ticks
        self._replaced += 1
        if not -self._back <= gap <= 0 or self._replaced * self._ticks > self._back:
            self._shift += gap - self._ticks
            self._rewinds += gap < -self._back
        if self._replaced == 1:
            self.places += 1
            # Keep one note: a reader that takes over starts counting from zero.
            notes[:] = [note for note in notes if not note.startswith(JUMPS)]
            places = counted(self.places, "place")
            notes.append(f"{JUMPS}{places}, as where recordings were joined; time goes on there")
        return self._last

    def frame(self, index: int, picture: Picture) -> Frame:
        pts = self._last or 0
        at_s, behind = float(pts * self._info.time_base), self._shift - self._passed
        return Frame(index, pts, at_s, picture, behind=behind, rewinds=self._rewinds)

    def _unwrap(self, pts: int) -> int:
        """Return the pts as if the container's clock had more digits."""
        if self._round and self._latest is not None:
            if pts + self._passed < self._latest - self._round // 2:
                self._passed += self._round
                self._rewinds += 1
            elif pts + self._passed > self._latest + self._round // 2 and self._passed:
                return pts + self._passed - self._round  # a late one, from before the overflow
        self._latest = pts + self._passed
        return self._latest
