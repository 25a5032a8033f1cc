"""Schedule the network: it infers every Nth frame (--infer-every).

A look is an inferred frame. Between looks, tracks keep their last speed. The first frames of a
scene are looks, until its objects have ids and speeds. A frame more than ``LOST_S`` after the last
look is a look too, since tracks end then. A cut or a new connection begins a scene.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from detector.core.types import Frame
from detector.tracks.cuts import Cuts
from detector.tracks.tracker import CLOCK_S, LOST_S


@dataclass(slots=True)
class _CameraLooks:
    cuts: Cuts = field(default_factory=Cuts)
    epoch: int | None = None  # connection of the last look; None before the first look
    time_s: float = 0.0  # time of the last look
    since: int = 0  # frames since the last look
    needed: int = 0  # consecutive looks that a new scene still needs


class Looks:
    """The schedule. ``every``: frames per look. ``time_of``: returns a frame's time in seconds.
    ``first``: consecutive looks at the start of a scene."""

    def __init__(self, every: int, time_of: Callable[[Frame], float], *, first: int = 1) -> None:
        self.every, self._time_of, self._first = every, time_of, first
        self._cameras: dict[str, _CameraLooks] = {}

    def wants(self, frame: Frame) -> bool:
        name, epoch = (frame.arrival.camera, frame.arrival.epoch) if frame.arrival else ("", 0)
        camera = self._cameras.setdefault(name, _CameraLooks())
        time_s = self._time_of(frame)
        passed_s = time_s - camera.time_s
        camera.since += 1
        if camera.cuts.is_cut(frame) or epoch != camera.epoch:
            camera.needed = self._first
        infer = camera.needed > 0 or camera.since >= self.every
        if infer or not 0 <= passed_s <= LOST_S + CLOCK_S:
            camera.time_s, camera.since, camera.epoch = time_s, 0, epoch
            camera.needed = max(0, camera.needed - 1)
            return True
        return False
