"""Scenes with known tracks: boxes that move, are hidden, and cross each other's paths."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from detector.tracks.tracker import Tracker

# Time in seconds -> middle of the object in pixels, or None if the object is hidden.
Path = Callable[[float], tuple[float, float] | None]

WIDTH, HEIGHT = 40.0, 100.0


def straight(start: tuple[float, float], speed: tuple[float, float]) -> Path:
    return lambda t: (start[0] + speed[0] * t, start[1] + speed[1] * t)


def hidden(path: Path, begin_s: float, end_s: float) -> Path:
    return lambda t: None if begin_s <= t < end_s else path(t)


def turning(start: tuple[float, float], speed: float, at_s: float) -> Path:
    return lambda t: (start[0] + speed * (t if t < at_s else 2 * at_s - t), start[1])


def boxes_at(
    paths: Sequence[Path], time_s: float, jitter: Callable[[], NDArray[np.float64]] | None = None
) -> tuple[NDArray[np.float32], list[int]]:
    visible = [(i, middle) for i, path in enumerate(paths) if (middle := path(time_s)) is not None]
    half = np.array([WIDTH, HEIGHT]) / 2
    boxes = [
        np.concatenate([np.array(middle) - half, np.array(middle) + half]) for _, middle in visible
    ]
    if jitter is not None:
        boxes = [box + jitter() for box in boxes]
    return np.array(boxes, np.float32).reshape(-1, 4), [i for i, _ in visible]


def ids_of(
    tracker: Tracker,
    paths: Sequence[Path],
    times_s: Sequence[float],
    jitter: Callable[[], NDArray[np.float64]] | None = None,
) -> list[list[int]]:
    """Return each object's track ids: one for each time that its id changed, in order."""
    ids_had: list[list[int]] = [[] for _ in paths]
    for time_s in times_s:
        boxes, indexes = boxes_at(paths, time_s, jitter)
        n = len(boxes)
        ids = tracker.update(boxes, np.full(n, 0.9, np.float32), np.zeros(n, np.int64), time_s)
        for index, track_id in zip(indexes, ids.tolist(), strict=True):
            if track_id >= 0 and ids_had[index][-1:] != [track_id]:
                ids_had[index].append(track_id)
    return ids_had
