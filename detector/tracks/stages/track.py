"""The stage ``track``, which assigns track ids to the detections of each frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.stages.between.base import Stage

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo
    from detector.tracks.cuts import Cuts
    from detector.tracks.steady import Steady
    from detector.tracks.tracker import Tracker
    from detector.tracks.trails import Trails


LONGEST_TRAIL_S = 60.0


class _SourceTracking(NamedTuple):
    tracker: Tracker
    cuts: Cuts
    trails: Trails
    steady: Steady


@dataclass(frozen=True, slots=True)
class TrackSettings:
    """``every``: N if the network runs on every Nth frame; 1 if on all."""

    kind: type[Tracker]
    trails_s: float
    smooth: bool
    every: int


def _trail_seconds(text: str) -> float:
    """Parse --trails, such as ``2s`` or ``2``. Raises UsageError."""
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TRAIL_S:
        raise UsageError(f"--trails {text}: give more than 0 and at most {LONGEST_TRAIL_S:.0f} s")
    return seconds


class TrackStage(Stage):
    """Tracks each camera separately, with ids from 1. With --infer-every, it predicts the boxes of
    frames that are not inferred."""

    turned_on_by = ("tracking", "track")
    what = "Tracking"
    advice = "a higher `--conf`"

    @classmethod
    def settings(cls, options: Mapping[str, Any]) -> TrackSettings:
        from detector.tracks import trackers

        group = options["tracking"]
        every = group["infer_every"] or 1
        if every > 1 and options["drawing"]["blur"]:
            raise UsageError(
                "--blur and --infer-every contradict each other: in a frame that is not inferred, "
                "a box may miss the object that it should hide; omit one option"
            )
        trails_s = 0.0 if group["trails"] is None else _trail_seconds(group["trails"])
        return TrackSettings(trackers.find(group["track"]), trails_s, group["smooth"], every)

    @classmethod
    def schedule_option(cls, settings: TrackSettings) -> str | None:
        return None if settings.every == 1 else f"--infer-every {settings.every}"

    @classmethod
    def lowest_conf(cls, settings: TrackSettings) -> float:
        return settings.kind.lowest_conf

    def __init__(
        self, settings: TrackSettings, info: SourceInfo, names: Sequence[str], conf: float
    ) -> None:
        self._kind, self._conf, self._names = settings.kind, conf, tuple(names)
        self._shown = "" if info.kind == "live" else f"{Path(info.path).name}: "
        # Pictures of a folder have no times: each counts as one step.
        self._ordered = info.kind == "pictures"
        self._by_camera: dict[str, _SourceTracking] = {}
        self._trails_s, self._smooth = settings.trails_s, settings.smooth
        if settings.every > 1:
            from detector.tracks.looks import Looks

            self.schedule = Looks(settings.every, self._time_s, first=self._kind.hits_needed)

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        tracker, cuts, trails, steady = self._find(frame.arrival.camera if frame.arrival else "")
        time_s = self._time_s(frame)
        if cuts.is_cut(frame):
            tracker.end()
        if frame.coasting:
            tracked = self._predict(tracker, frame, time_s)
        else:
            tracked = self._follow(tracker, detections, time_s)
        if self._smooth:
            drawn = steady.draw(tracked, tracker, time_s).inside(*frame.size)
            drawn = trails.draw(drawn, time_s) if self._trails_s else drawn
            return replace(tracked, drawn=drawn)
        return trails.draw(tracked, time_s) if self._trails_s else tracked

    def _follow(self, tracker: Tracker, detections: Detections, time_s: float) -> Detections:
        ids = tracker.update(detections.boxes, detections.scores, detections.class_ids, time_s)
        tracked = replace(detections, track_ids=ids)
        reach_conf = detections.scores >= self._conf
        return tracked if reach_conf.all() else tracked.only(reach_conf)

    def _predict(self, tracker: Tracker, frame: Frame, time_s: float) -> Detections:
        import numpy as np

        predicted = replace(tracker.coasting(tracker.seen(), time_s), names=self._names)
        return predicted.only(np.argsort(-predicted.scores, kind="stable")).inside(*frame.size)

    def _time_s(self, frame: Frame) -> float:
        from detector.tracks.motion import STEP_S

        return frame.index * STEP_S if self._ordered else frame.time_s

    def _find(self, camera: str) -> _SourceTracking:
        from detector.tracks.cuts import Cuts
        from detector.tracks.steady import Steady
        from detector.tracks.trails import Trails

        if camera not in self._by_camera:
            self._by_camera[camera] = _SourceTracking(
                self._kind(self._conf), Cuts(), Trails(self._trails_s), Steady()
            )
        return self._by_camera[camera]

    def close(self) -> Sequence[str]:
        begun = sum(tracking.tracker.begun for tracking in self._by_camera.values())
        return [f"{self._shown}{counted(begun, 'track')}"]
