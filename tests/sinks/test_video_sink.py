"""The annotated video, as ffprobe, ffmpeg and PyAV see it."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from probing import brightness, decode, make_frame, make_info, probe, probe_pts, write_video

from detector.core import sinks
from detector.core.errors import OutputError, UsageError
from detector.core.sinks.video import h264
from detector.core.sinks.video.h264 import MOST_THREADS, H264File
from detector.core.types import Detections, Frame
from tests.cli.command import detect_video

NONE = Detections.empty()


def at(pts: list[int], step: int = 1) -> list[Frame]:
    return [make_frame(i * step, p) for i, p in enumerate(pts)]


def read_stamps(path: Path) -> list[Fraction]:
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


def test_what_ffprobe_says(tmp_path: Path) -> None:
    write_video(
        tmp_path / "x.mp4", [make_frame(i) for i in range(10)], sample_aspect_ratio=Fraction(16, 11)
    )
    (stream,) = probe(tmp_path / "x.mp4")["streams"]
    wanted = {
        "codec_name": "h264",
        "pix_fmt": "yuv420p",
        "nb_frames": "10",
        "start_pts": 0,
        "time_base": "1/12800",
        "duration": "0.400000",  # the last frame lasts as long as the others
        "sample_aspect_ratio": "16:11",
        "color_space": "smpte170m",
        "color_range": "tv",
        "chroma_location": "topleft",
        "r_frame_rate": "25/1",
    }
    assert {key: stream.get(key) for key in wanted} == wanted


def test_the_index_comes_before_the_pictures(tmp_path: Path) -> None:
    write_video(tmp_path / "x.mp4", [make_frame(i) for i in range(10)])
    data = (tmp_path / "x.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_the_callers_buffer_is_used_again_at_once(tmp_path: Path) -> None:
    sink = sinks.open("video", tmp_path / "x.mp4")
    sink.open(make_info())
    frame = make_frame(0)
    for i in range(30):  # more than x264 looks ahead
        frame.image[:], frame.index, frame.pts = brightness(i), i, i * 512
        sink.write(frame, NONE)
        frame.image[:] = 255
    sink.close()
    means = [float(p.mean()) for p in decode(tmp_path / "x.mp4", 64, 48)]
    assert means == pytest.approx([brightness(i) for i in range(30)], abs=3)


def test_x264_goes_on_after_encode_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread for each frame: with slices, PyAV's own choice, every frame would be waited for."""
    opened: list[Any] = []
    add = H264File.add_stream
    monkeypatch.setattr(
        H264File, "add_stream", lambda *given: opened.append(add(*given)) or opened[-1]
    )
    monkeypatch.setattr(h264, "usable_cores", lambda: 4)
    write_video(tmp_path / "x.mp4", at([0, 1, 2]))
    (stream,) = opened
    assert str(stream.codec_context.thread_type) == "ThreadType.FRAME"
    assert stream.codec_context.thread_count == 6 <= MOST_THREADS


def test_other_suffixes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.mp4, \.m4v"):
        sinks.open("video", tmp_path / "x.wmv")


TIME_BASES = [
    # time base, ticks per frame, fps
    (Fraction(1, 12800), 512, Fraction(25)),  # what ffmpeg writes into MP4 for 25 fps
    (Fraction(1, 90000), 3003, Fraction(30000, 1001)),  # MPEG-TS, NTSC
    (Fraction(1001, 24000), 1, Fraction(24000, 1001)),  # a tick is a frame, numerator not 1
    (Fraction(1, 24), 1, Fraction(24)),  # AVI
    (Fraction(1, 1000), 41, Fraction(24000, 1001)),  # Matroska: milliseconds
    (Fraction(1, 11988), 500, Fraction(2997, 125)),
    (Fraction(1, 1_000_000), 33_367, Fraction(30)),  # microseconds
    (Fraction(1, 30), 1, Fraction(0)),  # no frame rate known
]


@pytest.mark.slow
@pytest.mark.parametrize(("base", "ticks", "fps"), TIME_BASES, ids=lambda value: str(value))
@pytest.mark.parametrize("start", [0, 133_500, -7])
def test_stamps_survive_exactly(
    base: Fraction, ticks: int, fps: Fraction, start: int, tmp_path: Path
) -> None:
    """Uneven steps (1, 2, 1, 3 frames apart), moved to 0; the track's own tick may be finer than
    the source's.
    """
    steps = np.cumsum([0, *([1, 2, 1, 3] * 6)]).tolist()
    sink = write_video(
        tmp_path / "x.mp4", at([start + ticks * s for s in steps]), time_base=base, fps=fps
    )
    wanted = [s * ticks * base for s in steps]
    assert read_stamps(tmp_path / "x.mp4") == wanted
    stream_base = Fraction(probe(tmp_path / "x.mp4")["streams"][0]["time_base"])
    assert [pts * stream_base for pts in probe_pts(tmp_path / "x.mp4")] == wanted
    assert sink.notes == []


