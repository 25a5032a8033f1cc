"""The critical path of simulated runs with a known path, and of random graphs."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.core.timeline.spans import KINDS, STAGES, WORK
from detector.lab.analysis.loop.activities import (
    BATCH_ROOM,
    DATA,
    IMAGE,
    PROGRAM,
    REQUEST,
    RESULT_ROOM,
    Activity,
    ActivityGraph,
    Edge,
    LoopShape,
    activities_of,
    activity_graph,
    frame_times_ms,
)
from detector.lab.analysis.loop.critical_path import _find_steady_state, critical_path
from detector.lab.analysis.loop.recorded import recorded_facts
from detector.lab.analysis.loop.why import Explanation, RunEvidence
from detector.lab.session.nsys import NsysRun
from detector.lab.session.read import read_session
from tests.lab.analysis.pipelines import load, run_of, shape
from tests.lab.report.sessions import ran
from tests.properties import STEADY

TICK = 1 / 1024


def shares_of_path(run_load) -> dict[str, float]:
    path = critical_path(activity_graph(run_of(run_load), run_load.shape))
    assert path.wall_ns > 0
    assert all(stage.wait_ns == 0 for stage in path.stages.values()), "hand-overs take no time"
    return {
        name: round(stage.self_ns / path.wall_ns, 3)
        for name, stage in path.stages.items()
        if stage.self_ns
    }


# Each row: the loop, the seconds per call, and each stage's share of the path in the steady state.
# A frame at the start or end of the steady state may add a little of another stage.
KNOWN = {
    "inference-bound": (shape(), {"read": 2, "infer": 8, "write": 3}, {"infer": 1.0}),
    "read-bound": (shape(), {"read": 8, "infer": 2, "write": 3}, {"read": 1.0}),
    "write-bound": (shape(), {"read": 1, "infer": 2, "write": 8}, {"write": 1.0}),
    "head runs in the writer": (
        shape(),
        {"by_writer": True, "read": 1, "infer": 2, "head": 2, "write": 6},
        {"head": 0.25, "write": 0.75},
    ),
    "head runs in the worker": (
        shape(),
        {"read": 1, "infer": 6, "head": 2, "write": 7},
        {"infer": 0.75, "head": 0.25},
    ),
    "the reader preprocesses": (
        shape(),
        {"read": 6, "preprocess": 2, "infer": 2},
        {"read": 0.75, "preprocess": 0.25},
    ),
    "serial": (
        shape(sync=True),
        {"read": 1, "infer": 2, "write": 1},
        {"read": 0.25, "infer": 0.5, "write": 0.25},
    ),
    "batches": (
        shape(batch=4, requests=3, images=16),
        {"read": 1, "infer": 10, "write": 2},
        {"infer": 1.0},
    ),
    "two requests at once": (
        shape(concurrency=2, requests=5),
        {"read": 3, "infer": 4, "write": 1},
        {"read": 1.0},
    ),
    "two busy workers": (
        shape(concurrency=2, requests=5),
        {"read": 1, "infer": 8, "write": 1},
        {"infer": 1.0},
    ),
    # A single request is filled, run and decoded before it is filled again; only writing overlaps.
    "one request": (
        shape(requests=1),
        {"read": 2, "infer": 4, "head": 2, "write": 1},
        {"read": 0.25, "infer": 0.5, "head": 0.25},
    ),
}


@pytest.mark.parametrize(("loop", "seconds", "expected"), KNOWN.values(), ids=KNOWN)
def test_path_of_a_simulated_run_is_the_expected_one(loop, seconds, expected):
    shown_shares = shares_of_path(load(400, loop, **seconds))
    for stage in {*expected, *shown_shares}:
        assert shown_shares.get(stage, 0.0) == pytest.approx(expected.get(stage, 0.0), abs=0.03), (
            shown_shares
        )


CAUSES = [
    (BATCH_ROOM, "read", shape(requests=8), {"read": 1, "infer": 8, "write": 1}),
    (REQUEST, "read", shape(requests=2), {"read": 1, "infer": 8, "write": 1}),
    (IMAGE, "read", shape(images=2, requests=8), {"read": 1, "infer": 1, "write": 8}),
    (DATA, "infer", shape(), {"read": 8, "infer": 1, "write": 1}),
    (DATA, "head", shape(), {"by_writer": True, "read": 1, "infer": 8, "head": 1}),
    (DATA, "annotate", shape(), {"read": 1, "infer": 4, "nms": 4, "write": 1}),
    (
        RESULT_ROOM,
        "infer",
        shape(requests=9, images=20),
        {"read": 1, "infer": 2, "head": 1, "write": 8},
    ),
    (PROGRAM, "write", shape(), {"read": 1, "infer": 1, "write": 8}),
]


@pytest.mark.parametrize(
    ("cause", "stage", "loop", "seconds"), CAUSES, ids=[f"{c} of {s}" for c, s, *_ in CAUSES]
)
def test_calls_of_a_stage_wait_for_the_expected_cause(cause, stage, loop, seconds):
    """In the middle of the run, at least 90% of the stage's calls wait for this cause."""
    one = load(200, loop, **seconds)
    graph = activity_graph(run_of(one), one.shape)
    middle = [
        at for at, a in enumerate(graph.activities) if a.stage == stage and 50 <= a.number < 150
    ]
    causes = Counter(graph.binding(at).cause for at in middle)
    assert causes[cause] >= 0.9 * len(middle), causes


