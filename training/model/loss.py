"""The loss of a batch: the assignment of cells to boxes, their targets, and the cost.

SimOTA assigns cells to boxes, for all pictures of a batch at once. The target score of an assigned
cell is at most its box's best overlap. The target of other cells is ``trust`` x teacher's score.
Shapes: T true boxes, N cells, B pictures, K assigned pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from model.batches import Batch
from model.teacher import cell_centres, cell_grid

# Largest distance of a cell from the centre of a box, in strides; see ``candidates``.
NEAR, NEAREST = 1.5, 0.75
IOU_WEIGHT = 3.0  # weight of overlap relative to class score, in the cost of a cell for a box
CANDIDATES = 10  # maximum number of cells assigned to a box

SCORE_WEIGHT, BOX_WEIGHT = 2.0, 2.5
# A teacher's box with a score above TAUGHT_ABOVE is a target: weight TAUGHT_SHARE x score x trust.
TAUGHT_ABOVE, TAUGHT_SHARE = 0.15, 0.5


@dataclass(slots=True)
class Tensors:
    """A Batch as tensors on the device."""

    images: Tensor  # [B, 3, H, W] in 0..1
    boxes: Tensor
    classes: Tensor
    owners: Tensor
    taught_boxes: Tensor
    taught: Tensor
    trust: Tensor
    counts: Tensor


def to_device(batch: Batch, device: str) -> Tensors:
    images = torch.from_numpy(batch.images).to(device).permute(0, 3, 1, 2)  # channels last
    labels = batch.boxes, batch.classes, batch.owners
    cells = batch.taught_boxes, batch.taught, batch.trust, batch.counts
    moved = (torch.from_numpy(part).to(device) for part in (*labels, *cells))
    return Tensors(images.float() / 255, *moved)


def loss(batch: Tensors, boxes: Tensor, logits: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the loss, and its parts as numbers."""
    scores, counts, to_learn, weights = targets(batch, boxes.detach(), logits.detach())
    gap = (logits.sigmoid() - scores).abs() ** 2
    entropy = functional.binary_cross_entropy_with_logits(logits, scores, reduction="none")
    score_sum = (gap * entropy * counts).sum() / (scores * counts).sum().clamp(min=1)
    score_loss = SCORE_WEIGHT * score_sum
    picked = weights > 0
    shares = weights[picked]
    misfit = 1 - ciou(boxes[picked], to_learn[picked])
    box_loss = BOX_WEIGHT * (shares * misfit).sum() / shares.sum().clamp(min=1)
    return score_loss + box_loss, {"scores": score_loss.detach(), "boxes": box_loss.detach()}


