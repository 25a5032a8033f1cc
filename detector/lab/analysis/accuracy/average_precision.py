"""Compute average precision (AP) and the other figures of ``eval`` and ``compare --labels``.

Labels and detections are already mapped to the scored classes. A picture counts for a class only
if it was labelled for that class (``LabelledPicture.labelled``). A figure is None if there is
nothing to count.

faster-coco-eval computes COCO's table of precisions. Our own evaluator works at IoU 0.5. It
computes recall and precision above a score, and resamples the pictures to compute intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.analysis.matching import RIGHT, WRONG, Matches, Truth, confusion, judge
from detector.core.errors import UsageError
from detector.core.types import Detections, LabelledPicture
from detector.lab.session.evaluation import (
    Accuracy,
    AveragePrecision,
    ClassAccuracy,
    ConfusionMatrix,
    Figure,
    Interval,
)

IOU_50, IOU_75 = 0, 5  # rows of COCO's table
SHOWN_SCORE = 0.25  # recall and precision are reported at the default threshold of detect
FIGURES = tuple(field.name for field in fields(AveragePrecision))
RECALLS = np.linspace(0, 1, 101)
RESAMPLES, SEED = 200, 20
INSTALL = "pip install 'detect-video[eval]'"


def check_installed() -> None:
    """Check for faster-coco-eval before hours of inference. Raises UsageError if it is missing."""
    try:
        import faster_coco_eval  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"average precision needs faster-coco-eval, which is not installed; run: {INSTALL}"
        ) from error


def accuracy(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], names: Sequence[str]
) -> Accuracy:
    """Compute all figures of a dataset. A mean covers the classes that have labelled boxes."""
    found = [
        one if known is None else one.only(np.isin(one.class_ids, list(known)))
        for one, known in zip(found, (picture.labelled for picture in pictures), strict=True)
    ]
    table = precision_table(pictures, found, len(names))
    outcomes = [_match_class(pictures, found, class_id) for class_id in range(len(names))]
    classes = {}
    for class_id, name in enumerate(names):
        places, rows = outcomes[class_id]
        ignored = sum(_count_ignored(pictures[at], class_id) for at in places.tolist())
        classes[name] = _class_accuracy(table[:, :, class_id], rows, ignored)
    counts = confusion(pictures, found, len(names), SHOWN_SCORE).tolist()
    return Accuracy(
        **{key: _mean([getattr(row, key) for row in classes.values()]) for key in FIGURES},
        ap50_interval=_interval_of_mean(outcomes, len(pictures)),
        per_class=classes,
        curves={
            name: tuple(map(_to_figure, table[IOU_50, :, at, 0].tolist()))
            for at, name in enumerate(names)
        },
        confusion=ConfusionMatrix(
            SHOWN_SCORE, 0.5, (*names, "background"), tuple(tuple(row) for row in counts)
        ),
    )


def difference(figures: AveragePrecision, first: AveragePrecision) -> AveragePrecision:
    def change(key: str) -> Figure:
        own, other = getattr(figures, key), getattr(first, key)
        return None if own is None or other is None else own - other

    return AveragePrecision(**{key: change(key) for key in FIGURES})


# The pictures that count for a class: their indexes, and the matches in each picture.
ClassOutcomes = tuple[NDArray[np.int64], list[Matches]]
NOTHING = Matches(np.zeros(0), np.zeros(0, np.int8), 0)


def _match_class(
    pictures: Sequence[LabelledPicture], detections: Sequence[Detections], class_id: int
) -> ClassOutcomes:
    places = [
        at for at, one in enumerate(pictures) if one.labelled is None or class_id in one.labelled
    ]
    rows = [_match_picture(pictures[at], detections[at], class_id) for at in places]
    return np.array(places, np.int64), rows


def _match_picture(picture: LabelledPicture, detections: Detections, class_id: int) -> Matches:
    labels, hits = picture.class_ids == class_id, detections.class_ids == class_id
    if not hits.any() and not labels.any():
        return NOTHING
    truth = Truth(picture.boxes[labels], picture.ignored[labels], picture.crowd[labels])
    return judge(detections.boxes[hits], detections.scores[hits], truth)


def _count_ignored(picture: LabelledPicture, class_id: int) -> int:
    return int(((picture.class_ids == class_id) & (picture.ignored | picture.crowd)).sum())


def _class_accuracy(
    table: NDArray[np.float64], rows: list[Matches], ignored_boxes: int
) -> ClassAccuracy:
    """``table``: precisions [10, 101, 4] by IoU, recall and area (all, small, medium, large)."""
    return ClassAccuracy(
        pictures=len(rows),
        boxes=sum(row.wanted for row in rows),
        ap=_figure(table[..., 0]),
        ap50=_figure(table[IOU_50, :, 0]),
        ap75=_figure(table[IOU_75, :, 0]),
        ap_small=_figure(table[..., 1]),
        ap_medium=_figure(table[..., 2]),
        ap_large=_figure(table[..., 3]),
        ap50_interval=_interval(rows),
        recall=_to_figure(recall(rows)),
        recall_conf25=_to_figure(recall(rows, SHOWN_SCORE)),
        precision_conf25=_to_figure(precision(rows, SHOWN_SCORE)),
        ignored_boxes=ignored_boxes,
    )


def _interval(rows: list[Matches]) -> Interval:
    if not sum(row.wanted for row in rows):
        return None, None
    pool = Ranking.of(rows)
    return _percentiles([pool.average_precision(times) for times in samples(len(rows))])


def _interval_of_mean(outcomes: list[ClassOutcomes], pictures: int) -> Interval:
    pools = [
        (places, Ranking.of(rows)) for places, rows in outcomes if sum(row.wanted for row in rows)
    ]
    if not pools:
        return None, None
    drawn = []
    for times in samples(pictures):
        values = [pool.average_precision(times[places]) for places, pool in pools]
        drawn.append(float(np.nanmean(values)) if not np.isnan(values).all() else float("nan"))
    return _percentiles(drawn)


def _percentiles(drawn: Sequence[float]) -> Interval:
    low, high = percentiles(drawn)
    return _to_figure(low), _to_figure(high)


def _figure(part: NDArray[np.float64]) -> Figure:
    return None if np.isnan(part).all() else float(np.nanmean(part))


def _mean(values: Sequence[Figure]) -> Figure:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _to_figure(value: float) -> Figure:
    return None if math.isnan(value) else value


# Our own evaluator, for one class and one IoU threshold


def average_precision(pictures: Sequence[Matches]) -> float:
    """Return the AP interpolated at 101 recalls; NaN if no box is labelled."""
    return Ranking.of(pictures).average_precision(np.ones(len(pictures), np.int64))


def recall(pictures: Sequence[Matches], score: float = 0.0) -> float:
    """Return the share of boxes detected with at least this score; NaN if no box is labelled."""
    wanted = sum(picture.wanted for picture in pictures)
    right = sum(int(((p.outcomes == RIGHT) & (p.scores >= score)).sum()) for p in pictures)
    return right / wanted if wanted else float("nan")


def unmatched(pictures: Sequence[Matches], score: float = 0.0) -> int:
    """Count the detections with at least this score that match no label."""
    return sum(int(((p.outcomes == WRONG) & (p.scores >= score)).sum()) for p in pictures)


def precision(pictures: Sequence[Matches], score: float = 0.0) -> float:
    """Return the precision of detections of at least this score; ignored boxes do not count."""
    right = sum(int(((p.outcomes == RIGHT) & (p.scores >= score)).sum()) for p in pictures)
    judged = right + unmatched(pictures, score)
    return right / judged if judged else float("nan")


def interval(
    pictures: Sequence[Matches], figure: Callable[[Sequence[Matches]], float]
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval over pictures. Similar pictures make it too narrow."""
    rng = np.random.default_rng(SEED)
    n = len(pictures)
    drawn = [figure([pictures[i] for i in rng.integers(0, n, n)]) for _ in range(RESAMPLES)]
    return percentiles(drawn)


