"""Detections and labels of a whole dataset -> the figures of ``eval``: COCO's, by class and by size, and our own.

Classes are those that are scored, already mapped, in labels and detections alike. A picture counts for a class only
where that was looked for in it (``LabelledPicture.labelled``). Every figure is a float, or None where there is nothing
to count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.analysis import evaluate
from detector.analysis.coco import AREAS, precision_table
from detector.analysis.confusion import confusion
from detector.types import Detections, LabelledPicture

IOU_50, IOU_75 = 0, 5  # rows of the table
ASKED = 0.25  # the score at which recall and precision are reported: what detect shows
FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")


def accuracy(pictures: Sequence[LabelledPicture], found: Sequence[Detections], names: Sequence[str]) -> dict[str, Any]:
    """``ap``, ``ap50`` and so on are means over the classes that have boxes. ``curves``: precision at IoU 0.5 and at
    recalls 0, 0.01 .. 1."""
    found = [only_judged(one, picture) for one, picture in zip(found, pictures, strict=True)]
    table = precision_table(pictures, found, len(names))
    judged = [_judged(pictures, found, class_id) for class_id in range(len(names))]
    classes = {name: _of_class(table[:, :, at], judged[at][1]) for at, name in enumerate(names)}
    for class_id, name in enumerate(names):
        places = judged[class_id][0].tolist()
        classes[name]["ignored_boxes"] = sum(_no_targets(pictures[at], class_id) for at in places)
    mean = {figure: _mean([row[figure] for row in classes.values()]) for figure in FIGURES}
    return {
        **mean,
        "ap50_interval": _interval_of_mean(judged, len(pictures)),
        "per_class": classes,
        "curves": {name: _plain(table[IOU_50, :, at, 0]) for at, name in enumerate(names)},
        "confusion": {
            "conf": ASKED,
            "iou": 0.5,
            "names": [*names, "background"],
            "counts": confusion(pictures, found, len(names), ASKED).tolist(),
        },
    }


def only_judged(one: Detections, picture: LabelledPicture) -> Detections:
    """Without what was found of classes that nobody looked for in this picture."""
    if picture.labelled is None:
        return one
    keep = np.isin(one.class_ids, list(picture.labelled))
    return Detections(one.boxes[keep], one.scores[keep], one.class_ids[keep], one.names, one.cut)


def difference(figures: dict[str, Any], first: dict[str, Any]) -> dict[str, float | None]:
    """What the means are more (or less) than those of the first."""
    return {key: None if figures[key] is None or first[key] is None else figures[key] - first[key] for key in FIGURES}


Judged = tuple[NDArray[np.int64], list[evaluate.Judged]]  # places of the pictures that count for a class, and they


NOTHING = evaluate.Judged(np.zeros(0), np.zeros(0, np.int8), 0)


def _judged(pictures: Sequence[LabelledPicture], found: Sequence[Detections], class_id: int) -> Judged:
    places = [at for at, one in enumerate(pictures) if one.labelled is None or class_id in one.labelled]
    rows = [_judge(pictures[at], found[at], class_id) for at in places]
    return np.array(places, np.int64), rows


def _judge(picture: LabelledPicture, found: Detections, class_id: int) -> evaluate.Judged:
    mine, hits = picture.class_ids == class_id, found.class_ids == class_id
    if not hits.any() and not mine.any():
        return NOTHING
    truth = evaluate.Truth(picture.boxes[mine], picture.ignored[mine], picture.crowd[mine])
    return evaluate.judge(found.boxes[hits], found.scores[hits], truth)


def _no_targets(picture: LabelledPicture, class_id: int) -> int:
    return int(((picture.class_ids == class_id) & (picture.ignored | picture.crowd)).sum())


def _of_class(table: NDArray[np.float64], rows: list[evaluate.Judged]) -> dict[str, Any]:
    """``table``: [10, 101, 4]."""
    by_area = dict(zip(AREAS, (_figure(table[..., at]) for at in range(len(AREAS))), strict=True))
    return {
        "pictures": len(rows),
        "boxes": sum(row.wanted for row in rows),
        "ap": by_area["all"],
        "ap50": _figure(table[IOU_50, :, 0]),
        "ap75": _figure(table[IOU_75, :, 0]),
        **{f"ap_{area}": by_area[area] for area in AREAS[1:]},
        "ap50_interval": _interval(rows),
        "recall": _plain(evaluate.recall(rows)),
        "recall_conf25": _plain(evaluate.recall(rows, ASKED)),
        "precision_conf25": _plain(evaluate.precision(rows, ASKED)),
    }


def _interval(rows: list[evaluate.Judged]) -> list[float | None]:
    if not sum(row.wanted for row in rows):
        return [None, None]
    pool = evaluate.Pool.of(rows)
    drawn = [pool.average_precision(times) for times in evaluate.samples(len(rows))]
    return [_plain(value) for value in evaluate.percentiles(drawn)]


def _interval_of_mean(judged: list[Judged], pictures: int) -> list[float | None]:
    """The classes of one sample are of the same pictures."""
    pools = [(places, evaluate.Pool.of(rows)) for places, rows in judged if sum(row.wanted for row in rows)]
    if not pools:
        return [None, None]
    drawn = []
    for times in evaluate.samples(pictures):
        values = [pool.average_precision(times[places]) for places, pool in pools]
        drawn.append(float(np.nanmean(values)) if not np.isnan(values).all() else float("nan"))
    return [_plain(value) for value in evaluate.percentiles(drawn)]


def _figure(part: NDArray[np.float64]) -> float | None:
    """The mean of what is there: COCO's average precision."""
    return None if np.isnan(part).all() else float(np.nanmean(part))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _plain(value: Any) -> Any:
    """NaN, which JSON has not, as None."""
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.tolist()]
    return None if math.isnan(value) else value
