"""PyAV on all cores until the first trouble, then packet by packet: each frame once.

FFmpeg is fastest with a thread per frame, but then chance decides which pictures survive an error.
So at the first complaint, or if packets do not add up to pictures, ``AvSource`` takes over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from detector.core.errors.machine import usable_cores
from detector.core.errors.text import counted
from detector.core.sources._planes import PlanesReader
from detector.core.sources.video._container import VideoInfo, open_container
from detector.core.sources.video._packets import PictureRule
from detector.core.sources.video._structure import Demuxed
from detector.core.sources.video._tally import DecodeTally
from detector.core.sources.video.av import AvSource, HandingOver
from detector.core.types import Picture, ReadCounts

if TYPE_CHECKING:
    from detector.core.sources.video._sparse import Sparse

MOST_THREADS = 16  # as cv2 takes; FFmpeg warns beyond, and each holds a picture
# Each thread goes no further than its own picture. Two more than there are cores find work while
# our thread preprocesses: 1.1 times the FPS of `--engine null --save overlay`.
AHEAD = 2
# With a thread per frame, these decoders notice the same damage in some runs only.
RACING = ("mpeg4",)


class TroubleError(Exception):
    """Trouble that only decoding packet by packet handles reliably."""


class ThreadedSource(HandingOver, AvSource):
    """Pictures from frame threads, then from ``AvSource`` after the first trouble."""

    def __init__(
        self, video: VideoInfo, stride: int = 1, frames: int | None = None, pixels: str = "yuv420p"
    ) -> None:
        self._stored = 0  # packets, while some are not decoded
        self._whole = 0  # frames without trouble, up to the one grabbed last
        self._release: Callable[[], Any] | None = None
        self._sparse: Sparse | None = None
        if stride > 1 and frames is None:  # with a limit more packets would be read than decoded
            from detector.core.sources.video._sparse import plan_sparse

            self._sparse = plan_sparse(video, stride)
        super().__init__(video, stride, frames, pixels=pixels)
        if self._sparse is not None:
            self.notes.append(self._sparse.note)

    def set_up(self, codec: Any) -> DecodeTally:
        codec.thread_type = "SLICE" if self.info.codec in RACING else "AUTO"
        codec.thread_count = min(MOST_THREADS, usable_cores() + AHEAD)
        # A thread that logs waits for the interpreter's lock, and freeing a decoder waits for its
        # threads while holding that lock. This waits for them without it.
        self._release = weakref.finalize(self, codec.flush_buffers)
        return TrialTally(self.picture_rule(codec))

    def grab(self) -> bool:
        if self._rest is not None:
            return self._rest.grab()
        before = self.pts
        try:
            found = self.step() if self._sparse is None else self._step_sparsely(self._sparse)
        except TroubleError as trouble:
            return self._take_over(str(trouble), before)
        self._whole += found
        return found

    def _step_sparsely(self, sparse: Sparse) -> bool:
        """Step, but only count frames that need no decoding. They are never retrieved."""
        number = self._whole
        if number < len(sparse.shown) and not sparse.decoded[number]:
            self.pts = sparse.shown[number]
            return True
        found = self.step()
        due = number < len(sparse.shown)
        if found != due or (found and self.pts != sparse.shown[number]):
            raise TroubleError("its packets and its pictures do not agree")
        return found

    def _decode_packet(self, packet: Any) -> list[Any]:
        if self._sparse is not None:
            at, self._stored = self._stored, self._stored + 1
            if at < len(self._sparse.fed) and not self._sparse.fed[at]:
                self.hear_demuxer()
                return []
        return super()._decode_packet(packet)

    def _decode_all(self) -> None:
        if self._sparse is not None:
            self.notes.remove(self._sparse.note)
            self._sparse = None

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """Limit the frames by time; those outside are decoded too."""
        if self._sparse is not None and self._rest is None:
            self._decode_all()
            self.close_container()
            self._begin(open_container(self.video.path), Demuxed())
            self.pts, self._whole = self.info.start_pts - self.video.ticks, 0
            self._held = self.grab()
        super().restrict(start_s, duration_s)

    def hear_demuxer(self) -> None:
        """Check complaints: a thread may have complained between two calls of the decoder."""
        demuxer, decoder = self.video.names_in_log
        for who, message in self._complaints.take():
            if who != demuxer or demuxer == decoder:
                raise TroubleError(message)
            self.note_damage(f"the file's structure is damaged: {message}")

    def flush(self) -> list[Any]:
        """Return the last pictures, decoded while the decoder is flushed."""
        pictures = super().flush()
        self.hear_demuxer()
        return pictures

    def seek(self, start_s: Fraction) -> int | None:
        if self._rest is None:
            try:
                number = super().seek(start_s)
            except TroubleError:
                self.close_container()
                self._rest = self._begin_rest(None)
            else:
                self._whole = self._whole if number is None else number + 1
                return number
        rest = self._rest
        number = rest.seek(start_s)
        if number is None and not self._whole:
            return 0 if rest.grab() else None
        return number

    def _begin_rest(self, size: tuple[int, int] | None) -> AvSource:
        rest = AvSource(self.video, size=size, planes=self.planes)
        rest.counts, rest.notes = self.counts, self.notes
        rest.landing = self.landing
        return rest

    def _take_over(self, reason: str, last_pts: int) -> bool:
        """Let ``AvSource`` go on after the last frame, at ``last_pts``. False at the end."""
        whole = self._whole
        self._decode_all()
        self.close_container()
        self._complaints.close()
        rest = self._begin_rest((self.info.width, self.info.height) if whole else None)
        found = self.hand_over(rest, whole, last_pts if whole else None)
        if found:
            self.decoder = (
                f"av ({counted(whole, 'frame')}) then av by packets" if whole else "av by packets"
            )
        stopped = f"decoding on all cores stopped after {counted(whole, 'frame')} ({reason})"
        self.note_handing_over(stopped, found, ", packet by packet")
        return found

    def read_planes(self, planes: PlanesReader, picture: Any) -> Picture:
        return planes.read(picture)  # as the decoder returns it: no damaged picture comes this far

    def close_container(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None
        super().close_container()


class TrialTally(DecodeTally):
    """Counts packets that must show a picture, and pictures; raises TroubleError otherwise."""

    def __init__(self, rule: PictureRule) -> None:
        super().__init__(rule, ReadCounts())
        self._due = 0

    def send(self, packet: Any) -> None:
        if not packet.is_discard:  # an edit list hides it
            self._due += self._rule.must_show(packet)

    def complain(self, what: str) -> None:
        raise TroubleError(what)

    def show(self, picture: Any) -> None:
        if picture.is_corrupt:
            raise TroubleError("a frame is corrupt")
        self._due -= 1

    def end(self, last_pts: int | None = None) -> None:
        if self._rule.knows and self._due > 0:
            raise TroubleError(f"{counted(self._due, 'packet')} gave no frame")
