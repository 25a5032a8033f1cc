"""ByteTrack: SORT that also matches unmatched tracks with low-scoring boxes, such as the box of a
person behind a tree (Zhang et al., 2022, arXiv:2110.06864)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from detector.tracks.motion import Floats
from detector.tracks.tracker import Ids, Tracker, others


class BytetrackTracker(Tracker):
    least_overlap = 0.2
    least_overlap_low: ClassVar[float] = 0.5  # least IoU for boxes of low scores
    hits_needed = 2
    lowest_conf = 0.1

    def follow(self, boxes: Floats, scores: Floats, class_ids: Ids, box_ids: Ids) -> None:
        reach_conf = scores >= self.conf
        high, low = np.flatnonzero(reach_conf), np.flatnonzero(~reach_conf)
        predicted, tracks = self.motion.boxes(), np.arange(len(self))
        rows, at = self.match(predicted, tracks, boxes[high], class_ids[high], self.least_overlap)
        self.take(rows, boxes[high[at]], scores, high[at], box_ids)
        new = high[others(len(high), at)]

        lost = others(len(self), rows)
        matched, at = self.match(
            predicted[lost], lost, boxes[low], class_ids[low], self.least_overlap_low
        )
        self.take(lost[matched], boxes[low[at]], scores, low[at], box_ids)
        self.drop_unsure()
        self.begin(boxes[new], scores[new], class_ids[new])
