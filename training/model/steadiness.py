"""How steady the boxes of a clip are from frame to frame.

``flicker`` needs no labels: it links boxes from frame to frame. ``follow`` uses labelled objects,
to compare two models at equal recall. ``referee_clip`` gets such objects from a third model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.analysis import matching
from detector.core.analysis.assignment import overlaps
from model.data import CLASSES
from model.evaluation import (
    CONFIDENCE,
    NAMES,
    PRODUCT_NMS_IOU,
    REPORTED,
    Model,
    boxes_of,
    find_truths,
    suppress,
)

LINK_IOU, GAP, LEAST_FRAMES = 0.4, 8, 12  # see ``flicker``
LEAST_VISIBLE = 0.25  # objects with a smaller visible share are ignored
TRACKED = {**CLASSES, "pedestrian": 0}  # MOT17 calls people pedestrians


# Without labels


@dataclass(slots=True)
class Track:
    """One object. ``seen``: frame -> its box, xyxy [4], in order."""

    seen: dict[int, NDArray]

    @property
    def first(self) -> int:
        return next(iter(self.seen))

    @property
    def last(self) -> int:
        return next(reversed(self.seen))

    @property
    def frames(self) -> int:
        return len(self.seen)

    def box_at(self, frame: int) -> NDArray:
        """Return the box at a frame, interpolated between sightings."""
        ends = np.array(list(self.seen.values()))
        return np.array([np.interp(frame, list(self.seen), ends[:, i]) for i in range(4)])


def flicker(model: Model, video: Path, frames: int) -> list[dict]:
    """Measure a clip's flicker: in which share of an object's frames the object has no box.

    Boxes of a class are linked from frame to frame by their IoU (LINK_IOU). A box that returns
    within GAP frames is the same object. Objects with fewer than LEAST_FRAMES frames do not count;
    other objects count from their first frame to their last. Returns one row per class.
    """
    tracks = follow_boxes(model, video, REPORTED, frames)
    return [_flicker_row(video.name, *of_class) for of_class in zip(NAMES, tracks, strict=True)]


def follow_boxes(model: Model, video: Path, score: float, frames: int) -> list[list[Track]]:
    """Link boxes with this score or more in the first ``frames`` frames; return tracks by class."""
    tracks: list[list[Track]] = [[], []]
    for at, image in enumerate(islice(read_frames(video), frames)):
        rows = model(image)
        for c in (0, 1):
            kept = suppress(rows, c, rows[1][:, c] >= score, PRODUCT_NMS_IOU)
            link(tracks[c], kept.boxes, at)
    return tracks


def read_frames(video: Path) -> Iterator[NDArray[np.uint8]]:
    """Yield BGR frames."""
    capture = cv2.VideoCapture(str(video))
    while True:
        good, image = capture.read()
        if not good:
            return
        yield image


def link(tracks: list[Track], boxes: NDArray, frame: int) -> None:
    """Add each box to the track with the best IoU; start a track if that IoU is below LINK_IOU."""
    recent = [track for track in tracks if frame - track.last <= GAP]
    last = np.array([track.seen[track.last] for track in recent]).reshape(-1, 4)
    ious = overlaps(last, boxes)
    linked = set()
    while ious.size and ious.max() >= LINK_IOU:
        i, j = np.unravel_index(ious.argmax(), ious.shape)
        recent[i].seen[frame] = boxes[j]
        ious[i], ious[:, j] = -1, -1
        linked.add(int(j))
    tracks += [Track({frame: box}) for j, box in enumerate(boxes) if j not in linked]


def _flicker_row(clip: str, name: str, tracks: list[Track]) -> dict:
    counted = [track for track in tracks if track.frames >= LEAST_FRAMES]
    spans = sum(track.last - track.first + 1 for track in counted)
    missing = 1 - sum(track.frames for track in counted) / spans if spans else float("nan")
    row = {"clip": clip, "class": name, "objects": len(counted)}
    return row | {"frames": spans, "flicker": missing}


# With labels: the scores of each object's boxes


class Frame(NamedTuple):
    """A frame of a labelled clip."""

    image: NDArray[np.uint8]  # BGR
    boxes: tuple[NDArray[np.float64], ...]  # for each class, the objects' boxes, xyxy [n, 4]
    tracks: tuple[list[str], ...]  # for each class, the objects' names


Sightings = dict[str, list[float]]
"""Object -> one score per frame that shows the object, in order. Without a box, the score is 0."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """The steadiness of a class's objects at one score. Arrays have one entry per object."""

    score: float
    recall: float
    missing: NDArray[np.int64]  # frames without a box between the first and the last box
    spans: NDArray[np.int64]  # frames from the first box to the last
    changes: NDArray[np.int64]  # how often the object's box appears or disappears
    steps: NDArray[np.int64]  # number of the object's frames, minus one

    @property
    def flicker(self) -> float:
        return share(self.missing, self.spans)

    @property
    def change_rate(self) -> float:
        return share(self.changes, self.steps)


def share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> float:
    return float(part.sum() / whole.sum()) if whole.sum() else float("nan")


