"""--only-detections: the selected frames, their order, timestamps, sound and rows."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from probing import brightness, decode, make_frame, make_info, one_person

from detector.core import sinks
from detector.core.config.schema import OutputConfig
from detector.core.errors import UsageError
from detector.core.run.outputs import OutputPlan
from detector.core.sinks.video import clips
from detector.core.sinks.video.clips import ClipFilter
from detector.core.types import Detections, Frame
from tests.sources.clips import beeping_clip

NO_DETECTIONS = Detections.empty()
TICK = Fraction(1, 25)


def choose(detected: set[int], lead: str, frames: int = 30) -> list[tuple[int, bool]]:
    chosen = ClipFilter(Fraction(lead), TICK)
    image = np.zeros((2, 2, 3), np.uint8)
    written = []
    for i in range(frames):
        image[:] = i
        for frame, gap in chosen.take(Frame(i, i, i / 25, image), i in detected):
            assert (frame.image == frame.index).all()  # not overwritten: held frames are copies
            written.append((frame.index, gap))
    return written


def spans(*runs: tuple[int, int]) -> list[tuple[int, bool]]:
    return [(i, i == first and first > 0) for first, last in runs for i in range(first, last + 1)]


TABLE = [
    (set(), "1", []),
    ({0}, "0", [(0, 0)]),
    ({4, 9}, "0", [(4, 4), (9, 9)]),
    ({10}, "0.12", [(7, 13)]),
    ({1}, "0.12", [(0, 4)]),  # the video begins within the lead
    ({28}, "0.12", [(25, 29)]),  # the video ends within the lead
    ({10, 12}, "0.12", [(7, 15)]),
    ({10, 17}, "0.12", [(7, 20)]),  # two clips that meet become one
    ({10, 18}, "0.12", [(7, 13), (15, 21)]),
    (set(range(30)), "0.12", [(0, 29)]),
    ({5}, "99", [(0, 29)]),
]


@pytest.mark.parametrize(("detected", "lead", "expected"), TABLE)
def test_frames_near_detections_are_selected(
    detected: set[int], lead: str, expected: list[tuple[int, int]]
) -> None:
    assert choose(detected, lead) == spans(*expected)


def test_lead_is_shortened_to_bound_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips, "MOST_HELD", 5 * 12)  # room for five pictures
    assert choose({20}, "99") == spans((15, 29))
    chosen = ClipFilter(Fraction(99), TICK)
    for i in range(21):
        list(chosen.take(Frame(i, i, i / 25, np.zeros((2, 2, 3), np.uint8)), i == 20))
    assert chosen.shortened == 1


def write_clips(path: Path, detected: set[int], frames: int = 50, **options: Any) -> sinks.Sink:
    (sink,) = sinks.open_all(
        {"video": path}, make_info(), {"only_detections": True, "lead": 0.12, **options}
    )
    for i in range(frames):
        sink.write(make_frame(i), one_person() if i in detected else NO_DETECTIONS)
    return sink


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".avi", ".gif"])
def test_clips_follow_each_other_without_a_gap(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    sink = write_clips(path, {10, 30})
    assert sink.close() == path
    assert sink.notes == []
    with av.open(str(path)) as file:
        times = [float(frame.pts * frame.time_base) for frame in file.decode(video=0)]
    assert times == pytest.approx([i / 25 for i in range(14)], abs=0.001)
    means = [float(picture.mean()) for picture in decode(path, 64, 48)]
    expected = [*range(7, 14), *range(27, 34)]
    assert means == pytest.approx([brightness(i) for i in expected], abs=4)


def test_no_video_is_written_without_detections(tmp_path: Path) -> None:
    sink = write_clips(tmp_path / "x.mp4", set())
    assert sink.close() is None
    assert len(sink.notes) == 1
    assert list(tmp_path.iterdir()) == []


def test_sound_is_cut_like_the_frames(tmp_path: Path) -> None:
    """The first clip, 2.8 to 3.6 s, contains the beep; the second one is silent."""
    source = beeping_clip(tmp_path / "in.mkv", "-c:a", "aac")
    info = make_info(str(source), has_audio=True, time_base=TICK)
    paths = {"video": tmp_path / "out.mp4"}
    (sink,) = sinks.open_all(paths, info, {"only_detections": True, "lead": 0.4})
    for n in range(150):
        detections = one_person() if n in (80, 125) else NO_DETECTIONS
        sink.write(Frame(n, n, n / 25, make_frame(n).image), detections)
    sink.close()
    with av.open(str(tmp_path / "out.mp4")) as file:
        assert file.streams.video[0].frames == 21 + 21
        blocks = [
            (frame.time, np.abs(frame.to_ndarray()[0]).max()) for frame in file.decode(audio=0)
        ]
    loud = [time for time, level in blocks if level > 0.5]
    assert loud[0] == pytest.approx(0.2, abs=0.05)
    assert loud[-1] == pytest.approx(0.6, abs=0.05)
    assert blocks[-1][0] == pytest.approx(42 / 25, abs=0.06)


def test_rows_and_pictures_contain_only_frames_with_detections(tmp_path: Path) -> None:
    paths = {
        name: tmp_path / f"x{sinks.find(name).suffixes[0]}"
        for name in ("jsonl", "csv", "coco", "yolo")
    }
    paths["pictures"] = tmp_path / "pictures"
    opened = sinks.open_all(paths, make_info(), {"only_detections": True})
    for i in range(6):
        for sink in opened:
            sink.write(make_frame(i), one_person() if i in (1, 4) else NO_DETECTIONS)
    assert [sink.close() for sink in opened] == list(paths.values())
    rows = [json.loads(line) for line in paths["jsonl"].read_text().splitlines()]
    assert [(row["frame"], row["pts"], row["time_s"]) for row in rows] == [
        (1, 512, 0.04),
        (4, 2048, 0.16),
    ]
    assert len(json.loads(paths["coco"].read_text())["images"]) == 2
    for folder in ("pictures", "yolo"):
        names = {path.stem for path in paths[folder].glob("frame*")}
        assert names == {"frame_000001", "frame_000004"}


def test_picture_without_detections_is_not_written(tmp_path: Path) -> None:
    (sink,) = sinks.open_all(
        {"pictures": tmp_path / "x.png"}, make_info(), {"only_detections": True}
    )
    sink.write(make_frame(0), NO_DETECTIONS)
    assert sink.close() is None
    assert list(tmp_path.iterdir()) == []


def test_option_lead_without_option_only_detections_is_refused() -> None:
    with pytest.raises(UsageError):
        OutputPlan(OutputConfig(lead=1.0), ["in.mp4"])
    OutputPlan(OutputConfig(lead=1.0, only_detections=True), ["in.mp4"])
