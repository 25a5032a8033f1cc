"""Counts, rates and the remaining time, with a fake clock."""

import io
import re
from dataclasses import replace

import pytest

from detector.batch.documents import (
    BatchResult,
    ItemCounts,
    Ledger,
    SlowItem,
    StageSeconds,
    WorkerState,
)
from detector.batch.item import Task
from detector.batch.pool import Place
from detector.batch.progress import SLOWEST, Tally, add_ledgers
from detector.batch.terminal import PlainLines, line, print_result
from detector.core.session.document import Exit
from detector.core.terminal.console import SafeConsole
from tests.batch.clusters import Clock
from tests.batch.pools import record_of, report_of


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tally(clock):
    tally = Tally(skipped=3, left=10, bytes_left=1000, cores=4.0, clock=clock)
    tally.start()
    return tally


def item(name="a", seconds=1.0, size=100, frames=50):
    return SlowItem(name=name, seconds=seconds, frames=frames, fps=None, size=size)


def test_remaining_time_follows_from_bytes(tally, clock):
    assert tally.progress([]).eta_s is None
    clock.now += 30
    tally.finish(item(size=300), Ledger(cpu_s=20.0), False)
    now = tally.progress([])
    assert now.eta_s == pytest.approx(70.0)
    assert (now.total, now.done, now.skipped, now.left) == (13, 1, 3, 9)
    assert now.core_hours == pytest.approx(4 * 30 / 3600)
    assert now.cpu_hours == pytest.approx(20 / 3600)
    tally.set_aside(700)
    assert (tally.progress([]).failed, tally.progress([]).eta_s) == (1, 0.0)


def test_fps_is_of_the_last_minute_and_includes_unfinished_items(tally, clock):
    clock.now += 10
    working = [WorkerState(worker=0, state="working", item="a", frames=100)]
    assert tally.progress(working).fps == pytest.approx(10.0)
    for _ in range(100):
        clock.now += 10
        tally.progress(working)
    assert tally.progress(working).fps is None  # no frame in the last minute
    clock.now += 10
    more = [WorkerState(worker=0, state="working", item="a", frames=170)]
    assert tally.progress(more).fps == pytest.approx(1.0, rel=0.2)


def test_tally_keeps_only_the_slowest_items(tally):
    for seconds in range(30):
        tally.finish(item(str(seconds), float(seconds)), Ledger(), False)
    assert [one.name for one in tally.slowest] == [str(n) for n in range(29, 29 - SLOWEST, -1)]


def test_steps_count_as_progress_until_they_are_taken_back(tally, clock):
    task = Task(name="a", path="a", version="300-1")
    step = replace(record_of(task, "d", frames=10), parts=3)
    clock.now += 30
    tally.finish_step(step, 100)
    tally.finish_step(step, 100)
    now = tally.progress([])
    assert (now.done, now.left, now.frames) == (0, 10, 20)
    assert now.eta_s == pytest.approx(30 * 800 / 200)
    tally.take_back(20, 200)
    now = tally.progress([])
    assert (now.frames, now.eta_s) == (0, None)
    assert now.cpu_hours == pytest.approx(1 / 3600)  # CPU time of dropped steps still counts
    tally.finish_step(step, 100)
    tally.finish_joined(item(size=300), False, 200)
    assert (tally.progress([]).done, tally.progress([]).left) == (1, 9)
    assert tally.bytes_left == 700


def test_report_has_totals_of_the_workers(tally):
    tally.wall_s = 7.0
    tally.finish(item(seconds=6.5), Ledger(cpu_s=10.0), False)
    report = tally.report([report_of(load_s=1.0, busy_s=10.0, idle_s=1.0)], 40.0)
    assert report.between_s == pytest.approx(0.5)
    assert report.cpu_share == pytest.approx(10 / 40)
    assert report.core_hours == pytest.approx(40 / 3600)
    assert report.workers[0].utilisation == pytest.approx(10 / 12)
    assert tally.report([], 40.0).cpu_share is None


def test_place_of_a_worker_adds_up_the_seconds_of_each_state():
    place = Place(number=0, since=2.0)
    assert (place.seconds("waiting", 5.0), place.seconds("working", 5.0)) == (3.0, 0.0)
    place.enter("working", 6.0)
    place.enter("idle", 7.5)
    seconds = [place.seconds(state, 9.0) for state in ("waiting", "working", "idle", "gone")]
    assert seconds == [4.0, 1.5, 1.5, 0.0]


def test_ledgers_are_added_field_by_field():
    one = Ledger(
        infer_s=1.0, stages={"read": StageSeconds(calls=2, busy_s=1.0, cpu_s=0.5)}, waits={"q": 1.0}
    )
    both = add_ledgers(add_ledgers(Ledger(), one), one)
    assert both.stages["read"] == StageSeconds(calls=4, busy_s=2.0, cpu_s=1.0)
    assert (both.infer_s, both.waits) == (2.0, {"q": 2.0})


def test_progress_line_has_counts_and_fps_and_time_left_and_busy_workers(tally, clock):
    clock.now += 30
    tally.finish(item(size=100), Ledger(), False)
    tally.set_aside(100)
    workers = [
        WorkerState(worker=0, state="working", item="b"),
        WorkerState(worker=1, state="loading"),
    ]
    text = line(tally.progress(workers))
    *figures, _, busy = re.findall(r"\d[\d.:/]*", text)
    assert (figures, busy) == (["4/13", "3", "1", "1.7", "0:02:00"], "1/2")
    tally.parts, tally.parts_done = 8, 3
    assert "3/8 parts" in line(tally.progress([]))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("has_progress", [False, True])
def test_progress_is_printed_only_for_a_running_job(tally, running, has_progress):
    """The manifest of a job that ended or was killed still has its last progress."""
    out = io.StringIO()
    result = BatchResult(
        output="out", items=ItemCounts(done=3), failures=[], seconds=1.0, frames=0, fps=None,
        workers=1, exit=Exit(code=0, reason="done"), running=running,
        progress=tally.progress([WorkerState(worker=0, state="working", item="b")])
        if has_progress
        else None,
    )  # fmt: skip
    print_result(SafeConsole(file=out, width=80), result)
    assert ("core-hours" in out.getvalue()) == (running and has_progress)


def test_pipe_gets_a_line_every_30_seconds(tally, clock):
    printed = []
    lines = PlainLines(printed.append, every_s=30.0, clock=clock)
    for _ in range(7):
        lines.show(tally.progress([]))
        clock.now += 10
    assert len(printed) == 3