def read_tracked(path: Path) -> Iterator[Frame]:
    """Read every frame of a clip with a json next to it, or of a folder with MOT17's ``gt.json``.

    The json has COCO's format, and a ``track_id`` for each box. Ignored boxes (``iscrowd``,
    ``considered`` 0, hidden) are dropped.
    """
    labels = path / "gt.json" if path.is_dir() else path.with_suffix(".json")
    document = json.loads(labels.read_text(encoding="utf-8"))
    names = {row["id"]: row["name"] for row in document["categories"]}
    rows: dict[int, list[dict]] = {}
    for row in document["annotations"]:
        rows.setdefault(row["image_id"], []).append(row)
    capture = None if path.is_dir() else cv2.VideoCapture(str(path))
    for entry in document["images"]:
        if capture is None:
            image = cv2.imread(str(path / entry["file_name"]))
        else:
            image = capture.read()[1]
        expected = [row for row in rows.get(entry["id"], []) if is_expected(row)]
        of_class = [
            [row for row in expected if TRACKED.get(names[row["category_id"]]) == c] for c in (0, 1)
        ]
        boxes = tuple(
            corners([row["bbox"] for row in rows_of_class], image) for rows_of_class in of_class
        )
        tracks = tuple(
            [f"{path.name}#{row['track_id']}" for row in rows_of_class]
            for rows_of_class in of_class
        )
        yield Frame(image, boxes, tracks)


def referee_clip(
    video: Path, referee: Model, score: float, frames: int
) -> Callable[[], Iterator[Frame]]:
    """Label a clip with the objects that a third model follows at this score; return a reader.

    Boxes are linked as in ``flicker``. An object has at least LEAST_FRAMES boxes; boxes missing
    in between are interpolated. A third model is fair to both models that are compared.
    """
    named = [
        [
            (f"{video.name}#{i}", track)
            for i, track in enumerate(tracks_of_class)
            if track.frames >= LEAST_FRAMES
        ]
        for tracks_of_class in follow_boxes(referee, video, score, frames)
    ]

    def read() -> Iterator[Frame]:
        for at, image in enumerate(islice(read_frames(video), frames)):
            visible = [
                [(name, t) for name, t in tracks_of_class if t.first <= at <= t.last]
                for tracks_of_class in named
            ]
            boxes = tuple(
                np.array([t.box_at(at) for _, t in tracks_of_class]).reshape(-1, 4)
                for tracks_of_class in visible
            )
            yield Frame(
                image,
                boxes,
                tuple([name for name, _ in tracks_of_class] for tracks_of_class in visible),
            )

    return read


def corners(xywh: list[list[float]], image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return xyxy [n, 4], clipped to the picture, since MOT17's boxes may leave it."""
    boxes = np.array(xywh, np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    height, width = image.shape[:2]
    return boxes.clip(0, [width, height, width, height])


def is_expected(row: dict) -> bool:
    """Return whether a model should detect the labelled object."""
    considered = row.get("considered", 1) and not row.get("iscrowd", 0)
    return bool(considered) and row.get("visibility", 1.0) >= LEAST_VISIBLE


def follow(model: Model, frames: Iterable[Frame]) -> dict[str, Sightings]:
    """Return the sightings of all objects, by class. NMS uses detect-video's threshold."""
    sightings: dict[str, Sightings] = {name: {} for name in NAMES}
    for frame in frames:
        rows = model(frame.image)
        for c, name in enumerate(NAMES):
            real = np.zeros(len(frame.boxes[c]), bool)
            boxes, scores = boxes_of(rows, c, frame.image, PRODUCT_NMS_IOU)
            truth = matching.Truth(frame.boxes[c], real, real)
            best = find_truths(boxes, scores, truth)[1]
            for track, score in zip(frame.tracks[c], best, strict=True):
                sightings[name].setdefault(track, []).append(float(score))
    return sightings


def score_of_recall(sightings: Sightings, found: int) -> float:
    """Return the score at which all frames together have ``found`` boxes; at least CONFIDENCE."""
    scores = sorted((score for track in sightings.values() for score in track), reverse=True)
    return max(scores[found - 1], CONFIDENCE) if 0 < found <= len(scores) else CONFIDENCE


def count_found(sightings: Sightings, score: float = REPORTED) -> int:
    return sum(score_of_frame >= score for track in sightings.values() for score_of_frame in track)


def steadiness(sightings: Sightings, score: float) -> Steadiness:
    rows = []
    for track in sightings.values():
        has_box = np.array(track) >= score
        frames_with_box = np.flatnonzero(has_box)
        span = int(frames_with_box[-1] - frames_with_box[0] + 1) if len(frames_with_box) else 0
        changes = int((has_box[1:] != has_box[:-1]).sum())
        rows.append((span - len(frames_with_box), span, changes, len(has_box) - 1))
    table = np.array(rows, np.int64).reshape(-1, 4)
    frames = sum(len(track) for track in sightings.values())
    recall = count_found(sightings, score) / frames if frames else float("nan")
    return Steadiness(score, recall, *table.T)
