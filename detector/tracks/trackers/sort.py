"""SORT: boxes join the tracks whose predicted boxes they overlap most (arXiv:1602.00763)."""

from __future__ import annotations

import numpy as np

from detector.tracks.motion import Floats
from detector.tracks.tracker import Ids, Tracker, others


class SortTracker(Tracker):
    least_overlap = 0.3
    hits_needed = 3

    def follow(self, boxes: Floats, scores: Floats, class_ids: Ids, box_ids: Ids) -> None:
        used = np.flatnonzero(scores >= self.conf)
        tracks = np.arange(len(self))
        rows, at = self.match(
            self.motion.boxes(), tracks, boxes[used], class_ids[used], self.least_overlap
        )
        self.take(rows, boxes[used[at]], scores, used[at], box_ids)
        new = used[others(len(used), at)]
        self.drop_unsure()
        self.begin(boxes[new], scores[new], class_ids[new])
