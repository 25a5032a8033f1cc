"""A consistency loss for pictures that are shown a second time, slightly moved and zoomed.

In a video an object moves by a fraction of a cell per frame, and its box should neither flicker
nor change its score. So the network gets some pictures of a batch twice, the second time moved by
a few pixels and zoomed by a few percent. For every labelled object, the best score near its centre
should be the same in both pictures, and the box with that score should move with the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.loss import Tensors, candidates, iou
from model.teacher import cell_centres, cell_grid

MOVED = 4  # pictures per batch that are shown twice; a batch usually has 16
FARTHEST = 12.0  # longest move of the centre in x and y, pixels; the smallest cells are 8 wide
ZOOM = 0.05  # largest zoom, in and out
SMALLEST = 4.0  # shortest side of an object in the loss, in pixels
BOX_WEIGHT = 0.5  # weight of boxes relative to scores


@dataclass(frozen=True, slots=True)
class Moves:
    """x' = zoom * x + dx and y' = zoom * y + dy, in pixels, for each of the first K pictures."""

    zoom: Tensor  # [K]
    shift: Tensor  # [K, 2]: dx, dy

    def to(self, device: str) -> Moves:
        return Moves(self.zoom.to(device), self.shift.to(device))

    def boxes(self, boxes: Tensor, owners: Tensor) -> Tensor:
        """Return the boxes xyxy [T, 4] of these pictures, moved."""
        return boxes * self.zoom[owners, None] + self.shift[owners].repeat(1, 2)

    def pictures(self, images: Tensor) -> Tensor:
        """Return the pictures [K, 3, H, W], moved. Areas that come into view repeat the border."""
        height, width = images.shape[2:]
        # ``affine_grid`` maps output to input coordinates; -1 and 1 are a picture's outer edges.
        half = images.new_tensor([width / 2, height / 2])
        back = torch.zeros(len(images), 2, 3, dtype=images.dtype, device=images.device)
        back[:, 0, 0] = back[:, 1, 1] = 1 / self.zoom
        centre = (self.zoom[:, None] - 1) * half + self.shift  # how far the middle moves
        back[:, :, 2] = -centre / half / self.zoom[:, None]
        grid = functional.affine_grid(back, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def random_moves(rng: np.random.Generator, count: int, size: tuple[int, int]) -> Moves:
    """Return moves whose zoom and shift are random. ``size``: height, width. A picture's centre
    moves by at most ``FARTHEST`` pixels in x and in y."""
    zoom = np.exp(rng.uniform(-ZOOM, ZOOM, count))
    middle = np.array([size[1], size[0]]) / 2
    shift = rng.uniform(-FARTHEST, FARTHEST, (count, 2)) - (zoom[:, None] - 1) * middle
    return Moves(*(torch.from_numpy(part.astype(np.float32)) for part in (zoom, shift)))


def unsteadiness(batch: Tensors, moves: Moves, boxes: Tensor, logits: Tensor) -> Tensor:
    """Return how much scores and boxes change with the move: the mean over objects, or 0 without
    objects.

    ``boxes`` [B + K, N, 4] and ``logits`` [B + K, N, 2]: B rows for the batch's pictures, then K
    rows for its first K pictures after the move.
    """
    count, size = len(moves.zoom), tuple(batch.images.shape[2:])
    in_moved = batch.owners < count
    owners, classes, still_boxes = (
        batch.owners[in_moved],
        batch.classes[in_moved],
        batch.boxes[in_moved],
    )
    moved_boxes = moves.boxes(still_boxes, owners)
    middle = (moved_boxes[:, :2] + moved_boxes[:, 2:]) / 2
    edge = moved_boxes.new_tensor([size[1], size[0]])
    comparable = ((middle > 0) & (middle < edge)).all(1)
    comparable &= (still_boxes[:, 2:] - still_boxes[:, :2]).amin(1) >= SMALLEST
    owners, classes, still_boxes, moved_boxes = (
        owners[comparable],
        classes[comparable],
        still_boxes[comparable],
        moved_boxes[comparable],
    )
    if not len(still_boxes):
        return logits.sum() * 0
    moved_rows = owners + len(logits) - count
    score, box = _best(still_boxes, owners, classes, boxes, logits, size)
    moved_score, moved_box = _best(moved_boxes, moved_rows, classes, boxes, logits, size)
    misfit = 1 - iou(moves.boxes(box, owners), moved_box)
    confidence = torch.minimum(score, moved_score).detach()
    return ((score - moved_score) ** 2 + BOX_WEIGHT * confidence * misfit).mean()


def _best(
    objects: Tensor,
    owners: Tensor,
    classes: Tensor,
    boxes: Tensor,
    logits: Tensor,
    size: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Return the score [T] and the box [T, 4] of the best cell near each object's centre."""
    centres = torch.from_numpy(cell_centres(*size)).to(boxes.device)
    strides = torch.from_numpy(cell_grid(*size)[1]).to(boxes.device)
    near = candidates(objects, centres, strides)
    own = logits[owners, :, classes].masked_fill(~near, -torch.inf)
    best, cell = own.max(1)
    return best.sigmoid(), boxes[owners, cell]
