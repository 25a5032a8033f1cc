"""Sources whose clock does not begin at 0: --start counts from the first timestamp."""

import json
from pathlib import Path

import av
import pytest

from detector import Detector
from detector.core import sources
from detector.core.config.levels import resolve_config
from detector.core.errors import SourceError
from detector.core.run.detect import detect
from detector.core.run.reading import SourceReading
from detector.core.types import Frame
from tests.sources.clips import standard_input

from .oddities import FRAMES, ffmpeg, write_parts

OFFSET = 3600
READERS = [("auto", "bgr"), ("av", "bgr"), ("opencv", "bgr"), ("auto", "yuv420p")]


@pytest.fixture(scope="module", params=["late.ts", "late.mkv", "plain.mp4"])
def clip(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clock") / request.param
    moving = ("-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25:duration=2")
    encoder = ("-c:v", "libx264", "-preset", "ultrafast", "-g", "10", "-pix_fmt", "yuv420p")
    late = ("-output_ts_offset", str(OFFSET))
    late = late if "late" in path.name else ("-movflags", "+faststart")
    ffmpeg(*moving, *encoder, *late, path)
    return path


def read(path: Path, decoder: str, pixels: str, **window: str) -> tuple[list[Frame], list[str]]:
    config = resolve_config(None, {"decoder": decoder, **window})
    with SourceReading.of(config).open(str(path), pixels) as source:
        return list(source), source.notes


@pytest.mark.parametrize(("decoder", "pixels"), READERS)
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"start": "1"}, range(25, 50)),
        ({"start": "0.5", "duration": "0.4"}, range(13, 23)),
        ({"duration": "0.2"}, range(5)),
        ({"start": "0"}, range(50)),
    ],
    ids=str,
)
def test_start_counts_from_the_first_timestamp(
    clip: Path, decoder: str, pixels: str, window: dict[str, str], expected: range
) -> None:
    whole, _ = read(clip, decoder, pixels)
    part, notes = read(clip, decoder, pixels, **window)
    assert [frame.index for frame in part] == list(expected)
    # Frames keep the source's own clock.
    assert [frame.time_s for frame in part] == [whole[at].time_s for at in expected]
    clock_notes = [note for note in notes if note.startswith("the source's clock begins at 36")]
    assert len(clock_notes) == ("late" in clip.name and "start" in window)


def test_note_converts_start_to_the_clock_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "late.ts"
    ffmpeg(
        "-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25:duration=1", "-c:v", "mpeg2video", path
    )
    _, notes = read(path, "auto", "bgr", start="0.4")
    (begins,) = {frame.time_s for frame in read(path, "auto", "bgr", duration="0.01")[0]}
    assert f"{begins:.3f} s: --start 0.400 s is {begins + 0.4:.3f}" in notes[0]


def test_start_beyond_the_end_raises_an_error_with_the_end_on_both_clocks(clip: Path) -> None:
    with pytest.raises(SourceError) as caught:
        read(clip, "auto", "bgr", start="3601.5")
    assert "1.960 s" in str(caught.value)
    assert ("on its clock" in str(caught.value)) == ("late" in clip.name)


def test_number_of_frames_to_read_is_estimated(clip: Path) -> None:
    config = resolve_config(None, {"start": "1", "duration": "0.5"})
    with sources.open(str(clip)) as source:
        assert SourceReading.of(config).frames_ahead(source.info) in (12, 13)


def test_run_and_detector_read_the_same_window(clip: Path, tmp_path: Path) -> None:
    options = {"engine": "null", "output": f"{tmp_path}/", "run_dir": str(tmp_path / "run")}
    window = {"start": "1.2", "duration": "0.4"}
    result = detect([str(clip)], resolve_config(None, {**options, **window, "save": "jsonl"}))
    assert result.exit_code == 0
    (rows,) = tmp_path.glob("*.jsonl")
    frames = [json.loads(line)["frame"] for line in rows.read_text().splitlines()]
    assert frames == list(range(30, 40))
    assert any("clock begins" in note for note in result.summary.notes) == ("late" in clip.name)
    with Detector(engine="null", **window) as detector:
        assert [frame.index for frame, _ in detector.stream(str(clip))] == frames


H264, AAC = ("-c:v", "libx264", "-bf", "2"), ("-c:a", "aac")
H265 = ("-c:v", "libx265", "-x265-params", "log-level=0:bframes=2")
MPEG2, VP9 = ("-c:v", "mpeg2video", "-bf", "2"), ("-c:v", "libvpx-vp9", "-deadline", "realtime")
JOINED = {  # file of two recordings -> encoder of both, and the start of each clock in seconds
    "same.ts": ((*H264, *AAC), 1, 0),
    "hevc.ts": ((*H265, *AAC), 1, 0),
    "lower.ts": ((*H264, *AAC), 200, 0),  # the second clock is lower: FFmpeg assumes an overflow
    "higher.ts": ((*MPEG2, "-c:a", "mp2"), 0, 3600),
    "same.mpg": ((*MPEG2, "-c:a", "mp2"), 1, 0),
    "same.webm": ((*VP9, "-c:a", "libopus"), 1, 0),
    "same.mkv": ((*H264, *AAC), 1, 0),
    "overlapping.ts": ((*H264, "-an"), 0, 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
def test_joined_recordings_have_continuous_time(name: str, tmp_path: Path) -> None:
    encoder, *starts = JOINED[name]
    offsets = [("-output_ts_offset", str(start)) for start in starts]
    path = write_parts(tmp_path / name, encoder, *offsets)
    for decoder, pixels in READERS:
        whole, notes = read(path, decoder, pixels)
        begin_s = whole[0].time_s
        assert [frame.time_s - begin_s for frame in whole] == pytest.approx(
            [n / 25 for n in range(2 * FRAMES)], abs=0.002
        )
        assert sum("at 1 place" in note for note in notes) == len(notes) == 1
        part, _ = read(path, decoder, pixels, start="1", duration="0.39")
        assert [frame.index for frame in part] == [*range(25, 35)]
    options = {"engine": "null", "output": f"{tmp_path}/", "run_dir": str(tmp_path / "run")}
    assert not detect([str(path)], resolve_config(None, options)).exit_code
    with av.open(next(tmp_path.glob("*-detected.mp4"))) as container:
        last_s = {s.type: (s.start_time + s.duration) * s.time_base for s in container.streams}
    assert last_s["video"] == pytest.approx(1.6, abs=0.01)
    assert "-an" in encoder or 1.5 < last_s["audio"] < 1.65


def test_option_start_works_for_standard_input(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = SourceReading.of(resolve_config(None, {"start": "1"}))
    with standard_input(clip, monkeypatch), reading.open("-") as source:
        assert [frame.index for frame in source] == list(range(25, 50))
