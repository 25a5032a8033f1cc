"""The replay against another simulator, against arithmetic, and its model of shared cores."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from detector.analysis.replay import replay, wall
from detector.analysis.what_if import load_of, predictions, replayed
from tests.analysis.pipelines import by_simpy, load, recorded, shape

# Durations are multiples of 1/1024 s, so that sums are exact in binary floats and "equal" means equal.
TICK = 1 / 1024


def test_one_frame_takes_the_sum_of_its_stages():
    one = load(1, shape(), read=1, preprocess=2, infer=4, head=8, nms=16, annotate=32, write=64)
    assert wall(replay(one)) == 127


@pytest.mark.parametrize(
    ("each", "period"),
    [
        ({"infer": 8, "read": 2, "write": 3}, 8),  # inference-bound
        ({"infer": 2, "read": 8, "write": 3}, 8),  # read-bound
        ({"infer": 2, "read": 3, "nms": 4, "write": 5}, 9),  # the writing thread has two stages
    ],
)
def test_the_slowest_thread_sets_the_pace(each, period):
    walls = [wall(replay(load(frames, shape(), **each))) for frames in (20, 30)]
    assert walls[1] - walls[0] == 10 * period


def test_in_turn_everything_adds_up():
    assert wall(replay(load(10, shape(sync=True), read=1, infer=4, write=2))) == 70


@pytest.mark.parametrize("seed", range(60))
def test_equals_another_simulator(seed):
    """Random durations, batches, workers, pools and queues: every call starts and ends where SimPy has it."""
    dice = random.Random(seed)
    batch, workers, frames = dice.choice([1, 1, 2, 3, 8]), dice.choice([1, 1, 2, 3]), dice.randint(1, 40)
    loop = shape(batch, workers, dice.randint(workers, 6), batch + dice.randint(1, 12), dice.randint(1, 3))
    ticks = lambda count: [dice.randint(1, 40) * TICK for _ in range(count)]  # noqa: E731
    each = {stage: ticks(frames) for stage in ("preprocess", "head", "nms", "annotate", "write")}
    one = load(frames, loop, read=ticks(frames + 1), infer=ticks(-(-frames // batch)), **each)
    played = {(call.stage, call.number): (call.start, call.end) for call in replay(one)}
    assert played == by_simpy(one)


def test_more_work_than_cores_slows_all_down_alike():
    """Two calls of one core each on one core, side by side: both take twice as long."""
    one = load(200, shape(), read=1.0, infer=1.0)
    assert wall(replay(replace(one, cores=2))) == pytest.approx(201)
    assert wall(replay(replace(one, cores=1))) == pytest.approx(400)


def test_a_call_may_want_several_cores():
    one = replace(load(50, shape(sync=True), infer=1.0), demand={"infer": 4.0}, cores=2)
    assert wall(replay(one)) == pytest.approx(100)


def test_a_call_that_waits_for_a_device_leaves_the_cores_alone():
    one = replace(load(100, shape(), read=1.0, infer=1.0), demand={"infer": 0.0}, cores=1)
    assert wall(replay(one)) == pytest.approx(101)


def test_what_lies_between_calls_counts():
    one = replace(load(10, shape(sync=True), read=1.0), between={"read": 0.5})
    assert wall(replay(one)) == pytest.approx(15.0)


def test_a_recorded_run_is_taken_back_to_what_its_calls_take_alone():
    """Recorded on one core, where reading and inference took twice as long as alone; the replay is that run again."""
    true = replace(load(100, shape(), read=1.0, infer=1.0), cores=1)
    calls = replay(true)
    assert max(call.end - call.start for call in calls) == pytest.approx(2.0)
    one = load_of(recorded(calls), true.shape, {"read": 1.0, "infer": 1.0}, {"read": 1.0, "infer": 1.0}, {}, 1)
    again = replayed(one, wall(calls))
    assert again.error == pytest.approx(0, abs=0.02)
    free = {p.change: p for p in predictions(again)}["read free"]
    assert free.predicted_fps == pytest.approx(1.0, rel=0.03)  # not the 0.5 of the durations as they were recorded


def test_predictions_are_those_of_arithmetic():
    one = load(400, shape(), read=2.0, infer=4.0, write=3.0)
    found = {p.change: p for p in predictions(replayed(one, wall(replay(one))))}
    assert found["infer free"].gain == pytest.approx(4 / 3 - 1, abs=0.01)
    assert found["read free"].gain == pytest.approx(0, abs=0.01)
    assert found["overlap off"].gain == pytest.approx(4 / 9 - 1, abs=0.01)
    assert found["infer twice as fast"].predicted_fps == pytest.approx(1 / 3, abs=0.01)
    assert found["one more core"].gain == pytest.approx(0)
    gains = [p.gain for p in predictions(replayed(one, wall(replay(one))))]
    assert gains == sorted(gains, reverse=True)


def test_one_more_core_helps_where_the_cores_are_full():
    one = replace(load(300, shape(), read=1.0, infer=1.0, write=1.0), cores=2)
    found = {p.change: p for p in predictions(replayed(one, wall(replay(one))))}
    assert math.isclose(found["one more core"].gain, 0.5, abs_tol=0.02)
