"""The aims: paired intervals, recall at a budget of unmatched boxes, flicker at equal recall."""

from __future__ import annotations

import numpy as np
import pytest

from detector.core.analysis import matching
from model import aims, steadiness, tables

RIGHT, WRONG = matching.RIGHT, matching.WRONG


def judged(*boxes, wanted):
    """Boxes as (score, outcome), best first."""
    scores, outcomes = zip(*boxes, strict=True) if boxes else ((), ())
    return matching.Judged(np.array(scores, float), np.array(outcomes, np.int8), wanted)


@pytest.mark.parametrize(
    ("estimate", "at_least", "verdict"),
    [
        ((0.9, 0.86, 0.95), True, "reached"),
        ((0.9, 0.80, 0.95), True, "reached, not sure"),
        ((0.8, 0.70, 0.90), True, "missed, not sure"),
        ((0.8, 0.75, 0.84), True, "missed"),
        ((0.8, 0.75, 0.84), False, "reached"),
        ((0.9, 0.80, 0.95), False, "missed, not sure"),
        ((float("nan"),) * 3, True, "not measured"),
    ],
)
def test_verdict(estimate, at_least, verdict):
    assert aims.Aim("", 0.85, at_least, aims.Estimate(*estimate)).verdict == verdict


def test_the_ratio_of_a_model_to_itself_is_sure():
    """However different the pictures are: both models are judged on the same draw."""
    rows = [
        judged((0.9, RIGHT), wanted=1),
        judged((0.8, WRONG), (0.3, RIGHT), wanted=4),
        judged((0.7, WRONG), wanted=2),
    ]
    assert aims.ratio_of_ap(rows, rows) == pytest.approx((1, 1, 1))
    assert aims.loss_of_ap(rows, rows) == (0, 0, 0)


def test_intervals_are_the_same_each_time():
    ours = [judged((0.9, RIGHT), wanted=2), judged((0.5, WRONG), wanted=1)] * 4
    theirs = [judged((0.9, RIGHT), wanted=2), judged((0.5, RIGHT), wanted=1)] * 4
    first = aims.ratio_of_ap(ours, theirs)
    assert first == aims.ratio_of_ap(ours, theirs)
    assert first.low < first.value < first.high <= 1


def test_recall_is_compared_at_a_budget_of_unmatched_boxes():
    theirs = [judged((0.9, RIGHT), (0.8, WRONG), (0.2, RIGHT), wanted=4)]  # at .25: one, and one
    ours = [
        judged((0.9, RIGHT), (0.5, WRONG), (0.1, RIGHT), (0.09, WRONG), (0.05, RIGHT), wanted=4)
    ]
    # 1.2 times one unmatched box is one: two are found before the second one.
    assert aims.ratio_of_recall(ours, theirs).value == 2


def test_all_that_was_found_counts_where_the_budget_is_not_used_up():
    ours = aims.ap.Pool.of([judged((0.9, RIGHT), (0.5, WRONG), (0.1, RIGHT), wanted=2)])
    assert aims.found_with(ours, np.array([1]), 5) == 2
    assert aims.found_with(ours, np.array([1]), 0) == 1
    assert aims.found_with(ours, np.array([3]), 2) == 3  # drawn three times


def test_steadiness_counts_gaps_and_changes():
    tracks = {
        "a": [0.9, 0.1, 0.9, 0.0],  # one gap; lost at the end
        "b": [0.0, 0.0, 0.0, 0.0],  # never found: no gap
        "c": [0.0, 0.5, 0.5, 0.5],
    }
    found = steadiness.steadiness(tracks, 0.25)
    assert found.missing.tolist() == [1, 0, 0]
    assert found.spans.tolist() == [3, 0, 3]
    assert found.changes.tolist() == [3, 0, 1]
    assert found.flicker == 1 / 6
    assert found.change_rate == 4 / 9
    assert found.recall == 5 / 12


def test_flicker_is_compared_at_equal_recall():
    theirs = {"a": [0.9, 0.1, 0.9], "b": [0.3, 0.3, 0.0]}  # four frames at .25, one gap of 3 + 2
    ours = {"a": [0.08, 0.07, 0.06], "b": [0.0, 0.01, 0.05]}
    own, other = aims.equally_found(ours, theirs)
    assert own.score == 0.05
    assert own.recall == other.recall
    assert (own.flicker, other.flicker) == (0, 1 / 5)
    assert aims.ratio_of_flicker(own, other).value == 0


