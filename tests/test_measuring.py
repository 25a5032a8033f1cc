"""The arithmetic of scripts/bench with made-up runs: threshold crossings, rounds, limits."""

import numpy as np
import pytest
from measuring import limit
from measuring.agreement import crossings
from measuring.rounds import interleave

from detector.core.types import Detections
from tests.session.documents import DOCUMENT

PLACES = {"a": [0, 0, 10, 10], "b": [20, 0, 30, 10], "a moved": [1, 0, 11, 10]}


def detections_of(*rows: tuple[str, float, int]) -> Detections:
    return Detections(
        np.array([PLACES[place] for place, _, _ in rows], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in rows], np.float32),
        np.array([class_id for _, _, class_id in rows], np.int64),
    )


def count_crossings(a_below: Detections, b_below: Detections) -> int:
    """Count crossings of the threshold 0.25. Both arguments include boxes below it, best first."""
    above = [detections_of(*rows_above(one)) for one in (a_below, b_below)]
    return crossings([above[0]], [above[1]], [a_below], [b_below])


def rows_above(one: Detections) -> list[tuple[str, float, int]]:
    place_of = {tuple(box): name for name, box in PLACES.items()}
    rows = zip(one.boxes.tolist(), one.scores.tolist(), one.class_ids.tolist(), strict=True)
    return [
        (place_of[tuple(map(int, box))], score, class_id)
        for box, score, class_id in rows
        if score >= 0.25
    ]


def test_match_below_the_threshold_is_a_crossing():
    assert count_crossings(detections_of(("a", 0.26, 0)), detections_of(("a moved", 0.24, 0))) == 1
    assert count_crossings(detections_of(("a moved", 0.24, 0)), detections_of(("a", 0.26, 0))) == 1


def test_match_above_the_threshold_and_missing_match_are_not_crossings():
    assert (
        count_crossings(
            detections_of(("a", 0.26, 0)), detections_of(("a moved", 0.27, 0), ("a", 0.24, 0))
        )
        == 0
    )
    assert count_crossings(detections_of(("a", 0.9, 0)), detections_of()) == 0
    assert count_crossings(detections_of(("a", 0.9, 0)), detections_of(("b", 0.1, 0))) == 0, (
        "a box elsewhere is no match"
    )
    assert count_crossings(detections_of(("a", 0.9, 0)), detections_of(("a", 0.1, 1))) == 0, (
        "a box of another class is no match"
    )
    assert count_crossings(detections_of(), detections_of()) == 0


CORES = 2


def test_variants_alternate_after_a_discarded_warm_up_round():
    order: list[str] = []

    def one(name: str) -> dict[str, float]:
        order.append(name)
        return {"fps": float(len(order))}

    rows = interleave({"a": lambda: one("a"), "b": lambda: one("b")}, 2)
    assert order == ["a", "b"] * 3
    assert rows == {"a": [{"fps": 3.0}, {"fps": 5.0}], "b": [{"fps": 4.0}, {"fps": 6.0}]}
    assert len(interleave({"a": lambda: one("a")}, 1, warm_up=0)["a"]) == 1


@pytest.mark.parametrize(
    ("serial", "lean_ms", "fps", "by"),
    [
        ({"infer": 4.0, "write": 10.0}, 16.0, 100.0, "write"),  # CPU time / 2 cores: 8 ms
        ({"infer": 4.0, "write": 5.0}, 16.0, 125.0, "all cores"),
    ],
)
def test_limit_is_the_slowest_stage_or_all_cores(serial, lean_ms, fps, by):
    assert limit.limit_of(serial, lean_ms, CORES) == (pytest.approx(fps), by)


@pytest.mark.parametrize(
    ("others_s", "ready_s", "ms"),
    [
        (None, 1.0, 10.0),  # unknown: all waiting is blamed on other programs
        (0.0, 1.0, 20.0),  # no other program ran: the stage waited for its libraries
        (None, 9.0, 5.0),  # several threads waited at once: at least CPU time / 2 cores is left
    ],
)
def test_alone_ms_excludes_waiting_for_other_programs(others_s, ready_s, ms):
    frames, times = 100, ("busy_s", "wait_input_s", "wait_output_s", "other_s", "wall_s")
    libraries = {
        "wall_s": 1.0,
        "process_s": 1.8,
        "unknown_s": 0.0,
        "others_s": others_s,
        "stages": {},
    }
    summary = DOCUMENT | {
        "stages": {
            "infer": {"thread": "main", "calls": frames, "busy_s": 2.0, "cpu_s": 1.0},
            "annotate": {"thread": "", "calls": 0, "busy_s": 0.0, "cpu_s": 0.0},
        },
        "threads": {"main": dict.fromkeys(times, 0.0) | {"cpu_s": 1.0, "ready_s": ready_s}},
        "cpu": DOCUMENT["cpu"] | {"stages_include_libraries": True, "libraries": libraries},
        "frames": DOCUMENT["frames"] | {"written": frames},
    }
    assert limit.alone_ms(summary) == pytest.approx({"infer": ms})