@dataclass(frozen=True, slots=True)
class Ranking:
    """All detections of a class, sorted by score. A bootstrap sample only changes their weights."""

    right: NDArray[np.bool_]  # [m] whether each detection matches a label
    wrong: NDArray[np.bool_]
    picture: NDArray[np.int64]  # [m] index of its picture
    wanted: NDArray[np.int64]  # [n] labelled boxes in each picture

    @classmethod
    def of(cls, pictures: Sequence[Matches]) -> Ranking:
        scores = np.concatenate([NOTHING.scores, *(picture.scores for picture in pictures)])
        outcomes = np.concatenate([NOTHING.outcomes, *(picture.outcomes for picture in pictures)])
        places = np.repeat(np.arange(len(pictures)), [len(picture.scores) for picture in pictures])
        order = np.argsort(-scores, kind="stable")
        wanted = np.array([picture.wanted for picture in pictures], np.int64)
        return cls(outcomes[order] == RIGHT, outcomes[order] == WRONG, places[order], wanted)

    def average_precision(self, times: NDArray[np.int64]) -> float:
        """Return the AP with picture i counted ``times[i]`` times; NaN if no box is labelled."""
        wanted = int(times @ self.wanted)
        if not wanted:
            return float("nan")
        weights = times[self.picture]
        right, wrong = np.cumsum(self.right * weights), np.cumsum(self.wrong * weights)
        envelope = np.maximum.accumulate((right / np.maximum(right + wrong, 1))[::-1])[::-1]
        at = np.searchsorted(right / wanted, RECALLS, side="left")
        return float(np.append(envelope, 0.0)[np.minimum(at, len(envelope))].mean())


