"""Which packets count as bad, and which pictures as corrupt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from detector.core.sources.video._packets import PictureRule
from detector.core.sources.video._tally import LONGEST_DELAY, DecodeTally
from detector.core.types import ReadCounts


class Stream:
    """A tally with a fake decoder. ``fields``: the field in each packet, in order."""

    def __init__(self, *, knows: bool = True, fields: tuple[Any, ...] = ()) -> None:
        self.counts = ReadCounts()
        field = iter(fields)
        self.rule = SimpleNamespace(
            must_show=lambda packet: packet.shown,
            at_open_gop=False,
            fields=SimpleNamespace(read=lambda packet: next(field, None), knows=knows),
        )
        rule: Any = self.rule
        self.tally = DecodeTally(cast(PictureRule, rule), self.counts)

    def send(self, pts: int | None = 0, *, shown: bool = True, discard: bool = False) -> Any:
        packet = SimpleNamespace(pts=pts, shown=shown, is_discard=discard, opaque=None)
        self.tally.send(packet)
        return packet

    def show(self, packet: Any, *, corrupt: bool = False, interlaced: bool = False) -> None:
        mark = None if packet is None else packet.opaque
        self.tally.show(
            SimpleNamespace(opaque=mark, is_corrupt=corrupt, interlaced_frame=interlaced)
        )

    def counted(self) -> tuple[int, int]:
        self.tally.end()
        return self.counts.bad, self.counts.corrupt


def field(first: bool) -> Any:
    return SimpleNamespace(completes=lambda other: not first)


def test_packet_without_its_picture_is_bad() -> None:
    stream = Stream()
    stream.show(stream.send())
    stream.send()
    stream.send(shown=False)
    stream.send(discard=True)
    assert stream.counted() == (1, 0)


def test_complaint_means_bad_without_a_picture_and_corrupt_with_one() -> None:
    stream = Stream()
    stream.tally.complain("before any packet")
    lost = stream.send(shown=False)
    stream.tally.complain("x")
    damaged = stream.send()
    stream.tally.complain("x")
    stream.show(damaged)
    stream.show(stream.send(), corrupt=True)
    stream.show(None, corrupt=True)  # of an unknown packet
    stream.show(None)
    assert lost.opaque is not damaged.opaque
    assert stream.counted() == (1, 3)


def test_packets_at_an_open_gop_are_not_counted() -> None:
    stream = Stream()
    stream.rule.at_open_gop = True
    stream.send(shown=False)
    stream.tally.complain("x")
    damaged = stream.send(shown=False)
    stream.tally.complain("x")
    stream.show(damaged)
    assert stream.counted() == (0, 0)


def test_two_fields_are_one_picture_and_a_lone_field_is_corrupt() -> None:
    stream = Stream(fields=(field(first=True), field(first=False), field(first=True)))
    first, second = stream.send(), stream.send()
    assert second.opaque is first.opaque
    stream.show(first)
    stream.show(stream.send())
    assert stream.counted() == (0, 1)


def test_interlaced_packet_is_not_bad_if_field_pairs_are_unknown() -> None:
    stream = Stream(knows=False)
    stream.show(stream.send(), interlaced=True)
    stream.send()
    assert stream.counted() == (0, 0)
    known = Stream(knows=True)
    known.show(known.send(), interlaced=True)
    known.send()
    assert known.counted() == (1, 0)
    plain = Stream(knows=False)
    plain.show(plain.send())
    plain.send()
    assert plain.counted() == (1, 0)


def test_packet_is_bad_after_the_longest_delay() -> None:
    stream = Stream()
    late = stream.send()
    for _ in range(LONGEST_DELAY):
        stream.show(stream.send())
    assert stream.counts.bad == 0
    stream.show(stream.send())
    assert stream.counts.bad == 1
    stream.show(late)  # too late: already counted
    assert stream.counted() == (1, 0)


@pytest.mark.parametrize(("last", "lost"), [(None, 3), (10, 1), (11, 2), (5, 0)])
def test_packets_after_the_last_picture_are_not_bad_at_a_seek(last: int | None, lost: int) -> None:
    stream = Stream()
    for pts in (5, 10, None):
        stream.send(pts)
    stream.tally.end(last)
    assert stream.counts.bad == lost
    assert stream.counted() == (3, 0)
