"""Hand a video over from a fast reader to PyAV, packet by packet, at the first trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detector.core.sources.base import SteppingSource
from detector.core.types import Frame, Image

if TYPE_CHECKING:
    from detector.core.sources.video.av import AvSource


class HandingOver(SteppingSource):
    """A mixin placed before a reader among the bases. ``_rest`` reads after the hand-over."""

    _rest: AvSource | None = None

    def hand_over(self, rest: AvSource, whole: int, last_pts: int | None) -> bool:
        """Let ``rest`` go on after ``whole`` frames, the last at ``last_pts``. False at the end."""
        self._rest = rest
        for _ in range(whole):
            if not rest.grab():
                break
        found = rest.grab()
        while found and last_pts is not None and rest.pts <= last_pts:
            self.counts.bad += 1  # already skipped, and pts must keep rising
            found = rest.grab()
        return found

    def note_handing_over(self, stopped: str, found: bool, how: str = "") -> None:
        """Note it. ``stopped``: why the first reader ended. ``how``: the way PyAV reads."""
        if found:
            self.notes.append(f"{stopped}; PyAV continues from there{how}")
        else:
            self.notes.append(f"{stopped}; PyAV found no further frame either")

    def grabbed_pts(self) -> int:
        return super().grabbed_pts() if self._rest is None else self._rest.grabbed_pts()

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        if self._rest is None:
            return super().retrieve(index, into)
        return self._rest.retrieve(index, into)

    def at_limit(self) -> None:
        if self._rest is not None:
            self._rest.at_limit()

    def close(self) -> None:
        super().close()
        if self._rest is not None:
            self._rest.close()
