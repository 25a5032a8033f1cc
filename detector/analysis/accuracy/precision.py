"""Detections and labels of a whole dataset -> the figures of ``eval``: COCO's, by class and by size, and our own.

Classes are those that are scored, already mapped, in labels and detections alike. A picture counts for a class only
where that was looked for in it (``LabelledPicture.labelled``). Every figure is a float, or None where there is nothing
to count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.analysis.accuracy import matching
from detector.analysis.accuracy.matching import overlaps
from detector.errors import UsageError
from detector.session.evaluation import (
    Accuracy,
    AveragePrecision,
    ClassAccuracy,
    ConfusionMatrix,
    Figure,
    Interval,
)
from detector.types import Detections, LabelledPicture

# ----------------------------------------------------------------------
# COCO's table of precisions, computed by faster-coco-eval.
#
# The library treats a box to be ignored as a crowd; ours are of two kinds (see ``LabelledPicture``), so that the plain
# kind is marked after it has read the boxes. ``evaluate`` computes the same at IoU 0.5; a test holds them together.

AREAS = ("all", "small", "medium", "large")  # below 32 x 32 pixels, below 96 x 96, above
INSTALL = "pip install 'detect-video[eval]'"


def check_installed() -> None:
    """Raises UsageError with the command that installs the library. Asked before hours of inference."""
    try:
        import faster_coco_eval  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"eval needs faster-coco-eval, which is not installed: {INSTALL}"
        ) from error


def precision_table(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], classes: int
) -> NDArray[np.float64]:
    """[10, 101, classes, 4]: precision by IoU threshold (.50 to .95), recall (0 to 1), class, area; at most 100
    detections a picture and class. NaN where there is no box to find."""
    from faster_coco_eval import COCO, COCOeval_faster

    class Evaluator(COCOeval_faster):  # type: ignore[misc]
        def _prepare(self) -> None:
            super()._prepare()
            for truth in self.cocoGt.anns.values():  # the same dicts that the evaluation reads
                truth["ignore"] = int(truth["iscrowd"] or truth["neither"])

    evaluator = Evaluator(
        COCO(_labels(pictures, classes)), COCO(_results(pictures, found, classes)), "bbox"
    )
    evaluator.evaluate()
    evaluator.accumulate()
    table = np.array(evaluator.eval["precision"], np.float64)[..., -1]
    table[table < 0] = np.nan
    return table


def _document(
    pictures: Sequence[LabelledPicture], classes: int, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    images = [
        {"id": at, "width": one.width, "height": one.height} for at, one in enumerate(pictures, 1)
    ]
    categories = [{"id": class_id + 1, "name": str(class_id)} for class_id in range(classes)]
    return {"images": images, "categories": categories, "annotations": rows}


def _labels(pictures: Sequence[LabelledPicture], classes: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(pictures, 1):
        flags = zip(one.ignored.tolist(), one.crowd.tolist(), one.areas.tolist(), strict=True)
        for box, class_id, (ignored, crowd, area) in zip(
            _xywh(one.boxes), one.class_ids.tolist(), flags, strict=True
        ):
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": at,
                    "category_id": class_id + 1,
                    "bbox": box,
                    "area": area,
                    "iscrowd": int(crowd),
                    "neither": int(ignored),
                }
            )
    return _document(pictures, classes, rows)


def _results(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], classes: int
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(found, 1):
        parts = zip(_xywh(one.boxes), one.class_ids.tolist(), one.scores.tolist(), strict=True)
        for box, class_id, score in parts:
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": at,
                    "category_id": class_id + 1,
                    "bbox": box,
                    "score": score,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    return _document(pictures, classes, rows)


def _xywh(boxes: NDArray[Any]) -> list[list[float]]:
    wide = boxes.astype(np.float64)
    result: list[list[float]] = np.concatenate(
        [wide[:, :2], wide[:, 2:] - wide[:, :2]], axis=1
    ).tolist()
    return result


# ----------------------------------------------------------------------
# What was taken for what: a matrix of counts.


def confusion(
    pictures: Sequence[LabelledPicture],
    found: Sequence[Detections],
    classes: int,
    conf: float,
    iou: float = 0.5,
) -> NDArray[np.int64]:
    """[classes + 1, classes + 1]: row = labelled class, column = found class; the last row is what was found where
    nothing is labelled, the last column what was labelled and not found.

    Detections with at least this score, best first, each take the free box that fits best, of whatever class. What
    falls on a box that is no target is not counted.
    """
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    for picture, one in zip(pictures, found, strict=True):
        keep = one.scores >= conf
        order = np.argsort(-one.scores[keep], kind="stable")
        _count(counts, picture, one.boxes[keep][order], one.class_ids[keep][order], iou)
    return counts


def _count(
    counts: NDArray[np.int64],
    picture: LabelledPicture,
    boxes: NDArray[np.float32],
    class_ids: NDArray[np.int64],
    iou: float,
) -> None:
    target = ~(picture.ignored | picture.crowd)
    truth, of_class = picture.boxes[target], picture.class_ids[target]
    fits = overlaps(boxes, truth)
    excused = _excused(picture, boxes, iou)
    free = np.ones(len(truth), bool)
    for row, class_id, excuse in zip(fits, class_ids.tolist(), excused.tolist(), strict=True):
        best = int(np.argmax(np.where(free, row, -1))) if free.any() else -1
        if best >= 0 and row[best] >= iou:
            free[best] = False
            counts[of_class[best], class_id] += 1
        elif not excuse:
            counts[-1, class_id] += 1
    counts[:, -1] += np.bincount(of_class[free], minlength=len(counts))


def _excused(picture: LabelledPicture, boxes: NDArray[np.float32], iou: float) -> NDArray[np.bool_]:
    """[m] whether a detection lies on a box that is no target."""
    ignored = overlaps(boxes, picture.boxes[picture.ignored & ~picture.crowd])
    crowd = overlaps(boxes, picture.boxes[picture.crowd], of_found=True)
    best: NDArray[np.float64] = np.concatenate([ignored, crowd], axis=1).max(axis=1, initial=0)
    excused: NDArray[np.bool_] = np.greater_equal(best, iou)
    return excused


IOU_50, IOU_75 = 0, 5  # rows of the table
ASKED = 0.25  # the score at which recall and precision are reported: what detect shows
FIGURES = tuple(field.name for field in fields(AveragePrecision))


def accuracy(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], names: Sequence[str]
) -> Accuracy:
    """``ap``, ``ap50`` and so on are means over the classes that have boxes. ``curves``: precision at IoU 0.5 and at
    recalls 0, 0.01 .. 1."""
    found = [only_judged(one, picture) for one, picture in zip(found, pictures, strict=True)]
    table = precision_table(pictures, found, len(names))
    judged = [_judged(pictures, found, class_id) for class_id in range(len(names))]
    classes = {}
    for class_id, name in enumerate(names):
        places, rows = judged[class_id]
        ignored = sum(_no_targets(pictures[at], class_id) for at in places.tolist())
        classes[name] = _of_class(table[:, :, class_id], rows, ignored)
    counts = confusion(pictures, found, len(names), ASKED).tolist()
    return Accuracy(
        **{key: _mean([getattr(row, key) for row in classes.values()]) for key in FIGURES},
        ap50_interval=_interval_of_mean(judged, len(pictures)),
        per_class=classes,
        curves={
            name: tuple(map(_plain, table[IOU_50, :, at, 0].tolist()))
            for at, name in enumerate(names)
        },
        confusion=ConfusionMatrix(
            ASKED, 0.5, (*names, "background"), tuple(tuple(row) for row in counts)
        ),
    )


def only_judged(one: Detections, picture: LabelledPicture) -> Detections:
    """Without what was found of classes that nobody looked for in this picture."""
    if picture.labelled is None:
        return one
    keep = np.isin(one.class_ids, list(picture.labelled))
    return Detections(one.boxes[keep], one.scores[keep], one.class_ids[keep], one.names, one.cut)


def difference(figures: AveragePrecision, first: AveragePrecision) -> AveragePrecision:
    """What the means are more (or less) than those of the first."""

    def change(key: str) -> Figure:
        own, other = getattr(figures, key), getattr(first, key)
        return None if own is None or other is None else own - other

    return AveragePrecision(**{key: change(key) for key in FIGURES})


Judged = tuple[
    NDArray[np.int64], list[matching.Judged]
]  # places of the pictures that count for a class, and they


NOTHING = matching.Judged(np.zeros(0), np.zeros(0, np.int8), 0)


def _judged(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], class_id: int
) -> Judged:
    places = [
        at for at, one in enumerate(pictures) if one.labelled is None or class_id in one.labelled
    ]
    rows = [_judge(pictures[at], found[at], class_id) for at in places]
    return np.array(places, np.int64), rows


def _judge(picture: LabelledPicture, found: Detections, class_id: int) -> matching.Judged:
    mine, hits = picture.class_ids == class_id, found.class_ids == class_id
    if not hits.any() and not mine.any():
        return NOTHING
    truth = matching.Truth(picture.boxes[mine], picture.ignored[mine], picture.crowd[mine])
    return matching.judge(found.boxes[hits], found.scores[hits], truth)


def _no_targets(picture: LabelledPicture, class_id: int) -> int:
    return int(((picture.class_ids == class_id) & (picture.ignored | picture.crowd)).sum())


def _of_class(
    table: NDArray[np.float64], rows: list[matching.Judged], ignored_boxes: int
) -> ClassAccuracy:
    """``table``: [10, 101, 4]: IoU threshold, recall, area (``AREAS``)."""
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
        recall=_plain(matching.recall(rows)),
        recall_conf25=_plain(matching.recall(rows, ASKED)),
        precision_conf25=_plain(matching.precision(rows, ASKED)),
        ignored_boxes=ignored_boxes,
    )


def _interval(rows: list[matching.Judged]) -> Interval:
    if not sum(row.wanted for row in rows):
        return None, None
    pool = matching.Pool.of(rows)
    return _percentiles([pool.average_precision(times) for times in matching.samples(len(rows))])


def _interval_of_mean(judged: list[Judged], pictures: int) -> Interval:
    """The classes of one sample are of the same pictures."""
    pools = [
        (places, matching.Pool.of(rows))
        for places, rows in judged
        if sum(row.wanted for row in rows)
    ]
    if not pools:
        return None, None
    drawn = []
    for times in matching.samples(pictures):
        values = [pool.average_precision(times[places]) for places, pool in pools]
        drawn.append(float(np.nanmean(values)) if not np.isnan(values).all() else float("nan"))
    return _percentiles(drawn)


def _percentiles(drawn: Sequence[float]) -> Interval:
    low, high = matching.percentiles(drawn)
    return _plain(low), _plain(high)


def _figure(part: NDArray[np.float64]) -> Figure:
    """The mean of what is there: COCO's average precision."""
    return None if np.isnan(part).all() else float(np.nanmean(part))


def _mean(values: Sequence[Figure]) -> Figure:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _plain(value: float) -> Figure:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value
