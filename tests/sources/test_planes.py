"""Videos are read as YUV planes, or as BGR for a stated reason. All readers give equal frames."""

import gc
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from detector.core import sources
from detector.core.sinks.video import VideoSink
from detector.core.sources import _bgr
from detector.core.sources._planes import Easel
from detector.core.sources.video import _threaded, auto
from detector.core.types import Detections, Frame, Planes
from tests.conftest import night

from ..attacks.mutants import make_mutants, make_seeds
from . import clips as clips_module
from .clips import HEIGHT, WIDTH, assert_equal, damage_packets, write_video
from .nasty import KINDS, clips
from .oddities import PICTURES, ffmpeg, write_parts

DECODERS = ["auto", "av"]
read_all = partial(clips_module.read_all, pixels="yuv420p")
LOSSLESS, RNG = ("-c:v", "ffv1"), np.random.default_rng(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planes")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return write_video(folder / "plain.mp4", 24, bf="2")


def read_bgr(path: Path, **options: Any) -> list[Frame]:
    return read_all(path, **{"pixels": "bgr", "decoder": "av", **options})[0]


@pytest.mark.parametrize("decoder", DECODERS)
def test_planes_equal_the_decoded_stream(plain: Path, decoder: str) -> None:
    frames, source = read_all(plain, decoder=decoder)
    assert (source.pixels, source.why_no_planes, source.decoder) == ("yuv420p", "", "av")
    with av.open(str(plain)) as container:
        for frame, stored in zip(frames, container.decode(video=0), strict=True):
            expected = stored.to_ndarray(format="yuv420p")
            planes = frame.picture
            assert isinstance(planes, Planes)
            assert frame.pts == stored.pts
            assert frame.size == (HEIGHT, WIDTH)
            assert np.array_equal(planes.y, expected[:HEIGHT])
            halves = expected[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2)
            assert np.array_equal(planes.u, halves[0])
            assert np.array_equal(planes.v, halves[1])
            assert frame.buffer is None
    assert (source.damaged, source.notes, source.read()) == (False, [], None)


@pytest.mark.parametrize("decoder", DECODERS)
def test_bgr_is_converted_once_on_demand(plain: Path, decoder: str) -> None:
    frames, source = read_all(plain, decoder=decoder)
    assert source.planes.made == 0
    assert_equal(frames, read_bgr(plain))
    assert source.planes.made == len(frames)
    assert frames[3].image is frames[3].image


@pytest.mark.skipif(_bgr.ARM64, reason="machine: x86's swscale is the reference")
@pytest.mark.parametrize("matrix", _bgr.LUMA)
@pytest.mark.parametrize(("kind", "color_range"), [("yuv420p", 1), ("yuv420p", 2), ("yuvj420p", 0)])
def test_bgr_on_arm64_equals_x86(monkeypatch, kind: str, color_range: int, matrix: int) -> None:
    picture = av.VideoFrame(70, 30, kind)
    picture.colorspace, picture.color_range = matrix, color_range
    for plane in picture.planes:
        _bgr.pixels_of(plane)[:] = RNG.integers(0, 256, (plane.height, plane.width))
    expected = _bgr.to_bgr(VideoReformatter(), picture, 70, 30)
    monkeypatch.setattr(_bgr, "ARM64", True)
    assert np.array_equal(_bgr.to_bgr(None, picture, 70, 30), expected)


@pytest.mark.parametrize("kind", ["yuv420p", "yuv422p"])
def test_arm64_uses_pyav_for_formats_that_we_convert(monkeypatch, folder, kind: str) -> None:
    ffmpeg(*PICTURES, "-pix_fmt", kind, *LOSSLESS, path := folder / f"{kind}.mkv")
    monkeypatch.setattr(auto, "ARM64", True)
    frames, source = read_all(path, pixels="bgr")
    assert (source.decoder == "av") == (kind == "yuv420p")
    assert_equal(frames, read_bgr(path))


FALLBACKS = {
    # file: options of its encoder, and why it is read as BGR
    "422.mkv": ((*LOSSLESS, "-pix_fmt", "yuv422p"), "its pixels are yuv422p"),
    "444.mkv": ((*LOSSLESS, "-pix_fmt", "yuv444p"), "its pixels are yuv444p"),
    "10.mkv": ((*LOSSLESS, "-pix_fmt", "yuv420p10le"), "its pixels are yuv420p10le"),
    "rgb.mkv": ((*LOSSLESS, "-pix_fmt", "bgr0"), "its pixels are bgr0"),
    "grey.mkv": ((*LOSSLESS, "-pix_fmt", "gray"), "its pixels are gray"),
    "odd.mkv": (
        (*LOSSLESS, "-vf", "crop=63:47:exact=1", "-pix_fmt", "yuv420p"),
        "its size is odd, 63x47",
    ),
    "hdr.mp4": (
        (
            "-c:v",
            "libx264",
            "-pix_fmt",
            "yuv420p",
            "-x264-params",
            "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc",
        ),
        "its colours are HDR or of a wide gamut",
    ),
    "fields.mp4": (
        ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-flags", "+ilme+ildct"),
        "it is interlaced",
    ),
}


@pytest.mark.slow
# Converting HDR takes seconds the first time. Without --nightly, test_video.py covers it.
@pytest.mark.parametrize("name", [night(name) if name == "hdr.mp4" else name for name in FALLBACKS])
def test_fallback_to_bgr_has_a_reason(folder: Path, name: str) -> None:
    path, (options, why) = folder / name, FALLBACKS[name]
    ffmpeg(*PICTURES, *options, path)
    frames, source = read_all(path)
    assert (source.pixels, source.why_no_planes) == ("bgr", why)
    assert_equal(frames, read_all(path, pixels="bgr")[0])
    assert all(isinstance(frame.picture, np.ndarray) for frame in frames)


@pytest.mark.parametrize("rotation", [90, 180])
def test_rotated_videos_are_read_as_bgr(folder: Path, rotation: int) -> None:
    path = write_video(folder / f"rotated{rotation}.mp4", rotation=rotation)
    frames, source = read_all(path)
    assert (source.pixels, source.why_no_planes[:12]) == ("bgr", "it is turned")
    assert_equal(frames, read_bgr(path))


def test_opencv_gives_bgr(plain: Path) -> None:
    frames, source = read_all(plain, decoder="opencv")
    assert (source.pixels, source.why_no_planes) == ("bgr", "opencv returns nothing else")
    assert isinstance(frames[0].picture, np.ndarray)


def test_pictures_give_bgr(folder: Path) -> None:
    path = folder / "one.png"
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))
    with sources.open(str(path), pixels="yuv420p") as source:
        assert (source.pixels, source.why_no_planes) == ("bgr", "")


