"""When the network looks: every Nth frame, or as often as the tracks need it (--infer-every).

In the frames between two looks, tracks go on as they moved last. ``auto`` looks again

- after ``MOST_S`` at the latest, so that a new object is found in that time;
- before the fastest box will have gone ``DRIFT`` of its own width or height;
- after ``CONFIRM_S`` where a new object has no id yet.

Both look at the first frames of a scene, behind a cut and of a connection, until its objects have
their ids and speeds; and where tracks would have ended by themselves (``LOST_S``).

``auto`` learns from the look that was ``ahead`` looks ago, because the newest ones are still in the
engine. It waits for that one where it is late. So the frames that are looked at depend on the video
alone, and not on the speed of a machine or on threads. Cameras drop pictures by the clock anyway:
there the newest known look counts, and nothing waits.
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
AHEAD = 3  # looks that may be on their way: two in engines, one that is filled
SPARED_BY_AUTO = 8  # frames for each look, about: MOST_S at 30 fps
WAIT_S = 0.05  # between two looks at whether the run is over


@dataclass(slots=True)
class _Place:
    """``looks``: how many there were. ``told``: how long the last ones hold, from ``first`` on."""

    cuts: Cuts = field(default_factory=Cuts)
    epoch: int = 0
    time_s: float = 0.0  # of the last look
    since: int = 0  # frames since the last look
    looks: int = 0
    fresh: int = 0  # looks that the scene still needs in a row
    told: deque[float] = field(default_factory=deque)
    first: int = 0


class Looks:
    """``every``: how many frames; None: auto. ``first``: looks in a row at a scene's beginning.
    ``times``: of a frame, in seconds. ``waits``: for the look that counts."""

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
        self._places: dict[str, _Place] = {}
        self._changed = threading.Condition()

    def wants(
        self,
        frame: Frame,
        waits: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> bool:
        """Whether the network looks at this frame (``core.stages.between.base.Schedule``)."""
        name, epoch = (frame.arrival.camera, frame.arrival.epoch) if frame.arrival else ("", 0)
        with self._changed:
            place = self._places.setdefault(name, _Place())
        time_s = self._times(frame)
        passed_s = time_s - place.time_s
        anew = place.cuts.here(frame) or not place.looks or epoch != place.epoch
        place.since += 1
        if anew:
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
        place: _Place,
        waits: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> float:
        """How long after the last look the next one is due."""
        with self._changed:
            if not self._waits:
                return place.told[-1] if place.told else 0.0
            asked = place.looks - 1 - self.ahead
            if asked < 0:
                return 0.0

            def known() -> bool:
                return place.first + len(place.told) > asked

            if not known():
                with waits():
                    while not known():
                        self._changed.wait(WAIT_S)
                        check()
            while place.first < asked:
                place.told.popleft()
                place.first += 1
            return place.told[0]

    def told(self, frame: Frame, detections: Detections) -> None:
        if self._every is not None:
            return
        name = frame.arrival.camera if frame.arrival else ""
        holds_s = MOST_S if detections.holds_s is None else detections.holds_s
        with self._changed:
            place = self._places[name]
            place.told.append(holds_s)
            if not self._waits and len(place.told) > 1:
                place.told.popleft()
            self._changed.notify_all()


def holds_s(tracker: Tracker) -> float:
    """For how long the tracks can do without another look, from the one that they just had."""
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
    # In units of the box, a second: the faster of its corners, along the worse of its sides.
    drift = np.abs(next_one - now).reshape(-1, 2, 2).max(axis=1) / sizes
    fastest = float(drift.max()) / STEP_S
    return min(most_s, DRIFT / fastest) if fastest > 0 else most_s
