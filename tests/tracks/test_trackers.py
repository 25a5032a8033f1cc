"""Compare track ids with another library's, and test the Kalman filters of the trackers.

tests/conformance tests what all trackers have in common. ``reference.csv`` holds boxes of people,
which the default model detected in the first 150 frames of a clip of a walking crowd. It also holds
the ids that roboflow's ``trackers`` 2.6.1 (Apache-2.0) gave these boxes, with thresholds of 0.25
and otherwise its defaults. Its SORT and ByteTrack got frame times, its OC-SORT did not. Its
ByteTrack needs an overlap of 0.1 in both associations; the paper has 0.2 and 0.5.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from detector.tracks.motion import CENTRES, CORNERS, Form, Motion
from detector.tracks.tracker import NONE
from detector.tracks.trackers import find
from detector.tracks.trackers.bytetrack import BytetrackTracker
from tests.tracks.scenes import straight

REFERENCE = Path(__file__).with_name("reference.csv")
CONF = 0.25


def reference(name: str) -> Iterator[tuple[NDArray[np.float64], list[int]]]:
    frames: dict[int, list[dict[str, str]]] = {}
    with REFERENCE.open(newline="") as file:
        for row in csv.DictReader(file):
            frames.setdefault(int(row["frame"]), []).append(row)
    for number in range(max(frames) + 1):
        rows = frames.get(number, [])
        numbers = [[float(row[key]) for key in ("x1", "y1", "x2", "y2", "score")] for row in rows]
        yield np.array(numbers).reshape(-1, 5), [int(row[name]) for row in rows]


@pytest.mark.parametrize("name", ["sort", "bytetrack", "ocsort"])
def test_ids_equal_those_of_another_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BytetrackTracker, "least_overlap", 0.1)
    monkeypatch.setattr(BytetrackTracker, "least_overlap_low", 0.1)
    tracker = find(name)(CONF)
    ours: dict[int, int] = {}
    theirs: dict[int, int] = {}
    same = only_ours = 0
    for number, (boxes, reference_ids) in enumerate(reference(name)):
        classes = np.zeros(len(boxes), np.int64)
        ids = tracker.update(boxes[:, :4], boxes[:, 4], classes, number / 30)
        for mine, other in zip(ids.tolist(), reference_ids, strict=True):
            if other < 0:
                only_ours += mine >= 0
                continue
            assert ours.setdefault(mine, other) == other
            assert theirs.setdefault(other, mine) == mine
            same += 1
    assert same > 1500
    assert tracker.begun == len(theirs)
    # If a track reappears, our OC-SORT restores its id at once; theirs waits three more frames.
    assert only_ours == (111 if name == "ocsort" else 0)


def test_boxes_with_low_scores_keep_a_track_only_with_bytetrack() -> None:
    path = straight((100, 200), (60, 0))
    by_tracker = {}
    for name in ("sort", "bytetrack", "ocsort"):
        tracker, track_ids = find(name)(CONF), []
        for i in range(120):
            score = 0.15 if 40 <= i < 80 else 0.9
            x, y = path(i / 30) or (0, 0)
            box = np.array([[x - 20, y - 50, x + 20, y + 50]], np.float32)
            track_ids += tracker.update(
                box, np.array([score]), np.zeros(1, np.int64), i / 30
            ).tolist()
        by_tracker[name] = sorted({*track_ids} - {NONE})
    assert by_tracker["bytetrack"] == [1]
    assert by_tracker["sort"] == by_tracker["ocsort"] == [1, 2]
    assert find("bytetrack").lowest_conf == 0.1


# ----------------------------------------------------------------------
# The filters.


@pytest.mark.parametrize("form", [CORNERS, CENTRES])
def test_one_long_prediction_equals_many_short_ones(form: Form) -> None:
    box = np.array([[10, 20, 50, 120], [300, 50, 360, 90]], float)
    once, often = Motion(form), Motion(form)
    for motion in (once, often):
        motion.add(box)
        motion.predict(1)
        motion.correct(np.arange(2), box + 2)
    once.predict(7)
    for _ in range(7):
        often.predict(1)
    assert once.place == pytest.approx(often.place)
    assert once.spread == pytest.approx(often.spread)


@pytest.mark.parametrize("form", [CORNERS, CENTRES])
def test_filter_equals_the_kalman_formulas_in_matrix_form(form: Form) -> None:
    random = np.random.default_rng(2)
    motion, box = Motion(form), np.array([[100, 100, 140, 200]], float)
    motion.add(box)
    states = [np.array([value, 0.0]) for value in form.of_boxes(box)[0]]
    spreads = [np.diag([form.first[i], form.first_speed[i]]) for i in range(4)]
    step = np.array([[1, 1], [0, 1]])
    for _ in range(20):
        box = box + random.normal(0, 3, 4)
        motion.predict(1)
        motion.correct(np.array([0]), box)
        for i, value in enumerate(form.of_boxes(box)[0]):
            states[i] = step @ states[i]
            noise = np.diag([form.drift[i], form.drift_speed[i]])
            spread = step @ spreads[i] @ step.T + noise
            gain = spread[:, 0] / (spread[0, 0] + form.measured[i])
            states[i] = states[i] + gain * (value - states[i][0])
            spreads[i] = spread - np.outer(gain, spread[0])
    assert motion.place[0] == pytest.approx([state[0] for state in states])
    assert motion.speed[0] == pytest.approx([state[1] for state in states])


def test_predicted_area_stays_positive_and_corners_may_be_negative() -> None:
    fast = np.full((1, 4), -1e6)
    areas, corners = Motion(CENTRES), Motion(CORNERS)
    for motion in (areas, corners):
        motion.add(np.array([[10, 20, 50, 120]], float))
        motion.speed = fast.copy()
        motion.predict(1)
    assert areas.place[0, 2] > 0
    assert areas.speed[0].tolist() == [-1e6, -1e6, 0, -1e6]
    assert corners.speed.tolist() == fast.tolist()
