"""Test which packets a feed's queue drops, which pictures its slot drops, and the reasons."""

from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from detector.core.types import Arrival
from detector.live.sources.base import (
    CORRUPT,
    LAG,
    NEWER,
    NO_KEY,
    RATE,
    STOPPED,
    UNDECODED,
    Picture,
)
from detector.live.sources.decoding import MOST_PENDING, PacketDecoder
from detector.live.sources.ffmpeg_log import DamageLog
from detector.live.sources.packets import MOST_KEYLESS, End, PacketQueue, Received, Stamp
from detector.live.sources.slot import PLACES, Slot

MS = 1_000_000


class Drops(Counter[str]):
    def drop(self, reason: str, pictures: int = 1) -> None:
        if pictures:
            self[reason] += pictures


@pytest.fixture
def drops() -> Drops:
    return Drops()


def received(number: int, key: bool, size: int = 100) -> Received:
    return Received(None, Stamp(number, 1, number * 40 * MS, 0.0), None, key, size)


def fill(queue: PacketQueue, numbers: range, gop: int) -> None:
    for number in numbers:
        queue.put(received(number, number % gop == 0))


def drain(queue: PacketQueue) -> list[int]:
    numbers = []
    while (item := queue.get(0)) is not None:
        if isinstance(item, Received):
            numbers.append(item.stamp.number)
    return numbers


def test_packets_before_the_first_key_frame_are_dropped(drops: Drops) -> None:
    queue = PacketQueue(5, False, drops.drop)
    fill(queue, range(1, 15), 10)
    assert drain(queue) == [10, 11, 12, 13, 14]
    assert drops == {NO_KEY: 9}
    queue.begin()  # another connection
    queue.put(received(15, False))
    assert drops == {NO_KEY: 10}


def test_stream_without_key_frames_is_decoded_after_hundreds_of_packets(drops: Drops) -> None:
    queue = PacketQueue(5, False, drops.drop)
    fill(queue, range(1, MOST_KEYLESS + 3), MOST_KEYLESS * 2)
    assert drain(queue) == [MOST_KEYLESS + 1, MOST_KEYLESS + 2]


@pytest.mark.parametrize(
    ("eager", "gop", "left"),
    [
        (False, 50, list(range(100, 127))),  # --live every: at a lag of 5 s, drop up to a key frame
        (False, 10, list(range(120, 127))),  # the same; the newest key frame is 120
        (True, 50, list(range(100, 127))),  # --live latest: the same at a lag of 0.5 s
        (True, 1, list(range(117, 127))),  # the same; in MJPEG, each picture is a key frame
    ],
)
def test_whole_groups_are_dropped(eager: bool, gop: int, left: list[int], drops: Drops) -> None:
    queue = PacketQueue(5.0, eager, drops.drop)
    fill(queue, range(127), gop)
    drained = drain(queue)
    assert drained[-1] == 126
    assert drained[0] % gop == 0
    assert len(drained) + drops[LAG] == 127
    assert drained == left


def test_backlog_of_one_group_is_dropped_up_to_the_next_key_frame(drops: Drops) -> None:
    queue = PacketQueue(1.0, True, drops.drop)
    fill(queue, range(30), 100)  # 1.16 s of one group
    assert drops[LAG] == 30
    fill(queue, range(30, 100), 100)
    queue.put(received(100, True))
    item = queue.get(0)
    assert isinstance(item, Received)
    assert (item.stamp.number, item.after_gap, drops[LAG]) == (100, True, 100)


@pytest.mark.parametrize("waiting", [4, 9, 14])
def test_drop_group_drops_packets_up_to_the_next_key_frame(waiting: int, drops: Drops) -> None:
    """If no queued packet is a key frame, ``drop_group`` also drops packets that come later."""
    queue = PacketQueue(5, False, drops.drop)
    fill(queue, range(waiting), 10)
    for _ in range(3):
        queue.get(0)
    queue.drop_group()
    fill(queue, range(waiting, 16), 10)
    first = queue.get(0)
    assert isinstance(first, Received)
    assert (first.stamp.number, first.is_key, first.after_gap) == (10, True, False)
    assert drain(queue) == [11, 12, 13, 14, 15]
    assert drops == {UNDECODED: 7}


def test_drop_group_ends_with_the_connection(drops: Drops) -> None:
    queue = PacketQueue(5, True, drops.drop)
    fill(queue, range(5), 10)
    queue.get(0)
    queue.finish(End(1, None))
    queue.drop_group()
    assert isinstance(queue.get(0), End)
    queue.drop_group()
    queue.begin()
    fill(queue, range(15, 23), 10)
    assert drain(queue) == [20, 21, 22]
    assert drops == {UNDECODED: 4, NO_KEY: 5}


