"""Predict the boxes of many tracks at once, by Kalman filters that assume constant speed.

A box is four numbers. For each number, a track has a filter of its value and speed. SORT and
ByteTrack (Bewley 2016, Zhang 2022) filter x1, y1, x2, y2; OC-SORT (Cao 2023) filters the centre,
the area, and the aspect ratio, which has no speed. Noise is stated for a step of ``STEP_S``; n
steps at once add as much noise as n single steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEP_S = 1 / 30  # the papers' frame rate


@dataclass(frozen=True, slots=True)
class Form:
    """Four numbers that represent a box, and variances [4] of these numbers and of their speeds.
    ``measured``: variances in a detection; ``drift*``: added per step; ``first*``: in a new
    track."""

    of_boxes: Callable[[Floats], Floats]
    to_boxes: Callable[[Floats], Floats]
    measured: Floats
    drift: Floats
    drift_speed: Floats
    first: Floats
    first_speed: Floats


def _to_centres(boxes: Floats) -> Floats:
    """Return centre x and y, area, width / height."""
    sizes = np.maximum(boxes[:, 2:] - boxes[:, :2], 1e-3)
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    area, aspect = sizes[:, 0] * sizes[:, 1], sizes[:, 0] / sizes[:, 1]
    return np.column_stack([middle, area, aspect])


def _from_centres(numbers: Floats) -> Floats:
    area, aspect = np.maximum(numbers[:, 2], 1e-6), np.maximum(numbers[:, 3], 1e-6)
    half = np.column_stack([np.sqrt(area * aspect), np.sqrt(area / aspect)]) / 2
    return np.concatenate([numbers[:, :2] - half, numbers[:, :2] + half], axis=1)


def _identity(boxes: Floats) -> Floats:
    return boxes


CORNERS = Form(
    of_boxes=_identity,
    to_boxes=_identity,
    measured=np.full(4, 0.1),
    drift=np.full(4, 0.01),
    drift_speed=np.full(4, 0.01),
    first=np.ones(4),
    first_speed=np.ones(4),
)
CENTRES = Form(
    of_boxes=_to_centres,
    to_boxes=_from_centres,
    measured=np.array([1.0, 1.0, 10.0, 10.0]),
    drift=np.ones(4),
    drift_speed=np.array([0.01, 0.01, 0.0001, 0.0]),
    first=np.full(4, 10.0),
    first_speed=np.array([1e4, 1e4, 1e4, 0.0]),
)


class Motion:
    """The filters of T tracks. ``place`` and ``speed`` (per step) are [T, 4]; ``spread`` [T, 4, 3]
    has the variance of place, its covariance with speed, and the variance of speed."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.place: Floats = np.zeros((0, 4))
        self.speed: Floats = np.zeros((0, 4))
        self.spread: Floats = np.zeros((0, 4, 3))

    def add(self, boxes: Floats) -> None:
        """Append new tracks at rest; ``boxes`` [n, 4] xyxy."""
        n, form = len(boxes), self.form
        first = np.stack([form.first, np.zeros(4), form.first_speed], axis=1)
        self.place = np.concatenate([self.place, form.of_boxes(boxes)])
        self.speed = np.concatenate([self.speed, np.zeros((n, 4))])
        self.spread = np.concatenate([self.spread, np.repeat(first[None], n, axis=0)])

    def keep(self, kept: NDArray[np.bool_]) -> None:
        self.place, self.speed, self.spread = self.place[kept], self.speed[kept], self.spread[kept]

    def predict(self, steps: float, rows: slice | NDArray[np.intp] = slice(None)) -> None:
        """Move tracks on by ``steps``, which may be fractional."""
        form, n = self.form, steps
        place, speed, spread = self.place[rows], self.speed[rows], self.spread[rows]
        if form is CENTRES:  # keep areas positive
            speed[:, 2] = np.where(place[:, 2] + n * speed[:, 2] > 0, speed[:, 2], 0)
        grown = np.empty_like(spread)
        v = form.drift_speed
        grown[..., 0] = spread[..., 0] + 2 * n * spread[..., 1] + n * n * spread[..., 2]
        # Noise of n single steps: sums of 1, k and k * k for k = 0 to n - 1.
        grown[..., 0] += n * form.drift + max(n * (n - 1) * (2 * n - 1) / 6, 0) * v
        grown[..., 1] = spread[..., 1] + n * spread[..., 2] + max(n * (n - 1) / 2, 0) * v
        grown[..., 2] = spread[..., 2] + n * v
        self.place[rows], self.speed[rows] = place + n * speed, speed
        self.spread[rows] = grown

    def correct(self, rows: NDArray[np.intp], boxes: Floats) -> None:
        """Update the tracks ``rows`` [n] with detected ``boxes`` [n, 4] xyxy."""
        spread = self.spread[rows]
        total = spread[..., 0] + self.form.measured
        gain, gain_speed = spread[..., 0] / total, spread[..., 1] / total
        error = self.form.of_boxes(boxes) - self.place[rows]
        self.place[rows] += gain * error
        self.speed[rows] += gain_speed * error
        self.spread[rows] = np.stack(
            [
                (1 - gain) * spread[..., 0],
                (1 - gain) * spread[..., 1],
                spread[..., 2] - gain_speed * spread[..., 1],
            ],
            axis=-1,
        )

    def boxes(self) -> Floats:
        """Return the current boxes, xyxy [T, 4]."""
        return self.form.to_boxes(self.place)

    def ahead(self, rows: NDArray[np.intp], steps: float) -> Floats:
        """Return where the tracks ``rows`` will be after ``steps``, xyxy [n, 4]."""
        return self.form.to_boxes(self.place[rows] + steps * self.speed[rows])
