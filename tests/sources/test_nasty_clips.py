"""Damaged or unusual clips, generated or real, have FFmpeg's number of frames and PyAV's pts."""

import re
import subprocess
import sys
from contextlib import suppress
from fractions import Fraction
from functools import partial
from zlib import crc32

import cv2
import pytest

from detector.core import sources
from detector.core.errors import SourceError

from .clips import count_by_ffmpeg, pts_of
from .nasty import AV1, CLIPS, DAMAGED, HUGE, REFUSED, WHOLE, make
from .test_errors import refused

FFMPEG_COUNTS = {"04": 30, "05": 54, "06": 49}  # frames of the real damaged clips
CV2_COUNTS = {"04": 28, "05": 20, "06": 27, AV1: 0}
ORDINARY = {"bench_720p": 400, "people": 460, "person-bicycle-car-detection": 460, "traffic": 480}
SMALL = [number for number in WHOLE if number != HUGE]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return partial(make, tmp_path_factory.mktemp("nasty"))


def read(path, decoder="auto"):
    with sources.open(str(path), decoder=decoder) as source:
        return [(frame.pts, frame.image.shape, crc32(frame.image)) for frame in source], source


def pts_in(frames):
    return [pts for pts, _, _ in frames]


@pytest.mark.parametrize("decoder", ["auto", "opencv", "av"])
@pytest.mark.parametrize("number", REFUSED)
def test_unreadable_clip_is_refused(clip, number, decoder, capfd):
    text = refused(clip(number), decoder=decoder)
    if (number, decoder) != ("27", "opencv"):  # cv2 alone cannot say why
        assert REFUSED[number] in text
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", DAMAGED)
def test_damaged_clip_yields_the_frames_that_ffmpeg_counts(clip, number):
    frames, source = read(clip(number))
    alone_frames, alone = read(clip(number), "av")
    assert pts_in(alone_frames) == pts_in(frames)
    assert 0 < len(frames) == count_by_ffmpeg(clip(number)) < 60
    assert source.damaged
    assert source.counts == alone.counts
    assert source.counts.bad > 0
    assert source.counts.corrupt > 0 or number == "04"
    assert source.counts.ended_early
    switch = re.fullmatch(r"opencv \((\d+) frames\) then av", source.decoder)
    assert switch
    cv2_frames, by_cv2 = read(clip(number), "opencv")
    capture = cv2.VideoCapture(str(clip(number)))
    count_by_cv2 = next(count for count in range(1000) if not capture.grab())
    assert 0 < int(switch[1]) <= len(cv2_frames) == count_by_cv2 < len(frames)
    assert by_cv2.counts.ended_early
    assert by_cv2.counts.bad > 0
    with sources.open(str(clip(number))) as again:
        assert [frame.index for frame in again] == list(range(len(frames)))


@pytest.mark.slow
@pytest.mark.parametrize("number", SMALL)
def test_all_readers_return_equal_frames_of_a_healthy_clip(clip, number):
    """PyAV and cv2 give equal pixels for rotation, odd sizes, 10 bits, grey and changing sizes."""
    frames, source = read(clip(number))
    assert len(frames) == WHOLE[number]
    assert pts_in(frames) == pts_of(clip(number))
    assert {shape for _, shape, _ in frames} == {(source.info.height, source.info.width, 3)}
    assert not source.damaged
    assert source.decoder == ("av" if number == AV1 else "opencv")
    for decoder in ("av",) if number == AV1 else ("av", "opencv"):
        alone_frames, alone = read(clip(number), decoder)
        assert (alone_frames, alone.info, alone.damaged) == (frames, source.info, False)


@pytest.mark.slow
def test_real_clips_have_the_expected_frames(shared):
    folder = shared / "data/videos"
    nasty = {path.name[:2]: path for path in (folder / "nasty").iterdir() if path.name[0] in "012"}
    assert nasty.keys() == {name[:2] for name in CLIPS}
    counts = dict.fromkeys(REFUSED, 0) | WHOLE | FFMPEG_COUNTS | ORDINARY
    for name, path in (nasty | {name: folder / f"{name}.mp4" for name in ORDINARY}).items():
        by_decoder = {}
        for decoder in ("auto",) if name in ORDINARY else ("auto", "opencv", "av"):
            lost_by_cv2 = CV2_COUNTS if decoder == "opencv" else {}
            frames = []
            with suppress(SourceError):
                frames, source = read(path, decoder)
                assert source.damaged == (name in DAMAGED), (path, decoder)
            assert len(frames) == lost_by_cv2.get(name, counts[name]), (path, decoder)
            by_decoder[decoder] = frames or by_decoder.get("auto", [])
        if name not in DAMAGED + tuple(REFUSED):
            assert pts_in(by_decoder["auto"]) == pts_of(path), path
            assert all(frames == by_decoder["auto"] for frames in by_decoder.values()), path


def test_rotation_is_applied_and_pixel_aspect_kept(clip):
    rotated, wide = (sources.open(str(clip(number))).info for number in ("08", "20"))
    assert (rotated.width, rotated.height, rotated.rotation) == (64, 96, 90)
    assert (wide.width, wide.height, wide.sample_aspect_ratio) == (120, 90, Fraction(16, 9))


@pytest.mark.slow
def test_stride_continues_after_pyav_takes_over(clip):
    last = count_by_ffmpeg(clip("04")) - 1
    source = sources.open(str(clip("04")), stride=9)
    assert [frame.index for frame in source] == [*range(0, last + 1, 9)]
    source = sources.open(str(clip("04")), stride=last)
    assert [frame.index for frame in source] == [0, last]  # PyAV reads the second one


MEMORY = """
import re, sys, numpy as np
from detector.core import sources
s = sources.open(sys.argv[1], decoder=sys.argv[2])
into = np.empty((8192, 8192, 3), np.uint8)
n = sum(1 for _ in iter(lambda: s.read(into), None))
# Not getrusage: its peak includes that of the parent process.
print(n, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["opencv", "av"])
def test_huge_frames_are_not_kept(clip, decoder):
    """A frame takes 200 MB as BGR and 100 MB as decoded. The process may use 1.5 GB in all."""
    command = [sys.executable, "-c", MEMORY, str(clip(HUGE)), decoder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    frames, kilobytes = map(int, done.stdout.split())
    assert frames == 3
    assert kilobytes < 1_500_000
