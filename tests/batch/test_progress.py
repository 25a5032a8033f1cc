"""Counts, rates and the time that is left, on a clock of the test."""

from __future__ import annotations

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
from detector.batch.progress import SLOWEST, Tally, add_ledgers
from detector.batch.terminal import PlainLines, clock_time, line, print_result
from detector.core.session.document import Exit
from detector.core.terminal.console import SafeConsole
from tests.batch.pools import record_of


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tally(clock):
    made = Tally(skipped=3, left=10, bytes_left=1000, cores=4.0, clock=clock)
    made.start()
    return made


def item(name="a", seconds=1.0, size=100, frames=50):
    return SlowItem(name=name, seconds=seconds, frames=frames, fps=None, size=size)


def test_the_time_left_is_by_bytes(tally, clock):
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


def test_the_rate_is_of_the_last_minute_and_counts_items_under_way(tally, clock):
    clock.now += 10
    working = [WorkerState(worker=0, state="working", item="a", frames=100)]
    assert tally.progress(working).fps == pytest.approx(10.0)
    for _ in range(100):
        clock.now += 10
        tally.progress(working)
    assert tally.progress(working).fps is None  # nothing moved for a minute
    clock.now += 10
    more = [WorkerState(worker=0, state="working", item="a", frames=170)]
    assert tally.progress(more).fps == pytest.approx(1.0, rel=0.2)


def test_only_the_slowest_are_kept(tally):
    for seconds in range(30):
        tally.finish(item(str(seconds), float(seconds)), Ledger(), False)
    assert [one.name for one in tally.slowest] == [str(n) for n in range(29, 29 - SLOWEST, -1)]


def test_steps_move_what_is_left_and_are_taken_back(tally, clock):
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
    assert now.cpu_hours == pytest.approx(1 / 3600)  # it was spent
    tally.finish_step(step, 100)
    tally.finish_joined(item(size=300), False, 200)
    assert (tally.progress([]).done, tally.progress([]).left) == (1, 9)
    assert tally.bytes_left == 700


def test_ledgers_add_up():
    one = Ledger(
        infer_s=1.0, stages={"read": StageSeconds(calls=2, busy_s=1.0, cpu_s=0.5)}, waits={"q": 1.0}
    )
    both = add_ledgers(add_ledgers(Ledger(), one), one)
    assert both.stages["read"] == StageSeconds(calls=4, busy_s=2.0, cpu_s=1.0)
    assert (both.infer_s, both.waits) == (2.0, {"q": 2.0})


def test_the_line_says_all(tally, clock):
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
    assert clock_time(3723.4) == "1:02:03"
    tally.parts, tally.parts_done = 8, 3
    assert "3/8 parts" in line(tally.progress([]))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_progress_is_that_of_a_job_that_runs(tally, running, told):
    """A job that ended, or was killed, left its last progress."""
    out = io.StringIO()
    result = BatchResult(
        output="out", items=ItemCounts(done=3), failures=[], seconds=1.0, frames=0, fps=None,
        workers=1, exit=Exit(code=0, reason="done"), running=running,
        progress=tally.progress([WorkerState(worker=0, state="working", item="b")])
        if told
        else None,
    )  # fmt: skip
    print_result(SafeConsole(file=out, width=80), result)
    assert ("core-hours" in out.getvalue()) == (running and told)


def test_a_pipe_gets_a_line_now_and_then(tally, clock):
    said = []
    lines = PlainLines(said.append, every_s=30.0, clock=clock)
    for _ in range(7):
        lines.show(tally.progress([]))
        clock.now += 10
    assert len(said) == 3
