"""CPU time of library threads and the stages that own them, with fakes and with real threads."""

import _thread
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from detector.core.timeline.crew import Crew
from detector.core.timeline.native import Mark, Natives, Times, machine_busy_ns, task_ids, times_of
from detector.core.timeline.spans import INFER, PREPROCESS, READ, WRITE
from detector.core.timeline.timeline import Timeline
from tests.waiting import wait_for

MS = 1_000_000
OURS = {thread.native_id for thread in threading.enumerate()}


class System:
    def __init__(self) -> None:
        self.threads: dict[int, Times] = {number or 0: Times(0, 0) for number in OURS}

    def natives(self) -> Natives:
        return Natives(
            lambda: set(self.threads),
            lambda task: self.threads.get(task),
            lambda task: f"name {task}",
        )


def mark(system: System, calls: dict[str, int], process: int, machine: int | None = None) -> Mark:
    return Mark(calls, dict(system.threads), process, process, machine)


def test_thread_belongs_to_the_stage_in_which_it_started():
    system = System()
    natives = system.natives()
    with natives.book_threads(READ):
        system.threads |= {10**9 + 1: Times(5 * MS, 0), 10**9 + 2: Times(0, 0)}
    with natives.book_threads(WRITE):
        system.threads[10**9 + 3] = Times(0, 0)
    system.threads[10**9 + 4] = Times(0, 0)  # started outside of any stage
    first = mark(system, {READ: 2, WRITE: 1}, process=0, machine=0)
    system.threads |= {10**9 + 1: Times(35 * MS, 7 * MS), 10**9 + 2: Times(10 * MS, 90 * MS)}
    system.threads |= {10**9 + 3: Times(8 * MS, 0), 10**9 + 4: Times(4 * MS, 0)}
    last = mark(system, {READ: 12, WRITE: 11}, process=52 * MS, machine=60 * MS)
    burnt = natives.between(first, last)
    read = burnt.stages[READ]
    assert (read.calls, read.threads, read.cpu_ns, read.busiest_ns) == (10, 2, 40 * MS, 30 * MS)
    assert read.ready_ns == 7 * MS  # of the busiest thread; the other thread may be idle
    assert burnt.stages[WRITE].cpu_ns == 8 * MS
    assert burnt.unknown_ns == 52 * MS - 48 * MS
    assert burnt.others_ns == 8 * MS


def test_thread_started_after_the_first_mark_counts_in_full():
    system = System()
    natives = system.natives()
    first = mark(system, {READ: 0}, process=0)
    with natives.book_threads(READ):
        system.threads[10**9] = Times(0, 0)
    system.threads[10**9] = Times(6 * MS, 4 * MS)
    read = natives.between(first, mark(system, {READ: 1}, process=6 * MS)).stages[READ]
    assert (read.threads, read.cpu_ns, read.ready_ns) == (1, 6 * MS, 4 * MS)


def test_thread_that_started_in_two_open_stages_is_unknown():
    system = System()
    natives = system.natives()
    with natives.book_threads(INFER):
        outer = natives.book_threads(WRITE)  # another thread's first call, at the same time
        outer.__enter__()
        system.threads[10**9 + 1] = Times(0, 0)
        outer.__exit__(None, None, None)
    first = mark(system, {}, 0)
    system.threads[10**9 + 1] = Times(30 * MS, 0)
    burnt = natives.between(first, mark(system, {}, 30 * MS))
    assert burnt.stages == {}
    assert burnt.unknown_ns == 30 * MS
    assert burnt.others_ns is None


def test_name_of_a_thread_decides_between_two_open_stages():
    """The writer's first write starts the encoder while a second worker is in its first infer."""
    system = System()
    names = {None: "worker-1", 10**9 + 1: "python", 10**9 + 2: "av:h264:df0"}
    natives = Natives(
        lambda: set(system.threads), lambda task: system.threads.get(task), lambda task: names[task]
    )
    with natives.book_threads(INFER):
        inner = natives.book_threads(WRITE)
        inner.__enter__()
        system.threads |= {10**9 + 1: Times(0, 0), 10**9 + 2: Times(0, 0)}
        names[None] = "python"  # the writer is the caller now
        inner.__exit__(None, None, None)
        names[None] = "worker-1"
    first = mark(system, {}, 0)
    system.threads |= {10**9 + 1: Times(20 * MS, 0), 10**9 + 2: Times(3 * MS, 0)}
    burnt = natives.between(first, mark(system, {}, 23 * MS))
    assert {name: stage.cpu_ns for name, stage in burnt.stages.items()} == {WRITE: 20 * MS}
    assert burnt.unknown_ns == 3 * MS  # no caller has the thread's name


