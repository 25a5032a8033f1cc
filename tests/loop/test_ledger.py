"""The ledger (times of stages and waits) is exact on a fake clock and equals the stubs' records."""

import functools
import time

import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import Progress
from detector.core.loop.queues import Queue
from detector.core.loop.sync import frames_in_turn
from detector.core.session.recording import record
from detector.core.session.span_columns import span_columns
from detector.core.timeline.spans import STAGES
from detector.core.timeline.timeline import Timeline
from tests.loop.stubs import FakeClock, Notes, stub_parts
from tests.memory import bytes_of
from tests.waiting import PATIENCE_S

COSTS_NS = dict(read=7, preprocess=3, infer=50, head=2, nms=1, annotate=4, write=11)
TOLERANCE_NS = 10_000_000  # allowed sum of all waits for a core


def retry_while_late(test):
    """Repeat a test while it raises LateError, for PATIENCE_S at most: on a busy machine, a thread
    may be late in one try, but not in all. Exact conditions use ``assert`` and are not retried."""

    @functools.wraps(test)
    def repeated(*arguments, **named):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return test(*arguments, **named)
            except LateError:
                if time.monotonic() > end:
                    raise

    return repeated


class LateError(AssertionError):
    """A bound on real time did not hold."""


def in_time(condition, *details):
    if not condition:
        raise LateError(*details)


def run(loop, parts, timeline):
    for _ in loop(parts, timeline, Progress()):
        pass
    return record(timeline)


def test_ledger_of_the_plain_loop_is_exact_on_a_fake_clock():
    clock = FakeClock()
    parts = stub_parts(10, batch=2, requests=1, work=lambda name: clock.sleep(COSTS_NS[name]))
    recording = run(frames_in_turn, parts, Timeline(clock, clock, nvtx=False))
    calls = dict.fromkeys(STAGES, 10) | {"read": 11, "infer": 5}  # the last read finds the end
    for name, stage in recording.stages.items():
        busy = COSTS_NS[name] * (5 if name == "infer" else 10)
        assert (stage.calls, stage.busy_ns, stage.cpu_ns) == (calls[name], busy, busy), name
    main = recording.threads["main"]
    assert (main.other_ns, main.wait_input_ns, main.wait_output_ns) == (0, 0, 0)
    assert main.wall_ns == main.busy_ns == sum(COSTS_NS.values()) * 10 - COSTS_NS["infer"] * 5
    assert recording.infer_ns == 5 * COSTS_NS["infer"]


@pytest.mark.parametrize("loop", [frames_in_turn, frames_overlapped])
@pytest.mark.parametrize("frames", [7, 8])  # with 7, the last batch of 4 is partial
def test_end_of_the_source_costs_one_read(loop, frames):
    recording = run(loop, stub_parts(frames, batch=4), Timeline(nvtx=False))
    assert recording.stages["read"].calls == frames + 1


def test_time_between_stages_counts_only_as_other_time():
    clock = FakeClock()
    parts = stub_parts(10, requests=1, work=lambda name: clock.sleep(COSTS_NS[name]))
    timeline = Timeline(clock, clock, nvtx=False)
    for _ in frames_in_turn(parts, timeline, Progress()):
        clock.sleep(1000)  # in the loop's caller, between write and the next read
    recording = record(timeline)
    assert recording.threads["main"].other_ns == 10 * 1000
    assert recording.threads["main"].busy_ns == 10 * sum(COSTS_NS.values())
    arrays, seen, kept = span_columns([timeline])
    columns = dict(arrays)
    other = columns["kind"] == list(columns["kind_names"]).index("other")
    assert (columns["end_ns"] - columns["start_ns"])[other].tolist() == [1000] * 10
    assert (seen, kept) == (71, 71)


def test_nested_spans_are_counted_once():
    clock = FakeClock()
    timeline = Timeline(clock, clock, nvtx=False)
    with timeline.track("main") as track, track.span("read", 0):
        clock.sleep(5)
        with track.span("image", 0, "wait_output"):
            clock.sleep(100)
        clock.sleep(2)
    recording = record(timeline)
    assert recording.stages["read"].busy_ns == 7
    assert recording.threads["main"].wait_output_ns == 100
    assert recording.threads["main"].wall_ns == 107


def test_stage_that_raises_is_closed_and_counted():
    clock = FakeClock()
    timeline = Timeline(clock, clock, nvtx=False)

    def failing():
        clock.sleep(5)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), timeline.track("main") as track, track.span("read", 0):
        failing()
    assert record(timeline).stages["read"].busy_ns == 5
    assert timeline.track("main").innermost is None


