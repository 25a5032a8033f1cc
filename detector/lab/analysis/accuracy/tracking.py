"""How right the identities of tracks are: HOTA, IDF1, MOTA, switches and fragmentations.

The definitions are those of the papers, as TrackEval computes them (the tests hold its figures):

- HOTA (Luiten et al., 2020, arXiv:2009.07736): the mean over IoU 0.05 to 0.95 of the root of
  detection and association accuracy;
- IDF1 (Ristani et al., 2016, arXiv:1609.01775): each track stands for one labelled object;
- MOTA, id switches and fragmentations (Bernardin and Stiefelhagen, 2008: CLEAR MOT).

IDF1 and the last three are at IoU 0.5. A box matches a labelled one of its own class only. What
lies on a box that is to be ignored counts as neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.analysis.assignment import Floats, assign, overlaps
from detector.core.types import Detections, LabelledPicture
from detector.lab.session.evaluation import TrackAccuracy

ALPHAS = np.arange(0.05, 0.99, 0.05)
LEAST = 0.5  # IoU of a match, but for HOTA
EPSILON = float(np.finfo(float).eps)

Numbers = NDArray[np.int64]


class TrackedFrame(NamedTuple):
    """One frame: labelled objects and tracks as numbers from 0, and how their boxes overlap."""

    objects: Numbers  # [n]
    tracks: Numbers  # [m]
    overlap: Floats  # [n, m], 0 for boxes of two classes


def track_accuracy(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections]
) -> TrackAccuracy:
    moments, objects, tracks = _moments(pictures, found)
    hota, detection, association = _hota(moments, objects, tracks)
    labelled = sum(len(one.objects) for one in moments)
    boxes = sum(len(one.tracks) for one in moments)
    matches, switches, fragmentations = _clear(moments, objects)
    right = _identified(moments, objects, tracks)
    return TrackAccuracy(
        hota=hota,
        detection=detection,
        association=association,
        idf1=2 * right / (labelled + boxes) if labelled + boxes else None,
        mota=(2 * matches - boxes - switches) / labelled if labelled else None,
        switches=switches,
        fragmentations=fragmentations,
        objects=objects,
        tracks=tracks,
    )


def _moments(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections]
) -> tuple[list[TrackedFrame], int, int]:
    objects: dict[tuple[int, int], int] = {}
    tracks: dict[int, int] = {}
    moments = []
    for picture, detections in zip(pictures, found, strict=True):
        assert picture.track_ids is not None
        assert detections.track_ids is not None
        followed = detections.only(detections.track_ids >= 0)
        if picture.labelled is not None:
            followed = followed.only(np.isin(followed.class_ids, list(picture.labelled)))
        overlap = overlaps(picture.boxes, followed.boxes.astype(np.float64))
        overlap *= picture.class_ids[:, None] == followed.class_ids[None]
        excused = picture.ignored | picture.crowd
        rows, columns = assign(np.where(overlap >= LEAST - EPSILON, overlap, 0))
        counts = np.ones(len(followed), bool)
        counts[columns[excused[rows]]] = False
        kept = np.flatnonzero(~excused)
        names = [(int(picture.class_ids[i]), int(picture.track_ids[i])) for i in kept]
        assert followed.track_ids is not None
        moments.append(
            TrackedFrame(
                np.array([objects.setdefault(one, len(objects)) for one in names], np.int64),
                np.array(
                    [
                        tracks.setdefault(one, len(tracks))
                        for one in followed.track_ids[counts].tolist()
                    ],
                    np.int64,
                ),
                overlap[kept][:, counts],
            )
        )
    return moments, len(objects), len(tracks)


def _hota(moments: Sequence[TrackedFrame], objects: int, tracks: int) -> tuple[float, float, float]:
    """HOTA, and the accuracies of detection and association, as means over ``ALPHAS``."""
    together = np.zeros((objects, tracks))
    of_object, of_track = np.zeros((objects, 1)), np.zeros((1, tracks))
    for one in moments:
        whole = one.overlap.sum(0)[None] + one.overlap.sum(1)[:, None] - one.overlap
        share = np.divide(one.overlap, whole, out=np.zeros_like(whole), where=whole > EPSILON)
        together[np.ix_(one.objects, one.tracks)] += share
        of_object[one.objects] += 1
        of_track[0, one.tracks] += 1
    fit = together / np.maximum(of_object + of_track - together, EPSILON)
    matched = np.zeros((len(ALPHAS), objects, tracks))
    for one in moments:
        rows, columns = assign(fit[np.ix_(one.objects, one.tracks)] * one.overlap)
        close = one.overlap[rows, columns] >= ALPHAS[:, None] - EPSILON
        matched[:, one.objects[rows], one.tracks[columns]] += close
    right = matched.sum(axis=(1, 2))
    detection = right / np.maximum(of_object.sum() + of_track.sum() - right, 1)
    joint = matched / np.maximum(of_object + of_track - matched, 1)
    association = (matched * joint).sum(axis=(1, 2)) / np.maximum(right, 1)
    hota = np.sqrt(detection * association)
    return float(hota.mean()), float(detection.mean()), float(association.mean())


def _clear(moments: Sequence[TrackedFrame], objects: int) -> tuple[int, int, int]:
    """Matches, switches and fragmentations. A match of the frame before is kept where it can be."""
    matches = switches = 0
    last, before = np.full(objects, -1), np.full(objects, -1)
    parts = np.zeros(objects, np.int64)
    for one in moments:
        if not len(one.objects) or not len(one.tracks):
            continue
        close = one.overlap >= LEAST - EPSILON
        kept = before[one.objects][:, None] == one.tracks[None]
        rows, columns = assign(np.where(close, one.overlap + 1000 * kept, 0))
        seen, tracks = one.objects[rows], one.tracks[columns]
        switches += int(np.count_nonzero((last[seen] >= 0) & (last[seen] != tracks)))
        parts[seen] += before[seen] < 0
        before[:] = -1
        last[seen] = before[seen] = tracks
        matches += len(rows)
    return matches, switches, int((parts[parts > 0] - 1).sum())


def _identified(moments: Sequence[TrackedFrame], objects: int, tracks: int) -> int:
    """Boxes that lie on the object that their track stands for."""
    together = np.zeros((objects, tracks))
    for one in moments:
        together[np.ix_(one.objects, one.tracks)] += one.overlap >= LEAST - EPSILON
    rows, columns = assign(together)
    return int(together[rows, columns].sum())
