"""What scripts/bench counts of its own: detections whose partner lies below the threshold,
inferences in a turn.
"""

from __future__ import annotations

import numpy as np
import pytest
from measuring.agreement import crossings
from measuring.alone import WARM_UP, Variant, turn

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.types import Detections
from tests.known_answers import plus_one

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


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("ort", Variant("ort", "fp32", 0, 0)),
        ("openvino/bf16", Variant("openvino", "bf16", 0, 0)),
        ("openvino/int8:2x1", Variant("openvino", "int8", 2, 1)),
    ],
)
def test_a_variant_is_what_its_name_says(text, variant):
    assert Variant.of(text) == variant


def test_a_turn_gives_every_request_its_share_after_a_warm_up(monkeypatch):
    picture = np.full((1, 2, 3, 3), 7, np.uint8)
    with engines.open("null", plus_one(), EngineOptions(requests=2)) as engine:
        calls = [0, 0]
        for at, request in enumerate(engine.requests):
            monkeypatch.setattr(
                request, "infer", lambda n, at=at: calls.__setitem__(at, calls[at] + n)
            )
        assert turn(engine, picture, 5) > 0
        assert all((request.slot == 7).all() for request in engine.requests)
    assert calls == [WARM_UP + 3, WARM_UP + 3]
