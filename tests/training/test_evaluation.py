"""The programs explain themselves; tracks link boxes; the calibration finds its score."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import numpy as np
import pytest

from detector.analysis.accuracy import average_precision as ap
from detector.analysis.accuracy import matching
from detector.models.catalogue import canvases_of
from detector.stages.preprocess import input_of_shape
from model import evaluation
from tests.training.conftest import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("program", ["make_video", "train_default", "evaluate_default"])
def test_programs_have_help(program):
    command = [sys.executable, str(ROOT / "training" / program), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.startswith(f"Usage: {program} ")


def test_a_box_that_comes_back_soon_is_the_same_object():
    tracks: list[evaluation.Track] = []
    box, moved = np.array([[10.0, 10, 30, 50]]), np.array([[13.0, 10, 33, 50]])
    evaluation.link(tracks, box, 0)
    evaluation.link(tracks, moved, evaluation.GAP)  # still the same
    evaluation.link(tracks, box, 2 * evaluation.GAP + 1)  # too late
    assert [(track.first, track.last, track.frames) for track in tracks] == [
        (0, evaluation.GAP, 2),
        (2 * evaluation.GAP + 1, 2 * evaluation.GAP + 1, 1),
    ]


def test_lowest_score_lets_through_as_many_unmatched_boxes_as_allowed():
    loader = SourceFileLoader("evaluate_default", str(ROOT / "training" / "evaluate_default"))
    program = module_from_spec(spec_from_loader("evaluate_default", loader))
    loader.exec_module(program)
    boxes = np.array([[0.0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]])
    nothing = matching.Truth(np.zeros((0, 4)), np.zeros(0, bool), np.zeros(0, bool))
    rows = [matching.judge(boxes, np.array([0.9, 0.6, 0.3]), nothing)]
    assert ap.unmatched(rows, program.lowest_score(rows, 1)) == 1
    assert ap.unmatched(rows, program.lowest_score(rows, 2)) == 2
    assert program.lowest_score(rows, 3) == evaluation.CONFIDENCE


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
