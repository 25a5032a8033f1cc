"""HOTA, IDF1, MOTA, switches and fragmentations, against TrackEval's figures and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detector.core.errors import UsageError
from detector.core.types import Detections, LabelledPicture
from detector.lab.analysis.accuracy.tracking import track_accuracy
from detector.lab.datasets.base import Dataset
from detector.lab.evaluate.scoring import refuse_untracked
from tests.lab.analysis.tracked_scenes import SCENES, Boxes, Ids, scene

# HOTA, DetA, AssA, IDF1, MOTA, IDSW and Frag of TrackEval 1.3.0 (MIT), of the same scenes.
TRACKEVAL = {
    "perfect": (0.933809, 0.933333, 0.934286, 0.965517, 0.928571, 0, 10),
    "good": (0.683843, 0.775876, 0.602906, 0.783557, 0.836489, 9, 79),
    "poor": (0.233568, 0.442514, 0.123874, 0.324377, 0.457831, 70, 274),
    "bad": (0.098667, 0.166065, 0.060681, 0.089316, -0.378899, 62, 123),
    "one object": (0.111685, 0.273428, 0.049267, 0.080000, -0.727273, 10, 8),
    "crowd": (0.507910, 0.548011, 0.471512, 0.789753, 0.695988, 56, 530),
}


def labelled(boxes: Boxes, ids: Ids, ignored: Sequence[int] = (), kind: int = 0) -> LabelledPicture:
    n = len(ids)
    none = np.zeros(n, bool)
    return LabelledPicture(
        id=0,
        name="",
        width=640,
        height=480,
        boxes=boxes.reshape(-1, 4),
        class_ids=np.full(n, kind, np.int64),
        ignored=np.isin(ids, list(ignored)),
        crowd=none,
        areas=np.zeros(n),
        track_ids=ids.astype(np.int64),
    )


def tracked(boxes: NDArray[np.float64], ids: Ids, kind: int = 0) -> Detections:
    n = len(ids)
    return Detections(
        boxes.astype(np.float32).reshape(-1, 4),
        np.ones(n, np.float32),
        np.full(n, kind, np.int64),
        track_ids=ids.astype(np.int64),
    )


@pytest.mark.parametrize("name", SCENES)
def test_tracking_figures_equal_trackeval(name: str) -> None:
    made = scene(*SCENES[name])
    got = track_accuracy(
        [labelled(*one) for one in made.labels], [tracked(*one) for one in made.tracks]
    )
    figures = (got.hota, got.detection, got.association, got.idf1, got.mota)
    assert figures == pytest.approx(TRACKEVAL[name][:5], abs=2e-6)
    assert (got.switches, got.fragmentations) == TRACKEVAL[name][5:]
    assert got.objects == len({one for _, ids in made.labels for one in ids.tolist()})


BOX = np.array([[100, 100, 140, 200]], float)
FAR = BOX + 300
ONE, TWO = np.array([1]), np.array([2])


def test_a_track_that_changes_its_name_once() -> None:
    """Ten frames, five with each id: IDF1 is a half, HOTA the root of 1 x 0.5."""
    tracks = [tracked(BOX, ONE if i < 5 else TWO) for i in range(10)]
    got = track_accuracy([labelled(BOX, ONE)] * 10, tracks)
    assert (got.hota, got.idf1) == pytest.approx((0.5**0.5, 0.5))
    assert (got.mota, got.switches, got.fragmentations, got.tracks) == (0.9, 1, 0, 2)


def test_what_is_ignored_counts_as_nothing() -> None:
    both = np.concatenate([BOX, FAR])
    labels = labelled(both, np.array([1, 2]), ignored=[2])
    got = track_accuracy([labels] * 4, [tracked(both, np.array([7, 8]))] * 4)
    assert (got.hota, got.idf1, got.mota, got.objects, got.tracks) == (1, 1, 1, 1, 1)


def test_boxes_without_an_id_do_not_count() -> None:
    both = np.concatenate([BOX, FAR])
    got = track_accuracy([labelled(BOX, ONE)] * 3, [tracked(both, np.array([1, -1]))] * 3)
    assert (got.hota, got.mota) == (1, 1)


def test_track_of_another_class_does_not_match() -> None:
    got = track_accuracy([labelled(BOX, ONE)] * 3, [tracked(BOX, ONE, kind=1)] * 3)
    assert (got.hota, got.idf1, got.mota) == (0, 0, -1)


def test_no_track_and_nothing_labelled() -> None:
    none = np.zeros((0, 4)), np.zeros(0, np.int64)
    missed = track_accuracy([labelled(BOX, ONE)] * 3, [tracked(*none)] * 3)
    assert (missed.hota, missed.idf1, missed.mota, missed.tracks) == (0, 0, 0, 0)
    empty = track_accuracy([labelled(*none)] * 3, [tracked(*none)] * 3)
    assert (empty.idf1, empty.mota, empty.objects) == (None, None, 0)


def test_labels_that_have_no_tracks_or_several_sequences_are_refused() -> None:
    one = labelled(BOX, ONE)
    refuse_untracked(Dataset("x", "mot", ("person",), [one, one]))
    with pytest.raises(UsageError, match=r"coco .*tracks"):
        refuse_untracked(Dataset("x", "coco", ("person",), [replace(one, track_ids=None)]))
    two = [replace(one, subset="A"), replace(one, subset="B")]
    with pytest.raises(UsageError, match="choose with --subset: A, B"):
        refuse_untracked(Dataset("x", "mot", ("person",), two))
