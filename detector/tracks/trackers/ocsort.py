"""OC-SORT: SORT that trusts observations more than predictions (Cao et al., 2023,
"Observation-Centric SORT", arXiv:2203.14360). It adds

- momentum (OCM), which prefers boxes in the track's direction;
- recovery (OCR), which compares the last detected boxes of unmatched tracks with unmatched boxes;
- re-update (ORU): when a lost track is matched again, its filter returns to the state that it had
  when the track was lost, and is updated from there along a straight line to the new box. This
  discards the errors of predictions.
"""

from __future__ import annotations

import numpy as np

from detector.core.analysis.assignment import assign, overlaps
from detector.tracks.motion import CENTRES, STEP_S, Floats
from detector.tracks.tracker import Ids, Numbers, Tracker, others

DIRECTION_WEIGHT = 0.2
LOOK_BACK = 3  # frames over which a direction is measured


class OcsortTracker(Tracker):
    form = CENTRES
    least_overlap = 0.3
    hits_needed = 3
    arrays = (*Tracker.arrays, "last", "past", "direction", "missed", "lost")

    def __init__(self, conf: float) -> None:
        super().__init__(conf)
        self.frames = 0  # number of frames since the start of the scene
        self.last: Floats = np.zeros((0, 4))  # box of each track when it was last seen
        # Boxes of the last frames, oldest first; NaN: not seen.
        self.past: Floats = np.zeros((0, LOOK_BACK, 4))
        self.direction: Floats = np.zeros((0, 2))  # NaN: unknown
        self.missed: Ids = np.zeros(0, np.int64)  # frames since it was seen
        # Place, speed and spread (4 + 4 + 4 x 3 numbers) of the filter at the first missed frame.
        self.lost: Floats = np.zeros((0, 4, 5))

    def end(self) -> None:
        super().end()
        self.frames = 0

    def needed(self) -> int:
        """Return how many hits give a track its id, the first box included; 0 in a new scene."""
        return 0 if self.frames <= self.hits_needed else self.hits_needed + 1

    def follow(self, boxes: Floats, scores: Floats, class_ids: Ids, box_ids: Ids) -> None:
        self.missed += 1
        self.hits[self.missed > 1] = 1
        used = np.flatnonzero(scores >= self.conf)
        boxes_used, classes = boxes[used], class_ids[used]
        earlier = self._earlier_boxes()
        overlap = overlaps(self.motion.boxes(), boxes_used)
        overlap *= self.same_class(np.arange(len(self)), classes)
        directions = _directions(earlier, boxes_used)
        bonus = DIRECTION_WEIGHT * _agreement(self.direction, directions) * scores[used]
        rows, at = assign(np.where(overlap > 0, overlap + bonus, 0))
        enough = overlap[rows, at] >= self.least_overlap
        rows, at = rows[enough], at[enough]

        lost, free = others(len(self), rows), others(len(used), at)
        recovered, matched = self.match(
            self.last[lost], lost, boxes_used[free], classes[free], self.least_overlap
        )
        rows, at = np.append(rows, lost[recovered]), np.append(at, free[matched])
        self._observe(rows, boxes_used[at], earlier)
        self.take(rows, boxes_used[at], scores, used[at], box_ids)
        new = used[others(len(used), at)]
        self.begin(boxes[new], scores[new], class_ids[new])
        self.frames += 1

    def _earlier_boxes(self) -> Floats:
        """Return each track's oldest box of ``past``, or else its last box, [T, 4]."""
        known = np.isfinite(self.past[:, :, 0])
        oldest = self.past[np.arange(len(self)), np.argmax(known, axis=1)]
        return np.where(np.any(known, axis=1)[:, None], oldest, self.last)

    def _observe(self, rows: Numbers, boxes: Floats, earlier: Floats) -> None:
        """Store the detected boxes and directions of the tracks ``rows``."""
        each = np.arange(len(rows))
        directions = _directions(earlier[rows], boxes)[each, each]
        known = (self.hits[rows] > 1) | ~np.isnan(self.direction[rows, 0])
        self.direction[rows[known]] = directions[known]  # from the second box on
        for row, box in zip(rows.tolist(), boxes, strict=True):
            if self.missed[row] > 1:
                self._re_update(row, box)
        self.last[rows] = boxes
        self.missed[rows] = 0
        self.past[:, :-1] = self.past[:, 1:]
        self.past[:, -1] = np.nan
        self.past[rows, -1] = boxes
        lost, motion = self.missed == 1, self.motion
        self.lost[lost] = np.concatenate(
            [motion.place[lost, :, None], motion.speed[lost, :, None], motion.spread[lost]], axis=2
        )

    def _re_update(self, row: int, box: Floats) -> None:
        """Reset a recovered track's filter to its state at the loss; update it up to ``box``."""
        frames, motion = int(self.missed[row]), self.motion
        assert self._time_s is not None
        steps = (self._time_s - self.seen_s[row]) / STEP_S / frames
        motion.place[row], motion.speed[row] = self.lost[row, :, 0], self.lost[row, :, 1]
        motion.spread[row] = self.lost[row, :, 2:]
        first, last = _middle_and_size(self.last[row]), _middle_and_size(box)
        at = np.array([row])
        for i in range(1, frames + 1):
            middle, size = np.split(first + (last - first) * i / frames, 2)
            motion.correct(at, np.append(middle - size / 2, middle + size / 2)[None])
            if i < frames:
                motion.predict(steps, at)

    def begin(self, boxes: Floats, scores: Floats, class_ids: Ids) -> None:
        super().begin(boxes, scores, class_ids)
        n = len(boxes)
        self.last = np.concatenate([self.last, boxes])
        self.past = np.concatenate([self.past, np.full((n, LOOK_BACK, 4), np.nan)])
        self.direction = np.concatenate([self.direction, np.full((n, 2), np.nan)])
        self.missed = np.concatenate([self.missed, np.zeros(n, np.int64)])
        self.lost = np.concatenate([self.lost, np.zeros((n, 4, 5))])


def _middle_and_size(box: Floats) -> Floats:
    return np.append((box[:2] + box[2:]) / 2, box[2:] - box[:2])


def _directions(start: Floats, boxes: Floats) -> Floats:
    """Return unit vectors from the middle of each start [T, 4] to each box [N, 4]: [T, N, 2]."""
    ways = (boxes[None, :, :2] + boxes[None, :, 2:] - start[:, None, :2] - start[:, None, 2:]) / 2
    unit: Floats = ways / (np.linalg.norm(ways, axis=2, keepdims=True) + 1e-6)
    return unit


def _agreement(before: Floats, after: Floats) -> Floats:
    """Return [T, N]: 0.5 if the direction ``after`` [T, N, 2] equals ``before`` [T, 2], -0.5 if it
    is the opposite; 0 if unknown."""
    angles = np.arccos(np.clip((before[:, None] * after).sum(axis=2), -1, 1))
    agreement: Floats = np.nan_to_num(0.5 - angles / np.pi)
    return agreement
