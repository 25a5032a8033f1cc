"""What scripts/bench counts of its own: detections whose partner lies below the threshold."""

from __future__ import annotations

import numpy as np
from measuring.agreement import crossings

from detector.core.types import Detections

PLACES = {"a": [0, 0, 10, 10], "b": [20, 0, 30, 10], "a moved": [1, 0, 11, 10]}


def found(*rows: tuple[str, float, int]) -> Detections:
    return Detections(
        np.array([PLACES[place] for place, _, _ in rows], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in rows], np.float32),
        np.array([class_id for _, _, class_id in rows], np.int64),
    )


def crossed(a_below: Detections, b_below: Detections) -> int:
    """At a threshold of .25; rows best first."""
    above = [found(*rows_above(one)) for one in (a_below, b_below)]
    return crossings([above[0]], [above[1]], [a_below], [b_below])


def rows_above(one: Detections) -> list[tuple[str, float, int]]:
    place_of = {tuple(box): name for name, box in PLACES.items()}
    rows = zip(one.boxes.tolist(), one.scores.tolist(), one.class_ids.tolist(), strict=True)
    return [
        (place_of[tuple(map(int, box))], score, class_id)
        for box, score, class_id in rows
        if score >= 0.25
    ]


def test_a_partner_below_the_threshold_is_a_crossing():
    assert crossed(found(("a", 0.26, 0)), found(("a moved", 0.24, 0))) == 1
    assert crossed(found(("a moved", 0.24, 0)), found(("a", 0.26, 0))) == 1


def test_what_has_a_partner_above_or_none_at_all_is_none():
    assert crossed(found(("a", 0.26, 0)), found(("a moved", 0.27, 0), ("a", 0.24, 0))) == 0
    assert crossed(found(("a", 0.9, 0)), found()) == 0
    assert crossed(found(("a", 0.9, 0)), found(("b", 0.1, 0))) == 0, "elsewhere"
    assert crossed(found(("a", 0.9, 0)), found(("a", 0.1, 1))) == 0, "of another class"
    assert crossed(found(), found()) == 0
