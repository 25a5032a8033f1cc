"""SORT: boxes join the tracks whose predicted boxes they overlap most (arXiv:1602.00763)."""

from __future__ import annotations

import numpy as np

from detector.tracks.motion import Floats
from detector.tracks.tracker import Ids, Tracker, others


class SortTracker(Tracker):
    least_overlap = 0.3
    hits_needed = 3

    def follow(self, boxes: Floats, scores: Floats, class_ids: Ids, found: Ids) -> None:
        used = np.flatnonzero(scores >= self.conf)
        every = np.arange(len(self))
        rows, at = self.matched(
            self.motion.boxes(), every, boxes[used], class_ids[used], self.least_overlap
        )
        self.take(rows, boxes[used[at]], scores, used[at], found)
        new = used[others(len(used), at)]
        self.drop_unsure()
        self.begin(boxes[new], scores[new], class_ids[new])