def test_a_recall_that_cannot_be_reached_takes_the_lowest_score():
    assert steadiness.score_of_recall({"a": [0.3, 0.0]}, 2) == aims.REPORTED / 250
    assert steadiness.score_of_recall({}, 2) == aims.REPORTED / 250


def test_tracked_labels_leave_out_what_is_hidden(tmp_path):
    import json

    import cv2

    folder = tmp_path / "MOT17-99"
    folder.mkdir()
    cv2.imwrite(str(folder / "1.png"), np.zeros((20, 30, 3), np.uint8))

    def row(track, bbox, **more):
        return {"image_id": 1, "track_id": track, "category_id": 1, "bbox": bbox, **more}

    document = {
        "categories": [{"id": 1, "name": "pedestrian"}],
        "images": [{"id": 1, "file_name": "1.png"}],
        "annotations": [
            row(1, [-5, 2, 10, 30], considered=1, visibility=0.9),  # leaves the picture
            row(2, [1, 1, 5, 5], considered=0, visibility=0.9),
            row(3, [1, 1, 5, 5], considered=1, visibility=0.1),
            row(4, [1, 1, 5, 5], iscrowd=1),
        ],
    }
    (folder / "gt.json").write_text(json.dumps(document), encoding="utf-8")
    (frame,) = steadiness.read_tracked(folder)
    assert frame.tracks == (["MOT17-99#1"], [])
    assert frame.boxes[0].tolist() == [[0, 2, 5, 20]]

    def model(image):
        return np.array([[0, 2, 5, 20]], np.float32), np.array([[0.7, 0.9]], np.float32)

    found = steadiness.follow(model, [frame, frame])
    assert found["person"]["MOT17-99#1"] == pytest.approx([0.7, 0.7])
    assert found["vehicle"] == {}


def test_a_referee_says_what_there_is_to_find(tmp_path):
    """A car that moves 4 pixels a frame and is missed in two of them; and a flash of two frames."""
    import cv2

    clip = tmp_path / "road.avi"
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter_fourcc(*"MJPG"), 10, (160, 120))
    for _ in range(20):
        writer.write(np.zeros((120, 160, 3), np.uint8))
    writer.release()
    at = iter(range(20))

    def referee(image):
        frame = next(at)
        car = np.array([4.0 * frame, 20, 4.0 * frame + 40, 50])
        flash = np.array([0.0, 80, 20, 110])
        seen = [0, 0.9 if 2 <= frame < 18 and frame not in (7, 8) else 0.1]
        return np.array([car, flash]), np.array([seen, [0.8 * (5 <= frame < 7), 0]])

    frames = list(steadiness.referee_clip(clip, referee, 0.4, frames=20)())
    assert len(frames) == 20
    assert [len(frame.boxes[1]) for frame in frames] == [0] * 2 + [1] * 16 + [0] * 2
    assert all(not len(frame.boxes[0]) for frame in frames)  # the flash is too short
    assert frames[7].boxes[1][0] == pytest.approx([28, 20, 68, 50])  # on the line
    assert {name for frame in frames for name in frame.tracks[1]} == {"road.avi#0"}
    found = steadiness.follow(
        lambda image: (np.array([[0, 20, 40, 50]]), np.array([[0, 0.5]])), frames
    )
    assert list(found["vehicle"]) == ["road.avi#0"]
    assert len(found["vehicle"]["road.avi#0"]) == 16


def test_the_table_names_the_set_of_each_loss():
    def aim(text, value):
        return aims.Aim(text, 0.01, False, aims.Estimate(value, value, value))

    one, other = aim("int8: largest loss (coco)", 0.004), aim("int8: largest loss (road)", 0.02)
    *_, row = tables.aims({"a": [one], "b": [other]})
    assert row == (
        "| int8: largest loss <= 0.01 | 0.004 [0.00, 0.00] reached (coco) "
        "| 0.020 [0.02, 0.02] missed (road) |"
    )