@pytest.mark.parametrize("start", ["0", "0.3", "0.5", "0.9"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_start_gives_the_same_frames_as_a_whole_run(folder: Path, decoder: str, start: str) -> None:
    path = folder / "keys.mp4"
    if not path.exists():
        write_video(path, 60, g="12", bf="2")
    start_s = Fraction(start) * 2
    end_s = start_s + Fraction(1, 5)
    with sources.open(str(path), decoder=decoder, pixels="yuv420p") as source:
        source.restrict(start_s, end_s - start_s)
        frames = list(source)
    tick_s = source.info.time_base
    assert_equal(frames, [f for f in read_bgr(path) if start_s <= f.pts * tick_s < end_s])
    assert not source.damaged


@pytest.fixture(scope="module")
def damaged(folder: Path) -> Path:
    return damage_packets(write_video(folder / "damaged.mp4", 40, g="40", bf="0"), 20, 30)


def test_stride_over_damage_gives_the_same_frames(damaged: Path) -> None:
    frames, _ = read_all(damaged, stride=3)
    assert_equal(frames, read_bgr(damaged, stride=3))


def test_damage_in_the_first_packet_gives_the_same_frames(folder: Path) -> None:
    path = damage_packets(write_video(folder / "first.mp4", 12, g="4", bf="0"), 0)
    frames, source = read_all(path)
    exact_frames, exact = read_all(path, decoder="av")
    assert_equal(frames, exact_frames)
    assert source.counts == exact.counts


def test_frame_numbers_are_right_if_damage_follows_the_start_option(folder: Path) -> None:
    path = damage_packets(write_video(folder / "late.mp4", 60, g="12", bf="0"), 50)
    expected = {frame.index: frame for frame in read_bgr(path)}
    with sources.open(str(path), pixels="yuv420p") as source:
        source.restrict(Fraction(3, 2), None)
        frames = list(source)
    assert source.counts.corrupt > 0
    assert frames[0].index == 38
    assert_equal(frames, [expected[frame.index] for frame in frames])


def test_missing_frames_at_the_end_are_searched_for(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SilentLoss(_threaded.TrialTally):
        """Counts one more packet than was decoded, as if a picture were lost silently."""

        def end(self, last_pts: int | None = None) -> None:
            self._due += 1
            super().end(last_pts)

    monkeypatch.setattr(_threaded, "TrialTally", SilentLoss)
    frames, source = read_all(plain)
    assert (len(frames), source.damaged) == (24, False)
    assert "1 packet" in source.notes[0]
    assert "no further frame" in source.notes[0]


@pytest.mark.slow
def test_unclosed_source_can_be_garbage_collected(damaged: Path) -> None:
    """The source's decoder threads may be logging when the source is collected."""
    for _ in range(20):
        source = sources.open(str(damaged), pixels="yuv420p")
        for _ in range(18):
            source.read()
        del source
        gc.collect()


def test_planes_are_read_only(plain: Path) -> None:
    frames, _ = read_all(plain, frames=2)
    planes = frames[0].picture
    assert isinstance(planes, Planes)
    with pytest.raises(ValueError, match="read-only"):
        planes.y[0] = 0


@pytest.mark.parametrize(("threads", "pictures"), [(0, 1), (1, 3), (2, 6)])
def test_easel_keeps_enough_pictures_for_its_threads(
    plain: Path, threads: int, pictures: int
) -> None:
    frames, source = read_all(plain, frames=pictures + 1)
    easel, first = Easel(threads=threads), frames[0].picture
    assert isinstance(first, Planes)
    for frame in frames:
        before = frame.picture
        assert isinstance(before, Planes)
        easel.put(frame)
        drawn = frame.picture
        assert isinstance(drawn, Planes)
        assert all(np.array_equal(getattr(drawn, name), getattr(before, name)) for name in "yuv")
        drawn.y[:] = 200
    assert len({id(frame.picture) for frame in frames}) == pictures
    assert frames[0].picture is frames[-1].picture
    assert not np.array_equal(first.y, frames[0].picture.y)  # type: ignore[union-attr]
    assert source.planes.made == 0


def test_easel_copies_bgr_on_request(plain: Path) -> None:
    frames, source = read_all(plain, frames=1)
    Easel(bgr=True).put(frames[0])
    assert isinstance(frames[0].picture, np.ndarray)
    frames[0].image[:] = 7
    assert (frames[0].image == 7).all()
    assert source.planes.made == 1


H264 = ("-c:v", "libx264", "-bf", "0")
FULL = ("-vf", "scale=out_range=full", "-color_range", "pc")
LARGER = ("-vf", "scale=128x112", "-pix_fmt", "yuv420p")
CHANGES = {  # options of the second half of a stream, and whether it is still read as planes
    "full": (FULL, True),
    "bt709": (("-vf", "scale=out_color_matrix=bt709", "-colorspace", "bt709"), True),
    "larger": (LARGER, True),
    "larger, full": ((*FULL, "-s", "128x112"), True),
    "larger, 4:2:2": ((*LARGER, "-pix_fmt", "yuv422p"), False),
    "4:2:2": (("-pix_fmt", "yuv422p"), False),
    "interlaced": (("-flags", "+ilme+ildct"), False),
    "240M": (("-colorspace", "smpte240m"), False),
    "PQ": (("-color_trc", "smpte2084"), False),
}


def coarse_difference(*images: np.ndarray) -> int:
    """Compare at 4x3 pixels, since 4:2:0 loses the details of the test picture's colours."""
    ours, theirs = (cv2.resize(image, (4, 3), interpolation=cv2.INTER_AREA) for image in images)
    return int(np.abs(ours.astype(int) - theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [night(name) if name == "PQ" else name for name in CHANGES])
@pytest.mark.parametrize("decoder", DECODERS)
def test_change_of_format_within_a_stream_is_followed(
    decoder: str, name: str, tmp_path: Path
) -> None:
    options, stays_planes = CHANGES[name]
    path = write_parts(tmp_path / "both.ts", H264, (), options)
    later, _ = read_all(write_parts(tmp_path / "later.ts", H264, options))
    frames, source = read_all(path, decoder=decoder)
    exact_frames = read_bgr(path)
    assert {frame.size for frame in frames} == {(48, 64)}
    easel, sink = Easel(), VideoSink(tmp_path / "drawn.mp4", crf=1)
    sink.open(source.info)
    for frame, exact_frame, later_frame in zip(frames, exact_frames, 2 * later, strict=True):
        before = frame.image
        assert "larger" in name or np.array_equal(before, exact_frame.image)
        if frame.index < len(later):
            assert isinstance(frame.picture, Planes)
        elif stays_planes:
            colours = frame.picture.colours  # type: ignore[union-attr]
            assert colours == later_frame.picture.colours  # type: ignore[union-attr]
            assert (colours.full_range, colours.matrix == 1) == ("full" in name, name == "bt709")
        else:
            assert frame.picture is before
        easel.put(frame)
        assert np.array_equal(frame.image, before)
        sink.write(frame, Detections.empty())
    sink.close()
    for frame, exact_frame in zip(read_bgr(tmp_path / "drawn.mp4"), exact_frames, strict=True):
        assert coarse_difference(frame.image, exact_frame.image) < (12 if "larger" in name else 5)


@pytest.mark.slow
def test_change_of_size_is_noted_once(tmp_path: Path) -> None:
    """A reader that takes over begins at the first frame, so it meets the change a second time."""
    clip = write_parts(tmp_path / "both.ts", H264, (), LARGER)
    with sources.open(str(clip), pixels="yuv420p", decoder="auto") as source:
        assert isinstance(source, _threaded.ThreadedSource)
        for _ in range(25):
            source.read()
        assert source._take_over("it was told to", source.pts)
        assert list(source)
    (note,) = (note for note in source.notes if "128x112" in note)
    assert "from 2.200 s" in note
    assert "64x48" in note


@pytest.mark.slow
def test_mutated_files_give_the_same_frames_as_decoding_packet_by_packet(folder: Path) -> None:
    """Include raw.h264, whose demuxer and decoder share a name in FFmpeg's log."""
    names, taken_over = ["h264.mp4", "hevc.mkv", "h264.ts", "raw.h264"], 0
    make_seeds(folder, names)
    for path, _, wound in make_mutants(folder, 10, names):
        try:
            exact_frames, exact = read_all(path, decoder="av", pixels="bgr")
        except sources.SourceError:
            continue
        frames, source = read_all(path)
        case = path.name, wound, source.notes
        assert source.counts == exact.counts, case
        assert [(f.index, f.pts) for f in frames] == [(f.index, f.pts) for f in exact_frames], case
        taken_over += "packets" in source.decoder
    assert taken_over > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nasty_clips_give_the_same_frames(request: pytest.FixtureRequest, kind: str) -> None:
    as_planes, paths = 0, clips(kind, request)
    if kind == "real":  # three of these files once lost frames silently
        paths += sorted((request.getfixturevalue("shared") / "data/attacks").glob("*[0-9].mkv"))
    for path in paths:
        exact_frames, exact = read_all(path, decoder="av", pixels="bgr")
        frames, source = read_all(path)
        assert source.counts == exact.counts, path
        assert [frame.pts for frame in frames] == [frame.pts for frame in exact_frames]
        if source.pixels == "yuv420p":
            as_planes += 1
            # Concealment of damage depends on the previous content of memory.
            whole = 16 if source.damaged else len(frames)
            if not path.name.startswith("22"):
                assert_equal(frames[:whole], exact_frames[:whole])
                continue
            for ours, theirs in zip(frames, exact_frames, strict=True):  # the size changes
                assert np.abs(ours.image.astype(int) - theirs.image).mean() < 2
    assert as_planes > 10
