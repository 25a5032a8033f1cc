"""Test shedding: a feed decodes only the first pictures of each group while the CPU is busy."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest

from detector.core.errors.addresses import Address
from detector.core.terminal.run import DROPPED
from detector.live.figures import NO_TIME, NOT_WANTED
from detector.live.sources.base import (
    CORRUPT,
    FILE,
    NETWORK,
    NEWER,
    NO_KEY,
    REASONS,
    UNDECODED,
    Camera,
    Picture,
    Terms,
)
from detector.live.sources.cpu_load import CpuLoad, LoadShares
from detector.live.sources.decoding import prepare
from detector.live.sources.looped import LoopedFeed
from detector.live.sources.network import NetworkFeed
from detector.live.sources.packet_feed import PacketFeed
from detector.live.sources.packets import End, Received, Stamp
from detector.live.sources.shedding import (
    LEAST,
    LONGEST_S,
    MARGIN,
    MOST_BAD_SECTIONS,
    REGULAR,
    SHORTEST,
    Shedding,
)
from detector.live.sources.status import Status
from tests.covering import covering
from tests.live.fake_feeds import FullCores
from tests.live.servers import make_clip
from tests.live.streams import read_number
from tests.live.test_status import make_live
from tests.waiting import PATIENCE_S, wait_for

MS = 1_000_000
PICTURES = 150  # pictures of a clip
FULL = FullCores().measure()


@dataclass
class FakeStream:
    """A stream of 25 FPS. ``play`` lets whole groups arrive. The loop takes at most ``takes``
    decoded pictures of each group. ``taken``: number of all taken pictures."""

    gop: int = 25
    load: LoadShares = FULL
    needed: bool = False
    epoch: int = 1
    taken: int = 0
    arrived: int = 0
    decoded: list[int] = field(default_factory=list)  # pictures decoded of each group
    limits: list[int | None] = field(default_factory=list)  # limit for each group

    def __post_init__(self) -> None:
        self.shedding = Shedding(lambda: self.taken, lambda: self.load, lambda: self.needed)

    def play(self, groups: int, takes: int, gop: int | None = None) -> FakeStream:
        for _ in range(groups):
            self.add_group(takes, gop or self.gop)
        return self

    def add_group(self, takes: int, gop: int) -> None:
        decoded = 0
        for place in range(gop):
            self.shedding.arrive(self.arrived * 40 * MS, place == 0)
            stamp = Stamp(self.arrived, self.epoch, self.arrived * 40 * MS, 0.0)
            self.arrived += 1
            left_out = place > 0 and self.shedding.is_exhausted()  # dropped by the queue
            if not left_out and self.shedding.admits(stamp, place == 0):
                self.shedding.count_offered()
                decoded += 1
            if self.shedding.is_exhausted():
                self.shedding.cut()
        self.taken += min(takes, decoded)
        self.decoded.append(decoded)
        self.limits.append(self.shedding.limit)

    def connect(self) -> None:
        self.epoch += 1
        self.shedding.begin()

    @property
    def limit(self) -> int | None:
        return self.shedding.limit


def start_shedding(takes: int = 1, **more: Any) -> FakeStream:
    stream = FakeStream(**more).play(REGULAR + 4, takes)
    assert stream.limit is not None
    return stream


class TestStart:
    def test_decodes_three_times_as_many_pictures_as_are_taken(self) -> None:
        stream = start_shedding(takes=4)
        assert stream.limit == 4 * MARGIN
        assert stream.decoded[-1] == 4 * MARGIN

    def test_decodes_a_few_if_none_is_taken(self) -> None:
        assert start_shedding(takes=0).decoded[-1] == LEAST

    @pytest.mark.parametrize(
        ("takes", "more"),
        [
            (25, {}),  # the machine keeps up
            (5, {}),  # a fifth of the pictures is taken
            (1, {"load": LoadShares(busy=0.85, decoding=0.9)}),  # slow loop, idle cores
            (1, {"load": LoadShares(busy=1.0, decoding=0.1)}),  # decoding costs little
            (1, {"load": LoadShares()}),  # the load is unknown
            (1, {"needed": True}),  # all pictures are recorded
            (1, {"gop": round(LONGEST_S * 25) + 2}),  # groups are too long
            (0, {"gop": 10_000}),  # no second key frame ever comes
        ],
    )
    def test_does_not_start(self, takes: int, more: dict[str, Any]) -> None:
        stream = FakeStream(**more).play(2 if more.get("gop") == 10_000 else 40, takes)
        assert set(stream.limits) == {None}
        assert stream.decoded == [stream.gop] * len(stream.decoded)

    def test_does_not_start_after_isolated_bad_sections(self) -> None:
        stream = FakeStream().play(20, 25)
        for _ in range(5):
            stream.play(1, 0).play(2, 25)
        assert set(stream.limits) == {None}

    def test_short_groups_are_judged_together(self) -> None:
        """In Motion JPEG, every picture is a group."""
        stream = FakeStream(gop=1).play(30 * SHORTEST, 0)
        sections = [
            sum(stream.decoded[at : at + SHORTEST])
            for at in range(0, len(stream.decoded), SHORTEST)
        ]
        assert sections[0] == SHORTEST
        assert sections[-1] == LEAST

    def test_one_long_group_stops_shedding_for_a_while(self) -> None:
        stream = start_shedding().play(1, 1, gop=100).play(1, 1)
        assert stream.limits[-1] is None
        assert stream.play(REGULAR - 1, 1).limits[-1] is None
        assert stream.play(4, 1).limit is not None


class TestAdjustment:
    def test_limit_stays_if_a_third_of_the_pictures_is_taken(self) -> None:
        stream = start_shedding(takes=3).play(50, 3)
        assert set(stream.limits[-50:]) == {3 * MARGIN}

    def test_limit_falls_if_fewer_pictures_are_taken(self) -> None:
        stream = start_shedding(takes=4).play(10, 1)
        assert stream.limit == MARGIN
        assert stream.limits[-10:] == sorted(stream.limits[-10:], reverse=True)

    def test_ends_if_most_pictures_are_taken(self) -> None:
        stream = start_shedding().play(12, 25)
        assert stream.limit is None
        steps = stream.limits[REGULAR + 4 :]
        rising = [limit for limit in steps if limit is not None]
        assert len(rising) > 2
        assert rising == sorted(rising)

    def test_ends_if_the_cores_are_idle(self) -> None:
        stream = start_shedding(takes=1)
        stream.load = replace(FULL, busy=0.5)
        assert stream.play(12, 1).limit is None

    def test_ends_with_the_connection(self) -> None:
        stream = start_shedding()
        stream.connect()
        assert stream.play(1, 1).limits[-1] is None
        assert stream.decoded[-1] == 25

    def test_ends_if_a_recording_needs_all_pictures(self) -> None:
        stream = start_shedding()
        stream.needed = True
        assert stream.play(2, 1).limit is None

    def test_ends_if_key_frames_stop(self) -> None:
        """If no key frame comes (intra refresh), the queue drops 400 packets, but not the rest."""
        stream = start_shedding()
        assert stream.shedding.is_exhausted()
        assert stream.shedding.admits(Stamp(stream.arrived + 400, 1, 0, 0.0), False)
        assert stream.limit is None

    def test_each_start_takes_longer_than_the_one_before(self) -> None:
        stream, needed = FakeStream(), []
        for _ in range(8):
            before = len(stream.limits)
            while stream.limit is None:
                stream.play(1, 1)
            needed.append(len(stream.limits) - before)
            stream.play(20, 25)
        assert needed[1:] == sorted(needed[1:])
        assert MOST_BAD_SECTIONS <= needed[-1] <= MOST_BAD_SECTIONS + 2

    @pytest.mark.parametrize(
        ("gop", "decoding", "load"),
        covering([10, 25, 50], [0.01, 0.05, 0.1], [0.5, 1.5, 4.0, 20.0]),
    )
    def test_limit_settles_at_every_load(self, gop: int, decoding: float, load: float) -> None:
        """While a group arrives, the machine decodes, and then detects in the time that is left.
        ``load``: the time that all pictures would need, relative to the group's time. Decoding a
        picture costs ``decoding``, and detecting it costs 1 - ``decoding``."""
        stream, room = FakeStream(gop=gop), gop / load
        for _ in range(200):
            limit = stream.limit
            decoded = gop if limit is None else min(limit, gop)
            left = max(0.0, room - decoded * decoding)
            taken = min(decoded, int(left / (1 - decoding)))
            used = decoded * decoding + taken * (1 - decoding)
            share = decoded * decoding / max(used, 1e-9)
            stream.load = LoadShares(min(1.0, used / room + (taken < decoded)), min(1.0, share))
            stream.play(1, taken)
        settled = [limit is None for limit in stream.limits[100:]]
        turns = sum(a != b for a, b in itertools.pairwise(settled))
        assert turns == 0, "it does not oscillate"
        if load <= 1:
            assert set(stream.limits) == {None}


class TestCpuLoad:
    def cpu_load(self, computer: bool = True) -> tuple[SimpleNamespace, CpuLoad]:
        now = SimpleNamespace(wall=0, own=0, all=0)
        return now, CpuLoad(
            lambda: now.wall * MS,
            lambda: now.own * MS,
            lambda: now.all * MS if computer else None,
            cores=2,
        )

    def test_measures_shares_of_the_last_second(self) -> None:
        now, cpu_load = self.cpu_load()
        assert cpu_load.measure() == LoadShares()
        now.wall, now.own, now.all = 1000, 800, 1600
        cpu_load.add(200 * MS)
        assert cpu_load.measure() == LoadShares(busy=0.8, decoding=0.25)
        now.wall, now.own = 1500, 1500
        assert cpu_load.measure() == LoadShares(busy=0.8, decoding=0.25), "less than 1 s has passed"
        now.wall = 2000
        assert cpu_load.measure() == LoadShares(busy=0.35, decoding=0.0)

    def test_unknown_time_of_other_programs_is_ignored(self) -> None:
        now, cpu_load = self.cpu_load(computer=False)
        cpu_load.measure()
        now.wall, now.own = 1000, 1000
        assert cpu_load.measure() == LoadShares(busy=0.5, decoding=0.0)


class ClipFeed(PacketFeed):
    may_shed = True

    def __init__(self, clip: Path, terms: Terms | None = None, **more: Any):
        camera = Camera("c", NETWORK, Address("rtsp://c/"), **more)
        self.ticks = itertools.count(1)
        super().__init__(
            camera, terms or Terms(cpu_load=FullCores()), clock=lambda: next(self.ticks)
        )
        self.clip, self.shown = clip, list[tuple[Picture, int]]()
        self.arrived, self.over = threading.Event(), threading.Event()
        self.decoding, self.late = 0, list[int]()  # packet being decoded; delays in packets

    def receive_all(self) -> None:
        epoch = self.status.connect(self.clock())
        with av.open(str(self.clip)) as container:
            stream = container.streams.video[0]
            prepare(stream.codec_context)
            self.begin([stream], False)
            for packet in container.demux(stream):
                if packet.size:
                    self.receive(packet, stream.codec_context, epoch, stream.index)
            self.packets.finish(End(epoch, stream.codec_context))
            self.arrived.set()
            self.over.wait()

    def _decode(self) -> None:
        assert self.arrived.wait(PATIENCE_S)
        super()._decode()

    def _decode_or_skip(self, item: Received, *others: Any) -> None:
        self.decoding = item.stamp.number
        super()._decode_or_skip(item, *others)

    def put(self, picture: Picture) -> bool:
        """Read the picture's number at once: the next picture may replace this one."""
        self.late.append(self.decoding - picture.number)
        self.shown.append((picture, read_number(self.convert(picture, None))))
        return super().put(picture)

    def interrupt(self) -> None:
        super().interrupt()
        self.over.set()


