"""Sparse decoding skips frames that no selected frame needs. Selected frames stay the same."""

from pathlib import Path

import av
import numpy as np
import pytest

from detector.core import sources
from detector.core.sources.video import _sparse, _threaded
from detector.core.sources.video._container import Demuxed
from detector.core.sources.video._keys import Promise
from detector.core.sources.video._seek import Key, Survey
from detector.core.sources.video._sparse import choose_packets
from detector.core.types import Planes
from tests.sources.clips import write_video

GOPS = {"x264-params": "keyint=12:min-keyint=12:scenecut=0:bframes=2:b-pyramid=none"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clips") / "a.mp4", 60, **GOPS)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    packets: list[int] = []
    real = _threaded.AvSource._decode_packet
    monkeypatch.setattr(
        _threaded.AvSource,
        "_decode_packet",
        lambda self, packet: packets.append(packet.pts) or real(self, packet),
    )
    return packets


def read(path: Path, stride: int = 1, start: int | None = None, frames: int | None = None) -> list:
    with sources.open(str(path), stride=stride, frames=frames, pixels="yuv420p") as source:
        if start is not None:
            source.restrict(start * source.info.time_base, None)
        frames_read = []
        for frame in source:
            assert isinstance(frame.picture, Planes)
            frames_read.append((frame.index, frame.pts, frame.picture.y.tobytes()))
        read.notes, read.counts = source.notes, source.counts
        return frames_read


@pytest.mark.parametrize("stride", [2, 3, 5, 12, 13, 25, 59, 60, 1000])
def test_stride_gives_the_frames_of_a_full_read(
    clip: Path, stride: int, decoded: list[int]
) -> None:
    whole = read(clip)
    assert len(decoded) == 60
    decoded.clear()
    assert read(clip, stride) == whole[::stride]
    assert read.counts.skipped == 60 - len(whole[::stride])
    assert len(decoded) < 60
    share = read.notes[0].split(":")[1].split()[0]
    assert read.notes[0].startswith(f"--stride {stride}: ")
    assert share == f"{len(decoded) / 60:.0%}"


def test_stride_that_hits_key_frames_decodes_nothing_else(clip: Path, decoded: list[int]) -> None:
    assert [number for number, *_ in read(clip, 12)] == [0, 12, 24, 36, 48]
    assert len(decoded) == 5


def test_frame_limit_disables_sparse_decoding(clip: Path, decoded: list[int]) -> None:
    assert len(read(clip, 12, frames=2)) == 2
    assert read.notes == []
    assert len(decoded) < 60


def test_option_start_disables_sparse_decoding(clip: Path) -> None:
    whole = read(clip)
    at = whole[20][1]
    assert read(clip, 5, start=at) == whole[20::5]
    assert read.notes == []


def test_damage_ends_sparse_decoding(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    with av.open(str(clip)) as container:
        keys = [packet.pos for packet in container.demux(video=0) if packet.is_keyframe]
    data[keys[2] + 200 : keys[2] + 300] = bytes(range(100))
    broken = tmp_path / "b.mp4"
    broken.write_bytes(data)
    frames_read = read(broken, 6)
    assert [number for number, *_ in frames_read] == list(range(0, 60, 6))
    assert any("PyAV takes over" in note for note in read.notes)
    assert not any(note.startswith("--stride") for note in read.notes)


def test_unexpected_pictures_end_sparse_decoding(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(clip)
    real = _sparse.plan_sparse

    def wrong(video, stride):
        plan = real(video, stride)
        plan.shown[24] += 1
        return plan

    monkeypatch.setattr(_sparse, "plan_sparse", wrong)
    assert read(clip, 12) == whole[::12]
    assert any("do not agree" in note for note in read.notes)


def key(at: int, promise: Promise = Promise.CLEAN) -> Key:
    return Key(at, at, Demuxed(), promise, at, at)


def survey(keys: list[Key], stored: list[int], droppable: set[int], packets: int | None = None):
    mask = bytes(pts in droppable for pts in stored)
    return Survey(sorted(stored), keys, stored, mask, packets or len(stored))


def test_only_needed_packets_are_decoded() -> None:
    """Frames are stored as I0 P3 b1 b2 P6 b4 b5 | I7 P9 b8. A stride of 5 needs frames 0 and 5."""
    stored, droppable = [0, 3, 1, 2, 6, 4, 5, 7, 9, 8], {1, 2, 4, 5, 8}
    sparse = choose_packets(survey([key(0), key(7)], stored, droppable), 5)
    assert sparse is not None
    needed = [pts for pts, mask in zip(stored, sparse.packet_mask, strict=True) if mask]
    assert needed == [0, 3, 6, 5]
    assert np.flatnonzero(sparse.frame_mask).tolist() == sorted(needed)


def test_packets_before_an_open_gop_are_still_needed() -> None:
    stored = list(range(10))
    open_gop = choose_packets(survey([key(0), key(5, Promise.OPEN)], stored, set()), 9)
    assert open_gop is None  # frame 9 needs all packets
    clean = choose_packets(survey([key(0), key(5)], stored, set()), 9)
    assert clean is not None
    assert clean.packet_mask.tolist() == [True, *[False] * 4, *[True] * 5]


def test_hidden_pictures_or_a_small_gain_disable_sparse_decoding() -> None:
    keys, stored = [key(0)], list(range(20))
    assert choose_packets(survey(keys, stored, set(), packets=21), 4) is None
    assert choose_packets(survey(keys, stored, {19}), 2) is None
    assert choose_packets(survey([], [], set()), 2) is None
