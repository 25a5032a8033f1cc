"""The trace of a session, checked by a validator: slices nest, flows start and end in slices, and
times increase."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from detector.core.timeline.rows import NOT_KNOWN
from detector.core.timeline.spans import KINDS, STAGES
from detector.lab.report.page import page
from detector.lab.report.trace import trace
from detector.lab.session.columns import THREAD_TIMES
from detector.lab.session.read import SavedSession
from tests.lab.analysis.pipelines import load, run_of, shape
from tests.session.documents import document


def session_of(run_load, tmp_path, waits=()) -> SavedSession:
    """Return the session that a run of these durations would save. ``waits``: (thread, what, kind,
    start, end), in nanoseconds."""
    activities = run_of(run_load)
    threads = sorted({a.thread for a in activities})
    names = [*STAGES, *{what for _, what, *_ in waits}]
    rows = [
        (threads.index(a.thread), names.index(a.stage), 0, 0, a.number, a.start_ns, a.end_ns)
        for a in activities
    ]
    rows += [
        (threads.index(t), names.index(w), KINDS.index(k), 0, 0, start, end)
        for t, w, k, start, end in waits
    ]
    rows.sort(key=lambda row: row[5])
    columns = dict(
        zip(
            ("thread", "stage", "kind", "source", "index", "start_ns", "end_ns"),
            np.array(rows, np.int64).T,
            strict=True,
        )
    )
    columns |= {name: np.full(len(rows), NOT_KNOWN) for name in THREAD_TIMES}
    columns |= {
        "thread_names": np.array(threads),
        "stage_names": np.array(names),
        "kind_names": np.array(KINDS),
    }
    loop = {name: getattr(run_load.shape, name) for name in run_load.shape.__slots__}
    clocks = {"perf_counter_ns": 1000, "unix_ns": 5000}
    return SavedSession(tmp_path, document(pid=7, loop=[loop], clocks=clocks), columns)


def events_of(session: SavedSession) -> list[dict]:
    return json.loads(gzip.decompress(trace(session)))["traceEvents"]


def trace_errors(events: list[dict]) -> list[str]:
    slices: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    return [*wrong_slices(slices), *wrong_flows(events, slices), *wrong_counters(events)]


def wrong_slices(slices):
    for tid, spans in slices.items():
        open_until: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and start >= open_until[-1]:
                open_until.pop()
            if end < start or (open_until and end > open_until[-1] + 1e-3):
                yield f"slices of thread {tid} cross at {start}"
            open_until.append(end)


def wrong_flows(events, slices):
    flows: dict[str, list[dict]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
            if not any(start <= event["ts"] <= end for start, end in slices.get(event["tid"], [])):
                yield f"flow {event['id']} has a point outside every slice"
    for name, flow in flows.items():
        if [event["ph"] for event in flow] != ["s", *"t" * (len(flow) - 2), "f"]:
            yield f"flow {name} does not consist of start, steps and end"
        if any(after["ts"] < before["ts"] for before, after in pairwise(flow)):
            yield f"flow {name} runs backwards"


def wrong_counters(events):
    last: dict[str, float] = {}
    for event in events:
        if event["ph"] == "C":
            if event["ts"] < last.get(event["name"], 0) or event["args"]["depth"] < 0:
                yield f"counter {event['name']} is wrong at {event['ts']}"
            last[event["name"]] = event["ts"]


SECONDS = dict(
    read=0.002, preprocess=0.001, infer=0.004, head=0.001, nms=0.001, annotate=0.001, write=0.002
)
LOOPS = [shape(), shape(sync=True), shape(batch=3, images=12), shape(concurrency=2, requests=5)]


@pytest.mark.parametrize("loop", LOOPS)
def test_trace_is_valid_with_a_flow_per_frame(tmp_path, loop):
    events = events_of(session_of(load(10, loop, **SECONDS), tmp_path))
    assert trace_errors(events) == []
    flows = {event["id"] for event in events if event["ph"] == "s"}
    assert flows == {f"0.{frame}" for frame in range(10)}
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert ("main" in tracks) == loop.sync
    assert "frames in flight" in {event["name"] for event in events if event["ph"] == "C"}


def test_read_at_the_end_adds_no_frame(tmp_path):
    """The last batch is not full, so one more read finds the end of the source. Old sessions have
    several such reads: the test adds two."""
    session = session_of(load(10, shape(batch=4, images=12), **SECONDS), tmp_path)
    read, columns = STAGES.index("read"), session.spans
    thread = columns["thread"][columns["stage"] == read][0]
    for after_ns in (1000, 3000):
        start_ns = columns["end_ns"].max() + after_ns
        end = {"stage": read, "kind": 0, "thread": thread, "source": 0, "index": 10}
        end |= {"start_ns": start_ns, "end_ns": start_ns + 1000}
        end |= dict.fromkeys(THREAD_TIMES, NOT_KNOWN)
        for name, value in end.items():
            columns[name] = np.append(columns[name], value)
    flows = {event["id"] for event in events_of(session) if event["ph"] == "s"}
    assert flows == {f"0.{frame}" for frame in range(10)}


def test_times_are_microseconds_of_the_wall_clock(tmp_path):
    """The read begins at 0 ns of perf_counter, which is 4000 ns of the wall clock."""
    events = events_of(session_of(load(1, shape(), read=0.002), tmp_path))
    read = next(event for event in events if event["name"] == "read")
    assert (read["ts"], read["dur"]) == (4.0, 2000.0)


def test_trace_and_page_end_with_a_line_end(tmp_path):
    session = session_of(load(3, shape(), read=0.5, infer=1.0), tmp_path)
    assert trace(session, compressed=False).endswith(b"}\n")
    assert page(session).endswith(b"</html>\n")


def test_waits_are_named_slices(tmp_path):
    run_load = load(2, shape(), read=0.002, infer=0.004)
    waits = [("worker-0", "batch", "wait_input", 0, 2_000_000)]
    waiting = [
        e for e in events_of(session_of(run_load, tmp_path, waits)) if e["name"] == "wait for batch"
    ]
    assert [(event["cat"], event["dur"]) for event in waiting] == [("wait_input", 2000.0)]