def samples(pictures: int) -> list[NDArray[np.int64]]:
    """Return how often each bootstrap sample of ``interval`` contains each picture."""
    rng = np.random.default_rng(SEED)
    return [
        np.bincount(rng.integers(0, pictures, pictures), minlength=pictures)
        for _ in range(RESAMPLES)
    ]


def percentiles(drawn: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the middle 95 %; NaN if all figures are NaN."""
    if np.isnan(drawn).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)


# faster-coco-eval computes COCO's table of precisions. The library can ignore only crowds. We also
# ignore single boxes (see ``matching``): we mark them after the library has read the labels.


def precision_table(
    pictures: Sequence[LabelledPicture], detections: Sequence[Detections], classes: int
) -> NDArray[np.float64]:
    """Return precisions [10, 101, classes, 4]. The axes are IoU (0.50 to 0.95), recall (0 to 1),
    class and area (all; below 32 x 32 pixels; up to 96 x 96; above). A precision is NaN if no box
    is labelled. At most 100 detections of a class count per picture."""
    from faster_coco_eval import COCO, COCOeval_faster

    class Evaluator(COCOeval_faster):  # type: ignore[misc]
        def _prepare(self) -> None:
            super()._prepare()
            for truth in self.cocoGt.anns.values():  # the same dicts that the evaluation reads
                truth["ignore"] = int(truth["iscrowd"] or truth["neither"])

    evaluator = Evaluator(
        COCO(_coco_labels(pictures, classes)),
        COCO(_coco_detections(pictures, detections, classes)),
        "bbox",
    )
    evaluator.evaluate()
    evaluator.accumulate()
    table = np.array(evaluator.eval["precision"], np.float64)[..., -1]
    table[table < 0] = np.nan
    return table


def _coco_document(
    pictures: Sequence[LabelledPicture], classes: int, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    images = [
        {"id": at, "width": one.width, "height": one.height} for at, one in enumerate(pictures, 1)
    ]
    categories = [{"id": class_id + 1, "name": str(class_id)} for class_id in range(classes)]
    annotations = [{"id": number, **row} for number, row in enumerate(rows, 1)]
    return {"images": images, "categories": categories, "annotations": annotations}


def _coco_labels(pictures: Sequence[LabelledPicture], classes: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(pictures, 1):
        flags = zip(one.ignored.tolist(), one.crowd.tolist(), one.areas.tolist(), strict=True)
        for box, class_id, (ignored, crowd, area) in zip(
            _xywh(one.boxes), one.class_ids.tolist(), flags, strict=True
        ):
            more = {"area": area, "iscrowd": int(crowd), "neither": int(ignored)}
            rows.append({"image_id": at, "category_id": class_id + 1, "bbox": box, **more})
    return _coco_document(pictures, classes, rows)


def _coco_detections(
    pictures: Sequence[LabelledPicture], detections: Sequence[Detections], classes: int
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(detections, 1):
        parts = zip(_xywh(one.boxes), one.class_ids.tolist(), one.scores.tolist(), strict=True)
        for box, class_id, score in parts:
            more = {"score": score, "area": box[2] * box[3], "iscrowd": 0}
            rows.append({"image_id": at, "category_id": class_id + 1, "bbox": box, **more})
    return _coco_document(pictures, classes, rows)


def _xywh(boxes: NDArray[Any]) -> list[list[float]]:
    wide = boxes.astype(np.float64)
    result: list[list[float]] = np.concatenate(
        [wide[:, :2], wide[:, 2:] - wide[:, :2]], axis=1
    ).tolist()
    return result
