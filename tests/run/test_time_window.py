"""``--start`` and ``--duration``: which frames are read, and invalid times."""

from fractions import Fraction
from pathlib import Path

import pytest

from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.detect import RunResult, detect
from detector.core.run.reading import SourceReading
from detector.core.types import Frame
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

CLIP = str(CHECKOUT / "videos" / "street.mp4")
DECODERS = ("auto", "av")


def read(**options: object) -> list[Frame]:
    with SourceReading.of(resolve_config(None, options)).open(CLIP) as source:
        return list(source)


def run(folder: Path, *specs: str, **options: object) -> RunResult:
    settings = {"engine": "null", "output": f"{folder}/", "run_dir": str(folder / "run"), **options}
    return detect(specs, resolve_config(None, settings))


TIMES = [
    ("10", 10),
    ("0.5", Fraction(1, 2)),
    ("00:10", 10),
    ("1:02.250", Fraction(249, 4)),
    ("1:00:01", 3601),
    ("90:00", 5400),
    ("0", 0),
]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_time_is_parsed(text: str, seconds: Fraction) -> None:
    assert SourceReading.of(resolve_config(None, {"start": text})).start_s == seconds


WRONG = ["", "x", "-1", "1:60", "1:99:00", "1:2:3:4", "1e3", "nan", ":10", "10:", "5s", "1\n", "٣"]


@pytest.mark.parametrize("text", WRONG, ids=ascii)
def test_invalid_time_is_refused(text: str, tmp_path: Path) -> None:
    for name in ("start", "duration"):
        with pytest.raises(UsageError):
            run(tmp_path, CLIP, **{name: text})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
def test_frames_of_a_window_are_the_same_as_in_a_whole_run(decoder: str) -> None:
    whole = [(f.index, f.pts, f.time_s) for f in read(decoder=decoder, frames=30)]
    part = read(decoder=decoder, start=str(whole[10][2]), duration="0.2")
    end_s = whole[10][2] + 0.2
    assert [(f.index, f.pts, f.time_s) for f in part] == [
        frame for frame in whole[10:] if frame[2] < end_s - 1e-9
    ]
    between = read(decoder=decoder, start=str(whole[9][2] + 0.001), frames=1)
    assert between[0].index == 10


AHEAD = [
    ({}, 250),
    ({"frames": 7}, 7),
    ({"stride": 3}, 84),
    ({"start": "9"}, 25),
    ({"start": "9", "duration": "0.2"}, 5),
    ({"start": "9.8", "duration": "2", "frames": 9}, 5),
    ({"start": "1", "stride": 100}, 3),
]


@pytest.mark.parametrize(("options", "frames"), AHEAD, ids=str)
def test_number_of_frames_is_known_before_the_run(options: dict[str, object], frames: int) -> None:
    with SourceReading.of(resolve_config(None, {})).open(CLIP) as source:
        assert SourceReading.of(resolve_config(None, options)).frames_ahead(source.info) == frames


def test_stride_counts_from_the_start_of_the_source() -> None:
    assert {frame.index % 5 for frame in read(start="0.1", duration="1", stride=5)} == {0}


@pytest.mark.parametrize("window", [{"start": "1:00:00"}, {"start": "0.001", "duration": "0.001"}])
def test_window_without_frames_is_refused(window: dict[str, str], tmp_path: Path) -> None:
    clip = write_video(tmp_path / "a.mp4")
    result = run(tmp_path, str(clip), **window)
    assert (result.exit_code, len(result.errors)) == (3, 1)
    assert list(tmp_path.glob("*detected*")) == []
