"""--start and --duration: which frames, with which numbers, and which sound."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.detect import RunResult, detect
from detector.core.run.reading import SourceReading
from detector.core.types import Frame
from tests.conftest import CHECKOUT
from tests.sources.clips import clip_with_sound

CLIP = str(CHECKOUT / "videos" / "street.mp4")
DECODERS = ("auto", "av", "opencv")


def read(**options: object) -> list[Frame]:
    with SourceReading.of(resolve_config(None, options)).open(CLIP) as source:
        return list(source)


def run(folder: Path, *specs: str, **options: object) -> RunResult:
    given = {"engine": "null", "output": f"{folder}/", "run_dir": str(folder / "run"), **options}
    return detect(specs, resolve_config(None, given))


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
def test_times(text: str, seconds: Fraction) -> None:
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
def test_the_same_frames_as_without(decoder: str) -> None:
    whole = [(f.index, f.pts, f.time_s) for f in read(decoder=decoder, frames=30)]
    some = read(decoder=decoder, start=str(whole[10][2]), duration="0.2")
    end = whole[10][2] + 0.2
    assert [(f.index, f.pts, f.time_s) for f in some] == [
        one for one in whole[10:] if one[2] < end - 1e-9
    ]
    between = read(decoder=decoder, start=str(whole[9][2] + 0.001), frames=1)
    assert between[0].index == 10


def test_the_pictures_are_the_same() -> None:
    whole, some = read(frames=8), read(start="0.1", frames=2)
    for frame in some:
        np.testing.assert_array_equal(frame.image, whole[frame.index].image)


@pytest.mark.slow
def test_the_same_frames_behind_damage(tmp_path: Path) -> None:
    """cv2 gives up inside the file; PyAV continues, with the numbers of the whole run."""
    data = bytearray(Path(CLIP).read_bytes())
    middle = len(data) // 2
    data[middle : middle + 3000] = np.random.default_rng(1).bytes(3000)
    clip = tmp_path / "damaged.mp4"
    clip.write_bytes(data)

    def read_damaged(**options: object) -> list[tuple[int, int]]:
        with SourceReading.of(resolve_config(None, options)).open(str(clip)) as source:
            frames = [(frame.index, frame.pts) for frame in source]
            assert source.damaged
        return frames

    whole = read_damaged()
    for start in ("3", "7"):  # before the damage and after it
        some = read_damaged(start=start)
        assert some == whole[-len(some) :]
        assert len(some) > 25


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
def test_the_live_line_knows_how_many_frames_are_ahead(
    options: dict[str, object], frames: int
) -> None:
    with SourceReading.of(resolve_config(None, {})).open(CLIP) as source:
        assert SourceReading.of(resolve_config(None, options)).frames_ahead(source.info) == frames


def test_stride_counts_from_the_start_of_the_source() -> None:
    assert {frame.index % 5 for frame in read(start="0.1", duration="1", stride=5)} == {0}


def test_a_duration_alone_counts_from_the_first_frame() -> None:
    frames = read(duration="0.2")
    assert frames[0].index == 0
    assert frames[-1].time_s - frames[0].time_s < 0.2


@pytest.mark.parametrize("window", [{"start": "1:00:00"}, {"start": "0.001", "duration": "0.001"}])
def test_beyond_the_end(window: dict[str, str], tmp_path: Path) -> None:
    clip = clip_with_sound(tmp_path / "a.mp4")
    result = run(tmp_path, str(clip), **window)
    assert (result.exit_code, len(result.errors)) == (3, 1)
    assert list(tmp_path.glob("*detected*")) == []


@pytest.mark.slow
def test_rows_keep_the_numbers_of_the_source(tmp_path: Path) -> None:
    assert run(tmp_path, CLIP, start="0.2", duration="0.2", save="jsonl").exit_code == 0
    lines = (tmp_path / "street-null-detected.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert 0.2 <= rows[0]["time_s"] <= rows[-1]["time_s"] < 0.4
    assert rows[0]["frame"] > 0


def test_from_python() -> None:
    with Detector(engine="null", start="0.2", duration="0.1") as detector:
        times = [frame.time_s for frame, _ in detector.stream(CLIP)]
    assert 0.2 <= times[0] <= times[-1] < 0.3


@pytest.mark.slow
def test_the_sound_is_cut_alike(tmp_path: Path) -> None:
    clip = clip_with_sound(tmp_path / "a.mp4")
    for start, loud in (("0", False), ("1.2", True)):
        out = tmp_path / f"from{start}.mp4"
        result = run(tmp_path, str(clip), start=start, duration="0.6", output=str(out))
        assert result.exit_code == 0
        with av.open(str(out)) as file:
            assert file.streams.video[0].frames == 15
            sound = np.concatenate([one.to_ndarray()[0] for one in file.decode(audio=0)])
        assert len(sound) / 48000 == pytest.approx(0.6, abs=0.3)
        assert (np.abs(sound[9000:21000]).mean() > 0.1) == loud
