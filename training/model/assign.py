"""Which cells answer for which true box: SimOTA, over all boxes of a batch at once. T boxes, N cells, B pictures."""

from __future__ import annotations

import torch
from torch import Tensor

NEAR, NEAREST = 1.5, 0.75  # strides between a cell's centre and the box's
IOU_WEIGHT = 3.0
CANDIDATES = 10


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Of boxes xyxy, broadcast."""
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    both = sides.prod(-1)
    areas = (a[..., 2:] - a[..., :2]).clamp(min=0).prod(-1) + (b[..., 2:] - b[..., :2]).clamp(min=0).prod(-1)
    return both / (areas - both).clamp(min=1e-6)


def candidates(boxes: Tensor, middle: Tensor, strides: Tensor) -> Tensor:
    """[T, N]: near the box's centre, and inside it or very near."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    away = ((middle[None] - centre[:, None]).abs() / strides[None]).amax(-1)
    within = ((middle[None] > boxes[:, None, :2]) & (middle[None] < boxes[:, None, 2:])).all(-1)
    return ((away < NEAR) & within) | (away < NEAREST)


def assign(
    boxes: Tensor, owners: Tensor, middle: Tensor, strides: Tensor, predicted: Tensor, belief: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs (box, cell) [K], and the IoU [K] of what the cell predicts with the box.

    ``predicted`` [B, N, 4]; ``belief`` [T, N]: probability of the box's class in every cell of its picture.
    A cell answers for one box of its picture, the cheapest.
    """
    number, cells = belief.shape
    if not number:
        none = torch.zeros(0, dtype=torch.long, device=boxes.device)
        return none, none, torch.zeros(0, device=boxes.device)
    allowed = candidates(boxes, middle, strides)
    overlap = iou(predicted[owners], boxes[:, None]) * allowed
    cost = -belief.clamp(1e-6).log() - IOU_WEIGHT * overlap.clamp(1e-6).log()
    cost = cost.masked_fill(~allowed, torch.inf)
    wanted = overlap.topk(min(CANDIDATES, cells), 1).values.sum(1).int().clamp(min=1)
    order = cost.topk(min(CANDIDATES, cells), 1, largest=False)
    taken = (torch.arange(order.values.shape[1], device=boxes.device)[None] < wanted[:, None]) & order.values.isfinite()
    row, rank = taken.nonzero(as_tuple=True)
    column = order.indices[row, rank]
    price = order.values[row, rank]
    # Cells that several boxes want go to the cheapest.
    key = owners[row] * cells + column
    best = torch.full((predicted.shape[0] * cells,), torch.inf, device=boxes.device)
    best.scatter_reduce_(0, key, price, "amin")
    won = price <= best[key]
    row, column = row[won], column[won]
    return row, column, overlap[row, column]
