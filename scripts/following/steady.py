"""The steadiness of drawn boxes: flicker, as the model card defines it (docs/model-street.md), and
how far --smooth lags behind motion.

Flicker is the share of frames without a box between an object's first and last box. Labels identify
objects if there are any; otherwise boxes are linked by their overlap, as in
``training/model/steadiness.py``, which computed the card's figures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detector.core.analysis import assignment, matching
from detector.core.types import Detections, Frame, LabelledPicture
from following.footage import CLASSES, Footage, in_our_classes

sys.path.append(str(Path(__file__).resolve().parents[2] / "training"))

from model import steadiness
from model.evaluation import find_truths

CONF = 0.25
LEAST = 0.01  # lowest score in the search for the threshold of equal recall
SEEN = 1e-6  # every drawn box counts, whatever its score


@dataclass(frozen=True, slots=True)
class Row:
    clip: str
    kind: str  # "person", "vehicle"
    what: str
    conf: float
    objects: int
    recall: float | None  # None without labels
    flicker: float
    jitter: float | None = None  # see ``jitter``


def watch(source: str, **options: Any) -> list[Detections]:
    """Return what pictures show of each frame, in our classes."""
    from detector.core.config.levels import resolve_config
    from detector.core.run.detect import Hooks, detect

    found: list[Detections] = []

    def keep(frame: Frame, detections: Detections) -> None:
        found.append(in_our_classes(detections.shown))

    given = {"engine": "ort", "precision": "fp32", "output": "/dev/null", "save": "jsonl"}
    hooks = Hooks(detected=keep, measured=False, tuned=False)
    result = detect([source], resolve_config(None, {**given, **options}), hooks=hooks)
    for error in result.errors:
        raise error
    return found


def sightings(
    labels: Sequence[LabelledPicture], found: Sequence[Detections], kind: int
) -> steadiness.Sightings:
    """Return object -> the score of the box that found it in each frame, 0 for none."""
    seen: steadiness.Sightings = {}
    for picture, detections in zip(labels, found, strict=True):
        wanted = (picture.class_ids == kind) & ~picture.ignored & ~picture.crowd
        real = np.zeros(int(wanted.sum()), bool)
        mine = detections.only(detections.class_ids == kind)
        mine = mine.only(np.argsort(-mine.scores, kind="stable"))
        truth = matching.Truth(picture.boxes[wanted], real, real)
        best = find_truths(mine.boxes.astype(np.float64), mine.scores, truth)[1]
        assert picture.track_ids is not None
        for one, score in zip(picture.track_ids[wanted].tolist(), best, strict=True):
            seen.setdefault(str(one), []).append(float(score))
    return seen


def labelled(footage: Footage, other: str) -> list[Row]:
    """Measure at equal recall and at the default. ``other``: the model of the card's comparison."""
    rows = []
    theirs = watch(footage.source, model=other, conf=CONF)
    ours = watch(footage.source, conf=LEAST, max_det=300)
    for kind, name in enumerate(("person", "vehicle")):
        reference = sightings(footage.labels, theirs, kind)
        count = steadiness.count_found(reference, CONF)
        score = steadiness.score_of_recall(sightings(footage.labels, ours, kind), count)
        rows.append(_row(footage, name, "yolox_nano", CONF, theirs))
        for conf in (score, CONF):
            for what, options in VARIANTS.items():
                found = watch(footage.source, conf=conf, **options)
                rows.append(_row(footage, name, what, conf, found))
    return rows


VARIANTS: dict[str, dict[str, Any]] = {
    "raw": {},
    "--track": {"track": "bytetrack"},
    "--smooth": {"smooth": True},
    "--infer-every 2 --smooth": {"smooth": True, "infer_every": "2"},
}


def _row(footage: Footage, name: str, what: str, conf: float, found: list[Detections]) -> Row:
    seen = sightings(footage.labels, found, CLASSES[name])
    result = steadiness.steadiness(seen, SEEN)
    frames = sum(len(one) for one in seen.values())
    recall = steadiness.count_found(seen, SEEN) / frames
    shake = jitter(footage.labels, found, CLASSES[name])
    return Row(footage.name, name, what, conf, len(seen), recall, result.flicker, shake)


def jitter(
    labels: Sequence[LabelledPicture], found: Sequence[Detections], kind: int
) -> float | None:
    """Return the median, over all objects and consecutive frames, of the change of the error of a
    box's sides from one frame to the next, in hundredths of the box's size."""
    last: dict[int, tuple[int, Any]] = {}
    steps = []
    for at, (picture, detections) in enumerate(zip(labels, found, strict=True)):
        boxes = detections.boxes[detections.class_ids == kind].astype(np.float64)
        assert picture.track_ids is not None
        for one in np.flatnonzero((picture.class_ids == kind) & ~picture.ignored):
            fits = assignment.overlaps(picture.boxes[one][None], boxes)[0]
            if not len(fits) or fits.max() < 0.5:
                continue
            truth, track = picture.boxes[one], int(picture.track_ids[one])
            size = np.tile(np.maximum(truth[2:] - truth[:2], 1), 2)
            error = (boxes[fits.argmax()] - truth) / size
            if track in last and last[track][0] == at - 1:
                steps.append(np.abs(error - last[track][1]).mean())
            last[track] = at, error
    return 100 * float(np.median(steps)) if steps else None


def unlabelled(clip: Path, other: str) -> list[Row]:
    """Measure people in an unlabelled clip, at the default."""
    rows = []
    variants = {"yolox_nano": {"model": other}, **VARIANTS}
    for what, options in variants.items():
        tracks: list[steadiness.Track] = []
        for at, found in enumerate(watch(str(clip), conf=CONF, **options)):
            steadiness.link(tracks, found.boxes[found.class_ids == 0].astype(np.float64), at)
        row = steadiness._flicker_row(clip.name, "person", tracks)
        rows.append(Row(clip.name, "person", what, CONF, row["objects"], None, row["flicker"]))
    return rows


def lag(speed: float, fps: float = 25.0, size: tuple[float, float] = (40.0, 100.0)) -> float:
    """Return how many pixels a drawn box lags behind one that moves at ``speed`` pixels per second:
    the mean over the last of 4 seconds, with exact boxes."""
    from detector.tracks.steady import Steady
    from detector.tracks.trackers.bytetrack import BytetrackTracker

    tracker, steady, behind = BytetrackTracker(CONF), Steady(), []
    for i in range(round(4 * fps)):
        t = i / fps
        box = np.array([[speed * t, 0, speed * t + size[0], size[1]]], np.float32)
        one = Detections(box, np.array([0.9], np.float32), np.zeros(1, np.int64))
        one.track_ids = tracker.update(one.boxes, one.scores, one.class_ids, t)
        drawn = steady.draw(one, tracker, t)
        behind.append(float(box[0, 0] - drawn.boxes[0, 0]))
    return float(np.mean(behind[-round(fps) :]))