@pytest.mark.slow
def test_simulated_call_starts_as_soon_as_its_predecessors_allow():
    """If the graph lacked a rule of the loop, some calls would start later than the graph says."""
    rng = random.Random(5)
    for _ in range(40):
        batch, workers = rng.choice([1, 2, 3]), rng.choice([1, 2])
        loop = shape(
            batch, workers, rng.randint(workers, 5), batch + rng.randint(1, 6), rng.randint(1, 3)
        )
        ticks = lambda count: [rng.randint(1, 9) * TICK for _ in range(count)]  # noqa: E731
        seconds = {stage: ticks(30) for stage in ("preprocess", "head", "nms", "annotate", "write")}
        seconds |= {"read": ticks(31), "infer": ticks(-(-30 // batch))}
        one = load(30, loop, rng.random() < 0.5, **seconds)
        graph = activity_graph(run_of(one), loop)
        for at, activity in enumerate(graph.activities):
            edge = graph.binding(at)
            ready = 0 if edge is None else graph.time_of(edge)
            if activity.thread.startswith("worker") and workers > 1:
                # Either of two idle workers may take a batch.
                assert activity.start_ns >= ready
            else:
                assert activity.start_ns == ready, (activity, edge)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        *({"concurrency": 2}, {"batch": 3}, {"batch": 2, "concurrency": 2}, {"sync": True}),
        *({"infer_every": 3}, {"infer_every": 4, "batch": 2, "concurrency": 2}),
        {"infer_every": 3, "skip_still": "0.9"},
    ],
    ids=str,
)
def test_real_run_obeys_the_graph(tmp_path, flags):
    """No call starts before its predecessors in the graph end. Edges from the start of a call are
    skipped: the call makes room in a queue, and a waiting thread may continue before this start."""
    session = read_session(ran(tmp_path, frames=40, save=("jsonl",), **flags))
    graph = activity_graph(activities_of(session.spans), LoopShape.of(session.document.loop[0]))
    edges = [
        (at, edge) for at, found in enumerate(graph.edges) for edge in found if not edge.at_start
    ]
    causes = {edge.cause for _, edge in edges}
    assert causes == ({PROGRAM} if "sync" in flags else {PROGRAM, DATA, REQUEST, IMAGE})
    for at, edge in edges:
        assert graph.time_of(edge) <= graph.activities[at].start_ns, (graph.activities[at], edge)


def test_waits_and_self_times_add_up_to_the_wall_time():
    """Every call starts a random time later than its predecessors allow."""
    rng = random.Random(7)
    one = load(80, shape(), read=2.0, infer=3.0, write=2.5)
    later, shift = [], 0
    for activity in run_of(one):
        shift += rng.randint(0, 10**7)
        later.append(
            activity._replace(start_ns=activity.start_ns + shift, end_ns=activity.end_ns + shift)
        )
    path = critical_path(activity_graph(later, one.shape))
    assert sum(stage.self_ns + stage.wait_ns for stage in path.stages.values()) == path.wall_ns
    assert any(stage.wait_ns for stage in path.stages.values())
    facts = path.facts()
    assert sum(row.share for row in facts.stages) == pytest.approx(1)
    spans = facts.startup_s + facts.wall_s + facts.teardown_s
    assert spans == pytest.approx((later[-1].end_ns - later[0].start_ns) / 1e9)


def random_graph(rng: random.Random, count: int) -> ActivityGraph:
    activities, edges = [], []
    for at in range(count):
        incoming = [Edge(before, DATA) for before in range(at) if rng.random() < 0.4]
        start = max((activities[edge.before].end_ns for edge in incoming), default=0)
        activities.append(Activity("nms", at, "one", start, start + rng.randint(1, 20)))
        edges.append(incoming)
    order = sorted(range(count), key=lambda at: (activities[at].start_ns, activities[at].end_ns))
    position = {at: new for new, at in enumerate(order)}
    return ActivityGraph(
        [activities[at] for at in order],
        [[Edge(position[e.before], DATA) for e in edges[at]] for at in order],
    )


def longest_by_brute_force(graph: ActivityGraph, at: int) -> int:
    duration = graph.activities[at].end_ns - graph.activities[at].start_ns
    return duration + max(
        (longest_by_brute_force(graph, edge.before) for edge in graph.edges[at]), default=0
    )


@pytest.mark.parametrize("seed", range(30))
def test_path_of_a_random_graph_is_the_longest(seed):
    graph = random_graph(random.Random(seed), 9)
    longest = max(longest_by_brute_force(graph, at) for at in range(9))
    assert longest == max(a.end_ns for a in graph.activities)
    path = critical_path(graph)
    # Activities start as early as possible, so there are no waits.
    assert sum(step.self_ns for step in path.steps) == path.wall_ns


def test_activities_are_read_from_columns():
    columns = {
        "kind": np.array(
            [KINDS.index(kind) for kind in ("work", "wait_input", "work", "work", "work")], np.uint8
        ),
        "source": np.array([0, 0, 0, 1, 0]),
        "thread": np.array([0, 0, 1, 0, 0]),
        "stage": np.array([0, 1, 2, 0, 2]),
        "index": np.array([4, 4, 4, 9, 5]),
        "start_ns": np.array([20, 0, 10, 0, 22]),
        "end_ns": np.array([30, 20, 15, 5, 25]),  # the last call lies inside the first: omitted
        "thread_names": np.array(["reader", "worker-0"]),
        "stage_names": np.array(["read", "request", "infer"]),
    }
    assert activities_of(columns) == [
        Activity("infer", 4, "worker-0", 10, 15),
        Activity("read", 4, "reader", 20, 30),
    ]
    assert activities_of(columns, source=1) == [Activity("read", 9, "reader", 0, 5)]


def test_run_without_written_frames_has_no_path():
    assert critical_path(activity_graph([], shape())) is None
    assert critical_path(activity_graph([Activity("read", 0, "reader", 0, 5)], shape())) is None
    # This run has not even read a frame.
    assert _find_steady_state(activity_graph([], shape()), [5, 9]) == (5, 9)


def test_frames_with_decreasing_numbers_have_a_critical_path():
    """Damaged recordings may contain such frames. The path goes from the first written frame
    to the last written frame, whatever their numbers."""
    run = run_of(load(12, shape(), read=TICK, infer=2 * TICK, write=TICK))
    backwards = [one._replace(number=11 - one.number) for one in run if one.number < 12]
    path = critical_path(activity_graph(backwards, shape()))
    assert path.wall_ns > 0
    assert sum(stage.self_ns + stage.wait_ns for stage in path.stages.values()) == path.wall_ns


SPANS = st.lists(
    st.tuples(
        st.integers(0, 2),  # thread
        st.sampled_from((*range(len(STAGES)), STAGES.index("read"), STAGES.index("write"))),
        st.sampled_from((WORK, WORK, WORK, *KINDS)).map(KINDS.index),
        st.integers(-1, 6),  # number
        st.integers(-9, 60),  # start
        st.integers(0, 4),  # duration
    ),
    min_size=1,
    max_size=40,
)
SIZES = st.fixed_dictionaries(
    {
        **dict.fromkeys(
            ("batch", "concurrency", "requests", "images", "queue_batches", "results"),
            st.integers(1, 5),
        ),
        "sync": st.booleans(),
    }
)


@pytest.mark.slow
@given(SPANS, SIZES)
@settings(STEADY, max_examples=120)
def test_facts_of_random_spans_are_consistent(spans, loop):
    table = np.array(spans, np.int64)
    columns = {
        "thread": table[:, 0],
        "stage": table[:, 1],
        "kind": table[:, 2],
        "source": np.zeros(len(table), np.int64),
        "index": table[:, 3],
        "start_ns": table[:, 4],
        "end_ns": table[:, 4] + table[:, 5],
        "thread_names": np.array(["reader", "worker-0", "writer"]),
        "stage_names": np.array(STAGES),
        "kind_names": np.array(KINDS),
    }
    calls = [("writer", "futex", start, start + 3) for _, _, _, _, start, _ in spans]
    facts = recorded_facts([NsysRun(1, None, 0, 9, columns, loop, True, calls, [(0, 5), (3, 9)])])
    path = facts.critical_path
    assert all(row.total >= 0 for row in facts.stages)
    assert all(s >= 0 for waits in facts.waits.values() for s in waits.values())
    assert all(s >= 0 for blocked in facts.blocked.values() for s in blocked.values())
    if path is not None:
        assert min(path.wall_s, path.startup_s, path.teardown_s) >= 0
        if path.wall_s:
            assert sum(stage.share for stage in path.stages) == pytest.approx(1)
    activities, loop_shape = activities_of(columns), LoopShape.of(loop)
    explained = Explanation(activities, loop_shape, RunEvidence())
    for frame in explained.frames:
        assert all(part.ms >= 0 for part in explained.explain(frame).parts)
    assert len(frame_times_ms(columns)) <= len(spans)
