"""Scenes of labelled objects and of tracks that err: lost, swapped, doubled, invented."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float64]
Ids = NDArray[np.int64]

SIZE = np.array([40.0, 90.0])


class Scene(NamedTuple):
    """Boxes xyxy [n, 4] and ids [n] of each frame, of the labels and of the tracks."""

    labels: list[tuple[Boxes, Ids]]
    tracks: list[tuple[Boxes, Ids]]


def scene(seed: int, frames: int, objects: int, errors: float) -> Scene:
    """``errors``: share of the boxes that are lost, swapped, badly placed or invented."""
    random = np.random.default_rng(seed)
    start = random.uniform(0, 400, (objects, 2))
    speed = random.uniform(-4, 4, (objects, 2))
    name = np.arange(objects) + 1
    labels, tracks = [], []
    for t in range(frames):
        corner = start + speed * t
        boxes = np.concatenate([corner, corner + SIZE], axis=1)
        there = random.uniform(size=objects) > 0.1
        if random.uniform() < errors and objects > 1:  # two swap their names for good
            i, j = random.choice(objects, 2, replace=False)
            name[[i, j]] = name[[j, i]]
        if random.uniform() < errors:  # one gets a new name
            name[random.integers(objects)] = name.max() + 1
        seen = random.uniform(size=objects) > errors
        found = boxes + random.normal(0, 40 * errors, (objects, 4))
        labels.append((boxes[there], np.flatnonzero(there) + 1))
        invented = random.uniform(0, 400, (int(random.uniform() < errors), 2))
        extra = np.concatenate([invented, invented + SIZE], axis=1)
        ids = np.append(name[seen], np.full(len(extra), 9000 + t))
        tracks.append((np.concatenate([found[seen], extra]), ids))
    return Scene(labels, tracks)


SCENES = {
    "perfect": (1, 30, 5, 0.0),
    "good": (2, 80, 8, 0.05),
    "poor": (3, 100, 12, 0.2),
    "bad": (4, 60, 20, 0.45),
    "one object": (5, 40, 1, 0.3),
    "crowd": (6, 50, 60, 0.15),
}
