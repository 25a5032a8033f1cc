"""Queue depths of runs that can be counted by hand."""

from __future__ import annotations

import pytest

from detector.lab.analysis.loop.activities import FILLED, IN_FLIGHT, RESULTS, depths
from tests.lab.analysis.pipelines import load, mean_depth, run_of, shape


def test_a_fast_reader_fills_the_queue_to_its_bound():
    one = load(50, shape(queue=2, requests=8, images=20), read=1, infer=8)
    found = depths(run_of(one), one.shape)
    assert found[FILLED][1].max() == 3  # two in the queue, and one that waits at its door
    assert found[RESULTS][1].max() == 1
    assert mean_depth(found[FILLED]) > 2


def test_a_slow_writer_lets_results_pile_up():
    one = load(50, shape(requests=9, images=20), read=1, infer=1, write=8)
    assert depths(run_of(one), one.shape)[RESULTS][1].max() >= 3


def test_in_turn_one_frame_is_in_flight():
    one = load(5, shape(sync=True), read=1, infer=1, write=1)
    found = depths(run_of(one), one.shape)
    assert list(found) == [IN_FLIGHT]
    assert found[IN_FLIGHT][1].max() == 1


@pytest.mark.parametrize(
    "loop", [shape(), shape(batch=4, images=16), shape(concurrency=2, requests=6)]
)
def test_what_goes_in_comes_out(loop):
    one = load(23, loop, read=1, infer=3, head=0.5, write=2)
    for name, (_, levels) in depths(run_of(one), loop).items():
        assert levels[-1] == 0, name
        assert levels.min() >= 0, name
