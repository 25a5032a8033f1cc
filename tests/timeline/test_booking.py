"""An engine's own threads and the inferences that they work for, by clocks that a test sets."""

from __future__ import annotations

import sys
import threading

import pytest

from detector.core.session.recording import merge_recordings, record
from detector.core.session.span_columns import span_columns
from detector.core.timeline import INFER, Natives, Timeline
from detector.core.timeline.booking import Booking, EngineCaller, clock_of
from detector.core.timeline.native import Times
from detector.core.timeline.rows import BLOCK, NOT_KNOWN, ROW_BYTES, SpanRows

A, B = "worker-0", "worker-1"


class Engine:
    """Threads with their CPU time. ``makers``: thread -> who made it."""

    def __init__(self, **makers: str) -> None:
        self.makers = {int(task[1:]): maker for task, maker in makers.items()}
        self.clocks: dict[int, int | None] = dict.fromkeys(self.makers, 1000)

    def use(self, task: int, ns: int) -> None:
        self.clocks[task] = (self.clocks[task] or 0) + ns

    def read(self, clock: int) -> int:
        task = ~(clock >> 3)
        assert clock_of(task) == clock
        found = self.clocks[task]
        if found is None:
            raise OSError("it has ended")
        return found

    def workers(self) -> tuple[EngineCaller, EngineCaller]:
        booking = Booking(lambda: self.makers, self.read)
        return booking.worker(A), booking.worker(B)


def test_an_inference_alone_is_given_all_and_loading_is_nobodys():
    engine = Engine(t1="", t2="")
    a, _ = engine.workers()
    assert a.enter() == 0
    engine.use(1, 30)
    engine.use(2, 12)
    assert a.leave() == 42
    assert a.readable


def test_those_under_way_are_given_equal_parts_of_each_stretch():
    """A alone 10, both 20, B alone 7: A 20, B 17."""
    engine = Engine(t1="")
    a, b = engine.workers()
    a.enter()
    engine.use(1, 10)
    b.enter()
    engine.use(1, 20)
    assert a.leave() == 20
    engine.use(1, 7)
    assert b.leave() == 17


def test_what_does_not_divide_is_not_lost():
    engine = Engine(t1="")
    a, b = engine.workers()
    a.enter()
    b.enter()
    for _ in range(7):
        engine.use(1, 3)
        a.settle()
    given = b.leave() + a.leave()
    assert given + a._booking._rest_ns == 21


def test_threads_spinning_after_an_inference_are_booked_to_it():
    engine = Engine(t1="")
    a, b = engine.workers()
    a.enter()
    assert a.leave() == 0
    engine.use(1, 5)
    assert b.enter() == 0
    b.leave()
    assert a.enter() == 5
    engine.use(1, 6)
    a.leave()
    engine.use(1, 4)
    assert (b.settle(), a.settle()) == (0, 15)


def test_a_pool_of_one_worker_works_for_it_alone():
    engine = Engine(t1=A, t2=B, t3="python")
    a, b = engine.workers()
    a.enter()
    b.enter()
    engine.use(1, 100)
    engine.use(2, 10)
    engine.use(3, 6)
    assert a.leave() == 103
    engine.use(1, 9)  # it spins
    assert b.leave() == 13
    assert a.enter() == 112


def test_a_thread_that_comes_later_counts_from_its_birth_and_one_that_goes_keeps_its_time():
    engine = Engine()
    a, _ = engine.workers()
    a.enter()
    assert a.leave() == 0
    engine.makers = {7: ""}  # made in the first call, which it is listed after
    engine.clocks[7] = 50
    assert a.enter() == 50
    engine.clocks[7] = None
    assert a.leave() == 50


class System:
    def __init__(self) -> None:
        self.now = 0
        self.tasks = {10**9: Times(0, 0)}
        self.natives = Natives(
            lambda: set(self.tasks), lambda task: self.tasks.get(task), lambda task: "python"
        )

    def timeline(self, monkeypatch: pytest.MonkeyPatch, read) -> Timeline:
        monkeypatch.setattr(Booking.__init__, "__defaults__", (read,))
        return Timeline(lambda: self.now, lambda: self.now, nvtx=False, natives=self.natives)


def test_the_rows_of_two_workers_add_up_to_what_the_thread_used(monkeypatch):
    system, used = System(), [500]
    system.tasks.clear()
    with system.natives.book_threads(INFER):
        system.tasks[10**9] = Times(0, 0)
    timeline = system.timeline(monkeypatch, lambda clock: used[0])
    with timeline.track(A) as first, timeline.track(B) as second:
        for number in range(0, 6, 2):
            with first.span(INFER, number):
                used[0] += 100
                with second.span(INFER, number + 1):
                    used[0] += 40
                used[0] += 5
            used[0] += 1
    recording = record(timeline)
    assert recording.stages[INFER].library_ns == used[0] - 500
    columns = dict(span_columns([timeline])[0])
    infer = columns["stage"] == columns["stage_names"].tolist().index(INFER)
    given = columns["library_ns"][infer & (columns["kind"] == 0)]
    order = columns["index"][infer & (columns["kind"] == 0)].argsort()
    assert given[order].tolist() == [126, 20, 126, 20, 126, 20]
    twice = merge_recordings([recording, recording])
    assert twice.stages[INFER].figures(None, INFER).library_cpu_s == 2 * 438 / 1e9


def test_unknown_library_time_is_none_and_not_zero(monkeypatch):
    def refuse(clock: int) -> int:
        raise OSError("a sandbox hides it")

    system = System()
    timeline = system.timeline(monkeypatch, refuse)
    with timeline.track(A) as track, track.span(INFER, 0):
        pass
    assert record(timeline).stages[INFER].library_ns is None
    assert dict(span_columns([timeline])[0])["library_ns"].tolist() == [NOT_KNOWN]


def test_what_is_added_late_survives_packing():
    rows = SpanRows(BLOCK + 2, booked=True)
    block = rows.block
    for number in range(BLOCK + 2):
        block.add_late(number % BLOCK * ROW_BYTES, 3 * number + 1)
        row = (number, 0, 0, 0, 0, 3 * (number + 1), 0)
        block.write(block.written, number % BLOCK * ROW_BYTES, *row)
        rows.take(number + 1)
    given = rows.column("library")
    assert given.sum() == 3 * (BLOCK + 2)
    assert set(given.tolist()) <= {2, 3, 4}


@pytest.mark.skipif(sys.platform != "linux", reason="machine: no clock of another thread")
def test_a_real_threads_clock_is_its_own():
    """The count by another thread is between the thread's own readings before and after."""
    import time

    clocks: list[int] = []
    go, done = threading.Event(), threading.Event()

    def burn() -> None:
        until = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until:
            pass
        clocks.append(time.thread_time_ns())
        go.set()
        done.wait()
        clocks.append(time.thread_time_ns())

    thread = threading.Thread(target=burn)
    thread.start()
    go.wait()
    seen = time.clock_gettime_ns(clock_of(thread.native_id or 0))
    done.set()
    thread.join()
    assert clocks[0] <= seen <= clocks[1]
    with pytest.raises(OSError, match=r"Invalid argument|No such process"):
        time.clock_gettime_ns(clock_of(2**22 + 5))
