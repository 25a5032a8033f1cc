"""Test the reading of small videos: frames, their order, and the caller's buffers."""

import struct
from fractions import Fraction

import av
import numpy as np
import pytest

from detector.core import sources
from detector.core.errors import SourceError, UsageError
from detector.core.sources.video import av as av_source

from .clips import HEIGHT, WIDTH, assert_equal, complaints, cut, pts_of, read_all, write_video
from .oddities import FRAMES, write_parts

DECODERS = ["auto", "opencv", "av"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clips")


@pytest.fixture(scope="module")
def plain(folder):
    return write_video(folder / "plain.mp4")


def test_sources_and_decoders_are_registered():
    assert {"live", "pictures", "pipe", "stored", "video", "web"} <= set(sources.names())
    assert sources.decoders() == ["auto", "av", "opencv"]


@pytest.mark.parametrize("decoder", DECODERS)
def test_plain_video_is_read(plain, decoder):
    frames, source = read_all(plain, decoder=decoder)
    assert [frame.index for frame in frames] == list(range(24))
    assert [frame.pts for frame in frames] == pts_of(plain)
    assert [frame.time_s for frame in frames] == [
        frame.pts * float(source.info.time_base) for frame in frames
    ]
    assert {(frame.image.shape, frame.image.dtype) for frame in frames} == {
        ((HEIGHT, WIDTH, 3), np.dtype(np.uint8))
    }
    assert (source.damaged, source.notes, source.counts.bad) == (False, [], 0)
    assert source.decoder == ("opencv" if decoder == "auto" else decoder)
    assert source.read() is None


def test_read_pictures_equal_the_written_ones(plain):
    frames, _ = read_all(plain)
    for frame in frames[:20]:
        bright = frame.image[8:24].mean(axis=(0, 2)) > 150
        assert abs(int(bright.argmax()) - 4 * frame.index) <= 1  # the position of the square


def test_info_describes_a_plain_video(plain):
    _, source = read_all(plain)
    info = source.info
    assert (info.kind, info.width, info.height, info.codec) == ("video", WIDTH, HEIGHT, "h264")
    assert (info.fps, info.frames_declared, info.rotation, info.has_audio) == (
        Fraction(25),
        24,
        0,
        False,
    )
    assert info.duration_s == pytest.approx(0.96, abs=0.05)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_variable_frame_times_are_kept(folder, decoder, suffix):
    times = [0, 40, 80, 280, 480, 496, 512, 1500]
    path = write_video(folder / f"vfr{suffix}", times)
    frames, source = read_all(path, decoder=decoder)
    assert [frame.pts for frame in frames] == pts_of(path)
    assert [
        round(1000 * frame.time_s) - round(1000 * frames[0].time_s) for frame in frames
    ] == times
    assert not source.damaged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("b.avi", "libx264", {"bf": "2"}),  # AVI has no pts
        ("raw.h264", "libx264", {"bf": "2"}),  # no timestamp at all
        (
            "pq.mp4",
            "libx264",
            {"x264-params": "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"},
        ),
        # Each conversion takes seconds the first time, so only one runs without --nightly.
        pytest.param(
            "hlg.mp4",
            "libx264",
            {"x264-params": "colorprim=bt2020:transfer=arib-std-b67:colormatrix=bt2020nc"},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "p3.mp4",
            "libx264",
            {"x264-params": "colorprim=smpte432:transfer=iec61966-2-1:colormatrix=bt709"},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_opencv_and_pyav_give_equal_frames(folder, name, codec, options):
    path = write_video(folder / name, 24, codec, **options)
    with_cv2, source = read_all(path)
    with_av, _ = read_all(path, decoder="av")
    assert_equal(with_cv2, with_av)
    assert [f.pts for f in with_av] == sorted({f.pts for f in with_av})
    assert (len(with_cv2), source.decoder, source.notes) == (24, "opencv", [])


def test_pictures_share_one_converter(plain, monkeypatch):
    """A converter takes 2 ms to build its tables, and 1.3 s for HDR."""
    real, calls = av_source.VideoReformatter, []

    class Counted:
        def __init__(self) -> None:
            self._real = real()

        def reformat(self, picture, **wanted):
            calls.append(self)
            return self._real.reformat(picture, **wanted)

    monkeypatch.setattr(av_source, "VideoReformatter", Counted)
    read_all(plain, decoder="av")
    assert (len(calls), len(set(map(id, calls)))) == (24, 1)


@pytest.mark.parametrize("pixels", ["bgr", "yuv420p"])
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("stride", "limit", "indices"),
    [
        (1, 5, [0, 1, 2, 3, 4]),
        (7, None, [0, 7, 14, 21]),
        (7, 2, [0, 7]),
        (24, None, [0]),
        (1, 100, list(range(24))),
    ],
)
def test_stride_and_limit_select_frames(plain, decoder, pixels, stride, limit, indices):
    options = {"decoder": decoder, "stride": stride, "frames": limit}
    frames, source = read_all(plain, pixels=pixels, **options)
    pts = pts_of(plain)
    assert [frame.index for frame in frames] == indices
    assert [frame.pts for frame in frames] == [pts[index] for index in indices]
    last = indices[-1] if limit == len(indices) else 23
    assert source.counts.skipped == last + 1 - len(indices)
    assert not source.damaged


@pytest.mark.parametrize("decoder", DECODERS)
def test_buffer_is_used_if_it_fits(plain, decoder):
    buffer = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    locked = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    locked.flags.writeable = False
    misfits = [
        np.empty((HEIGHT + 2, WIDTH, 3), np.uint8),
        np.empty((HEIGHT, WIDTH, 3), np.float32),
        np.empty((HEIGHT, 2 * WIDTH, 3), np.uint8)[:, ::2],
        locked,
    ]
    expected, _ = read_all(plain, decoder=decoder)
    with sources.open(str(plain), decoder=decoder) as source:
        for reference in expected[:4]:
            assert source.read(buffer).image is buffer
            assert np.array_equal(buffer, reference.image)
        for misfit in misfits:
            frame = source.read(misfit)
            assert (frame.image.shape, frame.image.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
            assert not np.shares_memory(frame.image, misfit)
        assert not np.shares_memory(frame.image, source.read().image)


def test_skipped_frames_are_not_converted(plain, monkeypatch):
    with sources.open(str(plain), decoder="opencv", stride=6) as source:
        converted = []
        retrieve = source.retrieve
        monkeypatch.setattr(
            source, "retrieve", lambda index, into: converted.append(index) or retrieve(index, into)
        )
        assert len(list(source)) == 4
    assert converted == [0, 6, 12, 18]


@pytest.mark.parametrize("pixels", ["bgr", "yuv420p"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_closed_source_reads_none_and_can_be_closed_again(plain, decoder, pixels):
    source = sources.open(str(plain), decoder=decoder, pixels=pixels)
    source.read()
    source.close()
    source.close()
    assert source.read() is None


def test_truncated_video_is_not_reported_damaged_if_the_run_ends_earlier(folder):
    path = cut(write_video(folder / "limit.mp4", 50), 0.6)
    frames, source = read_all(path, frames=5)
    assert (len(frames), source.damaged) == (5, False)


def tagged(name: str, number: int) -> tuple[str, str]:
    return "-bsf:v", f"h264_metadata={name}={number}"


H264, MPEG2 = ("-c:v", "libx264", "-bf", "2"), ("-c:v", "mpeg2video", "-bf", "2", "-s", "64x64")
INTERLACED, MATRIX = ("-flags", "+ilme+ildct", "-top", "1"), "matrix_coefficients"
# File -> encoder, its options for pictures that cv2's FFmpeg cannot convert, and its options for a
# second file, from which PyAV gives the expected pixels. Our MPEG-2 has a height that is a multiple
# of 32. With other heights, FFmpeg's decoder drops a picture where the options change.
UNCONVERTED = {
    "interlaced.ts": (H264, INTERLACED, INTERLACED),
    "interlaced.mpg": (MPEG2, INTERLACED, INTERLACED),
    **{f"matrix{n}.ts": (H264, tagged(MATRIX, n), tagged(MATRIX, 5)) for n in (8, *range(11, 18))},
    "matrix10.ts": (H264, tagged(MATRIX, 10), tagged(MATRIX, 9)),
    **{f"transfer{n}.ts": (H264, tagged("transfer_characteristics", n), ()) for n in (9, 10)},
}


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("name", UNCONVERTED)
def test_pictures_that_cv2_cannot_convert_are_read_by_pyav(folder, name, before):
    """OpenCV 5.0 silently returns black pictures or the previous picture."""
    encoder, refused, same = UNCONVERTED[name]
    path = write_parts(folder / f"{before}-{name}", encoder, *[()] * before, refused)
    with av.open(write_parts(folder / f"same-{name}", encoder, *[()] * before, same)) as container:
        expected = [
            picture.to_ndarray(format="bgr24", interpolation="BICUBIC")
            for picture in container.decode(video=0)
        ]
    for decoder in ("auto", "av"):
        frames, source = read_all(path, decoder=decoder)
        assert (len(frames), source.damaged) == (FRAMES * (before + 1), False)
        assert all(np.array_equal(f.image, e) for f, e in zip(frames, expected, strict=True))
        assert ("matrix" in name) == any("matrix" in note for note in source.notes)
    if not before:
        with pytest.raises(SourceError, match="opencv returns black"):
            sources.open(str(path), decoder="opencv")
        return
    frames, source = read_all(path, decoder="opencv")
    assert 0 < len(frames) == len(expected) - source.counts.bad <= FRAMES
    assert all(np.array_equal(frame.image, expected[frame.index]) for frame in frames)


def test_takeover_after_a_false_alarm_gives_no_extra_frame(plain, monkeypatch):
    from detector.core.sources.video import _check, opencv

    expected, _ = read_all(plain)
    alarm = _check.Check(lost=0, remaining=3)
    monkeypatch.setattr(opencv, "check_packets", lambda *_: alarm)
    frames, source = read_all(plain)
    assert [(f.index, f.pts) for f in frames] == [(f.index, f.pts) for f in expected]
    assert (source.decoder, source.damaged) == ("opencv", False)
    assert "no further frame" in source.notes[0]


@pytest.fixture
def cv2_stops_early(monkeypatch):
    from detector.core.sources.video.opencv import OpenCVSource

    real = OpenCVSource.grab

    def grab(self):
        if self.grabbed == 10 and not self._ended:
            self._ended = True
            return self.at_end()
        return real(self)

    monkeypatch.setattr(OpenCVSource, "grab", grab)


@pytest.mark.usefixtures("cv2_stops_early")
def test_takeover_with_stride_gives_every_frame_once(plain):
    reference, _ = read_all(plain, decoder="av", stride=3)
    frames, source = read_all(plain, stride=3)
    assert source.decoder == "opencv (10 frames) then av"
    assert_equal(frames, reference)
    assert source.counts.skipped == 16
    assert not source.damaged


@pytest.mark.usefixtures("cv2_stops_early")
def test_packets_that_opencv_did_not_read_are_noted(plain):
    frames, source = read_all(plain, decoder="opencv")
    assert (len(frames), source.counts.ended_early) == (10, True)
    assert "10 frames (14 packets" in source.notes[0]


@pytest.mark.usefixtures("cv2_stops_early")
@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_rotation_is_kept_after_pyav_takes_over(folder, rotation):
    path = write_video(folder / f"turned{rotation}.mp4", rotation=rotation)
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    turn = frames[0].rotation
    expected = [
        np.rot90(frame.to_ndarray(format="bgr24", interpolation="BICUBIC"), turn // 90)
        for frame in frames
    ]
    into = np.empty_like(expected[0], order="C")
    with sources.open(str(path)) as source:
        for image in expected:
            assert source.read(into).image is into
            assert np.array_equal(into, image)
    info = source.info
    upright = rotation == 180
    assert (info.width, info.height) == ((WIDTH, HEIGHT) if upright else (HEIGHT, WIDTH))
    assert info.sample_aspect_ratio == (Fraction(4, 3) if upright else Fraction(3, 4))
    assert info.rotation == turn % 360
    assert source.decoder == "opencv (10 frames) then av"


MIRRORED = {  # the matrix in the track's header, and how the stored picture is displayed
    "left-right": ((-1, 0, 0, 1), lambda image: image[:, ::-1]),
    "upside-down": ((1, 0, 0, -1), lambda image: image[::-1]),
    "transposed": ((0, 1, 1, 0), lambda image: image.swapaxes(0, 1)),
    "anti-transposed": ((0, -1, -1, 0), lambda image: image[::-1, ::-1].swapaxes(0, 1)),
}


def matrix_bytes(a, b, c, d):
    fixed_1 = 1 << 16
    return struct.pack(
        ">9i", a * fixed_1, b * fixed_1, 0, c * fixed_1, d * fixed_1, 0, 0, 0, 1 << 30
    )


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", MIRRORED)
def test_mirrored_video_is_flipped(plain, folder, name, decoder):
    matrix, shown = MIRRORED[name]
    data = plain.read_bytes()
    at = data.index(matrix_bytes(1, 0, 0, 1), data.index(b"tkhd"))
    path = folder / f"{name}.mp4"
    path.write_bytes(data[:at] + matrix_bytes(*matrix) + data[at + 36 :])
    frames, source = read_all(path, decoder=decoder)
    for frame, stored in zip(frames, read_all(plain)[0], strict=True):
        assert np.array_equal(frame.image, shown(stored.image))
    assert (source.info.height, source.info.width) == frames[0].image.shape[:2]
    assert (source.info.mirrored, source.decoder) == (True, "av" if decoder == "av" else "opencv")
    assert read_all(path, decoder=decoder, pixels="yuv420p")[1].pixels == "bgr"


@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_avi_that_is_stored_bottom_up_is_read_upright(plain, tmp_path, decoder):
    path = tmp_path / "bottom_up.avi"
    shown = [frame.image for frame in read_all(plain, frames=3)[0]]
    with av.open(str(path), "w", options={"flipped_raw_rgb": "1"}) as container:
        stream = container.add_stream("rawvideo", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "bgr24"
        for image in shown:
            stored = np.ascontiguousarray(image[::-1])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(stored, format="bgr24")))
        container.mux(stream.encode())
    frames, source = read_all(path, decoder=decoder)
    assert np.array_equal([frame.image for frame in frames], shown)
    assert source.counts.bad == 0


def test_long_metadata_text_in_an_flv_is_not_damage(tmp_path):
    data = write_video(tmp_path / "a.flv").read_bytes()
    text = b"\x02\x00\x0aonMetaData\x08\x00\x00\x00\x01\x00\x06filler"
    text += b"\x02" + struct.pack(">H", 2272) + b" " * 2272 + b"\x00\x00\x09"
    tag = b"\x12" + struct.pack(">I", len(text))[1:] + bytes(7) + text
    tag += struct.pack(">I", len(tag))
    path = tmp_path / "filled.flv"
    path.write_bytes(data[:13] + tag + data[13:])
    assert "AMF" in str(complaints(path))
    for pixels in ("bgr", "yuv420p"):
        frames, source = read_all(path, pixels=pixels)
        assert (len(frames), source.damaged, source.notes) == (24, False, [])


@pytest.mark.parametrize("options", [{"decoder": "vlc"}, {"stride": 0}, {"frames": 0}])
def test_invalid_options_are_refused(plain, options):
    with pytest.raises(UsageError):
        sources.open(str(plain), **options)
