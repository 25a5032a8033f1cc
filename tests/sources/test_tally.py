"""Which packets count as bad, and which pictures as corrupt."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from detector.core.sources.video._packets import PictureRule
from detector.core.sources.video._tally import LONGEST_DELAY, DecodeTally
from detector.core.types import ReadCounts


class FakeDecoder:
    """A decoder that reports to a tally. ``fields``: the field in each packet, in order."""

    def __init__(self, *, knows: bool = True, fields: tuple[Any, ...] = ()) -> None:
        self.counts = ReadCounts()
        remaining = iter(fields)
        self.rule = SimpleNamespace(
            must_show=lambda packet: packet.shown,
            at_open_gop=False,
            fields=SimpleNamespace(read=lambda packet: next(remaining, None), knows=knows),
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

    def final_counts(self) -> tuple[int, int]:
        self.tally.end()
        return self.counts.bad, self.counts.corrupt


def field(first: bool) -> Any:
    return SimpleNamespace(completes=lambda other: not first)


def test_packet_without_its_picture_is_bad() -> None:
    decoder = FakeDecoder()
    decoder.show(decoder.send())
    decoder.send()
    decoder.send(shown=False)
    decoder.send(discard=True)
    assert decoder.final_counts() == (1, 0)


def test_complaint_makes_a_packet_bad_or_its_picture_corrupt() -> None:
    decoder = FakeDecoder()
    decoder.tally.complain("before any packet")
    lost = decoder.send(shown=False)
    decoder.tally.complain("x")
    damaged = decoder.send()
    decoder.tally.complain("x")
    decoder.show(damaged)
    decoder.show(decoder.send(), corrupt=True)
    decoder.show(None, corrupt=True)  # a picture of an unknown packet
    decoder.show(None)
    assert lost.opaque is not damaged.opaque
    assert decoder.final_counts() == (1, 3)


def test_packets_at_an_open_gop_are_neither_bad_nor_corrupt() -> None:
    decoder = FakeDecoder()
    decoder.rule.at_open_gop = True
    decoder.send(shown=False)
    decoder.tally.complain("x")
    damaged = decoder.send(shown=False)
    decoder.tally.complain("x")
    decoder.show(damaged)
    assert decoder.final_counts() == (0, 0)


def test_two_fields_are_one_picture_and_a_lone_field_is_corrupt() -> None:
    decoder = FakeDecoder(fields=(field(first=True), field(first=False), field(first=True)))
    first, second = decoder.send(), decoder.send()
    assert second.opaque is first.opaque
    decoder.show(first)
    decoder.show(decoder.send())
    assert decoder.final_counts() == (0, 1)


def test_interlaced_packet_is_not_bad_if_field_pairs_are_unknown() -> None:
    decoder = FakeDecoder(knows=False)
    decoder.show(decoder.send(), interlaced=True)
    decoder.send()
    assert decoder.final_counts() == (0, 0)
    known = FakeDecoder(knows=True)
    known.show(known.send(), interlaced=True)
    known.send()
    assert known.final_counts() == (1, 0)
    plain = FakeDecoder(knows=False)
    plain.show(plain.send())
    plain.send()
    assert plain.final_counts() == (1, 0)


def test_packet_is_bad_after_the_longest_delay() -> None:
    decoder = FakeDecoder()
    late = decoder.send()
    for _ in range(LONGEST_DELAY):
        decoder.show(decoder.send())
    assert decoder.counts.bad == 0
    decoder.show(decoder.send())
    assert decoder.counts.bad == 1
    decoder.show(late)  # too late: already counted
    assert decoder.final_counts() == (1, 0)


@pytest.mark.parametrize(("last", "lost"), [(None, 3), (10, 1), (11, 2), (5, 0)])
def test_packets_after_the_last_picture_are_not_bad_at_a_seek(last: int | None, lost: int) -> None:
    decoder = FakeDecoder()
    for pts in (5, 10, None):
        decoder.send(pts)
    decoder.tally.end(last)
    assert decoder.counts.bad == lost
    assert decoder.final_counts() == (3, 0)