def test_drop_group_ends_after_hundreds_of_packets_without_a_key_frame(drops: Drops) -> None:
    queue = PacketQueue(3600, True, drops.drop)
    fill(queue, range(1), 1)
    queue.get(0)
    queue.drop_group()
    fill(queue, range(1, MOST_KEYLESS + 3), MOST_KEYLESS * 2)
    assert drain(queue) == [MOST_KEYLESS + 1, MOST_KEYLESS + 2]
    assert drops == {UNDECODED: MOST_KEYLESS}


def test_queue_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, drops: Drops) -> None:
    monkeypatch.setattr("detector.live.sources.packets.MOST_BYTES", 1000)
    queue = PacketQueue(3600, False, drops.drop)
    fill(queue, range(20), 5)
    drained = drain(queue)
    assert len(drained) <= 10
    assert len(drained) + drops[LAG] == 20


def test_end_of_a_connection_survives_a_dropped_backlog() -> None:
    queue = PacketQueue(1.0, False, Drops().drop)
    fill(queue, range(5), 100)
    queue.finish(End(1, None))
    queue.begin()
    fill(queue, range(50, 53), 50)
    assert isinstance(queue.get(0), End)
    assert drain(queue) == [50, 51, 52]


def test_close_returns_the_number_of_packets_left() -> None:
    queue = PacketQueue(5, False, Drops().drop)
    fill(queue, range(4), 10)
    assert queue.close() == 4
    assert queue.get(0) is None


def picture(number: int, arrived_ms: int | None = None) -> Picture:
    arrived = (number * 40 if arrived_ms is None else arrived_ms) * MS
    return Picture(number, number, Fraction(1, 25), 2, 2, Arrival("a", 1, arrived, 0.0), None)


def numbers(slot: Slot, now_ms: int = 0) -> list[int]:
    taken: list[Any] = []
    while (picture := slot.take(now_ms * MS)) is not None:
        taken.append(picture.number)
    return taken


def test_slot_of_live_latest_keeps_only_the_newest_picture(drops: Drops) -> None:
    slot = Slot(True, 5, drops.drop)
    for number in range(5):
        assert slot.has_room()
        assert slot.put(picture(number))
    assert len(slot) == 1
    assert numbers(slot) == [4]
    assert drops == {NEWER: 4}


def test_slot_of_live_every_holds_four_pictures_and_drops_old_ones(drops: Drops) -> None:
    slot = Slot(False, 5, drops.drop)
    for number in range(PLACES):
        slot.put(picture(number))
    assert not slot.has_room()
    assert not slot.has_room()
    assert numbers(slot, now_ms=5060) == [2, 3]
    assert drops == {LAG: 2}
    assert slot.has_room()


def test_slot_of_live_every_keeps_the_last_picture_at_any_age() -> None:
    slot = Slot(False, 1, Drops().drop)
    slot.put(picture(0))
    assert numbers(slot, now_ms=60_000) == [0]


@pytest.mark.parametrize(
    ("rate", "arrivals_ms", "expected"),
    [
        (Fraction(25), [0, 41, 79, 121, 160], [0, 1, 2, 3, 4]),  # the camera's rate, with jitter
        (Fraction(10), range(0, 1000, 40), 10),
        (Fraction(25, 2), range(0, 2000, 40), 25),
        (Fraction(1), [0, 500, 1500, 9000, 9040, 10000], [0, 2, 3, 5]),
    ],
)
def test_rate_of_a_camera_limits_its_pictures(
    rate: Fraction, arrivals_ms: Any, expected: list[int] | int, drops: Drops
) -> None:
    slot = Slot(True, 5, drops.drop, rate)
    taken = [n for n, ms in enumerate(arrivals_ms) if slot.put(picture(n, ms))]
    assert taken == expected if isinstance(expected, list) else len(taken) == expected
    assert drops[RATE] == len(list(arrivals_ms)) - len(taken)


def test_closed_slot_takes_no_picture(drops: Drops) -> None:
    slot = Slot(True, 5, drops.drop)
    slot.put(picture(0))
    slot.close()
    assert not slot.put(picture(1))
    assert drops == {STOPPED: 2}


def test_packets_without_a_picture_count_as_corrupt_after_a_limit(drops: Drops) -> None:
    silent = SimpleNamespace(decode=lambda packet: [])
    decoder = PacketDecoder("c", drops.drop, lambda: 0)
    for number in range(3 * MOST_PENDING):
        packet = Received(SimpleNamespace(), Stamp(number, 1, 0, 0.0), silent, False, 1)
        assert not list(decoder.decode(packet, DamageLog()))
    assert drops == {CORRUPT: 2 * MOST_PENDING}
