"""ByteTrack: SORT, then unmatched tracks are matched with boxes of low scores, such as a person
behind a tree (Zhang et al., 2022, arXiv:2110.06864)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from detector.tracks.motion import Floats
from detector.tracks.tracker import Ids, Tracker, others


class BytetrackTracker(Tracker):
    least_overlap = 0.2
    least_overlap_low: ClassVar[float] = 0.5  # with boxes of low scores
    hits_needed = 2
    lowest_conf = 0.1

    def follow(self, boxes: Floats, scores: Floats, class_ids: Ids, found: Ids) -> None:
        sure = scores >= self.conf
        high, low = np.flatnonzero(sure), np.flatnonzero(~sure)
        places, every = self.motion.boxes(), np.arange(len(self))
        rows, at = self.matched(places, every, boxes[high], class_ids[high], self.least_overlap)
        self.take(rows, boxes[high[at]], scores, high[at], found)
        new = high[others(len(high), at)]

        left = others(len(self), rows)
        again, at = self.matched(
            places[left], left, boxes[low], class_ids[low], self.least_overlap_low
        )
        self.take(left[again], boxes[low[at]], scores, low[at], found)
        self.drop_unsure()
        self.begin(boxes[new], scores[new], class_ids[new])