def test_ended_pool_is_counted_and_its_thread_ids_can_be_reused():
    """OpenMP gives each calling thread a pool. The pool ends with the calling thread."""
    system = System()
    natives = system.natives()
    with natives.book_threads(INFER):
        system.threads[10**9 + 1] = Times(0, 0)
    first = mark(system, {INFER: 0}, 0)
    system.threads[10**9 + 1] = Times(20 * MS, 0)
    natives.note_thread_end()
    del system.threads[10**9 + 1]
    last = natives.mark({INFER: 5})
    assert natives.between(first, last).stages[INFER].cpu_ns == 20 * MS
    natives.forget_gone()
    with natives.book_threads(READ):
        system.threads[10**9 + 1] = Times(0, 0)
    again = natives.between(mark(system, {}, 0), mark(system, {}, 0))
    assert INFER not in again.stages


@pytest.mark.parametrize(("took", "chosen"), [((1,), 0), ((9, 1), 1), ((9, 7, 5, 6), 2)])
def test_mark_is_repeated_if_the_caller_lost_its_core(monkeypatch, took, chosen):
    walls, cpu = iter([at * MS for ms in took for at in (0, ms)]), iter(range(len(took)))
    clocks = SimpleNamespace(perf_counter_ns=walls.__next__, process_time_ns=cpu.__next__)
    monkeypatch.setattr("detector.core.timeline.native.time", clocks)
    assert System().natives().mark({}).process_ns == chosen


def test_python_threads_belong_to_no_stage():
    natives = Natives()
    stop = threading.Event()
    with natives.book_threads(READ):
        thread = threading.Thread(target=stop.wait)
        thread.start()
    burnt = natives.between(natives.mark({}), natives.mark({}))
    stop.set()
    thread.join()
    assert burnt.stages == {}


def test_ended_python_thread_belongs_to_no_stage():
    system = System()
    natives = system.natives()

    def run() -> None:
        system.threads[threading.get_native_id()] = Times(0, 0)
        natives.note_thread_end()

    with natives.book_threads(READ):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        system.threads[10**9] = Times(0, 0)
    assert list(natives.tasks_of(READ)()) == [10**9]


@pytest.mark.skipif(sys.platform != "linux", reason="machine: no /proc")
def test_a_real_foreign_thread_is_timed_by_the_kernel():
    """Start a thread that ``threading`` does not know, as a library would."""
    natives = Natives()
    go, done, over = threading.Event(), threading.Event(), threading.Event()

    def burn() -> None:
        go.wait()
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        done.set()
        over.wait()

    with natives.book_threads(WRITE):
        before = task_ids()
        _thread.start_new_thread(burn, ())
        while task_ids() == before:
            time.sleep(0.001)
    first = natives.mark({WRITE: 0})
    go.set()
    done.wait()
    burnt = natives.between(first, natives.mark({WRITE: 4}))
    over.set()
    assert (burnt.stages[WRITE].threads, burnt.stages[WRITE].calls) == (1, 4)
    assert 0.045 < burnt.stages[WRITE].cpu_ns / 1e9 <= burnt.process_ns / 1e9
    assert times_of() is not None
    assert (machine_busy_ns() or 0) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="machine: no /proc")
def test_crew_threads_are_booked_to_their_stage():
    natives = Natives()
    with natives.book_threads(READ):
        crew = Crew("picture", 2)
        both = threading.Barrier(2, timeout=60)
        waiting = [crew.submit(both.wait) for _ in range(2)]
        assert sorted(one.result() for one in waiting) == [0, 1], (
            "both threads run at the same time"
        )
    tasks = set(natives.tasks_of(READ)())
    assert len(tasks) == 2

    def fail():
        raise ValueError("the decoder failed")

    with pytest.raises(ValueError, match="the decoder failed"):
        crew.submit(fail).result()
    crew.close()
    wait_for(lambda: not tasks & task_ids())


def test_a_timeline_counts_calls_between_its_marks():
    """Of four reads, two lie between the first mark and the last. The timeline looks for new
    threads only in a stage's first call."""
    system, ticks = System(), iter(range(10**6))
    timeline = Timeline(lambda: next(ticks), lambda: 0, nvtx=False, natives=system.natives())
    with timeline.track("main") as track:
        for frame in range(3):
            with track.span(READ, frame):
                system.threads[10**9 + 1] = Times(frame * 10 * MS, 0)
            with track.span(PREPROCESS, frame):
                pass
            timeline.mark()
        with track.span(READ, 3):
            pass
    burnt = timeline.burnt()
    assert burnt is not None
    assert (burnt.stages[READ].calls, burnt.stages[READ].cpu_ns) == (2, 20 * MS)
    assert track.spans[READ, "work"].calls == 4


def test_system_without_thread_times_reports_none():
    timeline = Timeline(nvtx=False, natives=Natives(set, lambda task: None, lambda task: ""))
    with timeline.book_threads(READ), timeline.track("main") as track, track.span(READ, 0):
        timeline.mark()
    timeline.mark()
    assert timeline.burnt() is None
    assert Timeline(nvtx=False).burnt() is None
