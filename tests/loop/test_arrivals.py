"""The loop with cameras: it waits for pictures, takes fresh ones, and records their times."""

import itertools
import threading
import time

import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import LoopHooks, Progress
from detector.core.loop.sync import frames_in_turn
from detector.core.timeline.spans import WAIT_INPUT
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.core.types import Arrival, Detections
from tests.loop.stubs import stub_parts
from tests.waiting import PATIENCE_S

LOOPS = [frames_in_turn, frames_overlapped]


def at_once(track, index, row):
    return True


@pytest.mark.parametrize("loop", LOOPS)
def test_partial_batch_is_inferred_if_no_more_frames_arrive(loop):
    """A batch has 4 rows, but never more than 2 frames arrive together."""
    sizes = []

    def arrive(track, index, row):
        return row < 2

    parts = stub_parts(7, batch=4, hooks=LoopHooks(arrive))
    for request in parts.requests:
        infer = request.infer
        request.infer = lambda n, infer=infer: (sizes.append(n), infer(n))[1]
    indices = [frame.index for frame, _ in loop(parts, OffTimeline(), Progress())]
    assert indices == list(range(7))
    assert sizes == [2, 2, 2, 1]


@pytest.mark.parametrize("loop", LOOPS)
def test_first_row_is_polled_until_it_arrives(loop):
    polls = itertools.count()
    hooks = LoopHooks(lambda track, index, row: next(polls) % 3 == 2)
    parts = stub_parts(2, hooks=hooks)
    assert len(list(loop(parts, OffTimeline(), Progress()))) == 2
    assert next(polls) == 9, "three polls for each of two pictures, and three for the end"


@pytest.mark.parametrize("loop", LOOPS)
def test_stop_ends_a_wait(loop):
    progress = Progress()

    def arrive(track, index, row):
        progress.stop.set()
        return False

    assert list(loop(stub_parts(5, hooks=LoopHooks(arrive)), OffTimeline(), progress)) == []


def test_closing_the_generator_ends_a_wait():
    """The reader's thread ends although it waits for a camera."""
    first = threading.Event()

    def arrive(track, index, row):
        if not first.is_set():
            first.set()
            return True
        time.sleep(0.01)
        return False

    frames = frames_overlapped(stub_parts(5, hooks=LoopHooks(arrive)), OffTimeline(), Progress())
    next(frames)
    frames.close()
    names = [thread.name for thread in threading.enumerate()]
    assert "detect-video reader" not in names


def test_wait_for_a_camera_is_counted_in_the_readers_time():
    timeline = Timeline(nvtx=False)

    def arrive(track, index, row):
        with track.span("camera", index, WAIT_INPUT):
            time.sleep(0.002)
        return True

    list(frames_overlapped(stub_parts(3, hooks=LoopHooks(arrive)), timeline, Progress()))
    reader = timeline.tracks["reader"]
    assert reader.spans["camera", WAIT_INPUT].calls == 4
    parts = sum(span.self_ns for span in reader.spans.values()) + reader.other_ns
    assert parts == reader.wall_ns


@pytest.mark.parametrize("concurrency", [1, 2])
def test_fresh_mode_reads_only_when_a_worker_is_free(concurrency):
    """At most one picture per worker is between ``read`` and the end of its inference."""
    lock, state, full = threading.Lock(), {"inside": 0, "most": 0}, threading.Event()

    def work(name):
        with lock:
            if name == "read":
                state["inside"] += 1
                state["most"] = max(state["most"], state["inside"])
                if state["most"] >= concurrency:
                    full.set()
        if name == "infer":
            full.wait(PATIENCE_S)  # then wait a little, in case one picture too many appears
            time.sleep(0.003)
            with lock:
                state["inside"] -= 1

    hooks = LoopHooks(at_once, fresh=True)
    parts = stub_parts(20, requests=6, concurrency=concurrency, work=work, hooks=hooks)
    assert len(list(frames_overlapped(parts, OffTimeline(), Progress()))) == 20
    assert state["most"] == concurrency


@pytest.mark.parametrize("loop", LOOPS)
def test_arrival_records_its_moments_in_order(loop):
    ticks = itertools.count(1)
    parts = stub_parts(3, hooks=LoopHooks(at_once, clock=lambda: next(ticks)))
    read = parts.source.read

    def read_with_arrival(into=None):
        frame = read(into)
        if frame is not None:
            frame.arrival = Arrival("door", 1, next(ticks), 0.0)
        return frame

    parts.source.read = read_with_arrival
    for frame, _ in loop(parts, OffTimeline(), Progress()):
        arrival = frame.arrival
        assert 0 < arrival.arrived_ns < arrival.began_ns < arrival.inferred_ns < arrival.result_ns


@pytest.mark.parametrize("loop", LOOPS)
def test_keep_hook_and_wanted_hook_receive_each_frame(loop):
    drawn = []

    def keep(frame, detections):
        return detections if frame.index % 2 else Detections.empty()

    hooks = LoopHooks(at_once, keep=keep, wanted=lambda frame: frame.index == 2)
    parts = stub_parts(4, hooks=hooks)
    parts.annotate = lambda frame, detections: drawn.append(int(frame.image[0, 0, 0]))
    parts.sinks = []
    found = [(frame.index, len(some)) for frame, some in loop(parts, OffTimeline(), Progress())]
    assert found == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert drawn == [2]
