"""A small network with three feature maps and decoded boxes. It stands in where a family's library
cannot be installed, or where only the form of the outputs matters. Needs torch."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import nn

STRIDES = (8, 16, 32)


class Branch(nn.Module):
    """Has feature maps of strides 8, 16 and 32. Each map gives boxes and class logits."""

    def __init__(self, classes: int, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        widths = [3, 8, 16, width, width, width]
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
            for a, b in itertools.pairwise(widths)
        )
        self.box = nn.ModuleList(nn.Conv2d(width, 4, 3, 1, 1) for _ in STRIDES)
        self.classes = nn.ModuleList(nn.Conv2d(width, classes, 3, 1, 1) for _ in STRIDES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return boxes [N, rows, 4], x1 y1 x2 y2 in pixels, and logits [N, rows, classes]."""
        boxes, logits = [], []
        for level, layer in enumerate(self.body):
            x = layer(x)
            if level >= 2:
                boxes.append(self.decode(self.box[level - 2](x), STRIDES[level - 2]))
                logits.append(self.classes[level - 2](x).flatten(2).transpose(1, 2))
        return torch.cat(boxes, 1), torch.cat(logits, 1)

    @staticmethod
    def decode(logarithms: torch.Tensor, stride: int) -> torch.Tensor:
        """Decode logarithms of the distances from a cell's centre to the sides of its box."""
        height, width = int(logarithms.shape[2]), int(logarithms.shape[3])
        y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        centres = torch.stack([x, y]).float()[None]
        distances = logarithms.clamp(-4, 4).exp() * 2
        sides = torch.cat([centres - distances[:, :2], centres + distances[:, 2:]], 1) * stride
        return sides.flatten(2).transpose(1, 2)


def scale_branch(branch: Branch, x: torch.Tensor, rate: float, deviation: float = 1.0) -> None:
    """Make the outputs differ from cell to cell, with class scores around ``rate``."""
    from result import set_norms
    from weights import scale_outputs

    run = functools.partial(branch, x)
    set_norms(branch, run)
    mean = float(torch.logit(torch.tensor(rate)))
    scale_outputs(list(branch.classes), run, mean, deviation)
    scale_outputs(list(branch.box), run, 0.0, 0.4)


def best_of(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    iou: float,
    limit: int,
    least: float = 0.01,
    several: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Apply torchvision's NMS per class; return the best ``limit`` boxes, scores and classes.

    ``boxes``: [rows, 4]; ``scores``: [rows, classes]. ``several``: a box may have several classes,
    not only its best.
    """
    import torchvision

    if not several:
        scores = torch.where(scores == scores.amax(1, keepdim=True), scores, 0)
    rows, classes = torch.where(scores > least)
    values = scores[rows, classes]
    keep = torchvision.ops.batched_nms(boxes[rows], values, classes, iou)[:limit]
    return boxes[rows[keep]], values[keep], classes[keep]


def inside(boxes: torch.Tensor, width: float, height: float) -> torch.Tensor:
    return boxes.clamp(min=0).minimum(torch.tensor([width, height] * 2))
