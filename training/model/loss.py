"""What a batch costs. Scores follow the teacher where no label lies, and the fit of the box where one does."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from model.assign import assign
from model.batches import Batch
from model.cells import centres, grid

SCORE_WEIGHT, BOX_WEIGHT = 2.0, 2.5
TAUGHT_ABOVE, TAUGHT_SHARE = 0.15, 0.5  # teacher's boxes that are learnt, and with which weight


@dataclass(slots=True)
class Tensors:
    """A batch on the device."""

    images: Tensor  # [B, 3, H, W] in 0..1
    boxes: Tensor
    classes: Tensor
    owners: Tensor
    taught_boxes: Tensor
    taught: Tensor
    trust: Tensor
    counts: Tensor


def to_device(batch: Batch, device: str) -> Tensors:
    images = torch.from_numpy(batch.images).to(device).permute(0, 3, 1, 2)  # lies channels last already
    parts = (batch.boxes, batch.classes, batch.owners, batch.taught_boxes, batch.taught, batch.trust, batch.counts)
    return Tensors(images.float() / 255, *(torch.from_numpy(part).to(device) for part in parts))


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Complete IoU of pairs of boxes [K, 4]."""
    sides = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
    both = sides.prod(1)
    wa, ha = (a[:, 2:] - a[:, :2]).clamp(min=1e-3).unbind(1)
    wb, hb = (b[:, 2:] - b[:, :2]).clamp(min=1e-3).unbind(1)
    overlap = both / (wa * ha + wb * hb - both).clamp(min=1e-6)
    hull = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    away = ((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) ** 2).sum(1) / 4
    shape = (4 / math.pi**2) * (torch.atan(wb / hb) - torch.atan(wa / ha)) ** 2
    with torch.no_grad():
        alpha = shape / (1 - overlap + shape).clamp(min=1e-6)
    return overlap - away / (hull**2).sum(1).clamp(min=1e-6) - alpha * shape


@torch.no_grad()
def targets(batch: Tensors, boxes: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Target scores and their weights [B, N, 2]; boxes to learn [B, N, 4] and their weights [B, N]."""
    size = batch.images.shape[2:]
    middle = torch.from_numpy(centres(*size)).to(boxes.device)
    strides = torch.from_numpy(grid(*size)[1]).to(boxes.device)
    belief = (logits.sigmoid() + batch.taught) / 2
    believed = belief[batch.owners, :, batch.classes]  # [T, N]
    row, cell, overlap = assign(batch.boxes, batch.owners, middle, strides, boxes, believed)
    fit = believed[row, cell].sqrt() * overlap**3
    most = torch.zeros(len(batch.boxes), device=boxes.device).scatter_reduce_(0, row, fit, "amax")
    best = torch.zeros(len(batch.boxes), device=boxes.device).scatter_reduce_(0, row, overlap, "amax")
    target = fit / most[row].clamp(min=1e-9) * best[row]
    scores, counts = batch.trust * batch.taught, batch.counts.clone()
    where = batch.owners[row], cell
    scores[(*where, batch.classes[row])] = target
    counts[(*where, batch.classes[row])] = 1
    learnt = batch.taught.amax(-1)
    weights = torch.where(learnt > TAUGHT_ABOVE, learnt * TAUGHT_SHARE, 0.0) * batch.trust.amax(-1)
    to_learn = batch.taught_boxes.clone()
    weights[where], to_learn[where] = target, batch.boxes[row]
    return scores, counts, to_learn, weights


def loss(batch: Tensors, boxes: Tensor, logits: Tensor) -> tuple[Tensor, dict[str, float]]:
    """The sum to minimise, and its parts as numbers."""
    scores, counts, to_learn, weights = targets(batch, boxes.detach(), logits.detach())
    gap = (logits.sigmoid() - scores).abs() ** 2
    entropy = functional.binary_cross_entropy_with_logits(logits, scores, reduction="none")
    of_scores = SCORE_WEIGHT * (gap * entropy * counts).sum() / (scores * counts).sum().clamp(min=1)
    picked = weights > 0
    shares = weights[picked]
    of_boxes = BOX_WEIGHT * (shares * (1 - ciou(boxes[picked], to_learn[picked]))).sum() / shares.sum().clamp(min=1)
    return of_scores + of_boxes, {"scores": of_scores.detach(), "boxes": of_boxes.detach()}
