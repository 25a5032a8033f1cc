"""Test cameras whose pictures come from a file that is played in a loop."""

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from detector.core import sources
from detector.core.errors import SourceError
from detector.core.errors.addresses import Address
from detector.live.sources import looped
from detector.live.sources.base import FILE, LIVE, Camera, Picture, Terms
from detector.live.sources.looped import LoopedFeed
from detector.live.sources.readers import make_feed
from tests.live.servers import make_clip
from tests.live.streams import read_number
from tests.sources.clips import write_video
from tests.waiting import PATIENCE_S, wait_for


class Stopping(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now_ns += round(timeout * 1e9)
        return self.is_set()


class PacketListener:
    def __init__(self, feed: LoopedFeed, most: int) -> None:
        self.feed, self.most = feed, most
        self.opened_for: list[int] = []
        self.packets: list[tuple[int | None, int]] = []

    def opened(self, streams: Any, arrived_ns: int, utc_s: float) -> None:
        self.opened_for.append(len(streams))

    def packet(self, packet: Any, arrived_ns: int, utc_s: float) -> None:
        self.packets.append((packet.pts, arrived_ns))
        if len(self.packets) == self.most:
            self.feed.stopping.set()

    def closed(self) -> None: ...


def test_looped_file_keeps_its_pace_over_each_restart(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "c.mp4", pictures=10)
    stopping = Stopping()
    feed = LoopedFeed(Camera("c", FILE, Address(str(clip))), Terms(), clock=lambda: stopping.now_ns)
    feed.stopping = stopping
    listener = PacketListener(feed, 25)
    feed.listen(listener)
    feed.start()
    wait_for(stopping.is_set)
    assert feed.stop(PATIENCE_S)
    assert listener.opened_for == [1, 1, 1]  # three passes
    pts = [pts for pts, _ in listener.packets]
    assert pts == [pts[0] + at * (pts[1] - pts[0]) for at in range(25)]
    arrived_ms = [arrived / 1e6 for _, arrived in listener.packets]
    assert arrived_ms == pytest.approx([at * 40 for at in range(25)], abs=0.01)
    facts = feed.facts()
    assert facts.received == 25 == facts.taken + sum(facts.dropped.values())


def test_accelerator_of_the_camera_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that PyAV gets the accelerator. A string replaces the real accelerator."""
    clip = make_clip(tmp_path / "c.mp4", pictures=10)
    opened: list[Any] = []
    real = av.open

    def record(*words: Any, hwaccel: Any = None, **more: Any) -> Any:
        opened.append(hwaccel)
        return real(*words, **more)

    monkeypatch.setattr(looped, "make_accelerator", lambda options: f"for {options['hwaccel']}")
    monkeypatch.setattr(looped.av, "open", record)
    camera = Camera("c", FILE, Address(str(clip)), options={"hwaccel": "cuda"})
    feed = make_feed(camera, Terms(every=True))
    feed.start()
    wait_for(feed.waiting)
    assert feed.stop(PATIENCE_S)
    assert "for cuda" in opened


@pytest.mark.parametrize("b_frames", [0, 2])
def test_pictures_stay_in_order_over_a_restart(tmp_path: Path, b_frames: int) -> None:
    clip = make_clip(tmp_path / "c.mp4", pictures=12, fps=100, gop=6, b_frames=b_frames)
    terms = Terms(every=True, max_age_s=PATIENCE_S)  # no drops, even if the test is slow
    feed = make_feed(Camera("c", FILE, Address(str(clip))), terms)
    feed.start()
    taken: list[Picture] = []
    burnt: list[int] = []

    def take() -> int:
        while (picture := feed.take()) is not None:
            taken.append(picture)
            burnt.append(read_number(feed.convert(picture, None)))
        return len(taken) >= 30

    wait_for(take)
    assert feed.facts().state == LIVE
    assert len({picture.time_base for picture in taken}) == 1  # restarts do not change it
    assert feed.stop(PATIENCE_S)
    assert burnt == [at % 12 for at in range(len(burnt))]
    assert [picture.number for picture in taken] == list(range(len(taken)))
    pts = [picture.pts for picture in taken]
    assert len({after - before for before, after in pairwise(pts)}) == 1
    facts = feed.facts()
    assert facts.received == facts.taken + sum(facts.dropped.values())
    assert facts.connects == 1


def test_file_without_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_bytes(b"no video")
    for name in ("x.mp4", "absent.mp4"):
        with pytest.raises(SourceError):
            make_feed(Camera("c", FILE, Address(str(tmp_path / name))))


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_looped_file_is_rotated_as_if_it_were_played_once(tmp_path: Path, rotation: int) -> None:
    path = write_video(tmp_path / "turned.mp4", rotation=rotation)
    with sources.open(str(path)) as source:
        expected = source.read(None)
    assert expected is not None
    feed = make_feed(Camera("c", FILE, Address(str(path))), Terms(every=True))
    feed.start()
    wait_for(feed.waiting)
    picture = feed.take()
    assert feed.stop(PATIENCE_S)
    assert picture is not None
    image = feed.convert(picture, np.empty_like(expected.image))
    assert (picture.height, picture.width, 3) == expected.image.shape
    assert np.array_equal(image, expected.image)