@torch.no_grad()
def targets(batch: Tensors, boxes: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the targets of every cell: scores and their weights [B, N, 2], boxes [B, N, 4] and
    their weights [B, N]."""
    size = batch.images.shape[2:]
    centres = torch.from_numpy(cell_centres(*size)).to(boxes.device)
    strides = torch.from_numpy(cell_grid(*size)[1]).to(boxes.device)
    # The assignment uses the mean of the network's and the teacher's scores.
    belief = (logits.sigmoid() + batch.taught) / 2
    believed = belief[batch.owners, :, batch.classes]  # [T, N]
    row, cell, overlap = assign(batch.boxes, batch.owners, centres, strides, boxes, believed)
    # The best cell of a box gets the box's best overlap as its target; other cells get less.
    fit = believed[row, cell].sqrt() * overlap**3
    none = torch.zeros(len(batch.boxes), device=boxes.device)
    best_fit = none.scatter_reduce(0, row, fit, "amax")
    best_overlap = none.scatter_reduce(0, row, overlap, "amax")
    target = fit / best_fit[row].clamp(min=1e-9) * best_overlap[row]
    scores, counts = batch.trust * batch.taught, batch.counts.clone()
    where = batch.owners[row], cell
    scores[(*where, batch.classes[row])] = target
    counts[(*where, batch.classes[row])] = 1
    taught = batch.taught.amax(-1)
    weights = torch.where(taught > TAUGHT_ABOVE, taught * TAUGHT_SHARE, 0.0)
    weights = weights * batch.trust.amax(-1)
    to_learn = batch.taught_boxes.clone()
    weights[where], to_learn[where] = target, batch.boxes[row]
    return scores, counts, to_learn, weights


def assign(
    boxes: Tensor,
    owners: Tensor,
    centres: Tensor,
    strides: Tensor,
    predicted: Tensor,
    belief: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the cells for each true box; a cell belongs to one box at most.

    ``predicted``: boxes [B, N, 4]. ``belief``: probability [T, N] of the box's class in every cell
    of its picture. Returns indices of boxes and cells [K], and the IoU [K] of each true box with
    the box that its cell predicts.
    """
    number, cells = belief.shape
    if not number:
        none = torch.zeros(0, dtype=torch.long, device=boxes.device)
        return none, none, torch.zeros(0, device=boxes.device)
    allowed = candidates(boxes, centres, strides)
    overlap = iou(predicted[owners], boxes[:, None]) * allowed
    cost = -belief.clamp(1e-6).log() - IOU_WEIGHT * overlap.clamp(1e-6).log()
    cost = cost.masked_fill(~allowed, torch.inf)
    # SimOTA: the number of a box's cells is the sum of its best overlaps.
    counts = overlap.topk(min(CANDIDATES, cells), 1).values.sum(1).int().clamp(min=1)
    order = cost.topk(min(CANDIDATES, cells), 1, largest=False)
    ranks = torch.arange(order.values.shape[1], device=boxes.device)
    chosen = (ranks[None] < counts[:, None]) & order.values.isfinite()
    row, rank = chosen.nonzero(as_tuple=True)
    column = order.indices[row, rank]
    costs = order.values[row, rank]
    # A contested cell goes to the box with the lowest cost.
    key = owners[row] * cells + column
    best = torch.full((predicted.shape[0] * cells,), torch.inf, device=boxes.device)
    best.scatter_reduce_(0, key, costs, "amin")
    wins = costs <= best[key]
    row, column = row[wins], column[wins]
    return row, column, overlap[row, column]


def candidates(boxes: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Return [T, N]: whether a cell is near a box's centre. Near means nearer than NEAREST strides,
    or nearer than NEAR strides if the cell is inside the box."""
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    away = ((centres[None] - middle[:, None]).abs() / strides[None]).amax(-1)
    inside = (centres[None] > boxes[:, None, :2]) & (centres[None] < boxes[:, None, 2:])
    return ((away < NEAR) & inside.all(-1)) | (away < NEAREST)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute IoU of boxes xyxy, broadcast."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    areas = (a[..., 2:] - a[..., :2]).clamp(min=0).prod(-1)
    areas = areas + (b[..., 2:] - b[..., :2]).clamp(min=0).prod(-1)
    return both / (areas - both).clamp(min=1e-6)


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Compute complete IoU of pairs of boxes [K, 4] (Zheng et al. 2020,
    https://arxiv.org/abs/1911.08287)."""
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    wa, ha = (a[:, 2:] - a[:, :2]).clamp(min=1e-3).unbind(1)
    wb, hb = (b[:, 2:] - b[:, :2]).clamp(min=1e-3).unbind(1)
    overlap = both / (wa * ha + wb * hb - both).clamp(min=1e-6)
    hull = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    away = ((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) ** 2).sum(1) / 4
    shape = (4 / math.pi**2) * (torch.atan(wb / hb) - torch.atan(wa / ha)) ** 2
    with torch.no_grad():
        alpha = shape / (1 - overlap + shape).clamp(min=1e-6)
    return overlap - away / (hull**2).sum(1).clamp(min=1e-6) - alpha * shape
