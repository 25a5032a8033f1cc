"""Schedules the network: every Nth frame, or as often as the tracks need it (--infer-every).

A look is an inferred frame. Between looks, tracks keep their last speed. ``auto`` looks again

- after ``MOST_S`` at the latest, so that a new object is found in that time;
- before the fastest box has moved by ``DRIFT`` of its own width or height;
- after ``CONFIRM_S`` if a new object has no id yet.

Both look at the first frames of a scene, after a cut or a new connection, until its objects have
their ids and speeds, and again when tracks would end (``LOST_S``).

``auto`` uses the result of the look ``ahead`` looks ago, because newer ones are still in flight; it
waits for it if necessary. So the choice of frames depends only on the video, not on speed or
threads. Cameras drop pictures by the clock anyway: there the newest result counts, without waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.core.types import Detections, Frame
from detector.tracks.cuts import Cuts
from detector.tracks.motion import STEP_S
from detector.tracks.tracker import CLOCK_S, LOST_S, NONE, Tracker

MOST_S = 0.25
DRIFT = 0.25
CONFIRM_S = 0.1
AHEAD = 3  # looks in flight: two in engines, one being filled
SPARED_BY_AUTO = 8  # frames per look, about: MOST_S at 30 fps
WAIT_S = 0.05  # between checks whether the run has ended


@dataclass(slots=True)
class _CameraLooks:
    """``looks``: their number. ``holds``: seconds for which each look from ``first`` on is
    valid."""

    cuts: Cuts = field(default_factory=Cuts)
    epoch: int = 0
    time_s: float = 0.0  # of the last look
    since: int = 0  # frames since the last look
    looks: int = 0
    fresh: int = 0  # consecutive looks that the scene still needs
    holds: deque[float] = field(default_factory=deque)
    first: int = 0


class Looks:
    """The schedule. ``every``: frames per look; None: auto. ``first``: looks in a row at the
    beginning of a scene. ``times``: the time of a frame, seconds. ``waits``: for late results."""

    def __init__(
        self,
        every: int | None,
        times: Callable[[Frame], float],
        *,
        first: int = 1,
        waits: bool = True,
    ) -> None:
        self._every, self._times, self._first, self._waits = every, times, first, waits
        self.spared = every or SPARED_BY_AUTO
        self.ahead = AHEAD
        self._places: dict[str, _CameraLooks] = {}
        self._changed = threading.Condition()

    def wants(
        self,
        frame: Frame,
        waits: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> bool:
        """Return whether to infer this frame (``core.stages.between.base.Schedule``)."""
        name, epoch = (frame.arrival.camera, frame.arrival.epoch) if frame.arrival else ("", 0)
        with self._changed:
            place = self._places.setdefault(name, _CameraLooks())
        time_s = self._times(frame)
        passed_s = time_s - place.time_s
        is_new = place.cuts.here(frame) or not place.looks or epoch != place.epoch
        place.since += 1
        if is_new:
            place.fresh = self._first
        looks = place.fresh > 0 or not 0 <= passed_s <= LOST_S + CLOCK_S
        if not looks:
            if self._every is None:
                looks = passed_s > self._holds_s(place, waits, check) + CLOCK_S
            else:
                looks = place.since >= self._every
        if looks:
            place.time_s, place.since, place.epoch = time_s, 0, epoch
            place.looks += 1
            place.fresh = max(0, place.fresh - 1)
        return looks

    def _holds_s(
        self,
        place: _CameraLooks,
        waits: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> float:
        """Return how long after the last look the next one is due."""
        with self._changed:
            if not self._waits:
                return place.holds[-1] if place.holds else 0.0
            asked = place.looks - 1 - self.ahead
            if asked < 0:
                return 0.0

            def known() -> bool:
                return place.first + len(place.holds) > asked

            if not known():
                with waits():
                    while not known():
                        self._changed.wait(WAIT_S)
                        check()
            while place.first < asked:
                place.holds.popleft()
                place.first += 1
            return place.holds[0]

    def receive(self, frame: Frame, detections: Detections) -> None:
        if self._every is not None:
            return
        name = frame.arrival.camera if frame.arrival else ""
        holds_s = MOST_S if detections.holds_s is None else detections.holds_s
        with self._changed:
            place = self._places[name]
            place.holds.append(holds_s)
            if not self._waits and len(place.holds) > 1:
                place.holds.popleft()
            self._changed.notify_all()


def holds_s(tracker: Tracker) -> float:
    """Return how long the tracks are valid without another look, from the current one."""
    here = tracker.seen()
    if not len(here):
        return MOST_S
    known = tracker.ids[here] != NONE
    most_s = MOST_S if known.all() else CONFIRM_S
    followed = here[known]
    if not len(followed):
        return most_s
    now, next_one = (tracker.motion.ahead(followed, steps) for steps in (0.0, 1.0))
    sizes = np.maximum(now[:, 2:] - now[:, :2], 1.0)
    # In boxes per second: the faster corner, along the worse side.
    drift = np.abs(next_one - now).reshape(-1, 2, 2).max(axis=1) / sizes
    fastest = float(drift.max()) / STEP_S
    return min(most_s, DRIFT / fastest) if fastest > 0 else most_s
