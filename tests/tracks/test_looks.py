"""Test --infer-every and --smooth: which frames are inferred, which boxes the tracks predict for
the other frames, and which boxes are drawn."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.plan import PlanDraft
from detector.core.stages.annotate import Style, annotate, dashes, lay_out
from detector.core.types import Arrival, Detections, Frame, Planes
from detector.tracks.looks import Looks
from detector.tracks.steady import HOLD_S, Steady
from detector.tracks.trackers import find, names
from detector.tracks.trackers.bytetrack import BytetrackTracker
from tests.cli.command import detect_video
from tests.planes import planes_of
from tests.tracks.test_stage import NAMES, STREET
from tests.tracks.test_stage import stage as track_stage

WIDTH = 40.0


def frame(index: int, time_s: float | None = None, **more: Any) -> Frame:
    picture = np.full((360, 640, 3), more.pop("shade", 90), np.uint8)
    return Frame(index, index, index / 25 if time_s is None else time_s, picture, **more)


def one_box(x: float, score: float = 0.9) -> Detections:
    box = np.array([[x, 100, x + WIDTH, 200]], np.float32)
    return Detections(box, np.array([score], np.float32), np.zeros(1, np.int64), NAMES)


def inferred(looks: Looks, frames: list[Frame]) -> list[int]:
    return [i for i, candidate in enumerate(frames) if looks.wants(candidate)]


def make_looks(every: int, **more: Any) -> Looks:
    return Looks(every, lambda one: one.time_s, **more)


# ----------------------------------------------------------------------
# Which frames are inferred.


def test_every_nth_frame_is_inferred_after_the_first_frames_of_a_scene() -> None:
    frames = [frame(i) for i in range(12)]
    assert inferred(make_looks(4), frames) == [0, 4, 8]
    assert inferred(make_looks(4, first=2), frames) == [0, 1, 5, 9]


def test_frame_after_a_cut_is_inferred() -> None:
    frames = [frame(i, shade=90 if i < 6 else 200) for i in range(12)]
    assert inferred(make_looks(4, first=2), frames) == [0, 1, 5, 6, 7, 11]


def test_frame_after_a_gap_is_inferred() -> None:
    frames = [frame(0), frame(1), frame(2, 5.0), frame(3, 5.04), frame(4, 0.0), frame(5, 0.04)]
    assert inferred(make_looks(50), frames) == [0, 2, 4]  # also after the clock goes back


def test_each_camera_and_connection_has_its_own_schedule() -> None:
    def of(camera: str, epoch: int = 1) -> Frame:
        return frame(0, 1.0, arrival=Arrival(camera, epoch, 0, 0.0))

    frames = [of("a"), of("a"), of("b"), of("a"), of("b"), of("b"), of("a", 2), of("a", 2)]
    assert inferred(make_looks(3), frames) == [0, 2, 6]


# ----------------------------------------------------------------------
# Boxes that tracks predict for frames that are not inferred.


@pytest.mark.parametrize("name", names())
def test_coasting_continues_the_motion_and_does_not_change_the_tracks(name: str) -> None:
    plain, coasted = find(name)(0.25), find(name)(0.25)
    for i in range(0, 60, 3):
        t, boxes = i / 25, one_box(100 + 2 * i)
        expected = plain.update(boxes.boxes, boxes.scores, boxes.class_ids, t)
        ids = coasted.update(boxes.boxes, boxes.scores, boxes.class_ids, t)
        assert expected.tolist() == ids.tolist()
        for k in (1, 2):
            moved = coasted.coasting(coasted.seen(), (i + k) / 25)
            assert moved.track_ids is not None
            assert moved.track_ids.tolist() == ids.tolist()
            assert moved.coasting is not None
            assert moved.coasting.all()
            if i > 30:
                assert moved.boxes[0] == pytest.approx(one_box(100 + 2 * (i + k)).boxes[0], abs=1)


def test_stage_adds_coasting_boxes_except_outside_the_picture() -> None:
    stage = track_stage(infer_every="3")
    assert stage.schedule is not None
    results = []
    for i in range(60):
        coasts = i % 3 > 0
        two = one_box(300 + 8 * i, 0.7)
        boxes = np.concatenate([one_box(20).boxes, two.boxes]).clip(0, [640, 360] * 2)
        visible = np.array([True, two.boxes[0, 0] < 640])
        objects = Detections(
            boxes[visible],
            np.array([0.5, 0.7], np.float32)[visible],
            np.zeros(visible.sum(), np.int64),
        )
        detections = Detections.empty() if coasts else replace(objects, names=NAMES)
        results.append(stage(frame(i, coasting=coasts), detections))
    assert [len(result) for result in results[3:9]] == [2] * 6
    assert len(results[-1]) == 1
    for i, result in enumerate(results):
        assert (result.coasting is None) == (i % 3 == 0)
        assert result.names == NAMES
        assert result.coasting is None or (np.diff(result.scores) <= 0).all()
        assert (result.boxes[:, 2] <= 640).all()


def test_tracks_with_low_scores_give_no_coasting_boxes() -> None:
    stage = track_stage(infer_every="2")
    for i in range(4):
        assert len(stage(frame(2 * i), one_box(100, 0.9 if i < 3 else 0.15))) == (i < 3)
        after = stage(frame(2 * i + 1, coasting=True), Detections.empty())
        assert len(after) == (i < 3)


# ----------------------------------------------------------------------
# Which boxes are drawn.


def smooth(n: int, box: Callable[[int], Detections | None]) -> Iterator[tuple[int, Detections]]:
    stage = track_stage(smooth=True)
    for i in range(n):
        detections = box(i)
        yield i, stage(frame(i), Detections.empty(NAMES) if detections is None else detections)


def test_smoothed_boxes_jitter_less_and_rows_are_unchanged() -> None:
    random = np.random.default_rng(1)
    xs = 200 + random.normal(0, 2, 100)
    drawn = []
    for i, result in smooth(100, lambda i: one_box(xs[i])):
        assert result.boxes[0, 0] == np.float32(xs[i])
        drawn.append(float(result.shown.boxes[0, 0]))
    assert np.std(np.diff(drawn[10:])) < 0.5 * np.std(np.diff(xs[10:]))


def test_smoothing_draws_a_missed_box_for_a_limited_time() -> None:
    gap = range(20, 60)
    drawn_in = []
    for i, result in smooth(60, lambda i: None if i in gap else one_box(100 + 2 * i)):
        assert len(result) == (i not in gap)
        if i in gap and len(result.shown):
            assert result.shown.coasting is not None
            assert result.shown.coasting.tolist() == [True]
            assert result.shown.boxes[0, 0] == pytest.approx(100 + 2 * i, abs=4)
            drawn_in.append(i)
    assert drawn_in == list(range(20, 19 + int(HOLD_S * 25) + 1))


@pytest.mark.parametrize("speed", [25, 100, 400])
def test_smoothed_boxes_lag_by_two_pixels_at_most(speed: int) -> None:
    tracker, steady = BytetrackTracker(0.25), Steady()
    for i in range(100):
        detections = one_box(speed * i / 25)
        detections.track_ids = tracker.update(
            detections.boxes, detections.scores, detections.class_ids, i / 25
        )
        drawn = steady.draw(detections, tracker, i / 25)
    assert 0 < detections.boxes[0, 0] - drawn.boxes[0, 0] < 2.2


def test_coasting_boxes_are_dashed_in_bgr_and_yuv() -> None:
    coasting = replace(one_box(100), coasting=np.array([True]))
    style = Style(labels=False)
    assert lay_out(640, 360, coasting, style).dashed == {0}
    plain, dashed = (np.zeros((360, 640, 3), np.uint8) for _ in range(2))
    annotate(plain, one_box(100), style)
    annotate(dashed, coasting, style)
    on_solid, on_dashes = plain.any(axis=2), dashed.any(axis=2)
    assert not (on_dashes & ~on_solid).any()
    assert 0.4 < on_dashes.sum() / on_solid.sum() < 0.8
    expected = np.zeros_like(on_dashes)
    layout = lay_out(640, 360, coasting, style)
    for x1, y1, x2, y2 in dashes(layout.boxes[0], layout.line):
        expected[y1:y2, x1:x2] = True
    assert (on_dashes == expected).all()
    planes: Planes = planes_of(np.zeros((360, 640, 3), np.uint8))
    before = planes.y.copy()
    annotate(planes, coasting, style)
    assert ((planes.y != before) == on_dashes).all()


@pytest.mark.parametrize("box", [(0, 0, 1, 1), (5, 5, 9, 300), (-10, -10, 700, 20)])
@pytest.mark.parametrize("line", [1, 2, 5])
def test_upper_side_of_a_dashed_box_begins_and_ends_with_a_dash(
    box: tuple[int, int, int, int], line: int
) -> None:
    drawn = dashes(box, line)
    for x1, y1, x2, y2 in drawn:
        assert x1 < x2
        assert y1 < y2
    before, after = line // 2, line // 2 + 1
    above = [dash for dash in drawn if (dash[1], dash[3]) == (box[1] - before, box[1] + after)]
    assert min(x1 for x1, *_ in above) == box[0] - before
    assert max(x2 for _, _, x2, _ in above) == max(box[0], box[2] - 1) + after


# ----------------------------------------------------------------------
# Options.


WRONG = [{"infer_every": one} for one in ("0", "-1", "two", "1.5", "", "1001", "²", "auto")]


@pytest.mark.parametrize("options", [*WRONG, {"infer_every": "2", "blur": ["person"]}], ids=str)
def test_invalid_infer_every_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--infer-every"):
        PlanDraft.of(resolve_config(None, options))


def test_infer_every_refuses_a_tracker_of_the_caller() -> None:
    class Mine:
        def update(self, detections: Detections, frame: Frame) -> NDArray[np.int64]:
            return np.zeros(len(detections), np.int64)

    with pytest.raises(UsageError, match="infer_every"):
        Detector(engine="null", track=Mine(), infer_every="2")


# ----------------------------------------------------------------------
# Whole runs.


@pytest.mark.slow
def test_frames_that_were_not_inferred_are_marked_and_not_counted(tmp_path: Path) -> None:
    def ran(name: str, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any], Path]:
        done = detect_video(
            *(STREET, "--engine", "ort", "--precision", "fp32", "--frames", "14", *options),
            *("-o", f"{tmp_path}/{name}/", "--run-dir", f"{tmp_path}/{name}-run"),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        rows = next((tmp_path / name).glob("*.jsonl")).read_text().splitlines()
        session = json.loads((tmp_path / f"{name}-run/session.json").read_text())
        return [json.loads(row) for row in rows], session, tmp_path / name

    save = ("--save", "jsonl,csv,coco,mot")
    rows, session, folder = ran("coasting", "--infer-every", "3", *save)
    looks = [0, 1, 4, 7, 10, 13]
    assert [row["frame"] for row in rows if row.get("inferred", True)] == looks
    assert all(row["detections"] for row in rows)
    frames = session["frames"]
    assert (frames["written"], frames["coasted"], frames["reused"]) == (14, 8, 0)
    assert session["detections"]["total"] == sum(len(rows[i]["detections"]) for i in looks)
    calls = {name: stage["calls"] for name, stage in session["stages"].items()}
    assert calls["preprocess"] == calls["infer"] == calls["head"] == 6
    assert calls["nms"] == calls["track"] == calls["write"] == 14
    with next(folder.glob("*.csv")).open(newline="") as file:
        marked = {(int(row["frame"]), row["inferred"]) for row in csv.DictReader(file)}
    assert marked == {(i, str(int(i in looks))) for i in range(14)}
    coco = json.loads(next(folder.glob("*.coco.json")).read_text())
    assert [image.get("inferred", True) for image in coco["images"]] == [
        i in looks for i in range(14)
    ]
    assert next(folder.glob("*.mot.txt")).read_text()

    again, session, _ = ran("sync", "--infer-every", "3", "--sync", "--save", "jsonl")
    assert again == rows
    busy_s = session["stages"]["infer"]["busy_s"]
    assert session["fps"]["inference"] == pytest.approx(6 / busy_s, rel=0.01)
    assert ran("batch", "--infer-every", "3", "--batch", "2", "--save", "jsonl")[0] == rows
    plain, session, folder = ran("plain", "--track", "--save", "jsonl,csv")
    assert not any("inferred" in row for row in plain)
    assert "inferred" not in next(folder.glob("*.csv")).read_text()
    assert session["frames"]["coasted"] == 0