def play_all(feed: ClipFeed) -> dict[str, int]:
    feed.start()
    try:
        wait_for(lambda: feed.facts().received == PICTURES)
        wait_for(lambda: len(feed.shown) + _count_missing(feed) == PICTURES)
        assert feed.facts().since_ns == feed.shown[0][0].arrival.arrived_ns
    finally:
        assert feed.stop(PATIENCE_S)
    facts = feed.facts()
    assert facts.received == facts.taken + sum(facts.dropped.values())
    return dict(facts.dropped)


def _count_missing(feed: ClipFeed) -> int:
    return sum(feed.facts().dropped.get(why, 0) for why in (UNDECODED, CORRUPT, NO_KEY))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    kinds: dict[str, dict[str, Any]] = {
        "plain.mp4": {},
        "b_frames.mp4": {"b_frames": 2},
        # Open groups: the first displayed pictures of a group refer to the previous group.
        "open.mkv": {"b_frames": 2, "codec": "mpeg2video", "gop": 12},
    }
    return {
        name.partition(".")[0]: make_clip(folder / name, pictures=PICTURES, size=(160, 96), **more)
        for name, more in kinds.items()
    }


@pytest.mark.parametrize("kind", ["plain", "b_frames", "open"])
def test_pictures_decoded_after_a_skipped_group_are_intact(
    clips: dict[str, Path], kind: str
) -> None:
    """The number drawn into a picture belongs to its pts, also after a skipped group."""
    feed, arrivals = ClipFeed(clips[kind]), dict[int, int]()
    ignore: Any = lambda *_: None  # noqa: E731
    packet: Any = lambda packet, arrived_ns, _: arrivals.update({packet.pts: arrived_ns})  # noqa: E731
    feed.listen(SimpleNamespace(opened=ignore, packet=packet, closed=ignore))  # type: ignore[arg-type]
    dropped = play_all(feed)
    assert all(arrivals[picture.pts] == picture.arrival.arrived_ns for picture, _ in feed.shown)
    assert dropped[UNDECODED] > PICTURES // 3
    assert CORRUPT not in dropped
    places = [round(picture.pts * picture.time_base * 25) for picture, _ in feed.shown]
    assert [burnt for _, burnt in feed.shown] == [place - places[0] for place in places]
    numbers = [picture.number for picture, _ in feed.shown]
    assert numbers == sorted(set(numbers))
    assert dropped[NEWER] >= len(numbers) - 1
    assert max(feed.late) < SHORTEST - LEAST, "every picture came out before the next group"


