"""Random scenes of labelled objects with tracks that contain errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float64]
Ids = NDArray[np.int64]

SIZE = np.array([40.0, 90.0])


class Scene(NamedTuple):
    """Boxes xyxy [n, 4] and ids [n] of each frame."""

    labels: list[tuple[Boxes, Ids]]
    tracks: list[tuple[Boxes, Ids]]


def scene(seed: int, frames: int, objects: int, errors: float) -> Scene:
    """Return a scene. ``errors``: share of boxes that are lost, swapped, misplaced or invented."""
    random = np.random.default_rng(seed)
    start = random.uniform(0, 400, (objects, 2))
    speed = random.uniform(-4, 4, (objects, 2))
    name = np.arange(objects) + 1
    labels, tracks = [], []
    for t in range(frames):
        corner = start + speed * t
        boxes = np.concatenate([corner, corner + SIZE], axis=1)
        visible = random.uniform(size=objects) > 0.1
        if random.uniform() < errors and objects > 1:  # two objects swap their ids permanently
            i, j = random.choice(objects, 2, replace=False)
            name[[i, j]] = name[[j, i]]
        if random.uniform() < errors:  # one object gets a new id
            name[random.integers(objects)] = name.max() + 1
        tracked = random.uniform(size=objects) > errors
        measured = boxes + random.normal(0, 40 * errors, (objects, 4))
        labels.append((boxes[visible], np.flatnonzero(visible) + 1))
        invented = random.uniform(0, 400, (int(random.uniform() < errors), 2))
        extra = np.concatenate([invented, invented + SIZE], axis=1)
        ids = np.append(name[tracked], np.full(len(extra), 9000 + t))
        tracks.append((np.concatenate([measured[tracked], extra]), ids))
    return Scene(labels, tracks)


SCENES = {
    "perfect": (1, 30, 5, 0.0),
    "good": (2, 80, 8, 0.05),
    "poor": (3, 100, 12, 0.2),
    "bad": (4, 60, 20, 0.45),
    "one object": (5, 40, 1, 0.3),
    "crowd": (6, 50, 60, 0.15),
}
