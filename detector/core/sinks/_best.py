"""Find the best picture of each track, keeping one candidate per track.

A picture of the whole object is better than a picture of an object cut by the border. If both are
whole or both are cut, the larger product of side, score and sharpness decides. The side is the
square root of the box's area in pixels. Sharpness is v / (v + 100), where v is the variance of the
Laplacian of the grey crop, scaled to 64x64 so that distance does not matter. A product must be
larger by 5% to replace the last, so that an approaching object is not copied in every frame.

A track ends if it has no detection for ``ENDED_S`` (no tracker waits that long), or if the clock
is set back. The caller then gets a ``TrackRecord`` to write.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from detector.core.sinks.crops import cut, safe_folder
from detector.core.sinks.pictures import encode
from detector.core.types import Detections, Frame, Image

ROWS = "tracks.jsonl"
ENDED_S = 1.5
MARGIN = 0.1  # added on each side of a box, as a share of its width or height
LONGEST = 640  # pixels of a picture's longer side, limited to save memory
MIN_GAIN = 1.05
EDGE_PX = 2.0  # a box that ends this close to the border counts as cut
SHARPNESS_SIDE, SHARPNESS_HALF = 64, 100.0


@dataclass(slots=True)
class TrackRecord:
    """``box``: xyxy in the track's best frame. ``rank``: whether the object is whole, and the
    product of side, score and sharpness."""

    id: int
    class_id: int
    name: str
    first_frame: int
    first_s: float
    last_frame: int
    last_s: float
    frames: int = 0
    best_frame: int = -1
    best_s: float = 0.0
    score: float = 0.0
    box: tuple[float, ...] = ()
    rank: tuple[bool, float] = (False, -1.0)
    picture: Image | None = None

    @property
    def stem(self) -> str:
        return f"{self.id:06d}-{safe_folder(self.name) or f'class_{self.class_id}'}"

    def encode(self, longest: int = LONGEST) -> tuple[str, bytes]:
        """Return the suffix and content of the picture's file. Raises OutputError."""
        assert self.picture is not None
        return encode(shrink(self.picture, longest), ".jpg", ".png")

    def row(self, file: str) -> dict[str, Any]:
        """Return the row for tracks.jsonl; times are in seconds of the source."""
        return {
            "track": self.id,
            "class": self.name,
            "class_id": self.class_id,
            "first_frame": self.first_frame,
            "first_s": round(self.first_s, 3),
            "last_frame": self.last_frame,
            "last_s": round(self.last_s, 3),
            "frames": self.frames,
            "best_frame": self.best_frame,
            "best_s": round(self.best_s, 3),
            "score": round(self.score, 4),
            "box": [round(side, 2) for side in self.box],
            "whole": self.rank[0],
            "file": file,
        }


class BestPictures:
    """The best pictures of one source. If boxes are drawn, call ``see`` with the plain picture
    before ``add``."""

    def __init__(self) -> None:
        self._tracks: dict[int, TrackRecord] = {}
        self._better: list[tuple[tuple[bool, float], Image] | None] | None = None
        self._now = -math.inf

    def __len__(self) -> int:
        return len(self._tracks)

    def see(self, image: Image, detections: Detections) -> None:
        """Copy the objects that look better here than in their tracks' candidates."""
        detections = detections.found()
        ids = detections.track_list()
        self._better = [
            None if track is None else self._compare(image, detections, at, track)
            for at, track in enumerate(ids)
        ]

    def _compare(
        self, image: Image, detections: Detections, at: int, track: int
    ) -> tuple[tuple[bool, float], Image] | None:
        record = self._tracks.get(track)
        best = (False, -1.0) if record is None else record.rank
        box = detections.boxes[at].tolist()
        height, width = image.shape[:2]
        whole = min(box[0], box[1], width - box[2], height - box[3]) > EDGE_PX
        most = math.sqrt(max(0.0, (box[2] - box[0]) * (box[3] - box[1])))
        most *= float(detections.scores[at])
        if (whole, most) <= (best[0], best[1] * MIN_GAIN):  # not better even with a sharpness of 1
            return None
        value = most * _measure_sharpness(cut(image, box))
        if (whole, value) <= (best[0], best[1] * MIN_GAIN):
            return None
        x, y = MARGIN * (box[2] - box[0]), MARGIN * (box[3] - box[1])
        return (whole, value), shrink(cut(image, [box[0] - x, box[1] - y, box[2] + x, box[3] + y]))

    def add(self, frame: Frame, time_s: float, detections: Detections) -> list[TrackRecord]:
        """Add a frame. Return the tracks that ended."""
        detections = detections.found()
        ended = self.end() if time_s < self._now - ENDED_S else []
        self._now = time_s
        ids = [track.id for track in self._tracks.values() if time_s - track.last_s > ENDED_S]
        ended += map(self._tracks.pop, ids)
        if self._better is None and len(detections):
            self.see(frame.image, detections)
        for at, track in enumerate(detections.track_list()):
            if track is not None:
                ended += self._update(frame, time_s, detections, at, track)
        self._better = None
        return ended

    def _update(
        self, frame: Frame, time_s: float, detections: Detections, at: int, track: int
    ) -> list[TrackRecord]:
        class_id, ended = int(detections.class_ids[at]), []
        record = self._tracks.get(track)
        if record is not None and record.class_id != class_id:  # the tracker restarted
            ended.append(self._tracks.pop(track))
            record = None
        if record is None:
            name = detections.name(at)
            record = TrackRecord(track, class_id, name, frame.index, time_s, frame.index, time_s)
            self._tracks[track] = record
        better = None if self._better is None else self._better[at]
        if better is None and record.picture is None:  # ``see`` compared with a track that ended
            better = self._compare(frame.image, detections, at, track)
        record.last_frame, record.last_s = frame.index, time_s
        record.frames += 1
        if better is not None:
            record.rank, record.picture = better
            record.best_frame, record.best_s = frame.index, time_s
            record.score = float(detections.scores[at])
            record.box = tuple(detections.boxes[at].tolist())
        return ended

    def end(self) -> list[TrackRecord]:
        ended = list(self._tracks.values())
        self._tracks.clear()
        return ended


def _measure_sharpness(crop: Image) -> float:
    grey = cv2.resize(cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY), (SHARPNESS_SIDE, SHARPNESS_SIDE))
    variance = float(cv2.Laplacian(grey, cv2.CV_32F).var())
    return variance / (variance + SHARPNESS_HALF)


def shrink(crop: Image, longest: int = LONGEST) -> Image:
    """Return a copy whose longer side is at most ``longest`` pixels."""
    height, width = crop.shape[:2]
    scale = longest / max(height, width)
    if scale >= 1:
        return crop.copy()
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(cv2.resize(crop, size, interpolation=cv2.INTER_AREA), np.uint8)
