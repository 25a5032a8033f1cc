"""The annotated video, read by ffprobe, ffmpeg and PyAV."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from probing import brightness, decode, make_frame, open_sink, probe, probe_pts, write_video

from detector.core.errors import OutputError
from detector.core.sinks.video import h264
from detector.core.sinks.video.h264 import MOST_THREADS, H264File
from detector.core.types import Detections, Frame
from tests.cli.command import detect_video
from tests.sources.oddities import ffmpeg

NO_DETECTIONS = Detections.empty()


def frames_at(pts: list[int], step: int = 1) -> list[Frame]:
    return [make_frame(i * step, p) for i, p in enumerate(pts)]


def read_times(path: Path) -> list[Fraction]:
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


def test_ffprobe_reports_the_expected_stream_properties(tmp_path: Path) -> None:
    write_video(
        tmp_path / "x.mp4", [make_frame(i) for i in range(10)], sample_aspect_ratio=Fraction(16, 11)
    )
    (stream,) = probe(tmp_path / "x.mp4")["streams"]
    expected = {
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
    assert {key: stream.get(key) for key in expected} == expected


def test_index_precedes_the_pictures(tmp_path: Path) -> None:
    write_video(tmp_path / "x.mp4", [make_frame(i) for i in range(10)])
    data = (tmp_path / "x.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_frame_buffer_may_be_overwritten_after_write(tmp_path: Path) -> None:
    sink = open_sink("video", tmp_path / "x.mp4")
    frame = make_frame(0)
    for i in range(30):  # more than x264 looks ahead
        frame.image[:], frame.index, frame.pts = brightness(i), i, i * 512
        sink.write(frame, NO_DETECTIONS)
        frame.image[:] = 255
    sink.close()
    means = [float(p.mean()) for p in decode(tmp_path / "x.mp4", 64, 48)]
    assert means == pytest.approx([brightness(i) for i in range(30)], abs=3)


def test_x264_uses_frame_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV's default is threads for slices. With such threads, we would wait for every frame."""
    opened: list[Any] = []
    add = H264File.add_stream
    monkeypatch.setattr(
        H264File, "add_stream", lambda *args: opened.append(add(*args)) or opened[-1]
    )
    monkeypatch.setattr(h264, "usable_cores", lambda: 4)
    write_video(tmp_path / "x.mp4", frames_at([0, 1, 2]))
    (stream,) = opened
    assert str(stream.codec_context.thread_type) == "ThreadType.FRAME"
    assert stream.codec_context.thread_count == 6 <= MOST_THREADS


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
def test_timestamps_are_exact(
    base: Fraction, ticks: int, fps: Fraction, start: int, tmp_path: Path
) -> None:
    """Steps are uneven (1, 2, 1, 3 frames). Times are moved to begin at 0. The track may have a
    finer tick than the source."""
    steps = np.cumsum([0, *([1, 2, 1, 3] * 6)]).tolist()
    sink = write_video(
        tmp_path / "x.mp4", frames_at([start + ticks * s for s in steps]), time_base=base, fps=fps
    )
    expected = [s * ticks * base for s in steps]
    assert read_times(tmp_path / "x.mp4") == expected
    stream_base = Fraction(probe(tmp_path / "x.mp4")["streams"][0]["time_base"])
    assert [pts * stream_base for pts in probe_pts(tmp_path / "x.mp4")] == expected
    assert sink.notes == []


def test_time_base_of_days_is_shortened(tmp_path: Path) -> None:
    """A damaged AVI states that a frame lasts 8388609/25 s. A tick of MP4 is at most 1 s."""
    base = Fraction(8388609, 25)
    write_video(tmp_path / "x.mp4", frames_at([0, 1, 2, 3]), time_base=base, fps=1 / base)
    times = read_times(tmp_path / "x.mp4")
    assert len(times) == 4
    assert times == sorted(set(times))


