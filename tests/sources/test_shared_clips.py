"""The nasty clips and the ordinary ones, against FFmpeg's counts and PyAV's timestamps."""

import re
import subprocess
import sys
from fractions import Fraction

import av
import numpy as np
import pytest

from detector.core import sources
from detector.core.errors import SourceError

from .clips import pts_of

REFUSED = {  # by number: a word that the message must hold
    "01": "empty",
    "02": "text",
    "03": "no moov atom",
    "12": "no video stream",
    "27": "no frame can be decoded",
}
DAMAGED = {  # by number: frames that FFmpeg decodes, of cv2 at most before it complains, of cv2
    "04": (30, 27, 28),
    "05": (54, 19, 20),
    "06": (49, 20, 27),
}
WHOLE = {
    "07": 60,
    "08": 60,
    "09": 40,
    "10": 40,
    "11": 1,
    "13": 60,
    "14": 60,
    "15": 60,
    "16": 40,
    "17": 60,
    "18": 60,
    "19": 30,
    "20": 60,
    "21": 60,
    "22": 60,
    "23": 60,
    "24": 48,
    "25": 30,
    "26": 60,
    "28": 3,
    "29": 15,
}
ORDINARY = {"bench_720p": 400, "people": 460, "person-bicycle-car-detection": 460, "traffic": 480}
HUGE = "28"


@pytest.fixture(scope="session")
def clip(shared):
    def find(number):
        (path,) = (shared / "data/videos/nasty").glob(f"{number}_*")
        return path

    return find


def test_every_clip_stands_in_a_table(shared):
    numbers = {
        path.name[:2] for path in (shared / "data/videos/nasty").iterdir() if path.name[0].isdigit()
    }
    assert numbers == REFUSED.keys() | DAMAGED.keys() | WHOLE.keys()


@pytest.mark.parametrize("decoder", ["auto", "opencv", "av"])
@pytest.mark.parametrize("number", REFUSED)
def test_refused(clip, number, decoder):
    with pytest.raises(SourceError) as caught:
        sources.open(str(clip(number)), decoder=decoder)
    text = str(caught.value)
    assert "\n" not in text
    assert str(clip(number)) in text
    if (number, decoder) != ("27", "opencv"):  # cv2 alone cannot say why
        assert REFUSED[number] in text


@pytest.mark.parametrize("number", DAMAGED)
def test_damaged(clip, number):
    frames, of_cv2, _ = DAMAGED[number]
    with sources.open(str(clip(number))) as source:
        pts = [frame.pts for frame in source]
    with sources.open(str(clip(number)), decoder="av") as alone:
        assert [frame.pts for frame in alone] == pts
    assert len(pts) == frames
    assert source.damaged
    assert source.counts == alone.counts
    assert source.counts.bad > 0
    assert source.counts.corrupt > 0 or number == "04"
    assert source.counts.ended_early
    given = re.fullmatch(r"opencv \((\d+) frames\) then av", source.decoder)
    assert given
    assert 0 < int(given[1]) <= of_cv2  # it complains ahead, as its threads decode ahead
    assert [frame.index for frame in sources.open(str(clip(number)))] == list(range(frames))


@pytest.mark.parametrize("number", DAMAGED)
def test_damaged_by_cv2_alone(clip, number):
    source = sources.open(str(clip(number)), decoder="opencv")
    assert len(list(source)) == DAMAGED[number][2]
    assert source.counts.ended_early
    assert source.counts.bad > 0


@pytest.mark.parametrize("decoder", ["auto", "av"])
@pytest.mark.parametrize("number", [number for number in WHOLE if number != HUGE])
def test_whole(clip, number, decoder):
    path = clip(number)
    with sources.open(str(path), decoder=decoder) as source:
        frames = [(frame.pts, frame.image.shape) for frame in source]
    assert len(frames) == WHOLE[number]
    assert [pts for pts, _ in frames] == pts_of(path)
    assert {shape for _, shape in frames} == {(source.info.height, source.info.width, 3)}
    assert not source.damaged
    assert source.decoder == ("av" if decoder == "av" or number == "16" else "opencv")


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary(shared, name):
    path = shared / f"data/videos/{name}.mp4"
    with sources.open(str(path)) as source:
        pts = [frame.pts for frame in source]
    assert len(pts) == ORDINARY[name]
    assert pts == pts_of(path)
    assert not source.damaged


@pytest.mark.parametrize("number", [number for number in WHOLE if number not in (HUGE, "16")])
def test_pixels_are_the_same_from_both(clip, number):
    """Rotation, odd sizes, 10 bit, grey, the change of size in 22:

    PyAV's pictures are cv2's, to the last bit.
    """
    with (
        sources.open(str(clip(number)), decoder="opencv") as one,
        sources.open(str(clip(number)), decoder="av") as two,
    ):
        for a, b in zip(one, two, strict=True):
            assert np.array_equal(a.image, b.image), a.index
    assert one.info == two.info


def test_rotation_is_applied(clip):
    with av.open(str(clip("08"))) as container:
        stored = next(container.decode(video=0))
        expected = np.rot90(
            stored.to_ndarray(format="bgr24", interpolation="BICUBIC"), stored.rotation // 90
        )
    into = np.empty((320, 180, 3), np.uint8)
    for decoder in ("opencv", "av"):
        with sources.open(str(clip("08")), decoder=decoder) as source:
            frame = source.read(into)
        assert frame.image is into
        assert np.array_equal(into, expected)
        assert (source.info.width, source.info.height, source.info.rotation) == (180, 320, 90)


def test_pixel_aspect_is_kept(clip):
    info = sources.open(str(clip("20"))).info
    assert (info.width, info.height, info.sample_aspect_ratio) == (240, 180, Fraction(16, 9))


def test_stride_over_the_take_over(clip):
    source = sources.open(str(clip("04")), stride=9)
    assert [frame.index for frame in source] == [0, 9, 18, 27]
    source = sources.open(str(clip("04")), stride=29)
    assert [frame.index for frame in source] == [0, 29]  # the second one is PyAV's


MEMORY = """
import re, sys, numpy as np
from detector.core import sources
s = sources.open(sys.argv[1], decoder=sys.argv[2])
into = np.empty((8192, 8192, 3), np.uint8)
n = sum(1 for _ in iter(lambda: s.read(into), None))
# Not getrusage: its peak begins with that of the process which started this one.
print(n, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["opencv", "av"])
def test_huge_frames_are_not_kept(clip, decoder):
    """A frame is 200 MB as BGR and 100 MB as stored; 1.5 GB must do, decoder included."""
    command = [sys.executable, "-c", MEMORY, str(clip(HUGE)), decoder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    frames, kilobytes = map(int, done.stdout.split())
    assert frames == 3
    assert kilobytes < 1_500_000
