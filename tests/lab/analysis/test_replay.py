"""The replay against another simulator, against arithmetic, and its model of shared cores."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from detector.lab.analysis.loop.replay import replay, wall
from detector.lab.analysis.loop.what_if import (
    Aside,
    Cost,
    build_load,
    predict,
    rebatch,
    replay_load,
)
from tests.lab.analysis.pipelines import by_simpy, load, recorded, shape, with_libraries

# Durations are multiples of 1/1024 s, so that sums are exact in binary floats and "equal" means
# equal.
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
    """Random durations, batches, workers, pools and queues: every call starts and ends where SimPy
    has it.
    """
    dice = random.Random(seed)
    batch, workers, frames = (
        dice.choice([1, 1, 2, 3, 8]),
        dice.choice([1, 1, 2, 3]),
        dice.randint(1, 40),
    )
    loop = shape(
        batch, workers, dice.randint(workers, 6), batch + dice.randint(1, 12), dice.randint(1, 3)
    )
    ticks = lambda count: [dice.randint(1, 40) * TICK for _ in range(count)]  # noqa: E731
    each = {stage: ticks(frames) for stage in ("preprocess", "head", "nms", "annotate", "write")}
    one = load(frames, loop, read=ticks(frames + 1), infer=ticks(-(-frames // batch)), **each)
    assert played(one) == by_simpy(one)


def played(one):
    return {(call.stage, call.number, call.beside): (call.start, call.end) for call in replay(one)}


@pytest.mark.parametrize("seed", range(60))
def test_equals_another_simulator_with_libraries_that_work_beside_the_calls(seed):
    """A decoder ahead of read, an encoder behind write, or both; threaded and in turn."""
    dice = random.Random(1000 + seed)
    batch, workers, frames = dice.choice([1, 1, 2, 5]), dice.choice([1, 2, 3]), dice.randint(1, 30)
    loop = shape(
        batch, workers, dice.randint(workers, 6), batch + dice.randint(1, 9), dice.randint(1, 3)
    )
    ticks = lambda count: [dice.randint(1, 40) * TICK for _ in range(count)]  # noqa: E731
    each = {stage: ticks(frames) for stage in ("preprocess", "head", "nms", "annotate", "write")}
    one = load(frames, loop, read=ticks(frames + 1), infer=ticks(-(-frames // batch)), **each)
    stages = dice.choice([("read",), ("write",), ("read", "write")])
    one = with_libraries(one, **{stage: (ticks(frames), dice.randint(1, 5)) for stage in stages})
    for changed in (one, replace(one, shape=replace(loop, sync=True))):
        found = played(changed)
        assert found == by_simpy(changed)
        assert sum(beside for _, _, beside in found) == frames * len(stages)


def test_an_encoder_beside_write_holds_it_up_only_when_its_room_is_full():
    """Calls of 1 s, 3 s of encoding for each: the first frames pass, then the encoder sets the
    pace; the rest of what it holds is the closing's.
    """
    one = with_libraries(load(50, shape(sync=True), write=1.0), write=([3.0] * 50, 4))
    ends = [call.end for call in replay(one) if call.stage == "write" and not call.beside]
    assert ends[:5] == [1, 2, 3, 4, 5]
    assert ends[40] - ends[39] == 3
    assert wall(replay(one)) == 50 * 3 + 1 - 4 * 3


def test_a_decoder_ahead_of_read_costs_nothing_until_it_is_the_slowest():
    one = load(100, shape(), read=1.0, infer=4.0)
    quick, slow = (with_libraries(one, read=([seconds] * 100, 2)) for seconds in (3.0, 6.0))
    assert wall(replay(quick)) == wall(replay(one)) + 3.0  # the first frame is waited for
    assert wall(replay(slow)) == pytest.approx(100 * 6, abs=10)


def test_what_works_beside_the_calls_takes_cores_from_them():
    """One core: reading, inference and encoding take what they take together."""
    one = with_libraries(load(200, shape(), read=1.0, infer=1.0), write=([1.0] * 200, 3))
    assert wall(replay(one)) == pytest.approx(201)
    assert wall(replay(replace(one, cores=1))) == pytest.approx(600, rel=0.01)


def test_a_free_stage_has_a_free_library():
    one = with_libraries(load(60, shape(), read=1.0, infer=2.0), read=([5.0] * 60, 2))
    assert wall(replay(one)) == pytest.approx(300, abs=9)
    assert wall(replay(one.scaled({"read": 0.0}))) == pytest.approx(120)


def test_larger_batches_take_what_was_measured_of_them():
    """Seven frames in batches of 1, each 2 s; a call of 4 takes 6 times as long as a call of 1: 12
    s, the ragged one too.
    """
    one = rebatch(load(7, shape(), infer=2.0), 4, ratio=6.0, images=20)
    assert one.seconds["infer"] == [12.0, 12.0]
    assert (one.shape.batch, one.shape.images) == (4, 20)
    back = rebatch(one, 1, ratio=1 / 6, images=8)
    assert back.seconds["infer"][:4] == [2.0] * 4


def test_the_measured_rate_of_larger_batches_is_among_the_predict():
    one = load(400, shape(requests=3, images=40), infer=4.0)
    base = replay_load(one, wall(replay(one)))
    found = {p.change: p for p in predict(base, rebatch(one, 4, ratio=2.0, images=40))}
    assert found["batch 4"].gain == pytest.approx(1.0, abs=0.02)  # four frames in the time of two


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
    """Recorded on one core, where reading and inference took twice as long as alone; the replay is
    that run again.
    """
    true = replace(load(100, shape(), read=1.0, infer=1.0), cores=1)
    calls = replay(true)
    assert max(call.end - call.start for call in calls) == pytest.approx(2.0)
    one = build_load(
        recorded(calls), true.shape, {"read": Cost(1.0, 1.0), "infer": Cost(1.0, 1.0)}, {}, 1
    )
    again = replay_load(one, wall(calls))
    assert again.error == pytest.approx(0, abs=0.02)
    free = {p.change: p for p in predict(again)}["read free"]
    assert free.predicted_fps == pytest.approx(
        1.0, rel=0.03
    )  # not the 0.5 of the durations as they were recorded


@pytest.mark.slow
def test_predictions_are_those_of_arithmetic():
    one = load(400, shape(), read=2.0, infer=4.0, write=3.0)
    found = {p.change: p for p in predict(replay_load(one, wall(replay(one))))}
    assert found["infer free"].gain == pytest.approx(4 / 3 - 1, abs=0.01)
    assert found["read free"].gain == pytest.approx(0, abs=0.01)
    assert found["overlap off"].gain == pytest.approx(4 / 9 - 1, abs=0.01)
    assert found["infer twice as fast"].predicted_fps == pytest.approx(1 / 3, abs=0.01)
    assert found["one more core"].gain == pytest.approx(0)
    gains = [p.gain for p in predict(replay_load(one, wall(replay(one))))]
    assert gains == sorted(gains, reverse=True)


def test_a_change_after_which_nothing_takes_time_is_no_prediction():
    """Its rate would be infinite, and a session could not be read back."""
    one = load(20, shape(sync=True), infer=4.0)
    found = {p.change for p in predict(replay_load(one, wall(replay(one))))}
    assert "infer free" not in found
    assert "infer twice as fast" in found
    assert predict(replay_load(load(20, shape()), 0.0)) == []


def test_one_more_core_helps_where_the_cores_are_full():
    one = replace(load(300, shape(), read=1.0, infer=1.0, write=1.0), cores=2)
    found = {p.change: p for p in predict(replay_load(one, wall(replay(one))))}
    assert math.isclose(found["one more core"].gain, 0.5, abs_tol=0.02)


@pytest.mark.slow
def test_a_decoder_is_found_again_from_a_run_that_it_slowed_down():
    """Its spans show reads that wait for frames; the load knows what read costs itself and what its
    threads burn.
    """
    true = replace(
        with_libraries(load(200, shape(), read=1.0, infer=2.0, write=1.0), read=([3.0] * 200, 2)),
        cores=2,
    )
    calls = replay(true)
    costs = {
        "read": Cost(1.0, 1.0, Aside(3.0, 3.0, 2)),
        "infer": Cost(2.0, 2.0),
        "write": Cost(1.0, 1.0),
    }
    again = replay_load(build_load(recorded(calls), true.shape, costs, {}, 2), wall(calls))
    assert again.error == pytest.approx(0, abs=0.02)
    for change, factors in (("read free", {"read": 0.0}), ("infer free", {"infer": 0.0})):
        found = {p.change: p for p in predict(again)}[change]
        assert found.predicted_fps == pytest.approx(
            200 / wall(replay(true.scaled(factors))), rel=0.03
        )