TIMES = [
    # case, source pts, written pts, number of replaced pts
    ("the same time twice", [0, 512, 512, 1536], [0, 512, 1024, 1536], 1),
    ("a step back", [0, 512, 200, 1536], [0, 512, 1024, 1536], 1),
    ("a pause of 9 s", [0, 512, 512 + 9 * 12800], [0, 512, 512 + 9 * 12800], 0),
    ("a jump of 11 s", [0, 512, 141_312, 142_000], [0, 512, 1024, 1712], 1),
    ("all equal", [7, 7, 7, 7], [0, 512, 1024, 1536], 3),
]


@pytest.mark.parametrize(
    ("why", "source", "written", "replaced"), TIMES, ids=[row[0] for row in TIMES]
)
def test_invalid_timestamps_are_replaced_and_noted(
    why: str, source: list[int], written: list[int], replaced: int, tmp_path: Path
) -> None:
    sink = write_video(tmp_path / "x.mp4", frames_at(source))
    assert probe_pts(tmp_path / "x.mp4") == written
    assert [note.split()[0] for note in sink.notes] == ([str(replaced)] if replaced else [])


@pytest.mark.slow
def test_long_pause_is_kept_from_mp4_and_dropped_from_ts(tmp_path: Path) -> None:
    """A recorded talk shows one slide for 30 s. In MPEG-TS such a gap means a new clock."""
    pauses = {}
    for name in ("a.mp4", "a.ts"):
        source = tmp_path / name
        select = ["-vf", "select='lt(t,2)+gt(t,32)'", "-fps_mode", "vfr", "-c:v", "libx264"]
        talk = ["-f", "lavfi", "-i", "testsrc=s=64x48:r=5:d=34", "-f", "lavfi", "-i", "sine=d=34"]
        ffmpeg(*talk, *select, "-c:a", "aac", source)
        process = detect_video(name, "--engine", "null", "-o", f"out-{name[2:]}.mp4", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        written = tmp_path / f"out-{name[2:]}.mp4"
        pauses[name] = [
            round(max(read_times(written))),
            round(float(probe(written)["streams"][1]["duration"])),
        ]
    assert pauses == {"a.mp4": [34, 34], "a.ts": [3, 3]}


DAY = 24 * 3600  # seconds


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_weeks_between_frames_are_kept(suffix: str, tmp_path: Path) -> None:
    """MP4 stores the time between two frames in 31 bits: 24.8 days in milliseconds."""
    seconds = [0, 1, 20 * DAY, 44 * DAY, 68 * DAY, 68 * DAY + 1]
    sink = write_video(
        tmp_path / f"x{suffix}",
        frames_at([1000 * second for second in seconds]),
        time_base=Fraction(1, 1000),
        longest_gap_s=69.0 * DAY,
    )
    assert read_times(tmp_path / f"x{suffix}") == seconds
    assert sink.notes == []


@pytest.mark.parametrize(("days", "note"), [(6, True), (30, True), (0.3, True), (0.06, False)])
@pytest.mark.parametrize("longest", [6.5, 40.0])  # days; from a week on, B-frames are off
def test_pause_that_mp4_cannot_store_is_shortened(
    days: float, note: bool, longest: float, tmp_path: Path
) -> None:
    """With a time base of 1/90000, the limit is 6.6 hours. Later frames keep their intervals."""
    pause = round(days * DAY) * 90_000
    stored = [0, 3600, 7200, pause, pause + 3600, pause + 7200]
    sink = write_video(
        tmp_path / "x.mp4",
        frames_at(stored),
        time_base=Fraction(1, 90_000),
        longest_gap_s=longest * DAY,
    )
    times = read_times(tmp_path / "x.mp4")
    assert len(times) == len(stored)
    assert [b - a for a, b in pairwise(times)][3:] == [Fraction(1, 25)] * 2
    assert bool(sink.notes) == note
    if note and days < longest:
        assert 4 * 3600 < times[3] < 6.6 * 3600


@pytest.mark.slow
def test_wide_stride_keeps_timestamps(tmp_path: Path) -> None:
    sink = write_video(
        tmp_path / "x.mp4", frames_at([i * 300 * 512 for i in range(4)], step=300)
    )  # 12 s apart
    assert probe_pts(tmp_path / "x.mp4") == [i * 300 * 512 for i in range(4)]
    assert sink.notes == []
    assert (
        probe(tmp_path / "x.mp4")["streams"][0]["duration"] == "48.000000"
    )  # the last one lasts 12 s too


@pytest.mark.parametrize(
    "size", [(241, 427), (48, 63), (47, 64), (16, 16), (1, 1), (2, 900)], ids=str
)
def test_odd_sizes_are_padded_with_their_edge(size: tuple[int, int], tmp_path: Path) -> None:
    height, width = size
    even = height + height % 2, width + width % 2
    frames = [make_frame(i, size=size) for i in range(5)]
    write_video(tmp_path / "x.mp4", frames)
    pictures = decode(tmp_path / "x.mp4", even[1], even[0])
    assert len(pictures) == 5
    for i, picture in enumerate(pictures):  # the padding is as bright as the picture
        assert np.abs(picture.astype(int) - brightness(i)).max() <= 6


@pytest.mark.parametrize("size", [(64, 96), (720, 1280)], ids=["small", "720 lines"])
def test_colours_survive_encoding(size: tuple[int, int], tmp_path: Path) -> None:
    """Unless the conversion uses the matrix that the tag states, pure green is off by 30."""
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
    by_cv2 = cv2.VideoCapture(str(tmp_path / "x.mp4")).read()[1]
    for picture in (decode(tmp_path / "x.mp4", width, height)[1], by_cv2):
        for row in range(2):
            for column in range(4):  # the middle of each patch, because chroma blurs its edges
                y, x = height // 4 + row * height // 2, width // 8 + column * width // 4
                assert np.abs(picture[y, x].astype(int) - colours[row * 4 + column]).max() <= 5


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".avi", ".gif"])
def test_picture_of_another_size_is_letterboxed(suffix: str, tmp_path: Path) -> None:
    frames = [make_frame(0), make_frame(1, size=(96, 64)), make_frame(2)]
    write_video(tmp_path / f"x{suffix}", frames)
    pictures = decode(tmp_path / f"x{suffix}", 64, 48)
    assert len(pictures) == 3
    assert pictures[1][:, :12].max() <= 8  # black at the sides: 64x96 became 32x48
    assert abs(float(pictures[1][:, 20:44].mean()) - brightness(1)) < 4


