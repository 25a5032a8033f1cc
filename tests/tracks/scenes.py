"""Scenes whose truth is known: boxes that move, are hidden, and cross."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from detector.tracks.tracker import Tracker

Way = Callable[[float], tuple[float, float] | None]  # time, s -> middle, pixels; None: hidden

WIDTH, HEIGHT = 40.0, 100.0


def straight(start: tuple[float, float], speed: tuple[float, float]) -> Way:
    return lambda t: (start[0] + speed[0] * t, start[1] + speed[1] * t)


def hidden(way: Way, begin_s: float, end_s: float) -> Way:
    return lambda t: None if begin_s <= t < end_s else way(t)


def turning(start: tuple[float, float], speed: float, at_s: float) -> Way:
    return lambda t: (start[0] + speed * (t if t < at_s else 2 * at_s - t), start[1])


def boxes_at(
    ways: Sequence[Way], time_s: float, jitter: Callable[[], NDArray[np.float64]] | None = None
) -> tuple[NDArray[np.float32], list[int]]:
    seen = [(i, at) for i, way in enumerate(ways) if (at := way(time_s)) is not None]
    half = np.array([WIDTH, HEIGHT]) / 2
    boxes = [np.concatenate([np.array(at) - half, np.array(at) + half]) for _, at in seen]
    if jitter is not None:
        boxes = [box + jitter() for box in boxes]
    return np.array(boxes, np.float32).reshape(-1, 4), [i for i, _ in seen]


def ids_of(
    tracker: Tracker,
    ways: Sequence[Way],
    times_s: Sequence[float],
    jitter: Callable[[], NDArray[np.float64]] | None = None,
) -> list[list[int]]:
    had: list[list[int]] = [[] for _ in ways]
    for time_s in times_s:
        boxes, numbers = boxes_at(ways, time_s, jitter)
        n = len(boxes)
        ids = tracker.update(boxes, np.full(n, 0.9, np.float32), np.zeros(n, np.int64), time_s)
        for number, one in zip(numbers, ids.tolist(), strict=True):
            if one >= 0 and had[number][-1:] != [one]:
                had[number].append(one)
    return had
