"""Measure the accuracy of track ids: HOTA, IDF1, MOTA, switches and fragmentations.

The definitions are those of the papers. Tests compare our figures with TrackEval's.

- HOTA (Luiten et al., 2020, arXiv:2009.07736): sqrt(detection accuracy x association accuracy),
  averaged over IoU 0.05 to 0.95;
- IDF1 (Ristani et al., 2016, arXiv:1609.01775): each track is assigned to one labelled object;
- MOTA, id switches and fragmentations (Bernardin and Stiefelhagen, 2008: CLEAR MOT).

All figures except HOTA use IoU 0.5. Boxes match only within a class. A detection that matches an
ignored box counts as neither right nor wrong. Several sequences are combined by adding their
counts, as in TrackEval's row COMBINED.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from detector.core.analysis.assignment import Floats, assign, overlaps
from detector.core.types import Detections, LabelledPicture
from detector.lab.session.evaluation import DatasetTracks, TrackAccuracy

ALPHAS = np.arange(0.05, 0.99, 0.05)
LEAST_IOU = 0.5  # a match has at least this IoU, except in HOTA
EPSILON = float(np.finfo(float).eps)

Numbers = NDArray[np.int64]


class TrackedFrame(NamedTuple):
    """One frame: its labelled objects, its tracks (both numbered from 0), and their boxes' IoU."""

    objects: Numbers  # [n]
    tracks: Numbers  # [m]
    overlap: Floats  # [n, m], 0 if the classes differ


class TrackCounts(NamedTuple):
    """Counts of one sequence, or sums over sequences. ``correct``: matches at each IoU in
    ``ALPHAS``. ``associated``: the sum of the association accuracies of these matches."""

    correct: Floats
    associated: Floats
    labelled: int
    boxes: int
    matches: int
    switches: int
    fragmentations: int
    identified: int
    objects: int
    tracks: int


def track_accuracy(
    pictures: Sequence[LabelledPicture], detections: Sequence[Detections]
) -> DatasetTracks:
    """Return the figures of all ``pictures``, and of each sequence if there are several."""
    sequences: dict[str, list[tuple[LabelledPicture, Detections]]] = {}
    for pair in zip(pictures, detections, strict=True):
        sequences.setdefault(pair[0].subset, []).append(pair)
    counts = {name: _count(pairs) for name, pairs in sequences.items()}
    whole = _figures(TrackCounts._make(map(sum, zip(*counts.values(), strict=True))))
    single = {name: TrackAccuracy(**_figures(one)) for name, one in counts.items()}
    return DatasetTracks(**whole, sequences=single if len(single) > 1 else UNSET)


def _figures(counts: TrackCounts) -> dict[str, Any]:
    detection = counts.correct / np.maximum(counts.labelled + counts.boxes - counts.correct, 1)
    association = counts.associated / np.maximum(counts.correct, 1)
    found = 2 * counts.matches - counts.boxes - counts.switches
    all_boxes = counts.labelled + counts.boxes
    return {
        "hota": float(np.sqrt(detection * association).mean()),
        "detection": float(detection.mean()),
        "association": float(association.mean()),
        "idf1": 2 * counts.identified / all_boxes if all_boxes else None,
        "mota": found / counts.labelled if counts.labelled else None,
        "switches": counts.switches,
        "fragmentations": counts.fragmentations,
        "objects": counts.objects,
        "tracks": counts.tracks,
    }


def _count(pairs: Sequence[tuple[LabelledPicture, Detections]]) -> TrackCounts:
    frames, objects, tracks = _number_tracks(pairs)
    return TrackCounts(
        *_count_associated(frames, objects, tracks),
        sum(len(one.objects) for one in frames),
        sum(len(one.tracks) for one in frames),
        *_count_clear_mot(frames, objects),
        _count_identified(frames, objects, tracks),
        objects,
        tracks,
    )


