"""Frames that the network does not see (--infer-every), in both loops and small combinations."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import Progress
from detector.core.loop.sync import frames_in_turn
from detector.core.stages.still import LEVELS, Stillness
from detector.core.timeline import OffTimeline, Timeline
from detector.core.timeline.order import longest_batch
from detector.core.types import Detections
from detector.tracks.looks import Looks
from tests.covering import covering
from tests.loop.stubs import stub_parts, work_calls

LOOPS = [frames_in_turn, frames_overlapped]
FRAMES = 23


class Repeating:
    """A tracker of objects that do not move. A frame's value is its number."""

    def __init__(self, holds_s=0.0):
        self.last, self.holds_s = None, holds_s

    def __call__(self, frame, detections):
        if frame.coasting:
            assert not len(detections)
            return replace(self.last, coasting=np.ones(len(self.last), bool))
        self.last = detections
        return replace(detections, holds_s=self.holds_s)

    def close(self):
        return ()


def spared_parts(every, *sizes, holds_s=0.0, **more):
    schedule = Looks(every, lambda frame: frame.time_s)
    schedule.ahead = max(schedule.ahead, sizes[0])
    stage = Repeating(holds_s)
    return stub_parts(FRAMES, *sizes, schedule=schedule, between={"track": stage}, **more)


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
def test_every_small_combination(batch, concurrency, requests, image_bytes, every):
    """Include sizes for which memory holds hardly any picture."""
    parts = spared_parts(every, batch, requests, concurrency, image_bytes=image_bytes)
    pairs, progress = consume(parts, frames_overlapped)
    assert pairs == [(i, float(i - i % every), i % every > 0) for i in range(FRAMES)]
    looks = -(-FRAMES // every)
    assert (progress.read, progress.written, progress.coasted) == (FRAMES, FRAMES, FRAMES - looks)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_batches_are_full_of_frames_that_are_inferred(loop, batch):
    """A batch costs what it costs however few rows it has: so it reaches over the others."""
    timeline, every = Timeline(), 3
    consume(spared_parts(every, batch, 4, 1), loop, timeline)
    counts = work_calls(timeline)
    looks = -(-FRAMES // every)
    assert counts["preprocess"] == counts["head"] == looks
    assert counts["infer"] == -(-looks // batch)
    assert counts["nms"] == counts["write"] == counts["annotate"] == FRAMES


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("holds_s", [0.0, 0.1, 0.25])
def test_auto_looks_at_the_same_frames_in_both_loops(holds_s, concurrency):
    in_turn, _ = consume(spared_parts(None, 1, 5, 1, holds_s=holds_s), frames_in_turn)
    overlapped, _ = consume(
        spared_parts(None, 1, 5, concurrency, holds_s=holds_s), frames_overlapped
    )
    assert in_turn == overlapped
    looks = [index for index, _, coasting in in_turn if not coasting]
    # The first looks know of none before; then one follows when the last has held: 25 fps.
    steps = set(np.diff(looks[4:]).tolist())
    assert steps == {int(holds_s * 25 + 1e-9) + 1}


@pytest.mark.parametrize("loop", LOOPS)
def test_auto_goes_on_where_a_stand_in_takes_the_place_of_the_tracks(loop):
    """what-if puts one there, which knows of no time for which boxes hold."""
    parts = spared_parts(None, 1, 5, 1, holds_s=None)
    _, progress = consume(parts, loop)
    assert progress.written == FRAMES
    assert progress.coasted > FRAMES / 2


@pytest.mark.parametrize("loop", LOOPS)
def test_what_fails_ends_the_run_while_auto_waits(loop):
    """The reader waits for a look that never comes."""
    parts = spared_parts(None, 1, 5, 1, fail={"infer": 3})
    with pytest.raises(RuntimeError, match="infer failed"):
        consume(parts, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_with_skip_still_a_look_may_repeat_the_last_one(loop):
    every, changes = 2, LEVELS + 1
    parts = spared_parts(every, 1, 4, 2, still=Stillness(0.0))
    pairs, progress = consume(parts, loop)
    looks = range(0, FRAMES, every)
    seen = {}  # look -> the one that was inferred: each picture is a level brighter
    for i in looks:
        last = seen.get(i - every, 0)
        seen[i] = i if i - last >= changes else last
    assert pairs == [(i, float(seen[i - i % every]), i % every > 0) for i in range(FRAMES)]
    assert progress.coasted == FRAMES - len(looks)
    assert progress.reused == len(looks) - len(set(seen.values()))


def test_a_batch_leaves_pictures_for_the_others():
    for batch, images in itertools.product(range(1, 9), range(2, 200)):
        if images > batch:
            assert batch <= longest_batch(batch, images) < images


def test_coasting_boxes_do_not_count_as_found():
    boxes = np.zeros((3, 4), np.float32)
    some = Detections(
        boxes,
        np.array([0.9, 0.8, 0.7], np.float32),
        np.arange(3),
        coasting=np.array([False, True, False]),
    )
    assert some.found().class_ids.tolist() == [0, 2]
    assert some.only([1]).coasting.tolist() == [True]
    with pytest.raises(ValueError, match="coasting"):
        replace(some, coasting=np.ones(2, bool))
