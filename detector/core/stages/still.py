"""Whether anything moved since the last frame that was inferred; if not, its detections hold.

Looked at is what the network would see, in cells of 4x4 of its pixels, so that the noise of a
camera averages out. What is compared with is always the last frame that was inferred, never the
frame before: a slow change adds up until it counts.
"""

from __future__ import annotations

import re

import cv2

from detector.core.errors import UsageError
from detector.core.types import Detections, Fit, Frame, Image

CELL = 4  # network pixels along a side
LEVELS = 8  # of 255: least difference of a channel of a changed cell
SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)(%?)")


def parse_share(text: str) -> float:
    """Parse ``0.5%`` and ``0.005`` as 0.005. Raises UsageError outside 0 to 1."""
    found = SHARE.fullmatch(text.strip())
    share = float(found.group(1)) / (100 if found.group(2) else 1) if found else -1.0
    if not 0 <= share < 1:
        raise UsageError(
            f"--skip-still {text}: not a share of the picture; write it as 0.5% or 0.005 (below 1)"
        )
    return share


class Stillness:
    """Finds frames without motion, and keeps the detections that they repeat. Threads:
    ``is_still`` in the reader's, the rest in the writer's."""

    def __init__(self, share: float) -> None:
        """``share``: of the network's input, 0..1, that may change in a still frame."""
        self._share = share
        self._inferred: dict[str, tuple[Fit, int, Image]] = {}
        self._last: dict[str, Detections] = {}

    def is_still(self, frame: Frame, slot: Image, fit: Fit) -> bool:
        """Return whether ``slot``, u8 RGB [H, W, 3], shows what the last inferred frame showed. Of
        the inputs of a frame in tiles, [T, H, W, 3], the first is the whole picture."""
        camera, epoch = _place_of(frame)
        if slot.ndim == 4:
            slot = slot[0]
        height, width = slot.shape[:2]
        size = max(1, width // CELL), max(1, height // CELL)
        # Halved twice, which cv2 does three times as fast as one step by four.
        half = cv2.resize(slot, (2 * size[0], 2 * size[1]), interpolation=cv2.INTER_AREA)
        cells = cv2.resize(half, size, interpolation=cv2.INTER_AREA)
        before = self._inferred.get(camera)
        if before is not None and before[:2] == (fit, epoch):
            changed = _changed(before[2], cells)
            if changed <= self._share * size[0] * size[1]:
                return True
        self._inferred[camera] = fit, epoch, cells
        return False

    def remember(self, frame: Frame, detections: Detections) -> None:
        """The detections of an inferred frame, source pixels."""
        self._last[_place_of(frame)[0]] = detections

    def recall(self, frame: Frame) -> Detections:
        """Return the detections of the last inferred frame."""
        return self._last[_place_of(frame)[0]]


def _changed(before: Image, after: Image) -> int:
    """Return how many cells differ in any channel. 12 us where numpy takes 96."""
    red, green, blue = cv2.split(cv2.absdiff(before, after))
    return cv2.countNonZero(cv2.compare(cv2.max(cv2.max(red, green), blue), LEVELS, cv2.CMP_GT))


def _place_of(frame: Frame) -> tuple[str, int]:
    """Return camera and connection: a reconnected camera starts over."""
    return ("", 0) if frame.arrival is None else (frame.arrival.camera, frame.arrival.epoch)