def _number_tracks(
    pairs: Sequence[tuple[LabelledPicture, Detections]],
) -> tuple[list[TrackedFrame], int, int]:
    objects: dict[tuple[int, int], int] = {}
    tracks: dict[int, int] = {}
    frames = []
    for picture, detections in pairs:
        assert picture.track_ids is not None
        assert detections.track_ids is not None
        tracked = detections.only(detections.track_ids >= 0)
        if picture.labelled is not None:
            tracked = tracked.only(np.isin(tracked.class_ids, list(picture.labelled)))
        overlap = overlaps(picture.boxes, tracked.boxes.astype(np.float64))
        overlap *= picture.class_ids[:, None] == tracked.class_ids[None]
        ignored = picture.ignored | picture.crowd
        rows, columns = assign(np.where(overlap >= LEAST_IOU - EPSILON, overlap, 0))
        counts = np.ones(len(tracked), bool)
        counts[columns[ignored[rows]]] = False
        labelled = np.flatnonzero(~ignored)
        keys = [(int(picture.class_ids[i]), int(picture.track_ids[i])) for i in labelled]
        assert tracked.track_ids is not None
        frames.append(
            TrackedFrame(
                np.array([objects.setdefault(one, len(objects)) for one in keys], np.int64),
                np.array(
                    [
                        tracks.setdefault(one, len(tracks))
                        for one in tracked.track_ids[counts].tolist()
                    ],
                    np.int64,
                ),
                overlap[labelled][:, counts],
            )
        )
    return frames, len(objects), len(tracks)


def _count_associated(
    frames: Sequence[TrackedFrame], objects: int, tracks: int
) -> tuple[Floats, Floats]:
    """Return ``correct`` and ``associated`` of ``TrackCounts``."""
    potential = np.zeros((objects, tracks))
    object_counts, track_counts = np.zeros((objects, 1)), np.zeros((1, tracks))
    for frame in frames:
        union = frame.overlap.sum(0)[None] + frame.overlap.sum(1)[:, None] - frame.overlap
        share = np.divide(frame.overlap, union, out=np.zeros_like(union), where=union > EPSILON)
        potential[np.ix_(frame.objects, frame.tracks)] += share
        object_counts[frame.objects] += 1
        track_counts[0, frame.tracks] += 1
    alignment = potential / np.maximum(object_counts + track_counts - potential, EPSILON)
    matched = np.zeros((len(ALPHAS), objects, tracks))
    for frame in frames:
        rows, columns = assign(alignment[np.ix_(frame.objects, frame.tracks)] * frame.overlap)
        close = frame.overlap[rows, columns] >= ALPHAS[:, None] - EPSILON
        matched[:, frame.objects[rows], frame.tracks[columns]] += close
    similarity = matched / np.maximum(object_counts + track_counts - matched, 1)
    return matched.sum(axis=(1, 2)), (matched * similarity).sum(axis=(1, 2))


def _count_clear_mot(frames: Sequence[TrackedFrame], objects: int) -> tuple[int, int, int]:
    """Count matches, switches and fragmentations. Pairs of the previous frame have priority."""
    matches = switches = 0
    last, previous = np.full(objects, -1), np.full(objects, -1)
    parts = np.zeros(objects, np.int64)
    for frame in frames:
        if not len(frame.objects) or not len(frame.tracks):
            continue
        close = frame.overlap >= LEAST_IOU - EPSILON
        same = previous[frame.objects][:, None] == frame.tracks[None]
        rows, columns = assign(np.where(close, frame.overlap + 1000 * same, 0))
        matched, tracks = frame.objects[rows], frame.tracks[columns]
        switches += int(np.count_nonzero((last[matched] >= 0) & (last[matched] != tracks)))
        parts[matched] += previous[matched] < 0
        previous[:] = -1
        last[matched] = previous[matched] = tracks
        matches += len(rows)
    return matches, switches, int((parts[parts > 0] - 1).sum())


def _count_identified(frames: Sequence[TrackedFrame], objects: int, tracks: int) -> int:
    """Assign each track to one object. Count the boxes that match the object of their track."""
    matches = np.zeros((objects, tracks))
    for frame in frames:
        matches[np.ix_(frame.objects, frame.tracks)] += frame.overlap >= LEAST_IOU - EPSILON
    rows, columns = assign(matches)
    return int(matches[rows, columns].sum())
