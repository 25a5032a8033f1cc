"""The assignment of cells to boxes, and the targets of the cells."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from model.loss import Tensors, assign, candidates, ciou, iou, loss, targets  # noqa: E402
from model.teacher import cell_centres, cell_grid  # noqa: E402

SIZE = (64, 96)
CELLS = 8 * 12 + 4 * 6 + 2 * 3


def f(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def places():
    return torch.from_numpy(cell_centres(*SIZE)), torch.from_numpy(cell_grid(*SIZE)[1])


def batch(boxes, classes, *, trust=1.0, taught=0.0, counts=1.0, pictures=1):
    shape = (pictures, CELLS, 2)
    return Tensors(
        torch.zeros(pictures, 3, *SIZE),
        f(*boxes).reshape(-1, 4),
        torch.tensor(classes, dtype=torch.long),
        torch.zeros(len(classes), dtype=torch.long),
        torch.zeros(pictures, CELLS, 4),
        torch.full(shape, taught),
        torch.full(shape, trust),
        torch.full(shape, counts),
    )


def exact(box):
    return f(box).expand(1, CELLS, 4).clone()


def test_iou_and_ciou_equal_values_computed_by_hand():
    a, b = f([0, 0, 10, 10]), f([0, 0, 10, 5])
    assert iou(a, b).item() == pytest.approx(0.5)
    assert ciou(a, a).item() == pytest.approx(1.0)
    shape = 4 / np.pi**2 * (np.arctan(2.0) - np.arctan(1.0)) ** 2
    expected = 0.5 - 2.5**2 / 200 - shape**2 / (0.5 + shape)
    assert ciou(a, b).item() == pytest.approx(expected, rel=1e-5)


def test_candidates_are_near_the_centre_of_the_box():
    middle, strides = places()
    chosen = candidates(f([20, 20, 60, 44]), middle, strides)[0]
    distance = (middle - f([40, 32])).abs() / strides
    assert chosen.any()
    assert bool((distance[chosen] < 1.5).all())


def test_box_smaller_than_a_cell_has_a_candidate():
    middle, strides = places()
    assert candidates(f([17, 17, 19, 19]), middle, strides).any()


def test_contested_cell_goes_to_the_box_of_lower_cost():
    middle, strides = places()
    box = [8.0, 8.0, 56.0, 56.0]
    boxes = f(box, [10.0, 10.0, 58.0, 58.0])
    belief = torch.full((2, CELLS), 0.5)
    row, cell, overlap = assign(boxes, torch.tensor([0, 0]), middle, strides, exact(box), belief)
    assert len(set(cell.tolist())) == len(cell)
    assert set(row[overlap == 1].tolist()) == {0}


def test_boxes_of_other_pictures_do_not_compete():
    middle, strides = places()
    box = [8.0, 8.0, 56.0, 56.0]
    predicted = exact(box).repeat(2, 1, 1)
    alone = assign(
        f(box), torch.tensor([0]), middle, strides, predicted[:1], torch.full((1, CELLS), 0.5)
    )
    together = assign(
        f(box, box), torch.tensor([0, 1]), middle, strides, predicted, torch.full((2, CELLS), 0.5)
    )
    assert len(together[0]) == 2 * len(alone[0])


def test_picture_without_boxes_has_empty_targets():
    scores, counts, _, weights = targets(
        batch([], []), torch.zeros(1, CELLS, 4), torch.zeros(1, CELLS, 2)
    )
    assert scores.sum() == 0
    assert weights.sum() == 0
    assert counts.min() == 1


def test_target_of_the_best_cell_is_its_overlap():
    box = [8.0, 8.0, 56.0, 56.0]
    scores, _, to_learn, weights = targets(batch([box], [1]), exact(box), torch.zeros(1, CELLS, 2))
    assert scores[..., 1].max().item() == pytest.approx(1.0)
    assert scores[..., 0].max() == 0
    assert bool((to_learn[weights > 0] == f(box)).all())


def test_labels_override_the_teacher():
    box = [8.0, 8.0, 56.0, 56.0]
    labelled = batch([box], [1], taught=0.4, trust=1.0)
    scores, _, _, weights = targets(labelled, exact(box), torch.zeros(1, CELLS, 2))
    assert bool((scores[..., 0] == 0.4).all())
    assert scores[..., 1].max() > 0.9
    # Where only the teacher sees an object, the weight is half of the teacher's score.
    assert bool((weights[scores[..., 1] == 0.4] == 0.2).all())


def test_ignored_region_costs_nothing():
    logits = torch.zeros(1, CELLS, 2)
    boxes = torch.zeros(1, CELLS, 4)
    assert loss(batch([], [], counts=0.0), boxes, logits)[0] == 0
    assert loss(batch([], []), boxes, logits)[0] > 0


@pytest.mark.slow
def test_optimiser_reduces_the_loss():
    torch.manual_seed(0)
    box = [8.0, 8.0, 56.0, 56.0]
    boxes, logits = torch.rand(1, CELLS, 4) * 10, torch.zeros(1, CELLS, 2)
    boxes[..., 2:] += 40
    boxes.requires_grad_(), logits.requires_grad_()
    optimiser = torch.optim.Adam([boxes, logits], lr=0.5)
    totals = []
    for _ in range(60):
        total, _ = loss(batch([box], [1]), boxes, logits)
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        totals.append(total.item())
    assert totals[-1] < 0.1 * totals[0]
