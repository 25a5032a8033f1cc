"""The best picture of each track: one candidate is kept as long as a track lives.

The better of two pictures of one object is

    the one that the border of the frame does not cut, then
    the one with the larger side x score x sharpness.

The side is the root of the box's area, in pixels. Sharpness is v / (v + 100), where v is the
variance of the Laplacian of the crop, in grey and scaled to 64x64, so that it does not
depend on the object's distance. Only a picture better by 5% replaces the kept one, so that an
approaching object is not copied in every frame.

A track ends when it was not seen for ``OVER_S``, longer than any tracker searches, or when its
clock restarts. The caller then gets a ``TrackRecord`` to write.
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
OVER_S = 1.5
MARGIN = 0.1  # of the box's sides, on each side of it
LONGEST = 640  # pixels of a picture's longer side, to limit the memory per track
BETTER = 1.05
EDGE = 2.0  # pixels: a box that ends this close to the border counts as cut
SIDE, SHARP = 64, 100.0


@dataclass(slots=True)
class TrackRecord:
    """A finished track. ``box``: xyxy in its best frame. ``worth``: whether whole, then a value."""

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
    worth: tuple[bool, float] = (False, -1.0)
    picture: Image | None = None

    @property
    def stem(self) -> str:
        return f"{self.id:06d}-{safe_folder(self.name) or f'class_{self.class_id}'}"

    def encode(self, longest: int = LONGEST) -> tuple[str, bytes]:
        """Return the suffix and the content of its file. Raises OutputError."""
        assert self.picture is not None
        return encode(shrink(self.picture, longest), ".jpg", ".png")

    def row(self, file: str) -> dict[str, Any]:
        """Return the row of tracks.jsonl; times are seconds of the source."""
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
            "whole": self.worth[0],
            "file": file,
        }


class BestPictures:
    """The best pictures of one source. ``see`` may come before ``add``, with the plain picture."""

    def __init__(self) -> None:
        self._live: dict[int, TrackRecord] = {}
        self._seen: list[tuple[tuple[bool, float], Image] | None] | None = None
        self._now = -math.inf

    def __len__(self) -> int:
        return len(self._live)

    def see(self, image: Image, detections: Detections) -> None:
        """Copy what is better than the kept pictures."""
        detections = detections.found()
        ids = detections.track_list()
        self._seen = [
            None if track is None else self._compare(image, detections, at, track)
            for at, track in enumerate(ids)
        ]

    def _compare(
        self, image: Image, detections: Detections, at: int, track: int
    ) -> tuple[tuple[bool, float], Image] | None:
        known = self._live.get(track)
        best = (False, -1.0) if known is None else known.worth
        box = detections.boxes[at].tolist()
        height, width = image.shape[:2]
        whole = min(box[0], box[1], width - box[2], height - box[3]) > EDGE
        most = math.sqrt(max(0.0, (box[2] - box[0]) * (box[3] - box[1])))
        most *= float(detections.scores[at])
        if (whole, most) <= (best[0], best[1] * BETTER):  # sharpness is below 1
            return None
        worth = most * _sharpness(cut(image, box))
        if (whole, worth) <= (best[0], best[1] * BETTER):
            return None
        return (whole, worth), shrink(cut(image, _widen(box)))

    def add(self, frame: Frame, time_s: float, detections: Detections) -> list[TrackRecord]:
        """Add a frame. Return the tracks that ended."""
        detections = detections.found()
        over = self.end() if time_s < self._now - OVER_S else []
        self._now = time_s
        ended = [one.id for one in self._live.values() if time_s - one.last_s > OVER_S]
        over += map(self._live.pop, ended)
        if self._seen is None and len(detections):
            self.see(frame.image, detections)
        for at, track in enumerate(detections.track_list()):
            if track is not None:
                over += self._note(frame, time_s, detections, at, track)
        self._seen = None
        return over

    def _note(
        self, frame: Frame, time_s: float, detections: Detections, at: int, track: int
    ) -> list[TrackRecord]:
        class_id, over = int(detections.class_ids[at]), []
        known = self._live.get(track)
        if known is not None and known.class_id != class_id:  # the tracker restarted
            over.append(self._live.pop(track))
            known = None
        if known is None:
            name = detections.name(at)
            known = TrackRecord(track, class_id, name, frame.index, time_s, frame.index, time_s)
            self._live[track] = known
        better = None if self._seen is None else self._seen[at]
        if better is None and known.picture is None:  # the competing track has ended
            better = self._compare(frame.image, detections, at, track)
        known.last_frame, known.last_s = frame.index, time_s
        known.frames += 1
        if better is not None:
            known.worth, known.picture = better
            known.best_frame, known.best_s = frame.index, time_s
            known.score = float(detections.scores[at])
            known.box = tuple(detections.boxes[at].tolist())
        return over

    def end(self) -> list[TrackRecord]:
        ended = list(self._live.values())
        self._live.clear()
        return ended


def _sharpness(crop: Image) -> float:
    grey = cv2.resize(cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY), (SIDE, SIDE))
    variance = float(cv2.Laplacian(grey, cv2.CV_32F).var())
    return variance / (variance + SHARP)


def _widen(box: list[float]) -> list[float]:
    x, y = MARGIN * (box[2] - box[0]), MARGIN * (box[3] - box[1])
    return [box[0] - x, box[1] - y, box[2] + x, box[3] + y]


def shrink(crop: Image, longest: int = LONGEST) -> Image:
    """Return a copy whose longer side is at most ``longest`` pixels."""
    height, width = crop.shape[:2]
    scale = longest / max(height, width)
    if scale >= 1:
        return crop.copy()
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(cv2.resize(crop, size, interpolation=cv2.INTER_AREA), np.uint8)
