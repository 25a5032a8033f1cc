"""WebM, AVI, GIF, MPEG-TS and FLV videos: frames, times, colours and options."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import cv2
import numpy as np
import pytest
from probing import brightness, decode, make_frame, open_sink, probe, write_video

from detector.core.config.schema import OutputConfig
from detector.core.errors import UsageError
from detector.core.run.outputs import OutputPlan
from detector.core.sinks.video import mjpeg
from detector.core.types import Detections, Frame

NO_DETECTIONS = Detections.empty()
CODECS = {
    ".webm": "vp9",
    ".avi": "mjpeg",
    ".gif": "gif",
    ".mov": "h264",
    ".mkv": "h264",
    ".ts": "h264",
    ".flv": "h264",
}
# B-frames need decoding times below 0. Formats that cannot store such times shift all times:
OFFSET_CLOCK = (".ts", ".flv")


def times_of(path: Path) -> list[float]:
    with av.open(str(path)) as file:
        times = [float(frame.pts * frame.time_base) for frame in file.decode(video=0)]
    begin = times[0] if path.suffix in OFFSET_CLOCK else 0.0
    assert 0 <= begin < 2
    return [time - begin for time in times]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [*CODECS, ".mp4", ".m4v", ".MP4"])
def test_every_frame_is_written_in_order(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    sink = write_video(path, [make_frame(i) for i in range(40)])
    assert probe(path)["streams"][0]["codec_name"] == CODECS.get(suffix, "h264")
    assert times_of(path) == pytest.approx([i / 25 for i in range(40)], abs=1e-6)
    means = [float(picture.mean()) for picture in decode(path, 64, 48)]
    assert means == pytest.approx([brightness(i) for i in range(40)], abs=4)
    assert sink.notes == []
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", CODECS)
def test_odd_sized_picture_keeps_its_colours(suffix: str, tmp_path: Path) -> None:
    path, image = tmp_path / f"x{suffix}", np.zeros((47, 63, 3), np.uint8)
    image[:] = (0, 230, 240)
    image[:16, :16] = (250, 10, 5)
    write_video(path, [Frame(i, i * 512, i / 25, image) for i in range(3)], width=63, height=47)
    with av.open(str(path)) as file:
        shown = next(file.decode(video=0)).to_ndarray(format="bgr24")[:47, :63]
    assert np.abs(shown[24:40, 24:56].astype(int) - image[30, 30]).mean() < 6
    assert np.abs(shown[4:12, 4:12].astype(int) - image[0, 0]).mean() < 12


@pytest.mark.parametrize("suffix", CODECS)
def test_aborted_video_keeps_its_frames_under_the_temporary_name(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x{suffix}"
    sink = open_sink("video", path)
    for i in range(5):
        sink.write(make_frame(i), NO_DETECTIONS)
    partial = sink.abort()
    assert partial == tmp_path / f"x.partial{suffix}"
    assert len(times_of(partial)) == 5
    assert not path.exists()


PAUSES = [0, 0.1, 0.5, 0.52, 2.0]  # seconds


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        (".webm", PAUSES),
        (".gif", PAUSES),
        (".ts", PAUSES),
        (".flv", PAUSES),
        (".avi", [0, 0.12, 0.52, 0.56, 2.0]),  # rounded up to the next free multiple of 1/25 s
    ],
)
def test_pauses_are_kept(suffix: str, expected: list[float], tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    frames = [make_frame(i, round(second * 12800)) for i, second in enumerate(PAUSES)]
    write_video(path, frames, longest_gap_s=10)
    assert times_of(path) == pytest.approx(expected, abs=0.041 if suffix == ".avi" else 0.006)


@pytest.mark.parametrize(("fps", "seconds"), [(25, 10.0), (6000, 5.0)])
def test_avi_limits_repeated_frames(fps: int, seconds: float, tmp_path: Path) -> None:
    """The source may pause for 10 s, but at most 30,000 repeats are written: 5 s at 6000 FPS."""
    limits: list[float] = []
    file = SimpleNamespace(fps=Fraction(fps), time_base=Fraction(1, fps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mjpeg, "Stamps", lambda fps, time_base, longest: limits.append(longest))
        mjpeg.MjpegFile.make_stamps(file, 10.0)  # type: ignore[arg-type]
    assert limits == [seconds]


def test_gif_drops_frames_above_50_per_second(tmp_path: Path) -> None:
    sink = write_video(
        tmp_path / "x.gif", [make_frame(i, i * 128) for i in range(40)], fps=Fraction(100)
    )
    assert np.diff(times_of(tmp_path / "x.gif")) == pytest.approx([0.02] * 19)
    assert [note.split()[0] for note in sink.notes] == ["20"]


def test_gif_loops_forever(tmp_path: Path) -> None:
    write_video(tmp_path / "x.gif", [make_frame(i) for i in range(3)])
    data = (tmp_path / "x.gif").read_bytes()
    at = data.index(b"NETSCAPE2.0")
    assert data[at + 11 : at + 16] == b"\x03\x01\0\0\0"  # a count of 0 means forever


def test_identical_pictures_are_all_written(tmp_path: Path) -> None:
    for suffix in CODECS:
        frames = [Frame(i, i * 512, i / 25, np.full((48, 64, 3), 90, np.uint8)) for i in range(9)]
        write_video(tmp_path / f"x{suffix}", frames)
        assert len(times_of(tmp_path / f"x{suffix}")) == 9


def test_unsupported_suffix_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(UsageError) as caught:
        OutputPlan(OutputConfig(output="x.wmv"), ["in.mp4"])
    assert [suffix for suffix in CODECS if suffix not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("x.gif", {"crf": 20}),
        ("x.gif", {"preset": "fast"}),
        ("x.avi", {"crf": 20}),
        ("x.avi", {"preset": "fast"}),
        ("x.gif", {"quality": "small"}),
        ("x.mp4", {"crf": 52}),
        ("x.mp4", {"quality": "fast", "crf": 20}),
        ("x.webm", {"quality": "fast", "preset": "fast"}),
        (None, {"quality": "fast", "preset": "fast"}),  # .mp4 by default
        ("out/", {"crf": 52}),
        ("x.mkv", {"crf": 63}),
        ("x.webm", {"encoder": "x264"}),
        ("x.avi", {"encoder": "svtav1"}),
        ("x.mp4", {"encoder": "svtav1", "preset": "fast"}),
        ("x.mp4", {"encoder": "x264", "crf": 60}),
        ("x.mp4", {"encoder": "svtav1", "crf": 20, "quality": "small"}),
    ],
    ids=str,
)
def test_options_that_do_not_apply_are_refused(output: str | None, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        OutputPlan(OutputConfig(output=output, **options), ["in.mp4"])


@pytest.mark.parametrize("suffix", [".webm", ".mp4"])
def test_crf_decides_the_size(suffix: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(2).integers(0, 255, (48, 64, 3), np.uint8)
    image, sizes = cv2.GaussianBlur(noise, (5, 5), 0), []
    for crf in (1, 30, 50):
        path = tmp_path / f"{crf}{suffix}"
        write_video(path, [Frame(i, i * 512, i / 25, image) for i in range(5)], {"crf": crf})
        sizes.append(path.stat().st_size)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_quality_decides_the_size_and_keeps_every_frame(suffix: str, tmp_path: Path) -> None:
    """Write moving texture: a slower encoder saves more bytes there."""
    noise = np.random.default_rng(2).integers(0, 255, (160, 200, 3), np.uint8)
    image = cv2.GaussianBlur(noise, (0, 0), 2)
    sizes = []
    for quality in ("fast", "balanced", "small"):
        path = tmp_path / f"{quality}{suffix}"
        frames = [
            Frame(i, i * 512, i / 25, np.ascontiguousarray(image[i : i + 96, 2 * i : 2 * i + 128]))
            for i in range(30)
        ]
        write_video(path, frames, {"quality": quality}, width=128, height=96)
        assert len(times_of(path)) == 30
        sizes.append(path.stat().st_size)
    assert sizes == sorted(sizes, reverse=True)


def test_default_quality_is_balanced(tmp_path: Path) -> None:
    frames = [make_frame(i) for i in range(12)]
    for name, options in (("a", {}), ("b", {"quality": "balanced"}), ("c", {"crf": 22.5})):
        write_video(tmp_path / f"{name}.mp4", frames, options)
    contents = {(tmp_path / f"{name}.mp4").read_bytes() for name in "abc"}
    assert len(contents) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "ultrafast"},
        {"preset": "medium"},
        {"preset": "veryslow"},
        {"quality": "fast"},
        {"quality": "small"},
    ],
    ids=str,
)
def test_vp9_accepts_presets_and_qualities(options: dict[str, Any], tmp_path: Path) -> None:
    write_video(tmp_path / "x.webm", [make_frame(i) for i in range(5)], options)
    assert len(times_of(tmp_path / "x.webm")) == 5
