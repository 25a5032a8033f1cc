"""Packets for which the decoder returned no frame."""

from pathlib import Path

import av
import pytest

from detector.core.sources.video._check import check_packets
from detector.core.sources.video._container import probe
from detector.core.sources.video._packets import PictureRule

from .clips import pts_of, write_video

FRAMES = 24


@pytest.mark.parametrize(
    ("frames", "last", "lost", "remaining"),
    [
        (FRAMES, FRAMES - 1, 0, 0),
        (10, 9, 14, 14),  # the decoder stopped early
        (10, None, 14, 14),  # the same, but pts jumped, so the latest picture is unknown
        (10, FRAMES - 1, 14, 0),  # the decoder reached the end, but skipped some pictures
        (20, FRAMES - 3, 4, 2),
    ],
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_packets_without_a_frame_are_counted(
    tmp_path: Path, suffix: str, frames: int, last: int | None, lost: int, remaining: int
) -> None:
    """The decoder returned ``frames`` of 24 pictures; the latest was number ``last``."""
    path = write_video(tmp_path / f"a.{suffix}", FRAMES, bf="2")
    pts = sorted(pts_of(path))
    check = check_packets(probe(str(path)), frames, None if last is None else pts[last])
    assert (check.lost, check.remaining, check.error, check.damage) == (lost, remaining, "", "")


@pytest.mark.parametrize(("first", "shown"), [(0x10, True), (0x00, False), (0xEF, False)])
def test_vp8_header_tells_whether_the_picture_is_shown(first: int, shown: bool) -> None:
    """RFC 6386, 9.1: one bit of the first byte decides. Other bytes do not matter."""
    rule = PictureRule("vp8", None)
    assert all(rule.must_show(av.Packet(bytes([first, other]))) is shown for other in (0, 0xFF))
