"""The dependency table of a simulated run."""

import pytest

from detector.lab.analysis.loop.activities import activity_graph
from detector.lab.analysis.loop.critical_path import critical_path
from detector.lab.analysis.loop.dependency import HAND_OVER, STARTUP, TEARDOWN, dependency_rows
from tests.lab.analysis.pipelines import load, run_of, shape

LOAD = load(40, shape(), read=0.002, preprocess=0.001, infer=0.008, head=0.001, write=0.002)


def test_system_call_on_the_critical_path_is_subtracted_from_its_stage() -> None:
    activities = run_of(LOAD)
    path = critical_path(activity_graph(activities, LOAD.shape))
    assert path is not None
    # A system call takes half of every inference and of every read. Reads are not on the path.
    calls = [
        (one.thread, "futex", one.start_ns, (one.start_ns + one.end_ns) // 2)
        for one in activities
        if one.stage in ("infer", "read")
    ]
    blocked = {"infer": {"futex": 0.160}, "read": {"futex": 0.041}}
    rows = dependency_rows(path, activities, calls, blocked, {"writer": {"result": 0.5}})
    by_name = {row.name: row for row in rows}
    assert sum(row.share for row in rows) == pytest.approx(1)
    infer, futex = by_name["infer"], by_name["futex (infer)"]
    # The system call takes half of an inference, except where the steady state begins or ends.
    assert infer.critical_path_s == pytest.approx(futex.critical_path_s, abs=0.008)
    assert futex.waiting_s == pytest.approx(0.160 - futex.critical_path_s)
    assert by_name["futex (read)"].waiting_s > 0.9 * 0.041
    assert by_name["wait for result"].critical_path_s == 0
    assert by_name["wait for result"].waiting_s == pytest.approx(0.5)
    assert by_name[STARTUP].critical_path_s == pytest.approx(path.startup_ns / 1e9)
    assert by_name[TEARDOWN].critical_path_s == pytest.approx(path.teardown_ns / 1e9)
    assert HAND_OVER not in by_name  # the simulated activities have no gaps between them


def test_nested_calls_are_counted_once() -> None:
    activities = run_of(LOAD)
    path = critical_path(activity_graph(activities, LOAD.shape))
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
    assert "infer" not in names  # the outer call takes all of an inference's time
