"""Sources whose clock does not begin at 0: --start is counted from where it begins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from detector import Detector
from detector.core import sources
from detector.core.config.levels import resolve_config
from detector.core.errors import SourceError
from detector.core.run.detect import detect
from detector.core.run.reading import Reading
from detector.core.types import Frame

from .oddities import ffmpeg

OFFSET = 3600
READERS = [("auto", "bgr"), ("av", "bgr"), ("opencv", "bgr"), ("auto", "yuv420p")]


@pytest.fixture(scope="module", params=["late.ts", "late.mkv", "plain.mp4"])
def clip(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds, a key frame every ten. Those that are late begin at an hour."""
    path = tmp_path_factory.mktemp("clock") / request.param
    moving = ("-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25:duration=2")
    encoder = ("-c:v", "libx264", "-preset", "ultrafast", "-g", "10", "-pix_fmt", "yuv420p")
    late = ("-output_ts_offset", str(OFFSET))
    late = late if "late" in path.name else ("-movflags", "+faststart")
    ffmpeg(*moving, *encoder, *late, path)
    return path


def read(path: Path, decoder: str, pixels: str, **window: str) -> tuple[list[Frame], list[str]]:
    config = resolve_config(None, {"decoder": decoder, **window})
    with Reading.of(config).open(str(path), pixels) as source:
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
def test_start_counts_from_where_the_clock_begins(
    clip: Path, decoder: str, pixels: str, window: dict[str, str], expected: range
) -> None:
    whole, _ = read(clip, decoder, pixels)
    some, notes = read(clip, decoder, pixels, **window)
    assert [frame.index for frame in some] == list(expected)
    # What rows say stays on the source's own clock.
    assert [frame.time_s for frame in some] == [whole[at].time_s for at in expected]
    said = [note for note in notes if note.startswith("the source's clock begins at 36")]
    assert len(said) == ("late" in clip.name and "start" in window)


def test_what_the_note_says(tmp_path: Path) -> None:
    path = tmp_path / "late.ts"
    ffmpeg(
        "-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25:duration=1", "-c:v", "mpeg2video", path
    )
    _, notes = read(path, "auto", "bgr", start="0.4")
    (begins,) = {frame.time_s for frame in read(path, "auto", "bgr", duration="0.01")[0]}
    assert f"{begins:.3f} s: --start 0.400 s is {begins + 0.4:.3f}" in notes[0]


def test_a_start_behind_the_end_is_refused_on_both_clocks(clip: Path) -> None:
    with pytest.raises(SourceError) as caught:
        read(clip, "auto", "bgr", start="3601.5")
    assert "1.960 s" in str(caught.value)
    assert ("on its clock" in str(caught.value)) == ("late" in clip.name)


def test_the_progress_bar_knows_how_many_are_left(clip: Path) -> None:
    config = resolve_config(None, {"start": "1", "duration": "0.5"})
    with sources.open(str(clip)) as source:
        assert Reading.of(config).frames_ahead(source.info) in (12, 13)


def test_rows_of_a_run_and_from_python(clip: Path, tmp_path: Path) -> None:
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


def test_standard_input(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from detector.core.sources import _standard_input
    from detector.core.sources._standard_input import StandardInput

    descriptor = os.open(clip, os.O_RDONLY)
    monkeypatch.setattr(_standard_input, "_current", StandardInput(descriptor))
    try:
        with Reading.of(resolve_config(None, {"start": "1"})).open("-") as source:
            assert [frame.index for frame in source] == list(range(25, 50))
    finally:
        os.close(descriptor)


def test_the_reported_file(shared: Path) -> None:
    path = shared / "data/reports/late.ts"
    frames, notes = read(path, "auto", "bgr", start="0.5")
    assert [frame.index for frame in frames] == list(range(13, 25))
    assert frames[0].time_s == pytest.approx(3601.92)
    assert "begins at 3601.400 s" in notes[0]
    with pytest.raises(SourceError, match=r"0.960 s.*\(3602.360"):
        read(path, "auto", "bgr", start="10")
