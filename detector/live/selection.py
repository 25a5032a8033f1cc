"""Selects a camera's detections by its classes and masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from detector.core.types import Detections

Polygon = Sequence[tuple[float, float]]


def inside(points: NDArray[np.float32], polygon: Polygon) -> NDArray[np.bool_]:
    """Return whether each of ``points`` [N, 2] is inside the polygon (even-odd rule)."""
    x, y = points[:, 0], points[:, 1]
    is_inside = np.zeros(len(points), bool)
    for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        if y1 == y2:
            continue
        crosses = (y1 > y) != (y2 > y)
        is_inside ^= crosses & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return is_inside


def keep(
    detections: Detections,
    width: int,
    height: int,
    masks: Sequence[Polygon],
    classes: Collection[int] | None,
) -> Detections:
    """Drop each detection whose class is not in ``classes``, or whose centre is in one of the
    ``masks``. Masks are polygons with coordinates from 0 to 1."""
    if not len(detections) or (not masks and classes is None):
        return detections
    chosen = np.ones(len(detections), bool)
    if classes is not None:
        chosen &= np.isin(detections.class_ids, list(classes))
    if masks:
        boxes = detections.boxes
        centres = (boxes[:, :2] + boxes[:, 2:]) / (2 * np.array([width, height], np.float32))
        for mask in masks:
            chosen &= ~inside(centres, mask)
    return detections if chosen.all() else detections.only(chosen)
