"""A thread's time is split: on a core, waiting for a core (ready), blocked. Clocks are fakes."""

import sys
import threading

import pytest

from detector.core.session.recording import record
from detector.core.timeline.native import RunQueue, open_run_queue, times_of
from detector.core.timeline.spans import QUICK_NS, READ, WAIT_INPUT, WRITE
from detector.core.timeline.timeline import Timeline

US = 1000
MS = 1000 * US


class Kernel:
    """Clocks of a fake thread. ``looks`` counts readings of CPU time, ``reads`` of ready time."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.ready = 0
        self.looks = self.reads = self.closed = 0
        self.late = (0, 0)  # CPU and ready time to add right after the next look

    def spend(self, on_cpu: int = 0, ready: int = 0, blocked: int = 0) -> None:
        self.cpu += on_cpu
        self.ready += ready
        self.wall += on_cpu + ready + blocked

    def look(self) -> int:
        self.looks += 1
        cpu, late = self.cpu, self.late
        self.late = (0, 0)
        self.spend(*late)
        return cpu

    def read(self) -> int:
        self.reads += 1
        return self.ready

    def close(self) -> None:
        self.closed += 1

    def timeline(self, **more) -> Timeline:
        more = {"run_queue": lambda: self} | more
        return Timeline(lambda: self.wall, self.look, nvtx=False, **more)


def parts(split):
    return (split.on_cpu_ns, split.ready_ns, split.blocked_ns)


def test_time_inside_and_between_spans_is_split():
    kernel = Kernel()
    kernel.spend(5 * MS, 7 * MS, 9 * MS)  # before the track, so not counted
    timeline = kernel.timeline()
    with timeline.track("writer") as track:
        kernel.spend(1 * MS, 2 * MS)
        with track.span(WRITE, 0):
            kernel.spend(2 * MS, 5 * MS, 3 * MS)
        kernel.spend(blocked=4 * MS)
        with track.span("result", 0, WAIT_INPUT):
            kernel.spend(0, 6 * MS, 8 * MS)
        kernel.spend(ready=1 * MS)
    recording = record(timeline)
    thread = recording.threads["writer"]
    assert parts(thread.splits["work"]) == (2 * MS, 5 * MS, 3 * MS)
    assert parts(thread.splits["other"]) == (1 * MS, 3 * MS, 4 * MS)
    assert parts(thread.splits["wait_input"]) == (0, 6 * MS, 8 * MS)
    assert parts(recording.stages[WRITE].split) == (2 * MS, 5 * MS, 3 * MS)
    assert (thread.cpu_ns, thread.ready_ns, thread.unplaced_ns) == (3 * MS, 14 * MS, 0)
    assert kernel.closed == 1


def test_outer_span_does_not_count_the_time_of_a_nested_span():
    kernel = Kernel()
    timeline = kernel.timeline()
    with timeline.track("main") as track, track.span(READ, 0):
        kernel.spend(1 * MS, 2 * MS)
        with track.span("image", 0, WAIT_INPUT):
            kernel.spend(0, 3 * MS, 4 * MS)
        kernel.spend(5 * MS, 0, 1 * MS)
    splits = record(timeline).threads["main"].splits
    assert parts(splits["work"]) == (6 * MS, 2 * MS, 1 * MS)
    assert parts(splits["wait_input"]) == (0, 3 * MS, 4 * MS)


@pytest.mark.parametrize(("each", "looks", "reads"), [(QUICK_NS, 0, 0), (QUICK_NS + 1, 200, 0)])
def test_cpu_clock_is_read_only_after_spans_that_may_hold_a_wait(each, looks, reads):
    kernel = Kernel()
    timeline = kernel.timeline()
    with timeline.track("main") as track:
        before = kernel.looks, kernel.reads
        for frame in range(200):
            with track.span(WRITE, frame):
                kernel.spend(each)
        assert (kernel.looks - before[0], kernel.reads - before[1]) == (looks, reads)
    assert record(timeline).threads["main"].splits["work"].on_cpu_ns == 200 * each


def test_run_queue_is_read_only_if_cpu_time_is_missing():
    kernel = Kernel()
    with kernel.timeline().track("main") as track:
        for missing in (QUICK_NS, QUICK_NS + 1):
            before = kernel.reads
            with track.span(WRITE, 0):
                kernel.spend(MS, missing)
            assert kernel.reads - before == (missing > QUICK_NS)


def test_wait_during_the_reading_of_clocks_counts_after_the_span():
    """A thread's span ends. While the clocks are then read, the thread loses its core."""
    kernel = Kernel()
    timeline = kernel.timeline()
    with timeline.track("main") as track:
        with track.span(WRITE, 0):
            kernel.spend(1 * MS, 2 * MS)
            kernel.late = (0, 3 * MS)
        with track.span(WRITE, 1):
            kernel.spend(1 * MS)
    thread = record(timeline).threads["main"]
    assert parts(thread.splits["work"]) == (2 * MS, 2 * MS, 0)
    assert parts(thread.splits["other"]) == (0, 3 * MS, 0)
    assert thread.unplaced_ns == 0


