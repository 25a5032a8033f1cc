"""The CPU time of an engine's threads is booked to the inferences that used it (fake clocks)."""

import sys
import threading

import pytest

from detector.core.session.recording import merge_recordings, record
from detector.core.session.span_columns import span_columns
from detector.core.timeline.booking import Booking, EngineCaller, clock_of
from detector.core.timeline.native import Natives, Times
from detector.core.timeline.rows import BLOCK, NOT_KNOWN, ROW_BYTES, SpanRows
from detector.core.timeline.spans import INFER
from detector.core.timeline.timeline import Timeline

A, B = "worker-0", "worker-1"


class Engine:
    """Fake threads with CPU clocks. t1="x": the thread named x made the thread with id 1."""

    def __init__(self, **makers: str) -> None:
        self.makers = {int(task[1:]): maker for task, maker in makers.items()}
        self.clocks: dict[int, int | None] = dict.fromkeys(self.makers, 1000)

    def use(self, task: int, ns: int) -> None:
        self.clocks[task] = (self.clocks[task] or 0) + ns

    def read(self, clock: int) -> int:
        task = ~(clock >> 3)
        assert clock_of(task) == clock
        now = self.clocks[task]
        if now is None:
            raise OSError("the thread has ended")
        return now

    def workers(self) -> tuple[EngineCaller, EngineCaller]:
        booking = Booking(lambda: self.makers, self.read)
        return booking.worker(A), booking.worker(B)


def test_lone_inference_gets_all_time_since_loading():
    engine = Engine(t1="", t2="")
    a, _ = engine.workers()
    assert a.enter() == 0
    engine.use(1, 30)
    engine.use(2, 12)
    assert a.leave() == 42
    assert a.readable


def test_concurrent_inferences_share_each_interval_equally():
    """A runs alone for 10 ns, A and B for 20 ns, B alone for 7 ns: A gets 20 ns, B gets 17 ns."""
    engine = Engine(t1="")
    a, b = engine.workers()
    a.enter()
    engine.use(1, 10)
    b.enter()
    engine.use(1, 20)
    assert a.leave() == 20
    engine.use(1, 7)
    assert b.leave() == 17


def test_remainder_of_an_odd_share_is_not_lost():
    engine = Engine(t1="")
    a, b = engine.workers()
    a.enter()
    b.enter()
    for _ in range(7):
        engine.use(1, 3)
        a.settle()
    booked = b.leave() + a.leave()
    assert booked + a._booking._rest_ns == 21


def test_spinning_after_an_inference_is_booked_to_that_inference():
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


def test_threads_made_by_a_worker_are_booked_to_that_worker_alone():
    engine = Engine(t1=A, t2=B, t3="python")
    a, b = engine.workers()
    a.enter()
    b.enter()
    engine.use(1, 100)
    engine.use(2, 10)
    engine.use(3, 6)
    assert a.leave() == 103
    engine.use(1, 9)  # the thread spins
    assert b.leave() == 13
    assert a.enter() == 112


def test_time_of_new_and_ended_threads_is_counted_in_full():
    engine = Engine()
    a, _ = engine.workers()
    a.enter()
    assert a.leave() == 0
    engine.makers = {7: ""}  # made during the first call, listed only after it
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


def test_rows_of_two_workers_add_up_to_the_threads_cpu_time(monkeypatch):
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
    library_ns = columns["library_ns"][infer & (columns["kind"] == 0)]
    order = columns["index"][infer & (columns["kind"] == 0)].argsort()
    assert library_ns[order].tolist() == [126, 20, 126, 20, 126, 20]
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


def test_library_time_added_after_its_row_is_kept_when_rows_are_packed():
    rows = SpanRows(BLOCK + 2, booked=True)
    block = rows.block
    for number in range(BLOCK + 2):
        block.add_late(number % BLOCK * ROW_BYTES, 3 * number + 1)
        row = (number, 0, 0, 0, 0, 3 * (number + 1), 0)
        block.write(block.written, number % BLOCK * ROW_BYTES, *row)
        rows.take(number + 1)
    library_ns = rows.column("library")
    assert library_ns.sum() == 3 * (BLOCK + 2)
    assert set(library_ns.tolist()) <= {2, 3, 4}


@pytest.mark.skipif(
    sys.platform != "linux", reason="machine: this system cannot read another thread's clock"
)
def test_clock_of_a_real_thread_counts_its_cpu_time():
    """We read the clock of a thread. The thread itself reads its clock before and after us."""
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
    reading = time.clock_gettime_ns(clock_of(thread.native_id or 0))
    done.set()
    thread.join()
    assert clocks[0] <= reading <= clocks[1]
    with pytest.raises(OSError, match=r"Invalid argument|No such process"):
        time.clock_gettime_ns(clock_of(2**22 + 5))
