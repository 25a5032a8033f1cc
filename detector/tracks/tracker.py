"""The base of all trackers: the tracks, their ids, and how they begin and end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detector.core.analysis.assignment import assign, overlaps
from detector.core.types import Detections
from detector.tracks.motion import CORNERS, STEP_S, Floats, Form, Motion

Ids = NDArray[np.int64]
Numbers = NDArray[np.intp]

NONE = -1  # the id of a box without a track, or of an unconfirmed track
LOST_S = 1.0  # a track ends if it was not seen for longer than this
CLOCK_S = 1e-6  # largest rounding error of frame times


class Tracker(ABC):
    """Assigns track ids to the boxes of one camera. A box joins only a track of its class; boxes
    that score below ``conf`` start no track."""

    form: ClassVar[Form] = CORNERS
    least_overlap: ClassVar[float]  # least IoU of a match
    hits_needed: ClassVar[int]  # consecutive frames before a track gets an id
    lowest_conf: ClassVar[float] = 1.0  # lowest score of the boxes that the tracker uses
    # names of the attributes that are indexed by track
    arrays: ClassVar[tuple[str, ...]] = ("ids", "classes", "hits", "seen_s", "scores")

    def __init__(self, conf: float) -> None:
        self.conf = conf
        self.motion = Motion(self.form)
        self.ids: Ids = np.zeros(0, np.int64)
        self.classes: Ids = np.zeros(0, np.int64)
        self.hits: Ids = np.zeros(0, np.int64)
        self.seen_s: Floats = np.zeros(0)
        self.scores: Floats = np.zeros(0)  # score of each track's last box
        self._time_s: float | None = None
        self._next = 1

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def begun(self) -> int:
        """Number of tracks that have got an id so far."""
        return self._next - 1

    def update(
        self,
        boxes: NDArray[np.floating[Any]],
        scores: NDArray[np.floating[Any]],
        class_ids: Ids,
        time_s: float,
    ) -> Ids:
        """Return the id of each box [N], or ``NONE``, for the frame at ``time_s``. ``boxes`` xyxy
        [N, 4], ``scores`` [N], ``class_ids`` [N]. All tracks end if the clock goes back by more
        than ``LOST_S``, as when a camera restarts. A smaller step back counts as no time."""
        if self._time_s is not None and time_s < self._time_s - LOST_S:
            self.end()
            self._time_s = None
        passed_s = 0.0 if self._time_s is None else max(0.0, time_s - self._time_s)
        self._time_s = time_s if self._time_s is None else max(self._time_s, time_s)
        self._end_others(self._time_s - self.seen_s <= LOST_S + CLOCK_S)
        if len(self):
            self.motion.predict(passed_s / STEP_S)
        box_ids = np.full(len(scores), NONE, np.int64)
        self.follow(boxes.astype(np.float64), scores.astype(np.float64), class_ids, box_ids)
        return box_ids

    def end(self) -> None:
        self._end_others(np.zeros(len(self), bool))

    # Methods that predict boxes (--infer-every, --smooth). They change no track.

    def seen(self) -> Numbers:
        """Return the tracks that had a box in the last frame, with a score of at least ``conf``."""
        return np.flatnonzero((self.seen_s == self._time_s) & (self.scores >= self.conf))

    def followed(self, time_s: float, within_s: float) -> Numbers:
        """Return the tracks with an id that were seen at most ``within_s`` before ``time_s``."""
        return np.flatnonzero((self.ids != NONE) & (time_s - self.seen_s <= within_s + CLOCK_S))

    def coasting(self, rows: Numbers, time_s: float) -> Detections:
        """Return predicted boxes of these tracks at ``time_s``, with their ids and last scores."""
        passed_s = 0.0 if self._time_s is None else max(0.0, time_s - self._time_s)
        return Detections(
            self.motion.ahead(rows, passed_s / STEP_S).astype(np.float32),
            self.scores[rows].astype(np.float32),
            self.classes[rows],
            track_ids=self.ids[rows],
            coasting=np.ones(len(rows), bool),
        )

    @abstractmethod
    def follow(self, boxes: Floats, scores: Floats, class_ids: Ids, box_ids: Ids) -> None:
        """Match boxes with the tracks' predicted boxes, and write track ids into ``box_ids``."""

    # Methods for ``follow``

    def same_class(self, rows: Numbers, class_ids: Ids) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = self.classes[rows][:, None] == class_ids[None]
        return same

    def match(
        self, predicted: Floats, rows: Numbers, boxes: Floats, class_ids: Ids, least: float
    ) -> tuple[Numbers, Numbers]:
        """Match ``predicted``, the boxes of the tracks ``rows``, with ``boxes``. A match has an IoU
        of at least ``least``. Return indices into ``rows`` and ``boxes``."""
        overlap = overlaps(predicted, boxes) * self.same_class(rows, class_ids)
        first, second = assign(overlap)
        enough = overlap[first, second] >= least
        return first[enough], second[enough]

    def take(self, rows: Numbers, boxes: Floats, scores: Floats, at: Numbers, box_ids: Ids) -> None:
        """Update tracks ``rows`` with ``boxes``, which have the indices ``at`` in ``scores``."""
        self.motion.correct(rows, boxes)
        self.hits[rows] += 1
        assert self._time_s is not None
        self.seen_s[rows] = self._time_s
        self.scores[rows] = scores[at]
        for row in rows[(self.ids[rows] == NONE) & (self.hits[rows] >= self.needed())].tolist():
            self.ids[row] = self._next
            self._next += 1
        box_ids[at] = self.ids[rows]

    def needed(self) -> int:
        return self.hits_needed

    def begin(self, boxes: Floats, scores: Floats, class_ids: Ids) -> None:
        n = len(boxes)
        assert self._time_s is not None
        self.motion.add(boxes)
        self.ids = np.concatenate([self.ids, np.full(n, NONE, np.int64)])
        self.classes = np.concatenate([self.classes, class_ids])
        self.hits = np.concatenate([self.hits, np.ones(n, np.int64)])
        self.seen_s = np.concatenate([self.seen_s, np.full(n, self._time_s)])
        self.scores = np.concatenate([self.scores, scores])

    def drop_unsure(self) -> None:
        """End tracks that have no id and were not seen in this frame."""
        self._end_others((self.ids != NONE) | (self.seen_s == self._time_s))

    def _end_others(self, kept: NDArray[np.bool_]) -> None:
        if not kept.all():
            self.motion.keep(kept)
            for name in self.arrays:
                setattr(self, name, getattr(self, name)[kept])


def others(count: int, taken: Numbers) -> Numbers:
    """Return the indices below ``count`` that are not ``taken``."""
    free = np.ones(count, bool)
    free[taken] = False
    return np.flatnonzero(free)
