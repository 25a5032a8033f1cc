"""Frames that are not inferred because of ``--infer-every``, in both loops."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import Progress
from detector.core.loop.sync import frames_in_turn
from detector.core.stages.still import LEVELS, Stillness
from detector.core.timeline.order import longest_batch
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.tracks.looks import Looks
from tests.covering import covering
from tests.loop.stubs import stub_parts, work_calls

LOOPS = [frames_in_turn, frames_overlapped]
FRAMES = 23


class Repeating:
    """A tracker that repeats the last detections in frames that are not inferred (coasting)."""

    last = None

    def __call__(self, frame, detections):
        if frame.coasting:
            assert not len(detections)
            return replace(self.last, coasting=np.ones(len(self.last), bool))
        self.last = detections
        return detections

    def close(self):
        return ()


def scheduled_parts(every, *sizes, **more):
    schedule = Looks(every, lambda frame: frame.time_s)
    return stub_parts(FRAMES, *sizes, schedule=schedule, between={"track": Repeating()}, **more)


def consume(parts, loop, timeline=None):
    progress = Progress()
    pairs = [
        (frame.index, float(found.scores[0]), frame.coasting)
        for frame, found in loop(parts, timeline or OffTimeline(), progress)
    ]
    return pairs, progress


@pytest.mark.parametrize(
    ("batch", "concurrency", "requests", "image_bytes", "every"),
    covering([1, 2, 3], [1, 2], [1, 2, 5], [1, 1 << 20], [2, 5], together=3),
)
def test_every_small_combination_keeps_all_frames(batch, concurrency, requests, image_bytes, every):
    """If ``image_bytes`` is 1, memory holds only one batch of pictures and one more picture."""
    parts = scheduled_parts(every, batch, requests, concurrency, image_bytes=image_bytes)
    pairs, progress = consume(parts, frames_overlapped)
    assert pairs == [(i, float(i - i % every), i % every > 0) for i in range(FRAMES)]
    inferred = -(-FRAMES // every)
    assert (progress.read, progress.written, progress.coasted) == (
        FRAMES,
        FRAMES,
        FRAMES - inferred,
    )


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_batches_are_filled_with_inferred_frames(loop, batch):
    """A partial batch costs as much as a full one, so frames that coast take no row."""
    timeline, every = Timeline(), 3
    consume(scheduled_parts(every, batch, 4, 1), loop, timeline)
    counts = work_calls(timeline)
    inferred = -(-FRAMES // every)
    assert counts["preprocess"] == counts["head"] == inferred
    assert counts["infer"] == -(-inferred // batch)
    assert counts["nms"] == counts["write"] == counts["annotate"] == FRAMES


@pytest.mark.parametrize("loop", LOOPS)
def test_still_frames_reuse_results_with_a_schedule(loop):
    every, changes = 2, LEVELS + 1
    parts = scheduled_parts(every, 1, 4, 2, still=Stillness(0.0))
    pairs, progress = consume(parts, loop)
    inferred = range(0, FRAMES, every)
    results = {}  # frame -> frame whose result it gets. Each frame is one level brighter.
    for i in inferred:
        last = results.get(i - every, 0)
        results[i] = i if i - last >= changes else last
    assert pairs == [(i, float(results[i - i % every]), i % every > 0) for i in range(FRAMES)]
    assert progress.coasted == FRAMES - len(inferred)
    assert progress.reused == len(inferred) - len(set(results.values()))


def test_longest_batch_leaves_a_picture_for_other_stages():
    for batch, images in itertools.product(range(1, 9), range(2, 200)):
        if images > batch:
            assert batch <= longest_batch(batch, images) < images
