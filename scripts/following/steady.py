"""The steadiness of drawn boxes: flicker, as the model card defines it (docs/model-street.md), and
how far ``--smooth`` lags behind motion.

Flicker: of the frames between an object's first and last box, the share in which it has no box. In
labelled footage, labels identify the objects. In other clips, boxes are linked by overlap, as in
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
LEAST = 0.01  # ``labelled`` finds the threshold of equal recall among scores of at least this
ANY_SCORE = 1e-6  # a threshold that every drawn box passes


@dataclass(frozen=True, slots=True)
class Row:
    clip: str
    kind: str  # "person", "vehicle"
    what: str
    conf: float
    objects: int
    recall: float | None  # None without labels
    flicker: float
    jitter: float | None = None  # see the function ``jitter``


def watch(source: str, **options: Any) -> list[Detections]:
    """Run the program; return each frame's drawn detections, with the class ids of ``CLASSES``."""
    from detector.core.config.levels import resolve_config
    from detector.core.run.detect import Hooks, detect

    frames: list[Detections] = []

    def keep(frame: Frame, detections: Detections) -> None:
        frames.append(in_our_classes(detections.shown))

    defaults = {"engine": "ort", "precision": "fp32", "output": "/dev/null", "save": "jsonl"}
    hooks = Hooks(detected=keep, measured=False, tuned=False)
    result = detect([source], resolve_config(None, {**defaults, **options}), hooks=hooks)
    for error in result.errors:
        raise error
    return frames


def sightings(
    labels: Sequence[LabelledPicture], frames: Sequence[Detections], kind: int
) -> steadiness.Sightings:
    """Return object -> the scores of its box, one per frame: 0 where the object has no box."""
    scores: steadiness.Sightings = {}
    for picture, detections in zip(labels, frames, strict=True):
        expected = (picture.class_ids == kind) & ~picture.ignored & ~picture.crowd
        nothing_ignored = np.zeros(int(expected.sum()), bool)
        ours = detections.only(detections.class_ids == kind)
        ours = ours.only(np.argsort(-ours.scores, kind="stable"))
        truth = matching.Truth(picture.boxes[expected], nothing_ignored, nothing_ignored)
        best = find_truths(ours.boxes.astype(np.float64), ours.scores, truth)[1]
        assert picture.track_ids is not None
        for track_id, score in zip(picture.track_ids[expected].tolist(), best, strict=True):
            scores.setdefault(str(track_id), []).append(float(score))
    return scores


def labelled(footage: Footage, other: str) -> list[Row]:
    """Measure both models at the default threshold, and ours also at the threshold at which its
    recall equals that of ``other``."""
    rows = []
    theirs = watch(footage.source, model=other, conf=CONF)
    ours = watch(footage.source, conf=LEAST, max_det=300)
    for kind, name in enumerate(("person", "vehicle")):
        reference = sightings(footage.labels, theirs, kind)
        count = steadiness.count_found(reference, CONF)
        score = steadiness.score_of_recall(sightings(footage.labels, ours, kind), count)
        rows.append(_row(footage, name, "yolox_nano", CONF, theirs))
        for conf in (score, CONF):
            for variant, options in VARIANTS.items():
                frames = watch(footage.source, conf=conf, **options)
                rows.append(_row(footage, name, variant, conf, frames))
    return rows


VARIANTS: dict[str, dict[str, Any]] = {
    "raw": {},
    "--track": {"track": "bytetrack"},
    "--smooth": {"smooth": True},
    "--infer-every 2 --smooth": {"smooth": True, "infer_every": "2"},
}


def _row(
    footage: Footage, name: str, variant: str, conf: float, frames_found: list[Detections]
) -> Row:
    scores = sightings(footage.labels, frames_found, CLASSES[name])
    result = steadiness.steadiness(scores, ANY_SCORE)
    frames = sum(len(scores_of_object) for scores_of_object in scores.values())
    recall = steadiness.count_found(scores, ANY_SCORE) / frames
    jitter_value = jitter(footage.labels, frames_found, CLASSES[name])
    return Row(footage.name, name, variant, conf, len(scores), recall, result.flicker, jitter_value)


def jitter(
    labels: Sequence[LabelledPicture], frames: Sequence[Detections], kind: int
) -> float | None:
    """Return how much the error of a box's sides changes from one frame to the next: the median
    over all objects and frames, in percent of the box's size."""
    last: dict[int, tuple[int, Any]] = {}
    steps = []
    for frame_index, (picture, detections) in enumerate(zip(labels, frames, strict=True)):
        boxes = detections.boxes[detections.class_ids == kind].astype(np.float64)
        assert picture.track_ids is not None
        for index in np.flatnonzero((picture.class_ids == kind) & ~picture.ignored):
            overlaps = assignment.overlaps(picture.boxes[index][None], boxes)[0]
            if not len(overlaps) or overlaps.max() < 0.5:
                continue
            truth, track = picture.boxes[index], int(picture.track_ids[index])
            size = np.tile(np.maximum(truth[2:] - truth[:2], 1), 2)
            error = (boxes[overlaps.argmax()] - truth) / size
            if track in last and last[track][0] == frame_index - 1:
                steps.append(np.abs(error - last[track][1]).mean())
            last[track] = frame_index, error
    return 100 * float(np.median(steps)) if steps else None


def unlabelled(clip: Path, other: str) -> list[Row]:
    """Measure people in an unlabelled clip, at the default threshold."""
    rows = []
    variants = {"yolox_nano": {"model": other}, **VARIANTS}
    for variant, options in variants.items():
        tracks: list[steadiness.Track] = []
        for at, detections in enumerate(watch(str(clip), conf=CONF, **options)):
            steadiness.link(
                tracks, detections.boxes[detections.class_ids == 0].astype(np.float64), at
            )
        row = steadiness._flicker_row(clip.name, "person", tracks)
        rows.append(Row(clip.name, "person", variant, CONF, row["objects"], None, row["flicker"]))
    return rows


def lag(speed: float, fps: float = 25.0, size: tuple[float, float] = (40.0, 100.0)) -> float:
    """Return how many pixels ``--smooth`` lags behind a box that moves at ``speed`` pixels per
    second and is detected exactly: the mean over the last of four seconds."""
    from detector.tracks.steady import Steady
    from detector.tracks.trackers.bytetrack import BytetrackTracker

    tracker, steady, lags = BytetrackTracker(CONF), Steady(), []
    for i in range(round(4 * fps)):
        t = i / fps
        box = np.array([[speed * t, 0, speed * t + size[0], size[1]]], np.float32)
        detections = Detections(box, np.array([0.9], np.float32), np.zeros(1, np.int64))
        detections.track_ids = tracker.update(
            detections.boxes, detections.scores, detections.class_ids, t
        )
        drawn = steady.draw(detections, tracker, t)
        lags.append(float(box[0, 0] - drawn.boxes[0, 0]))
    return float(np.mean(lags[-round(fps) :]))
