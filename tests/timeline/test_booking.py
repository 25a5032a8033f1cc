"""An engine's own threads and the inferences that they work for, by clocks that a test sets."""

from __future__ import annotations

import sys
import threading

import pytest

from detector.core.session.recording import merge_recordings, record
from detector.core.session.span_columns import span_columns
from detector.core.timeline import INFER, Natives, Timeline
from detector.core.timeline.booking import Booking, cpu_ns_of
from detector.core.timeline.native import Times
from detector.core.timeline.rows import BLOCK, NOT_KNOWN, Rows

A, B = "worker-0", "worker-1"


class Engine:
    """Threads with their CPU time. ``makers``: thread -> who made it."""

    def __init__(self, **makers: str) -> None:
        self.makers = {int(task[1:]): maker for task, maker in makers.items()}
        self.clocks: dict[int, int | None] = dict.fromkeys(self.makers, 1000)

    def use(self, task: int, ns: int) -> None:
        self.clocks[task] = (self.clocks[task] or 0) + ns

    def booking(self) -> Booking:
        made = Booking(lambda: self.makers, self.clocks.get)
        made.begin()
        return made


def test_an_inference_alone_is_given_all_and_loading_is_nobodys():
    engine = Engine(t1="", t2="")
    booking = engine.booking()
    assert booking.enter(A) == 0
    engine.use(1, 30)
    engine.use(2, 12)
    assert booking.leave(A) == 42
    assert booking.told


def test_those_under_way_are_given_equal_parts_of_each_stretch():
    """A alone 10, both 20, B alone 7: A 20, B 17."""
    engine = Engine(t1="")
    booking = engine.booking()
    booking.enter(A)
    engine.use(1, 10)
    booking.enter(B)
    engine.use(1, 20)
    assert booking.leave(A) == 20
    engine.use(1, 7)
    assert booking.leave(B) == 17


def test_what_does_not_divide_is_not_lost():
    engine = Engine(t1="")
    booking = engine.booking()
    booking.enter(A)
    booking.enter(B)
    for _ in range(7):
        engine.use(1, 3)
        booking.settle(A)
    given = booking.leave(B) + booking.leave(A)
    assert given + booking._rest_ns == 21


def test_threads_that_spin_behind_an_inference_are_that_ones():
    engine = Engine(t1="")
    booking = engine.booking()
    booking.enter(A)
    assert booking.leave(A) == 0
    engine.use(1, 5)
    assert booking.enter(B) == 0
    booking.leave(B)
    assert booking.enter(A) == 5
    engine.use(1, 6)
    booking.leave(A)
    engine.use(1, 4)
    assert (booking.settle(B), booking.settle(A)) == (0, 15)


def test_a_pool_of_one_worker_works_for_it_alone():
    engine = Engine(t1=A, t2=B, t3="python")
    booking = engine.booking()
    booking.enter(A)
    booking.enter(B)
    engine.use(1, 100)
    engine.use(2, 10)
    engine.use(3, 6)
    assert booking.leave(A) == 103
    engine.use(1, 9)  # it spins
    assert booking.leave(B) == 13
    assert booking.enter(A) == 112


def test_a_thread_that_comes_later_counts_from_its_birth_and_one_that_goes_keeps_its_time():
    engine = Engine()
    booking = engine.booking()
    booking.enter(A)
    assert booking.leave(A) == 0
    engine.makers = {7: ""}  # made in the first call, which it is listed after
    engine.clocks[7] = 50
    assert booking.enter(A) == 50
    engine.clocks[7] = None
    assert booking.leave(A) == 50


class System:
    """A wall clock, and one thread of the engine that was there before the run."""

    def __init__(self) -> None:
        self.now = 0
        self.tasks = {10**9: Times(0, 0)}
        self.natives = Natives(
            lambda: set(self.tasks), lambda task: self.tasks.get(task), lambda task: "python"
        )

    def timeline(self, monkeypatch: pytest.MonkeyPatch, cpu) -> Timeline:
        monkeypatch.setattr(Booking.__init__, "__defaults__", (cpu,))
        return Timeline(lambda: self.now, lambda: self.now, nvtx=False, natives=self.natives)


def test_the_rows_of_two_workers_add_up_to_what_the_thread_used(monkeypatch):
    system, used = System(), [500]
    system.tasks.clear()
    with system.natives.born(INFER):
        system.tasks[10**9] = Times(0, 0)
    timeline = system.timeline(monkeypatch, lambda task: used[0])
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


def test_what_nobody_told_is_not_zero(monkeypatch):
    system = System()
    timeline = system.timeline(monkeypatch, lambda task: None)
    with timeline.track(A) as track, track.span(INFER, 0):
        pass
    assert record(timeline).stages[INFER].library_ns is None
    assert dict(span_columns([timeline])[0])["library_ns"].tolist() == [NOT_KNOWN]


def test_what_is_added_late_survives_packing():
    rows = Rows(booked=True)
    for number in range(BLOCK + 2):
        rows.add_late(3 * number + 1)
        for column in (rows.indices, rows.starts, rows.ends, rows.offs, rows.readies):
            column.append(number)
        rows.libraries.append(3 * (number + 1))
        if not (number + 1) % BLOCK:
            rows.pack()
    given = rows.column("library")
    assert given.sum() == 3 * (BLOCK + 2)
    assert set(given.tolist()) <= {2, 3, 4}


@pytest.mark.skipif(sys.platform != "linux", reason="machine: no clock of another thread")
def test_a_real_threads_clock_is_its_own():
    """What another thread counts for it lies between what it reads itself before and after."""
    import time

    told: list[int] = []
    go, done = threading.Event(), threading.Event()

    def burn() -> None:
        until = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until:
            pass
        told.append(time.thread_time_ns())
        go.set()
        done.wait()
        told.append(time.thread_time_ns())

    thread = threading.Thread(target=burn)
    thread.start()
    go.wait()
    seen = cpu_ns_of(thread.native_id or 0)
    done.set()
    thread.join()
    assert seen is not None
    assert told[0] <= seen <= told[1]
    assert cpu_ns_of(2**22 + 5) is None