def test_wait_just_before_a_span_counts_before_it():
    kernel = Kernel()
    timeline = kernel.timeline()
    with timeline.track("main") as track:
        kernel.spend(1 * MS)
        kernel.late = (0, 3 * MS)
        with track.span(WRITE, 0):
            kernel.spend(1 * MS, blocked=4 * MS)
    splits = record(timeline).threads["main"].splits
    assert parts(splits["other"]) == (1 * MS, 3 * MS, 0)
    assert parts(splits["work"]) == (1 * MS, 0, 4 * MS)


def test_cpu_time_just_after_a_span_counts_after_it():
    """The thread still works between the end of its span and the reading of its clock."""
    kernel = Kernel()
    wall = iter((0, 0, 1 * MS, 3 * MS, 3 * MS, 3 * MS, 3 * MS))
    timeline = Timeline(lambda: next(wall), kernel.look, nvtx=False, run_queue=lambda: kernel)
    with timeline.track("main") as track, track.span(WRITE, 0):
        kernel.cpu = 3 * MS  # 2 ms of it are after the span's end
    thread = record(timeline).threads["main"]
    assert parts(thread.splits["work"]) == (1 * MS, 0, 0)
    assert parts(thread.splits["other"]) == (2 * MS, 0, 0)


def test_next_check_corrects_a_short_wait_counted_as_work():
    kernel = Kernel()
    timeline = kernel.timeline()
    with timeline.track("main") as track:
        for ready, on_cpu in ((QUICK_NS, 0), (0, 1 * MS)):
            with track.span(WRITE, 0):
                kernel.spend(on_cpu, ready)
    thread = record(timeline).threads["main"]
    assert thread.splits["work"].on_cpu_ns == thread.cpu_ns == 1 * MS


def test_short_wait_that_no_check_corrects_is_unplaced():
    """A short span counts as time on a core, but the kernel's totals for the thread differ."""
    kernel = Kernel()
    timeline = kernel.timeline()
    with timeline.track("main") as track, track.span(WRITE, 0):
        kernel.spend(ready=QUICK_NS)
    thread = record(timeline).threads["main"]
    assert thread.unplaced_ns == 2 * QUICK_NS  # too much CPU time and too little waiting
    thread.self_check()


def test_system_without_a_run_queue_gives_no_split():
    kernel = Kernel()
    timeline = kernel.timeline(run_queue=lambda: None)
    with timeline.track("main") as track, track.span(WRITE, 0):
        kernel.spend(1 * MS, 2 * MS)
    recording = record(timeline)
    thread = recording.threads["main"].figures()
    assert (thread.ready_s, thread.busy_split, thread.unplaced_s) == (None, None, None)
    assert recording.stages[WRITE].figures().split is None
    assert recording.stages[WRITE].cpu_ns == 1 * MS


def test_process_clock_adds_the_cpu_time_of_other_threads():
    kernel = Kernel()
    libraries = [0]
    timeline = kernel.timeline(process_clock=lambda: kernel.cpu + libraries[0])
    with timeline.track("main") as track:
        with track.span(WRITE, 0):
            kernel.spend(1 * MS, blocked=4 * MS)
            libraries[0] += 8 * MS
        with track.span(READ, 0):
            kernel.spend(2 * MS)
    recording = record(timeline)
    assert (recording.stages[WRITE].cpu_ns, recording.stages[READ].cpu_ns) == (9 * MS, 2 * MS)
    assert parts(recording.stages[WRITE].split) == (1 * MS, 0, 4 * MS)


def test_invalid_schedstat_file_opens_no_run_queue(tmp_path, monkeypatch):
    (tmp_path / "schedstat").write_text("")
    monkeypatch.setattr(
        "detector.core.timeline.native.RunQueue", lambda: RunQueue(str(tmp_path / "schedstat"))
    )
    assert open_run_queue() is None
    (tmp_path / "schedstat").write_text("17 42 3\n")
    queue = open_run_queue()
    assert queue is not None
    assert queue.read() == 42
    (tmp_path / "schedstat").write_text("17 43 3\n")
    assert queue.read() == 43  # the file stays open, and is read from its start
    queue.close()
    with pytest.raises(OSError, match="descriptor"):
        queue.read()


@pytest.mark.skipif(sys.platform != "linux", reason="machine: no /proc")
def test_real_run_queue_is_that_of_the_calling_thread():
    at_least_ready = []

    def check() -> None:
        queue = open_run_queue()
        assert queue is not None
        times = times_of()
        assert times is not None
        at_least_ready.append(queue.read() >= times.ready)
        queue.close()

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert at_least_ready == [True]
