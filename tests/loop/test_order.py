"""Order, completeness and errors of both loops, in combinations of small sizes."""

import random
import threading
import time

import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import LoopHooks, Progress
from detector.core.loop.queues import Queue
from detector.core.loop.sync import frames_in_turn
from detector.core.run.looping import Loop
from detector.core.session.outcome import SourceRun
from detector.core.stages.still import LEVELS, Stillness
from detector.core.timeline.spans import WAIT_OUTPUT
from detector.core.timeline.timeline import OffTimeline, Timeline
from tests.covering import covering
from tests.loop.stubs import stub_parts, work_calls
from tests.waiting import PATIENCE_S, wait_for

LOOPS = [frames_in_turn, frames_overlapped]
COMBINATIONS = covering([1, 2, 3], [1, 2, 3], [1, 2, 5], [1, 2], [0, 1, 2, 7], [0, 2], together=3)


def consume(parts, loop, timeline=None, progress=None):
    progress = progress or Progress()
    pairs = [
        (frame.index, float(found.scores[0]))
        for frame, found in loop(parts, timeline or OffTimeline(), progress)
    ]
    return pairs, progress


def expected(frames):
    return [(i, float(i)) for i in range(frames)]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("batch", "concurrency", "requests", "queue", "frames", "drawers"), COMBINATIONS
)
def test_small_sizes_keep_all_frames(batch, concurrency, requests, queue, frames, drawers, loop):
    """Requests may be fewer than concurrency + queue + 1. Only batch + 1 pictures fit in memory."""
    jitter = random.Random(batch * 1000 + concurrency * 100 + requests * 10 + frames)

    def work(name):
        if name in ("infer", "read", "write") and jitter.random() < 0.3:
            time.sleep(jitter.random() * 1e-3)

    sizes = frames, batch, requests, concurrency, work
    parts = stub_parts(*sizes, queue_batches=queue, image_bytes=1, drawers=drawers)
    pairs, progress = consume(parts, loop)
    assert pairs == expected(frames)
    assert parts.sinks[0].rows == [(i, i, float(i)) for i in range(frames)]
    assert (progress.read, progress.written) == (frames, frames)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_still_frames_repeat_the_last_inferred_frame(loop, batch):
    """Each picture is one level brighter than the one before, so every ninth counts as changed."""
    every, frames = LEVELS + 1, 40
    parts = stub_parts(frames, batch, 4, 2, still=Stillness(0.0))
    timeline = Timeline()
    pairs, progress = consume(parts, loop, timeline)
    assert pairs == [(i, float(i - i % every)) for i in range(frames)]
    inferred = -(-frames // every)
    assert (progress.written, progress.reused) == (frames, frames - inferred)
    counts = work_calls(timeline)
    assert counts["head"] == inferred
    assert counts["preprocess"] == counts["nms"] == counts["write"] == frames
    assert counts["infer"] <= inferred


@pytest.mark.parametrize("loop", LOOPS)
def test_device_time_is_the_sum_over_batches(loop):
    """The third batch has only one of the 7 frames, but takes as long as a full batch."""
    parts = stub_parts(7, 3, 3, 2)
    _, progress = consume(parts, loop)
    assert progress.device_ms is None, "the stubs report no device time"
    parts = stub_parts(7, 3, 3, 2)
    for request in parts.requests:
        request.device_ms = 2.5
    _, progress = consume(parts, loop)
    assert progress.device_ms == 7.5


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "stage", ["read", "preprocess", "infer", "head", "nms", "track", "annotate", "write"]
)
@pytest.mark.parametrize(("concurrency", "drawers"), [(1, 0), (3, 0), (1, 2)])
def test_failing_stage_ends_the_run_with_its_own_error(loop, stage, concurrency, drawers):
    before = threading.active_count()
    parts = stub_parts(50, concurrency=concurrency, fail={stage: 7}, drawers=drawers)
    with pytest.raises(RuntimeError, match=f"{stage} failed"):
        consume(parts, loop, Timeline(nvtx=False))
    assert threading.active_count() <= before, "a thread is left behind"
    written = [row[0] for row in parts.sinks[0].rows]
    assert written == list(range(len(written)))
    assert len(written) <= 7
    if concurrency == 1 and stage in ("head", "nms", "track", "annotate", "write"):
        assert len(written) == 7, "the frames before it are written"