def test_lost_frames_raise_on_close(tmp_path: Path) -> None:
    sink = open_sink("video", tmp_path / "x.mp4")
    for i in range(5):
        sink.write(make_frame(i), NO_DETECTIONS)
    sink._file.sent += 1  # as if the muxer had lost one
    with pytest.raises(OutputError, match=r"\b6 frames.*\b5\b"):
        sink.close()
    assert not (tmp_path / "x.mp4").exists()
    assert sink.abort() == tmp_path / "x.partial.mp4"


def test_picture_too_large_for_h264_is_refused(tmp_path: Path) -> None:
    sink = open_sink("video", tmp_path / "x.mp4")
    with pytest.raises(OutputError, match="16384 pixels"):
        sink.write(make_frame(0, size=(2, 16386)), NO_DETECTIONS)
    assert sink.abort() is None


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "x.mp4", frames_at([0, 512, 512, 10]))
    assert capfd.readouterr() == ("", "")


def test_conversion_equals_bt601(tmp_path: Path) -> None:
    """Compare the fast path (cv2, which takes chroma from the top left pixel) with BT.601."""
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    sink = open_sink("video", tmp_path / "x.mp4")
    sink.write(Frame(0, 0, 0.0, image), NO_DETECTIONS)
    b, g, r = (image[..., c].astype(float) / 255 for c in range(3))
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    y, u, v = 16 + 219 * luma, 128 + 112 * (b - luma) / 0.886, 128 + 112 * (r - luma) / 0.701
    assert np.abs(sink._file._canvas.yuv[:48] - y).max() <= 1
    assert np.abs(sink._file._canvas.yuv[48:60].reshape(24, 32) - u[::2, ::2]).max() <= 1
    assert np.abs(sink._file._canvas.yuv[60:].reshape(24, 32) - v[::2, ::2]).max() <= 1
    sink.abort()
