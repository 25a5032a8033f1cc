"""Count the detections of a run, by class and over time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from detector.core.session.document import SessionDocument
from detector.lab.session.rows import ClassCounts, SessionRows

BINS = 60  # points of a curve over time
CURVES = 5  # classes with their own curve; the others share one
OTHERS = "other classes"


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Detections of a class. ``share``: of all detections. ``a_frame``: mean number per frame."""

    name: str
    count: int
    share: float
    a_frame: float


@dataclass(frozen=True, slots=True)
class FoundOverTime:
    """Mean detections per frame. ``curves``: for each class, one point (time in ``unit``, mean) per
    bin. ``note``: which rows are missing."""

    curves: dict[str, list[tuple[float, float]]]
    unit: str
    note: str | None = None


def count_classes(document: SessionDocument) -> list[ClassCount]:
    detections, frames = document.detections, document.frames.written
    return [
        ClassCount(name, count, count / detections.total, count / frames if frames else 0.0)
        for name, count in sorted(detections.by_class.items(), key=lambda item: -item[1])
        if detections.total
    ]


def count_over_time(rows: SessionRows) -> FoundOverTime:
    times, unit = _list_times(rows.frames)
    total = Counter[str]()
    for frame in rows.frames:
        total.update(frame.by_class)
    names = [name for name, _ in total.most_common(CURVES)]
    if len(total) > CURVES:
        names.append(OTHERS)
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    count = min(BINS, len(rows.frames))  # so that no bin is empty
    edges = [len(rows.frames) * at // max(1, count) for at in range(count + 1)]
    for first, end in itertools.pairwise(edges):
        part = rows.frames[first:end]
        sums = Counter[str]()
        for frame in part:
            for name, count in frame.by_class.items():
                sums[name if name in curves else OTHERS] += count
        middle = (times[first] + times[end - 1]) / 2
        for name, points in curves.items():
            points.append((middle, sums[name] / len(part)))
    return FoundOverTime(curves, unit, rows.left_out)


def _list_times(frames: Sequence[ClassCounts]) -> tuple[list[float], str]:
    times = [frame.time_s for frame in frames]
    one_source = len({frame.source for frame in frames}) == 1
    if one_source and all(a < b for a, b in itertools.pairwise(times)):
        return times, "s"
    return [float(number) for number in range(len(frames))], "frame"
