"""Schedule the network: every Nth frame, or as often as the tracks need it (--infer-every).

A look is an inferred frame. Between looks, tracks keep their last speed. ``auto`` looks again

- after ``MOST_S`` at the latest, so that new objects are found within that time;
- before the fastest box has moved by ``DRIFT`` of its own width or height;
- after ``CONFIRM_S`` if a new object has no id yet.

Both modes look at the first frames of a scene, until its objects have ids and speeds, and when
tracks would otherwise end (``LOST_S``). A cut or a new connection begins a scene.

``auto`` uses the result from ``ahead`` looks ago, because newer ones are still in flight; it waits
for that result if necessary. So the choice of frames depends only on the video, not on speed or
threads. For cameras, which drop frames by the clock anyway, it uses the newest result at once.
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
SPARED_BY_AUTO = 8  # frames per look, roughly: MOST_S at 30 FPS
WAIT_S = 0.05  # between checks whether the run has ended


@dataclass(slots=True)
class _CameraLooks:
    """The looks at one camera. ``looks``: their number. ``holds``: seconds for which each look,
    from number ``first`` on, is valid."""

    cuts: Cuts = field(default_factory=Cuts)
    epoch: int = 0
    time_s: float = 0.0  # of the last look
    since: int = 0  # frames since the last look
    looks: int = 0
    needed: int = 0  # consecutive looks that a new scene still needs
    holds: deque[float] = field(default_factory=deque)
    first: int = 0


class Looks:
    """The schedule. ``every``: frames per look; None: auto. ``time_of``: returns a frame's time in
    seconds. ``first``: consecutive looks at the start of a scene. ``waits``: whether to wait for
    late results."""

    def __init__(
        self,
        every: int | None,
        time_of: Callable[[Frame], float],
        *,
        first: int = 1,
        waits: bool = True,
    ) -> None:
        self._every, self._time_of, self._first, self._waits = every, time_of, first, waits
        self.spared = every or SPARED_BY_AUTO
        self.ahead = AHEAD
        self._cameras: dict[str, _CameraLooks] = {}
        self._changed = threading.Condition()

    def wants(
        self,
        frame: Frame,
        waiting: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> bool:
        name, epoch = (frame.arrival.camera, frame.arrival.epoch) if frame.arrival else ("", 0)
        with self._changed:
            camera = self._cameras.setdefault(name, _CameraLooks())
        time_s = self._time_of(frame)
        passed_s = time_s - camera.time_s
        is_new = camera.cuts.is_cut(frame) or not camera.looks or epoch != camera.epoch
        camera.since += 1
        if is_new:
            camera.needed = self._first
        infer = camera.needed > 0 or not 0 <= passed_s <= LOST_S + CLOCK_S
        if not infer:
            if self._every is None:
                infer = passed_s > self._read_holds_s(camera, waiting, check) + CLOCK_S
            else:
                infer = camera.since >= self._every
        if infer:
            camera.time_s, camera.since, camera.epoch = time_s, 0, epoch
            camera.looks += 1
            camera.needed = max(0, camera.needed - 1)
        return infer

    def _read_holds_s(
        self,
        camera: _CameraLooks,
        waiting: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> float:
        """Return how long after the last look the next one is due."""
        with self._changed:
            if not self._waits:
                return camera.holds[-1] if camera.holds else 0.0
            number = camera.looks - 1 - self.ahead
            if number < 0:
                return 0.0

            def is_known() -> bool:
                return camera.first + len(camera.holds) > number

            if not is_known():
                with waiting():
                    while not is_known():
                        self._changed.wait(WAIT_S)
                        check()
            while camera.first < number:
                camera.holds.popleft()
                camera.first += 1
            return camera.holds[0]

    def observe(self, frame: Frame, detections: Detections) -> None:
        if self._every is not None:
            return
        name = frame.arrival.camera if frame.arrival else ""
        holds_s = MOST_S if detections.holds_s is None else detections.holds_s
        with self._changed:
            camera = self._cameras[name]
            camera.holds.append(holds_s)
            if not self._waits and len(camera.holds) > 1:
                camera.holds.popleft()
            self._changed.notify_all()


def compute_holds_s(tracker: Tracker) -> float:
    """Return how long the tracks are valid after the current look, in seconds."""
    rows = tracker.seen()
    if not len(rows):
        return MOST_S
    has_id = tracker.ids[rows] != NONE
    most_s = MOST_S if has_id.all() else CONFIRM_S
    followed = rows[has_id]
    if not len(followed):
        return most_s
    now, after = (tracker.motion.ahead(followed, steps) for steps in (0.0, 1.0))
    sizes = np.maximum(now[:, 2:] - now[:, :2], 1.0)
    # per step, in box sizes: the faster corner, and then the faster axis
    drift = np.abs(after - now).reshape(-1, 2, 2).max(axis=1) / sizes
    fastest = float(drift.max()) / STEP_S
    return min(most_s, DRIFT / fastest) if fastest > 0 else most_s
