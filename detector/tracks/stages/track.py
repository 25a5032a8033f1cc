"""The stage ``track``: gives the detections of each frame the ids of their tracks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from detector.core.stages.between import Stage

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo
    from detector.tracks.cuts import Cuts
    from detector.tracks.tracker import Tracker
    from detector.tracks.trails import Trails


class TrackStage(Stage):
    """Each camera has its own tracks, with ids from 1. A cut ends all of them."""

    what = "Following the objects"
    advice = "a higher `--conf`"

    @classmethod
    def wanted(cls, options: Mapping[str, Any]) -> bool:
        return options["tracking"]["track"] is not None

    @classmethod
    def lowest_conf(cls, options: Mapping[str, Any]) -> float:
        return _kind(options).lowest_conf

    def __init__(self, options: Mapping[str, Any], info: SourceInfo, names: Sequence[str]) -> None:
        from detector.core.run.drawing import trail_seconds

        self._kind, self._conf = _kind(options), options["selection"]["conf"]
        # Pictures of a folder have no times of their own: a frame each.
        self._ordered = info.kind == "pictures"
        self._by_camera: dict[str, tuple[Tracker, Cuts, Trails]] = {}
        self._trails_s = trail_seconds(options["tracking"]["trails"])

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        from detector.tracks.motion import STEP_S

        tracker, cuts, trails = self._of(frame.arrival.camera if frame.arrival else "")
        if cuts.here(frame):
            tracker.end()
        time_s = frame.index * STEP_S if self._ordered else frame.time_s
        ids = tracker.update(detections.boxes, detections.scores, detections.class_ids, time_s)
        followed = replace(detections, track_ids=ids)
        sure = detections.scores >= self._conf
        followed = followed if sure.all() else followed.only(sure)
        return trails.draw(followed, time_s) if self._trails_s else followed

    def _of(self, camera: str) -> tuple[Tracker, Cuts, Trails]:
        from detector.tracks.cuts import Cuts
        from detector.tracks.trails import Trails

        if camera not in self._by_camera:
            self._by_camera[camera] = self._kind(self._conf), Cuts(), Trails(self._trails_s)
        return self._by_camera[camera]

    def close(self) -> Sequence[str]:
        begun = sum(tracker.begun for tracker, _, _ in self._by_camera.values())
        return [f"tracks: {begun}"]


def _kind(options: Mapping[str, Any]) -> type[Tracker]:
    from detector.tracks import trackers

    return trackers.KINDS[options["tracking"]["track"]]
