"""Match packets with their pictures, and count the pictures that a decoder lost or concealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detector.core.sources.video._packets import PictureRule
from detector.core.types import ReadCounts

if TYPE_CHECKING:
    from detector.core.sources.video._fields import Field

# A decoder returns the picture of a packet after at most this many further packets, or never.
LONGEST_DELAY = 64


@dataclass(slots=True, eq=False)
class _Sent:
    number: int
    pts: int | None
    must_show: bool
    at_open_gop: bool  # its references may be missing
    field: Field | None = None  # a field whose partner is still missing; None for a whole frame
    complained: bool = False  # the decoder refused the packet, or logged an error


class DecodeTally:
    """Follows packets through the decoder: PyAV copies a packet's mark (``opaque``) to its picture.

    A packet without a picture is *bad* if it must show one, or if the decoder complained about it.
    A picture with a complaint is *corrupt*. If a frame's two fields are in two packets, these
    packets yield one picture. The picture of a lone field is corrupt.
    """

    def __init__(self, rule: PictureRule, counts: ReadCounts) -> None:
        self._rule, self._counts = rule, counts
        self._waiting: dict[int, _Sent] = {}  # number -> packet, in order
        self._number = 0
        self._last: _Sent | None = None
        self._interlaced = False

    def send(self, packet: Any) -> None:
        """Register a packet. Call it before the packet is decoded."""
        self._number += 1
        must_show = not packet.is_discard and self._rule.must_show(packet)
        field = self._rule.fields.read(packet)
        first = self._last
        if field and first and first.field and field.completes(first.field):
            first.field = None
            packet.opaque = first
            return
        sent = _Sent(self._number, packet.pts, must_show, self._rule.at_open_gop, field)
        self._last = sent
        # Two frames must not share a mark: PyAV drops it when the first frame's packet is freed.
        packet.opaque = self._waiting[self._number] = sent
        oldest = next(iter(self._waiting))
        if oldest < self._number - LONGEST_DELAY:
            self._count_lost(self._waiting.pop(oldest))

    def complain(self, what: str) -> None:
        """Record that the decoder complained about the last packet, or refused it."""
        if self._last is not None:
            self._last.complained = True

    def show(self, picture: Any) -> None:
        self._interlaced |= picture.interlaced_frame
        sent = picture.opaque
        if isinstance(sent, _Sent):
            self._waiting.pop(sent.number, None)
            complained = sent.complained and not sent.at_open_gop
            half = sent.field is not None and not sent.at_open_gop
            self._counts.corrupt += picture.is_corrupt or complained or half
        else:
            self._counts.corrupt += picture.is_corrupt

    def end(self, last_pts: int | None = None) -> None:
        """Count packets without a picture as lost; with ``last_pts``, only those before it."""
        for number, sent in list(self._waiting.items()):
            if last_pts is None or (sent.pts is not None and sent.pts < last_pts):
                self._count_lost(self._waiting.pop(number))

    def _count_lost(self, sent: _Sent) -> None:
        complained = sent.complained and not sent.at_open_gop
        # If fields cannot be paired, a packet counts as lost only after a complaint.
        unknown = self._interlaced and not self._rule.fields.knows
        self._counts.bad += complained or (sent.must_show and not unknown)