@pytest.mark.parametrize(
    ("more", "terms"),
    [
        ({}, Terms(every=True, cpu_load=FullCores())),
        ({"rate": Fraction(10**9)}, None),
        # The load stays unknown, because no time passes on this clock.
        ({}, Terms(cpu_load=CpuLoad(clock=lambda: 0))),
    ],
)
def test_every_picture_is_decoded_if_shedding_is_not_needed(
    clips: dict[str, Path], more: dict[str, Any], terms: Terms | None
) -> None:
    feed = ClipFeed(clips["plain"], terms, **more)
    if feed.terms.every:  # the test takes no pictures
        feed.slot.has_room = lambda: True  # type: ignore[method-assign]
    assert UNDECODED not in play_all(feed)


def test_only_a_silent_camera_is_disconnected() -> None:
    """Neither pictures that wait for a slow loop nor a suspended process end a connection."""
    waits, late, silent, stood = (True, 1, 1), (False, 0, 1), (False, 1, 1), (False, 1, 10**12)
    for case in (waits, late, silent, stood):
        feed, (blocked, feed._decoded_epoch, absent_ns) = ClipFeed(Path("unread")), case
        make_live(feed.status, 0)
        feed.ticks = itertools.count(10**12)  # a quarter of an hour later
        feed._watched_ns = 10**12 - absent_ns
        feed._watch(blocked)
        assert feed.was_cut is (case is silent)
        assert feed.facts().stalls == (case is not stood)


def test_only_cameras_on_the_network_shed_load() -> None:
    camera = Camera("c", FILE, Address("x.mp4"))
    assert NetworkFeed.may_shed
    assert not LoopedFeed(camera, Terms(), status=Status(0)).may_shed


def test_every_drop_reason_has_a_text_and_is_either_no_time_or_not_wanted() -> None:
    assert set(DROPPED) == set(REASONS)
    assert sorted((*NO_TIME, *NOT_WANTED)) == sorted(REASONS)