@pytest.mark.parametrize("concurrency", [1, 2, 4])
@retry_while_late
def test_ledger_equals_the_stubs_own_records(concurrency):
    notes = Notes()
    seconds = {"read": 1e-3, "infer": 3e-3, "write": 2e-3}
    parts = stub_parts(
        40,
        requests=concurrency + 3,
        concurrency=concurrency,
        work=lambda n: notes.work(n, seconds.get(n, 0)),
    )
    timeline = Timeline(nvtx=False)
    recording = run(frames_overlapped, parts, timeline)
    waits = {what for thread in recording.threads.values() for what in thread.waits}
    # With 4 workers, the writer is the slowest thread and waits for no result.
    expected = {"batch", "result"} if concurrency < 4 else {"batch"}
    assert expected <= waits <= {"request", "image", "batch", "result"}
    columns = dict(span_columns([timeline])[0])
    names = list(columns["stage_names"])
    for stage in STAGES:
        rows = (columns["stage"] == names.index(stage)) & (columns["kind"] == 0)
        # The last read finds the end; the stub omits it. Starts and ends are sorted separately,
        # because a worker may be preempted between the start of its span and the stub's note.
        starts, ends = (sorted(columns[at][rows].tolist())[:40] for at in ("start_ns", "end_ns"))
        own = zip(*map(sorted, zip(*notes.spans[stage], strict=True)), strict=True)
        for start, (noted_start, noted_end), end in zip(starts, own, ends, strict=True):
            assert start <= noted_start <= noted_end <= end, stage
        busy, noted = recording.stages[stage].busy_ns, notes.total_ns(stage)
        in_time(noted <= busy <= noted * 1.1 + TOLERANCE_NS, stage, noted, busy)
    union = notes.union_ns("infer")
    assert union <= recording.infer_ns
    in_time(recording.infer_ns <= union * 1.1 + TOLERANCE_NS)
    for thread in recording.threads.values():
        assert (
            thread.busy_ns + thread.wait_input_ns + thread.wait_output_ns + thread.other_ns
            == thread.wall_ns
        )


PLANTED = [
    # place of the delay, thread that must show it, figure of this thread that must grow
    ("infer", "worker-0", "busy_ns"),
    ("write", "writer", "busy_ns"),
    ("read", "reader", "busy_ns"),
    ("caller", "writer", "other_ns"),
    ("queue", "worker-0", "other_ns"),
]


@pytest.mark.parametrize(("place", "thread", "figure"), PLANTED)
@retry_while_late
def test_delay_in_a_place_raises_only_the_figure_of_that_place(place, thread, figure, monkeypatch):
    """Delay one place by 4 ms in each of 30 frames. Other threads show the delay as waiting."""
    notes, frames, delay = Notes(), 30, 4e-3
    parts = stub_parts(frames, work=lambda name: notes.work(name, delay if name == place else 0))

    def slow_get(queue, *arguments, real=Queue.get):
        notes.work("queue", delay)
        return real(queue, *arguments)

    timeline = Timeline(nvtx=False)
    with monkeypatch.context() as patch:  # undone before the next try, or the delays would add up
        if place == "queue":
            patch.setattr(Queue, "get", slow_get)
        for _ in frames_overlapped(parts, timeline, Progress()):
            if place == "caller":
                notes.work("caller", delay)
    recording = record(timeline)
    planted = notes.total_ns(place)
    for name, sums in recording.threads.items():
        for kind in ("busy_ns", "other_ns"):
            value = getattr(sums, kind)
            if (name, kind) == (thread, figure):
                assert planted <= value, (name, kind)
                in_time(value <= planted * 1.25 + TOLERANCE_NS, name, kind, value, planted)
            else:
                in_time(value < planted * 0.35, name, kind, value, planted)
        if name != thread:
            waited = sums.wait_input_ns + sums.wait_output_ns
            in_time(waited > planted * 0.6, name, "must have waited")


def test_number_of_rows_is_limited_but_sums_are_complete():
    clock = FakeClock()
    timeline = Timeline(clock, clock, nvtx=False, max_rows=10)
    with timeline.track("main") as track:
        for i in range(100):
            with track.span("read", i):
                clock.sleep(1)
    _, seen, kept = span_columns([timeline])
    assert (seen, kept) == (100, 10)
    assert record(timeline).stages["read"].busy_ns == 100


def test_span_columns_of_a_long_run_need_little_memory():
    """Columns are built one at a time. The rows, the sorted rows and their order take 20 bytes per
    row. Building two columns at a time would exceed the limit."""
    clock = FakeClock()
    timeline = Timeline(clock, clock, nvtx=False)
    with timeline.track("main") as track:
        for i in range(20_000):
            for stage in ("read", "infer", "write"):
                with track.span(stage, i):
                    clock.sleep(1)
                clock.sleep(1)

    def lengths():
        return {name: len(column) for name, column in span_columns([timeline])[0]}

    rows = lengths()["start_ns"]
    assert rows == 20_000 * 3 * 2  # a gap follows each span
    assert bytes_of(lengths)[1] / rows < 45
