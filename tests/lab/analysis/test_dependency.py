"""The dependency table of a run whose times are known."""

from __future__ import annotations

import pytest

from detector.lab.analysis.loop.activities import activity_graph
from detector.lab.analysis.loop.critical_path import critical_path
from detector.lab.analysis.loop.dependency import HAND_OVER, STARTUP, TEARDOWN, dependency_rows
from tests.lab.analysis.pipelines import load, run_of, shape

ONE = load(40, shape(), read=0.002, preprocess=0.001, infer=0.008, head=0.001, write=0.002)


def test_a_call_on_the_path_is_taken_from_its_stage_and_one_off_it_only_waits() -> None:
    activities = run_of(ONE)
    path = critical_path(activity_graph(activities, ONE.shape))
    assert path is not None
    # Half of every inference is spent in a system call; so is half of every read, which limits
    # nothing here.
    calls = [
        (one.thread, "futex", one.start_ns, (one.start_ns + one.end_ns) // 2)
        for one in activities
        if one.stage in ("infer", "read")
    ]
    blocked = {"infer": {"futex": 0.160}, "read": {"futex": 0.041}}
    rows = dependency_rows(path, activities, calls, blocked, {"writer": {"result": 0.5}})
    found = {row.name: row for row in rows}
    assert sum(row.share for row in rows) == pytest.approx(1)
    infer, futex = found["infer"], found["futex (infer)"]
    # Equal within one inference, which the edge of the steady state may cut.
    assert infer.critical_path_s == pytest.approx(futex.critical_path_s, abs=0.008)
    assert futex.waiting_s == pytest.approx(0.160 - futex.critical_path_s)
    assert found["futex (read)"].waiting_s > 0.9 * 0.041
    assert found["wait for result"].critical_path_s == 0
    assert found["wait for result"].waiting_s == pytest.approx(0.5)
    assert found[STARTUP].critical_path_s == pytest.approx(path.startup_ns / 1e9)
    assert found[TEARDOWN].critical_path_s == pytest.approx(path.teardown_ns / 1e9)
    assert HAND_OVER not in found  # calls of a run on paper have no gaps between them


def test_calls_within_calls_count_once() -> None:
    activities = run_of(ONE)
    path = critical_path(activity_graph(activities, ONE.shape))
    assert path is not None
    calls = [
        call
        for one in activities
        for call in (
            (one.thread, "outer", one.start_ns, one.end_ns),
            (one.thread, "inner", one.start_ns + 1, one.end_ns),
        )
    ]
    names = {row.name for row in dependency_rows(path, activities, calls, {}, {})}
    assert not any(name.startswith("inner") for name in names)
    assert "infer" not in names  # all of it is the outer call
