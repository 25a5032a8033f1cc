"""Frame rates of raw streams: from their header, or guessed with a note."""

from fractions import Fraction
from pathlib import Path

import pytest

from detector.core import sources
from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.reading import SourceReading
from detector.core.sources.base import Choice

from .oddities import ffmpeg

FRAMES = 8
NTSC = Fraction(30000, 1001)
RATES = [Fraction(rate) for rate in (10, 15, 24, 25, 30, 50, 60)] + [NTSC]
CODECS = {
    "h264": ["-c:v", "libx264", "-preset", "ultrafast", "-bf", "2"],
    "hevc": ["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none"],
    "m2v": ["-c:v", "mpeg2video", "-bf", "2", "-strict", "unofficial"],
    "m4v": ["-c:v", "mpeg4", "-f", "m4v"],
}
NO_TIMING = ["-c:v", "libx265", "-x265-params", "log-level=none:vui-timing-info=0"]


def make(path: Path, rate: Fraction, *options: str, size: str = "64x48") -> Path:
    moving = f"testsrc2=size={size}:rate={rate}:duration={float(FRAMES / rate)}"
    ffmpeg("-f", "lavfi", "-i", moving, "-pix_fmt", "yuv420p", *options, path)
    return path


def times(path: Path | str, decoder: str = "auto", pixels: str = "bgr", **choice: object) -> list:
    chosen = Choice(**choice)
    with sources.open(str(path), decoder=decoder, pixels=pixels, choice=chosen) as source:
        return [frame.pts * source.info.time_base for frame in source]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("rate", RATES, ids=str)
def test_rate_is_read_from_the_stream_header(suffix: str, rate: Fraction, tmp_path: Path) -> None:
    path = make(tmp_path / f"a.{suffix}", rate, *CODECS[suffix])
    with sources.open(str(path)) as source:
        assert source.info.fps == rate
        assert source.notes == []
    expected = [number / rate for number in range(FRAMES)]
    for decoder, pixels in (("auto", "bgr"), ("av", "bgr"), ("opencv", "bgr"), ("auto", "yuv420p")):
        assert times(path, decoder, pixels) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "rate", "pixels"), [("720x576", 25, "yuv420p"), ("720x480", NTSC, "yuv411p")]
)
def test_dv_rate_is_pal_or_ntsc(size: str, rate: Fraction, pixels: str, tmp_path: Path) -> None:
    path = make(tmp_path / "a.dv", Fraction(rate), "-c:v", "dvvideo", "-pix_fmt", pixels, size=size)
    with sources.open(str(path)) as source:
        assert source.info.fps == rate  # FFmpeg reports 60000, its clock's ticks per second
        stamps = [frame.pts * source.info.time_base for frame in source]
    assert stamps == [number / Fraction(rate) for number in range(FRAMES)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.hevc", NO_TIMING),
        ("a.mjpeg", ["-c:v", "mjpeg", "-pix_fmt", "yuvj420p"]),
        ("a.obu", ["-c:v", "libaom-av1", "-cpu-used", "8", "-f", "obu"]),
    ],
)
def test_guessed_rate_is_noted_and_a_given_rate_applies(
    name: str, options: list[str], tmp_path: Path
) -> None:
    path = make(tmp_path / name, Fraction(10), *options)
    with sources.open(str(path)) as source:
        assert source.info.fps == 25
        assert "give the right rate with --rate N" in source.notes[0]
    for rate in (Fraction(10), NTSC, Fraction(7, 3)):
        assert times(path, rate=rate) == [number / rate for number in range(FRAMES)]
        with sources.open(str(path), choice=Choice(rate=rate)) as source:
            assert source.info.fps == rate
            assert not any("guess" in note for note in source.notes)


@pytest.mark.slow
def test_start_and_duration_use_the_rate(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h264", Fraction(10), *CODECS["h264"])
    config = resolve_config(None, {"start": "0.3", "duration": "0.2"})
    with SourceReading.of(config).open(str(path)) as source:
        assert [(frame.index, frame.time_s) for frame in source] == [(3, 0.3), (4, 0.4)]
    with SourceReading.of(resolve_config(None, {"rate": "5", "start": "1"})).open(
        str(path)
    ) as source:
        assert [frame.index for frame in source] == [5, 6, 7]


@pytest.mark.parametrize(
    ("text", "rate"), [("30", 30), ("12.5", Fraction(25, 2)), ("29.97", NTSC), ("30000/1001", NTSC)]
)
def test_rate_is_parsed(text: str, rate: Fraction) -> None:
    assert SourceReading.of(resolve_config(None, {"rate": text})).choice.rate == rate


@pytest.mark.parametrize("text", ["0", "-5", "x", "1/0", "nan", "1e9", ""])
def test_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"30, 29\.97 or 30000/1001"):
        SourceReading.of(resolve_config(None, {"rate": text}))


def test_rate_is_refused_for_a_file_with_timestamps(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", Fraction(25), "-c:v", "mjpeg", "-pix_fmt", "yuvj420p")
    with pytest.raises(UsageError, match=r"\(matroska\).*--rate"):
        sources.open(str(path), choice=Choice(rate=Fraction(30)))


def test_options_rate_and_video_track_are_refused_for_pictures(tmp_path: Path) -> None:
    path = make(tmp_path / "a.png", Fraction(25), "-frames:v", "1")
    for choice, flag in ((Choice(rate=Fraction(30)), "--rate"), (Choice(track=2), "--video-track")):
        with pytest.raises(UsageError, match=f"{flag} is for videos"):
            sources.open(str(path), choice=choice)