def test_several_frames_are_drawn_simultaneously():
    both = threading.Barrier(2, timeout=PATIENCE_S)  # each call waits for a second call
    parts = stub_parts(6, 2, drawers=2, work=lambda name: name == "annotate" and both.wait())
    assert consume(parts, frames_overlapped)[0] == expected(6)


def test_frame_is_written_before_the_next_one_is_read():
    """The source may be a slow pipe, so drawing must not wait for more frames."""
    written = threading.Semaphore(1)

    def work(name):
        if name == "write":
            written.release()
        assert name != "read" or written.acquire(timeout=PATIENCE_S)

    assert consume(stub_parts(5, drawers=2, work=work), frames_overlapped)[0] == expected(5)


def test_head_and_nms_run_in_parallel_in_the_workers():
    """Each call waits for a call of the other worker, so neither can continue alone."""
    both, calls = threading.Barrier(2, timeout=PATIENCE_S), set()

    def work(name):
        if name in ("head", "nms"):
            both.wait()
            calls.add((name, threading.current_thread().name))

    assert consume(stub_parts(6, concurrency=2, work=work), frames_overlapped)[0] == expected(6)
    workers = [f"detect-video worker-{i}" for i in range(2)]
    assert calls == {(name, worker) for name in ("head", "nms") for worker in workers}


@pytest.mark.parametrize("sync", [True, False])
def test_steady_state_lasts_from_the_first_to_the_last_written_frame(sync):
    class Marked(OffTimeline):
        def mark(self):
            marks.append(progress.written)

    marks, progress = [], Progress()
    loop = Loop(sync=sync, queue_batches=1, nvtx=False, instruments=False)
    loop.drive(stub_parts(3), SourceRun("stub", Marked()), progress)
    assert marks == [1, 3]


@pytest.mark.parametrize("loop", LOOPS)
def test_stop_writes_all_frames_that_were_read(loop):
    progress = Progress()

    def work(name):
        if name == "write" and progress.written == 4:
            progress.stop.set()

    parts = stub_parts(1000, work=work)
    pairs, _ = consume(parts, loop, progress=progress)
    assert 5 <= len(pairs) < 100
    assert len(pairs) == progress.read == progress.written
    assert pairs == expected(len(pairs))


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_the_generator_joins_the_threads(loop):
    before = threading.active_count()
    pairs = loop(stub_parts(1000), OffTimeline(), Progress())
    next(pairs)
    pairs.close()
    assert threading.active_count() <= before


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("batch", "drawers", "pictures"), [(2, 0, None), (2, 2, None), (1, 0, 3)])
def test_pictures_are_allocated_from_a_limited_pool(loop, batch, drawers, pictures):
    """Memory limits the number of pictures, even if the queues have room for more."""
    more = {} if pictures is None else {"image_bytes": pictures * 8 * 8 * 3}
    parts = stub_parts(300, batch, 4, 3, drawers=drawers, **more)
    consume(parts, loop)
    assert len(parts.source.buffers) <= (pictures or batch * (4 + 1)) + drawers


@pytest.mark.parametrize("loop", LOOPS)
def test_clock_is_not_used_for_frames_without_an_arrival(loop):
    parts = stub_parts(5, hooks=LoopHooks(lambda track, index, row: True))
    assert consume(parts, loop)[0] == expected(5)


def test_put_waits_while_the_queue_is_full():
    """A thread that is woken while the queue is still full waits again."""
    queue, track, put = Queue("queue", 1), OffTimeline().track("t"), []

    def fill():
        for i in range(3):
            queue.put(track, i, i)
            put.append(i)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    for taken in range(3):
        wait_for(lambda taken=taken: len(put) == taken + 1)
        with queue._changed:
            queue._changed.notify_all()  # as another thread's change would
        thread.join(0.02)
        assert (len(put), len(queue._items)) == (taken + 1, 1)
        assert queue.get(track, taken) == taken
    thread.join(10)


def test_put_into_a_queue_with_room_does_not_count_as_a_wait():
    timeline = Timeline()
    track = timeline.track("t")
    queue = Queue("queue", 2)
    queue.put(track, 0, "a")
    queue.put(track, 1, "b")
    assert [queue.get(track, i) for i in range(2)] == ["a", "b"]
    assert WAIT_OUTPUT not in {kind for _, kind in track.spans}
