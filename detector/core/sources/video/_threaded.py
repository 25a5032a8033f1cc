"""Read with PyAV on all cores until the first error, then packet by packet.

FFmpeg is fastest with a thread per frame, but then chance decides which pictures survive an error.
So ``AvSource`` takes over at the first complaint, or if a packet yields no picture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from detector.core.errors.machine import usable_cores
from detector.core.errors.text import counted
from detector.core.sources._planes import PlanesReader
from detector.core.sources.video._container import RACY_CODECS, Demuxed, VideoInfo, open_container
from detector.core.sources.video._packets import PictureRule
from detector.core.sources.video._tally import DecodeTally
from detector.core.sources.video.av import AvSource, HandOverMixin
from detector.core.types import Picture, ReadCounts

if TYPE_CHECKING:
    from detector.core.sources.video._sparse import Sparse

MOST_THREADS = 16  # like cv2; FFmpeg warns about more, and each needs memory for a picture
# A thread waits after each picture until we take it. Two more threads than cores keep the cores
# busy while we preprocess, which makes `--engine null --save overlay` 1.1 times as fast.
EXTRA_THREADS = 2


class TroubleError(Exception):
    """An error that can be handled reliably only by decoding packet by packet."""


class ThreadedSource(HandOverMixin, AvSource):
    """Reads with a thread per frame, and through ``AvSource`` after the first error."""

    def __init__(self, video: VideoInfo, stride: int, frames: int | None, pixels: str) -> None:
        self._packet_number = 0  # counts packets while ``_sparse`` is in use
        self._good_frames = 0  # frames grabbed before the first error
        self._release: Callable[[], Any] | None = None
        self._sparse: Sparse | None = None  # a plan that decodes only what the stride needs
        if stride > 1 and frames is None:  # planning reads all packets: too slow for few frames
            from detector.core.sources.video._sparse import plan_sparse

            self._sparse = plan_sparse(video, stride)
        super().__init__(video, stride, frames, pixels=pixels)
        if self._sparse is not None:
            self.notes.append(self._sparse.note)

    def set_up(self, codec: Any) -> DecodeTally:
        codec.thread_type = "SLICE" if self.info.codec in RACY_CODECS else "AUTO"
        codec.thread_count = min(MOST_THREADS, usable_cores() + EXTRA_THREADS)
        # Freeing a decoder holds the GIL and waits for the decoder's threads. If one of them logs,
        # it waits for the GIL: a deadlock. So we flush first, which waits without the GIL.
        self._release = weakref.finalize(self, codec.flush_buffers)
        return TrialTally(self.picture_rule(codec))

    def grab(self) -> bool:
        if self._successor is not None:
            return self._successor.grab()
        before = self.pts
        try:
            grabbed = self.step() if self._sparse is None else self._step_sparse(self._sparse)
        except TroubleError as trouble:
            return self._take_over(str(trouble), before)
        self._good_frames += grabbed
        return grabbed

    def _step_sparse(self, sparse: Sparse) -> bool:
        """Step to the next frame. Frames that the plan omits are counted, but never retrieved."""
        number = self._good_frames
        if number < len(sparse.shown) and not sparse.frame_mask[number]:
            self.pts = sparse.shown[number]
            return True
        grabbed = self.step()
        due = number < len(sparse.shown)
        if grabbed != due or (grabbed and self.pts != sparse.shown[number]):
            raise TroubleError("its packets and its pictures do not agree")
        return grabbed

    def _decode_packet(self, packet: Any) -> list[Any]:
        if self._sparse is not None:
            at, self._packet_number = self._packet_number, self._packet_number + 1
            if at < len(self._sparse.packet_mask) and not self._sparse.packet_mask[at]:
                self.check_log()
                return []
        return super()._decode_packet(packet)

    def _drop_sparse(self) -> None:
        if self._sparse is not None:
            self.notes.remove(self._sparse.note)
            self._sparse = None

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """Limit the frames by time. Drop the sparse plan, which was made for the whole video."""
        if self._sparse is not None and self._successor is None:
            self._drop_sparse()
            self.close_container()
            self._begin(open_container(self.video.path), Demuxed())
            self.pts, self._good_frames = self.info.start_pts - self.video.ticks, 0
            self._held = self.grab()
        super().restrict(start_s, duration_s)

    def check_log(self) -> None:
        """Raise TroubleError if the decoder has logged an error; only note the demuxer's errors."""
        demuxer, decoder = self.video.log_names
        for name, message in self._complaints.take():
            if name != demuxer or demuxer == decoder:
                raise TroubleError(message)
            self.note_damage(f"the file's structure is damaged: {message}")

    def flush(self) -> list[Any]:
        pictures = super().flush()
        self.check_log()
        return pictures

    def seek(self, start_s: Fraction) -> int | None:
        if self._successor is None:
            try:
                number = super().seek(start_s)
            except TroubleError:
                self.close_container()
                self._successor = self._create_successor(None)
            else:
                self._good_frames = self._good_frames if number is None else number + 1
                return number
        successor = self._successor
        number = successor.seek(start_s)
        if number is None and not self._good_frames:
            return 0 if successor.grab() else None
        return number

    def _create_successor(self, size: tuple[int, int] | None) -> AvSource:
        successor = AvSource(self.video, size=size, planes=self.planes)
        successor.counts, successor.notes = self.counts, self.notes
        successor.landing = self.landing
        return successor

    def _take_over(self, reason: str, last_pts: int) -> bool:
        """Let ``AvSource`` continue after the last good frame. Return False if no frame follows."""
        count = self._good_frames
        self._drop_sparse()
        self.close_container()
        self._complaints.close()
        successor = self._create_successor((self.info.width, self.info.height) if count else None)
        stopped = f"decoding on all cores stopped after {counted(count, 'frame')} ({reason})"
        grabbed = self.hand_over(
            successor, count, last_pts if count else None, stopped, ", packet by packet"
        )
        if grabbed:
            self.decoder = (
                f"av ({counted(count, 'frame')}) then av by packets" if count else "av by packets"
            )
        return grabbed

    def read_planes(self, planes: PlanesReader, picture: Any) -> Picture:
        return planes.read(picture)  # no copy, since damaged pictures are never read here

    def close_container(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None
        super().close_container()


class TrialTally(DecodeTally):
    """Compares the numbers of packets and pictures. Raises TroubleError at the first error."""

    def __init__(self, rule: PictureRule) -> None:
        super().__init__(rule, ReadCounts())
        self._due = 0

    def send(self, packet: Any) -> None:
        if not packet.is_discard:  # an edit list hides the pictures of discarded packets
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
