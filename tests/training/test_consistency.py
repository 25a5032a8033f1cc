"""The consistency loss: if a picture moves, boxes must move with it, and scores must not change."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from model.consistency import FARTHEST, Moves, random_moves, unsteadiness  # noqa: E402
from model.loss import candidates  # noqa: E402
from model.teacher import cell_centres, cell_grid  # noqa: E402
from tests.training.test_loss import CELLS, SIZE, batch, f  # noqa: E402

OBJECT = [30.0, 20.0, 54.0, 44.0]


def moves(zoom: float, dx: float, dy: float) -> Moves:
    return Moves(f(zoom), f([dx, dy]))


def near(box: list[float]) -> torch.Tensor:
    centres, strides = cell_centres(*SIZE), cell_grid(*SIZE)[1]
    return candidates(f(box), torch.from_numpy(centres), torch.from_numpy(strides))[0]


def outputs_of(box: list[float], moved_box: list[float], score: float, moved_score: float):
    """Return boxes and logits: the first picture shows ``box``, the second ``moved_box``."""
    boxes = torch.stack([f(box).expand(CELLS, 4), f(moved_box).expand(CELLS, 4)])
    logits = torch.full((2, CELLS, 2), -9.0)
    for picture, (place, value) in enumerate(((box, score), (moved_box, moved_score))):
        logits[picture, near(place), 0] = float(np.log(value / (1 - value)))
    return boxes, logits


def test_pictures_and_boxes_move_together():
    image = torch.zeros(1, 3, *SIZE)
    image[:, :, 20:44, 30:54] = 1
    move = moves(1.1, 5.0, -3.0)
    x1, y1, x2, y2 = move.boxes(f(OBJECT), torch.tensor([0]))[0].tolist()
    assert [x1, y1, x2, y2] == pytest.approx([38.0, 19.0, 64.4, 45.4])
    moved = move.pictures(image)[0, 0]
    rows, columns = (moved > 0.5).any(1).nonzero(), (moved > 0.5).any(0).nonzero()
    edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert [int(edge) for edge in edges] == pytest.approx([x1, y1, x2, y2], abs=1)


@pytest.mark.parametrize(
    ("shift", "score", "cost"), [((1.05, 4.0, 2.0), 0.8, 0), ((1.0, 3.0, 0.0), 0.5, 0.09)]
)
def test_score_change_costs_its_square(shift, score, cost):
    move = moves(*shift)
    moved_box = move.boxes(f(OBJECT), torch.tensor([0]))[0].tolist()
    boxes, logits = outputs_of(OBJECT, moved_box, 0.8, score)
    result = unsteadiness(batch([OBJECT], [0]), move, boxes, logits).item()
    assert result == pytest.approx(cost, abs=1e-5)


def test_cost_of_a_box_that_does_not_move_with_the_picture_follows_iou():
    move = moves(1.0, 12.0, 0.0)
    boxes, logits = outputs_of(OBJECT, OBJECT, 0.8, 0.8)
    logits[1] = -9.0
    moved_box = move.boxes(f(OBJECT), torch.tensor([0]))[0].tolist()
    logits[1, near(moved_box), 0] = float(np.log(0.8 / 0.2))
    # The box lags by 12 of its 24 pixels, so its IoU is 1/3. BOX_WEIGHT is 0.5, the score is 0.8.
    cost = unsteadiness(batch([OBJECT], [0]), move, boxes, logits).item()
    assert cost == pytest.approx(0.5 * 0.8 * 2 / 3, abs=1e-5)


@pytest.mark.parametrize(
    ("box", "move"),
    [
        ([80.0, 20.0, 94.0, 44.0], (1.0, 12.0, 0.0)),  # leaves the picture
        ([30.0, 20.0, 33.0, 44.0], (1.0, 1.0, 0.0)),  # three pixels wide
    ],
)
def test_objects_that_leave_or_are_tiny_cost_nothing(box, move):
    boxes, logits = outputs_of(box, box, 0.8, 0.1)
    assert unsteadiness(batch([box], [0]), moves(*move), boxes, logits).item() == 0


def test_gradients_bring_both_scores_closer():
    move = moves(1.0, 3.0, 0.0)
    boxes, logits = outputs_of(OBJECT, OBJECT, 0.8, 0.5)
    boxes, logits = boxes.clone().requires_grad_(), logits.requires_grad_()
    unsteadiness(batch([OBJECT], [0]), move, boxes, logits).backward()
    assert logits.grad[0, :, 0].max() > 0  # the higher score falls
    assert logits.grad[1, :, 0].min() < 0  # the lower one rises
    assert boxes.grad.abs().sum() > 0


def test_centre_moves_by_no_more_than_the_limit():
    drawn = random_moves(np.random.default_rng(0), 64, (352, 608))
    middle = torch.tensor([304.0, 176.0])
    distance = drawn.zoom[:, None] * middle + drawn.shift - middle
    assert distance.abs().max() <= FARTHEST + 1e-3
    assert distance.abs().max() > FARTHEST / 2
