"""If nothing moved since the last inferred frame, reuse the detections of that frame.

We compare the network's input in cells of 4x4 pixels, so that camera noise averages out. We compare
with the last inferred frame, not the previous frame, so that slow changes add up and count.
"""

from __future__ import annotations

import re

import cv2

from detector.core.errors import UsageError
from detector.core.types import Detections, Fit, Frame, Image

CELL = 4  # network pixels per side
LEVELS = 8  # levels of 255: a cell has changed if a channel differs by more
SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)(%?)")


def parse_share(text: str) -> float:
    """Parse ``0.5%`` and ``0.005`` as 0.005. Raises UsageError unless 0 <= share < 1."""
    match = SHARE.fullmatch(text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share < 1:
        raise UsageError(
            f"--skip-still {text}: give a share of the picture below 100%, such as 0.5% or 0.005"
        )
    return share


class Stillness:
    """Finds frames without motion, and keeps the detections that they repeat. ``share``: the part
    of the network's input, 0..1, that may change in a still frame. The reader's thread calls
    ``is_still``; the writer's thread calls the other methods."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._inferred: dict[str, tuple[Fit, int, Image]] = {}
        self._last: dict[str, Detections] = {}

    def is_still(self, frame: Frame, slot: Image, fit: Fit) -> bool:
        """Return whether ``slot``, u8 RGB [H, W, 3], shows the same as the last inferred frame. For
        a frame in tiles, [T, H, W, 3], we compare the first input, which is the whole picture."""
        camera, epoch = _find_camera(frame)
        if slot.ndim == 4:
            slot = slot[0]
        height, width = slot.shape[:2]
        size = max(1, width // CELL), max(1, height // CELL)
        # cv2 halves twice in a third of the time that one step by four would take.
        half = cv2.resize(slot, (2 * size[0], 2 * size[1]), interpolation=cv2.INTER_AREA)
        cells = cv2.resize(half, size, interpolation=cv2.INTER_AREA)
        before = self._inferred.get(camera)
        if before is not None and before[:2] == (fit, epoch):
            count = _count_changed(before[2], cells)
            if count <= self._share * size[0] * size[1]:
                return True
        self._inferred[camera] = fit, epoch, cells
        return False

    def remember(self, frame: Frame, detections: Detections) -> None:
        """Store the detections of an inferred frame, in source pixels."""
        self._last[_find_camera(frame)[0]] = detections

    def recall(self, frame: Frame) -> Detections:
        return self._last[_find_camera(frame)[0]]


def _count_changed(before: Image, after: Image) -> int:
    """Return how many cells differ in any channel. Takes 12 us; numpy takes 96."""
    red, green, blue = cv2.split(cv2.absdiff(before, after))
    return cv2.countNonZero(cv2.compare(cv2.max(cv2.max(red, green), blue), LEVELS, cv2.CMP_GT))


def _find_camera(frame: Frame) -> tuple[str, int]:
    """Return the camera's name and the number of its connection; ("", 0) for files."""
    return ("", 0) if frame.arrival is None else (frame.arrival.camera, frame.arrival.epoch)