def test_a_tick_of_days_is_shortened_and_not_refused(tmp_path: Path) -> None:
    """A damaged AVI states 25/8388609 frames a second; MP4 has no timescale below 1."""
    base = Fraction(8388609, 25)
    write_video(tmp_path / "x.mp4", at([0, 1, 2, 3]), time_base=base, fps=1 / base)
    stamps = read_stamps(tmp_path / "x.mp4")
    assert len(stamps) == 4
    assert stamps == sorted(set(stamps))


STAMPS = [
    # why, source pts, written pts, how many were replaced
    ("equal", [0, 512, 512, 1536], [0, 512, 1024, 1536], 1),
    ("a step back, then its own stamps again", [0, 512, 200, 1536], [0, 512, 1024, 1536], 1),
    ("9 s of pause are kept", [0, 512, 512 + 9 * 12800], [0, 512, 512 + 9 * 12800], 0),
    ("a jump of 11 s, the clock goes on", [0, 512, 141_312, 142_000], [0, 512, 1024, 1712], 1),
    ("stands still", [7, 7, 7, 7], [0, 512, 1024, 1536], 3),
]


@pytest.mark.parametrize(
    ("why", "source", "written", "replaced"), STAMPS, ids=[row[0] for row in STAMPS]
)
def test_stamps_that_no_container_takes(
    why: str, source: list[int], written: list[int], replaced: int, tmp_path: Path
) -> None:
    sink = write_video(tmp_path / "x.mp4", at(source))
    assert probe_pts(tmp_path / "x.mp4") == written
    assert [note.split()[0] for note in sink.notes] == ([str(replaced)] if replaced else [])


