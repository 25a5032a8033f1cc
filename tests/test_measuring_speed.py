"""The arithmetic of scripts/bench's comparisons: limits, ratios, exponents, tables. Runs, clips and
other programs are fakes; no test looks at a time.
"""

from __future__ import annotations

import pytest
from measuring import limit
from measuring.rounds import interleave

from tests.session.documents import DOCUMENT

CORES = 2


# ----------------------------------------------------------------------
# Rounds


def test_a_round_of_warm_up_is_thrown_away_and_variants_take_turns():
    order: list[str] = []

    def one(name: str) -> dict[str, float]:
        order.append(name)
        return {"fps": float(len(order))}

    rows = interleave({"a": lambda: one("a"), "b": lambda: one("b")}, 2)
    assert order == ["a", "b"] * 3
    assert rows == {"a": [{"fps": 3.0}, {"fps": 5.0}], "b": [{"fps": 4.0}, {"fps": 6.0}]}
    assert len(interleave({"a": lambda: one("a")}, 1, warm_up=0)["a"]) == 1


# ----------------------------------------------------------------------
# The limit


def summary_of(
    fps: float, cpu_ms: float, frames: int = 10, stages: dict[str, float] | None = None
) -> dict:
    """``stages``: milliseconds a frame."""
    return {
        "fps": {"end_to_end": fps},
        "frames": {"written": frames},
        "cpu": {"process_s": cpu_ms * frames / 1e3},
        "concurrency": 2,
        "engine_threads": 2,
        "detections": {"total": 5 * frames},
        "stages": {
            name: {"busy_s": ms * frames / 1e3, "calls": frames, "cpu_s": ms * frames / 1e3}
            for name, ms in (stages or {}).items()
        },
    }


@pytest.mark.parametrize(
    ("serial", "lean_ms", "fps", "by"),
    [
        ({"infer": 4.0, "write": 10.0}, 16.0, 100.0, "write"),  # 8 ms spread, the writer takes 10
        ({"infer": 4.0, "write": 5.0}, 16.0, 125.0, "all cores"),
    ],
)
def test_the_limit_is_the_longer_of_the_two(serial, lean_ms, fps, by):
    assert limit.limit_of(serial, lean_ms, CORES) == (pytest.approx(fps), by)


def test_a_round_has_the_leanest_cpu_and_its_own_plain_loop(monkeypatch):
    """The run wastes CPU (30 ms a frame); the leaner of two lean runs sets the limit."""
    turns = {name: iter((2.0, 1.0, 1.0)) for name in ("run", "plain", "lean")}

    def fake(*arguments, **_):
        if "--no-video" in arguments:
            return {}
        name = (
            "plain" if "--sync" in arguments else "lean" if "--concurrency" in arguments else "run"
        )
        slow = next(turns[name])  # the warm-up is twice as slow, and in no row
        cpu = {"run": 30.0, "plain": 20.0, "lean": 16.0}[name] * slow
        return summary_of(90 / slow, cpu, stages={"infer": 9.0 * slow, "write": 4.0 * slow})

    def alone_ms(summary):
        return {name: stage["busy_s"] * 100 for name, stage in summary["stages"].items()}

    monkeypatch.setattr(limit, "detect_video", fake)
    monkeypatch.setattr(limit, "alone_ms", alone_ms)
    monkeypatch.setattr(limit.os, "sched_getaffinity", lambda _: range(CORES))
    rows, by = limit._measured("case", ["in.mp4"], 10, rounds=2, quick=False)
    assert by == "all cores"
    assert len(rows) == 2
    for row in rows:
        assert row == pytest.approx({"fps": 90, "cpu_ms": 30, "limit": 125, "lean_cpu_ms": 16})
    cells = limit.judge(rows)
    assert cells[2].startswith("0.72 ")
    assert "missed" in cells[-1]


@pytest.mark.parametrize(
    ("others_s", "ready_s", "ms"),
    [
        (None, 1.0, 10.0),  # ready and not scheduled for half of its time; others are to blame
        (0.0, 1.0, 20.0),  # nobody else was there: the stage waited for its own libraries
        (None, 9.0, 5.0),  # of several threads, added up: not below its CPU time on both cores
    ],
)
def test_a_plain_loop_is_without_what_others_did_to_it(others_s, ready_s, ms):
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
