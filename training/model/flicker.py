"""How steady the boxes of a clip are: the share of an object's frames in which its box is missing.

Boxes of a class are linked from frame to frame by overlap; an object that comes back within GAP frames where it was
left is the same one. Counted are objects seen in at least SEEN frames, from their first to their last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.analysis.evaluate import overlaps
from detector.stages.nms import nms
from detector.types import Candidates
from model.validation import ASKED, Model

LINK, GAP, SEEN = 0.4, 8, 12
NMS_IOU = 0.45  # of the product


@dataclass(slots=True)
class Chain:
    box: NDArray
    first: int
    last: int
    frames: int = 1


def boxes_of(model: Model, image: NDArray[np.uint8], c: int) -> NDArray:
    boxes, scores = model(image)
    keep = scores[:, c] >= ASKED
    found = Candidates(boxes[keep].astype(np.float32), scores[keep, c].astype(np.float32), np.zeros(keep.sum(), int))
    return nms(found, iou=NMS_IOU, max_det=300).boxes


def link(chains: list[Chain], boxes: NDArray, at: int) -> None:
    """Gives every box to the chain it overlaps most; what is left begins new ones."""
    open_ones = [chain for chain in chains if at - chain.last <= GAP]
    fits = overlaps(np.array([c.box for c in open_ones]).reshape(-1, 4), boxes)
    taken = set()
    while fits.size and fits.max() >= LINK:
        i, j = np.unravel_index(fits.argmax(), fits.shape)
        chain = open_ones[i]
        chain.box, chain.last, chain.frames = boxes[j], at, chain.frames + 1
        fits[i], fits[:, j] = -1, -1
        taken.add(int(j))
    chains += [Chain(box, at, at) for j, box in enumerate(boxes) if j not in taken]


def flicker(model: Model, video: Path, frames: int) -> list[dict]:
    """One row a class: objects, their frames, the share of them without a box."""
    capture = cv2.VideoCapture(str(video))
    chains: list[list[Chain]] = [[], []]
    for at in range(frames):
        good, image = capture.read()
        if not good:
            break
        for c in (0, 1):
            link(chains[c], boxes_of(model, image, c), at)
    rows = []
    for name, found in zip(("person", "vehicle"), chains, strict=True):
        long = [chain for chain in found if chain.frames >= SEEN]
        spans = sum(chain.last - chain.first + 1 for chain in long)
        missing = 1 - sum(chain.frames for chain in long) / spans if spans else float("nan")
        rows.append({"clip": video.name, "class": name, "objects": len(long), "frames": spans, "flicker": missing})
    return rows