@pytest.mark.slow
def test_long_pause_is_kept_in_mp4_and_dropped_in_ts(tmp_path: Path) -> None:
    """A slide that stands for 30 s is one frame of a recorded talk; in MPEG-TS such a gap is a new
    clock. (FFmpeg looks into this one too briefly to learn the size: cv2 grabs its frames, and
    cannot make one.)
    """
    pauses = {}
    for name in ("a.mp4", "a.ts"):
        source = tmp_path / name
        select = [
            "-vf",
            "select='lt(t,2)+gt(t,32)'",
            *"-fps_mode vfr -c:v libx264 -c:a aac".split(),
        ]
        talk = ["-f", "lavfi", "-i", "testsrc=s=64x48:r=5:d=34", "-f", "lavfi", "-i", "sine=d=34"]
        subprocess.run(["ffmpeg", "-v", "error", *talk, *select, source], check=True)
        process = detect_video(name, "--engine", "null", "-o", f"out-{name[2:]}.mp4", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        written = tmp_path / f"out-{name[2:]}.mp4"
        pauses[name] = [
            round(max(read_stamps(written))),
            round(float(probe(written)["streams"][1]["duration"])),
        ]
    assert pauses == {"a.mp4": [34, 34], "a.ts": [3, 3]}


DAY = 24 * 3600  # seconds


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_weeks_between_frames_are_kept(suffix: str, tmp_path: Path) -> None:
    """MP4 counts the time between two frames in 31 bits: 24.8 days, in milliseconds."""
    seconds = [0, 1, 20 * DAY, 44 * DAY, 68 * DAY, 68 * DAY + 1]
    sink = write_video(
        tmp_path / f"x{suffix}",
        at([1000 * second for second in seconds]),
        time_base=Fraction(1, 1000),
        longest_gap_s=69.0 * DAY,
    )
    assert read_stamps(tmp_path / f"x{suffix}") == seconds
    assert sink.notes == []


@pytest.mark.parametrize(("days", "note"), [(6, True), (30, True), (0.3, True), (0.06, False)])
@pytest.mark.parametrize("longest", [6.5, 40.0])  # days; in the longer one without B-frames
def test_a_pause_that_mp4_cannot_hold_is_shortened(
    days: float, note: bool, longest: float, tmp_path: Path
) -> None:
    """A time base of 1/90000 leaves 6.6 hours. The frames after the pause keep their intervals."""
    pause = round(days * DAY) * 90_000
    stored = [0, 3600, 7200, pause, pause + 3600, pause + 7200]
    sink = write_video(
        tmp_path / "x.mp4", at(stored), time_base=Fraction(1, 90_000), longest_gap_s=longest * DAY
    )
    stamps = read_stamps(tmp_path / "x.mp4")
    assert len(stamps) == len(stored)
    assert [b - a for a, b in pairwise(stamps)][3:] == [Fraction(1, 25)] * 2
    assert bool(sink.notes) == note
    if note and days < longest:
        assert 4 * 3600 < stamps[3] < 6.6 * 3600


@pytest.mark.slow
def test_wide_stride_keeps_its_times(tmp_path: Path) -> None:
    sink = write_video(
        tmp_path / "x.mp4", at([i * 300 * 512 for i in range(4)], step=300)
    )  # 12 s apart
    assert probe_pts(tmp_path / "x.mp4") == [i * 300 * 512 for i in range(4)]
    assert sink.notes == []
    assert (
        probe(tmp_path / "x.mp4")["streams"][0]["duration"] == "48.000000"
    )  # the last one lasts 12 s too


@pytest.mark.parametrize(
    "size", [(241, 427), (48, 63), (47, 64), (16, 16), (1, 1), (2, 900)], ids=str
)
def test_odd_sizes_are_padded_by_their_edge(size: tuple[int, int], tmp_path: Path) -> None:
    height, width = size
    even = height + height % 2, width + width % 2
    frames = [make_frame(i, size=size) for i in range(5)]
    write_video(tmp_path / "x.mp4", frames)
    pictures = decode(tmp_path / "x.mp4", even[1], even[0])
    assert len(pictures) == 5
    for i, picture in enumerate(pictures):  # the pad is as bright as the picture
        assert np.abs(picture.astype(int) - brightness(i)).max() <= 6


@pytest.mark.parametrize("size", [(64, 96), (720, 1280)], ids=["small", "720 lines"])
def test_colours_come_back(size: tuple[int, int], tmp_path: Path) -> None:
    """The matrix that converts must be the one that the tag names: with the wrong one, pure green
    is off by 30.
    """
    height, width = size
    colours = np.array(
        [
            [0, 0, 255],
            [0, 255, 0],
            [255, 0, 0],
            [0, 255, 255],
            [255, 255, 0],
            [255, 0, 255],
            [0, 0, 0],
            [255] * 3,
        ],
        np.uint8,
    )
    image = np.repeat(np.repeat(colours.reshape(2, 4, 3), height // 2, 0), width // 4, 1)
    frames = [Frame(i, i * 512, 0.0, image) for i in range(3)]
    write_video(tmp_path / "x.mp4", frames, options={"crf": 1})
    for picture in (
        decode(tmp_path / "x.mp4", width, height)[1],
        decode_with_cv2(tmp_path / "x.mp4"),
    ):
        for row in range(2):
            for column in range(4):  # the middle of each field: chroma is shared across its edges
                y, x = height // 4 + row * height // 2, width // 8 + column * width // 4
                assert np.abs(picture[y, x].astype(int) - colours[row * 4 + column]).max() <= 5


def decode_with_cv2(path: Path) -> np.ndarray:
    capture = cv2.VideoCapture(str(path))
    done, picture = capture.read()
    capture.release()
    assert done
    return picture


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".avi", ".gif"])
def test_a_picture_of_another_size_is_fitted_whole(suffix: str, tmp_path: Path) -> None:
    frames = [make_frame(0), make_frame(1, size=(96, 64)), make_frame(2)]
    write_video(tmp_path / f"x{suffix}", frames)
    pictures = decode(tmp_path / f"x{suffix}", 64, 48)
    assert len(pictures) == 3
    assert pictures[1][:, :12].max() <= 8  # black at the sides: 64x96 became 32x48
    assert abs(float(pictures[1][:, 20:44].mean()) - brightness(1)) < 4


def test_frames_that_do_not_arrive_are_noticed(tmp_path: Path) -> None:
    sink = sinks.open("video", tmp_path / "x.mp4")
    sink.open(make_info())
    for i in range(5):
        sink.write(make_frame(i), NONE)
    sink._file.sent += 1  # as if the muxer had swallowed one
    with pytest.raises(OutputError, match=r"\b6 frames.*\b5\b"):
        sink.close()
    assert not (tmp_path / "x.mp4").exists()
    assert sink.abort() == tmp_path / "x.partial.mp4"


def test_too_large_for_h264(tmp_path: Path) -> None:
    sink = sinks.open("video", tmp_path / "x.mp4")
    sink.open(make_info())
    with pytest.raises(OutputError, match="16384 pixels"):
        sink.write(make_frame(0, size=(2, 16386)), NONE)
    assert sink.abort() is None


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "x.mp4", at([0, 512, 512, 10]))
    assert capfd.readouterr() == ("", "")


def test_conversion_equals_the_plain_one(tmp_path: Path) -> None:
    """The fast path (cv2, its chroma at the top left pixel) against BT.601 written out."""
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    sink = sinks.open("video", tmp_path / "x.mp4")
    sink.open(make_info())
    sink.write(Frame(0, 0, 0.0, image), NONE)
    b, g, r = (image[..., c].astype(float) / 255 for c in range(3))
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    y, u, v = 16 + 219 * luma, 128 + 112 * (b - luma) / 0.886, 128 + 112 * (r - luma) / 0.701
    assert np.abs(sink._file._canvas.yuv[:48] - y).max() <= 1
    assert np.abs(sink._file._canvas.yuv[48:60].reshape(24, 32) - u[::2, ::2]).max() <= 1
    assert np.abs(sink._file._canvas.yuv[60:].reshape(24, 32) - v[::2, ::2]).max() <= 1
    sink.abort()
