"""Options are parsed, boxes are matched and linked; a picture's shape decides the input size."""

import click
import numpy as np
import pytest

from detector.core.analysis import matching
from detector.core.models.catalogue import canvases_of
from detector.core.stages.preprocess import input_of_shape
from model import evaluation, steadiness
from tests.conftest import load_program


def test_each_averaged_weights_file_needs_its_share(tmp_path):
    path = tmp_path / "street.f16"
    path.touch()
    part = load_program("training/train_default").Part()
    assert part.convert(f"{path}@0.5", None, None) == (path, 0.5)
    with pytest.raises(click.BadParameter, match=r"street.f16@0.5"):
        part.convert(str(path), None, None)


def test_box_that_returns_within_the_gap_is_the_same_object():
    tracks: list[steadiness.Track] = []
    box, moved = np.array([[10.0, 10, 30, 50]]), np.array([[13.0, 10, 33, 50]])
    steadiness.link(tracks, box, 0)
    steadiness.link(tracks, moved, steadiness.GAP)  # the same object
    steadiness.link(tracks, box, 2 * steadiness.GAP + 1)  # too late
    assert [(track.first, track.last, track.frames) for track in tracks] == [
        (0, steadiness.GAP, 2),
        (2 * steadiness.GAP + 1, 2 * steadiness.GAP + 1, 1),
    ]


def test_true_box_has_the_score_of_its_best_match():
    truth = matching.Truth(
        np.array([[0.0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]),
        np.array([False, False, True]),
        np.zeros(3, bool),
    )
    boxes = np.array([[0.0, 0, 10, 9], [0, 0, 10, 10], [40, 0, 50, 10], [60, 0, 70, 10]])
    judged, scores = evaluation.find_truths(boxes, np.array([0.9, 0.8, 0.7, 0.6]), truth)
    assert judged.outcomes.tolist() == [
        matching.RIGHT,
        matching.WRONG,  # a second box of an object
        matching.NEITHER,
        matching.WRONG,
    ]
    assert scores.tolist() == [0.9, 0, 0]


def test_candidates_combine_weights_and_sizes():
    list_candidates = load_program("training/evaluate_default").list_candidates
    assert [
        (candidate.weights, candidate.size, candidate.label)
        for candidate in list_candidates("street", (), ())
    ] == [(None, "", "street at its own size"), (None, "416x416", "street 416x416")]
    candidates = list_candidates(
        "street", ("shipped@416x256", "runs/third/street.weights@608x352"), ("640x384",)
    )
    assert [(candidate.weights, candidate.size, candidate.label) for candidate in candidates] == [
        (None, "416x256", "street 416x256"),
        ("runs/third/street.weights", "608x352", "third/street 608x352"),
    ]
    # Weights without @SIZE get every --size. A name may contain an @.
    candidates = list_candidates("street", ("a@b.f16",), ("416", "512x288"))
    assert [(candidate.weights, candidate.size) for candidate in candidates] == [
        ("a@b.f16", "416"),
        ("a@b.f16", "512x288"),
    ]
    (candidates,) = list_candidates("street", ("shipped@source",), ())
    assert (candidates.size, candidates.label[:7]) == ("source", "street ")


def test_picture_is_inferred_on_the_canvas_of_its_shape():
    opened, used = [], []

    def open_at(size):
        opened.append(size)

        def rows(image):
            used.append(size)
            return image

        rows.infer = lambda: size
        return rows

    model = evaluation.open_by_shape("street", open_at)
    for height, width in ((480, 640), (720, 1280), (480, 640), (100, 100)):
        model(np.zeros((height, width, 3), np.uint8))
    own = canvases_of("street")[0]
    classic, wide, square = (input_of_shape(own, 32, *ratio) for ratio in ((4, 3), (16, 9), (1, 1)))
    assert opened == [own, classic, square]
    assert used == [classic, wide, classic, square]
    assert model.infer() == own
