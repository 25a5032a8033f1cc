"""The programs explain themselves; boxes are matched and linked; candidates are read."""

from __future__ import annotations

import click
import numpy as np
import pytest

from detector.core.analysis import matching
from detector.core.models.catalogue import canvases_of
from detector.core.stages.preprocess import input_of_shape
from model import evaluation, steadiness
from tests.conftest import load_program


def test_a_part_of_a_mean_has_a_share(tmp_path):
    path = tmp_path / "street.f16"
    path.touch()
    part = load_program("training/train_default").Part()
    assert part.convert(f"{path}@0.5", None, None) == (path, 0.5)
    with pytest.raises(click.BadParameter, match=r"street.f16@0.5"):
        part.convert(str(path), None, None)


def test_a_box_that_comes_back_soon_is_the_same_object():
    tracks: list[steadiness.Track] = []
    box, moved = np.array([[10.0, 10, 30, 50]]), np.array([[13.0, 10, 33, 50]])
    steadiness.link(tracks, box, 0)
    steadiness.link(tracks, moved, steadiness.GAP)  # still the same
    steadiness.link(tracks, box, 2 * steadiness.GAP + 1)  # too late
    assert [(track.first, track.last, track.frames) for track in tracks] == [
        (0, steadiness.GAP, 2),
        (2 * steadiness.GAP + 1, 2 * steadiness.GAP + 1, 1),
    ]


def test_the_score_of_a_true_box_is_that_of_the_box_that_found_it():
    truth = matching.Truth(
        np.array([[0.0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]),
        np.array([False, False, True]),
        np.zeros(3, bool),
    )
    boxes = np.array([[0.0, 0, 10, 9], [0, 0, 10, 10], [40, 0, 50, 10], [60, 0, 70, 10]])
    judged, found = evaluation.find_truths(boxes, np.array([0.9, 0.8, 0.7, 0.6]), truth)
    assert judged.outcomes.tolist() == [
        matching.RIGHT,
        matching.WRONG,  # the object has its box
        matching.NEITHER,
        matching.WRONG,
    ]
    assert found.tolist() == [0.9, 0, 0]


def test_candidates_are_weights_at_a_canvas():
    listed = load_program("training/evaluate_default").list_candidates
    assert [(one.weights, one.size, one.label) for one in listed("street", (), ())] == [
        (None, "", "street at its own size"),
        (None, "416x416", "street 416x416"),
    ]
    found = listed("street", ("shipped@416x256", "runs/third/street.weights@608x352"), ("640x384",))
    assert [(one.weights, one.size, one.label) for one in found] == [
        (None, "416x256", "street 416x256"),
        ("runs/third/street.weights", "608x352", "third/street 608x352"),
    ]
    # Without a size of its own: at every --size. An @ may be part of a name.
    found = listed("street", ("a@b.f16",), ("416", "512x288"))
    assert [(one.weights, one.size) for one in found] == [
        ("a@b.f16", "416"),
        ("a@b.f16", "512x288"),
    ]
    (found,) = listed("street", ("shipped@source",), ())
    assert (found.size, found.label[:7]) == ("source", "street ")


def test_each_picture_gets_the_canvas_of_its_shape():
    opened, asked = [], []

    def open_at(size):
        opened.append(size)

        def rows(image):
            asked.append(size)
            return image

        rows.infer = lambda: size
        return rows

    model = evaluation.open_by_shape("street", open_at)
    for height, width in ((480, 640), (720, 1280), (480, 640), (100, 100)):
        model(np.zeros((height, width, 3), np.uint8))
    own = canvases_of("street")[0]
    classic, wide, square = (input_of_shape(own, 32, *one) for one in ((4, 3), (16, 9), (1, 1)))
    assert opened == [own, classic, square]
    assert asked == [classic, wide, classic, square]
    assert model.infer() == own
