"""Queue depths of simulated runs."""

import pytest

from detector.lab.analysis.loop.activities import FILLED, IN_FLIGHT, RESULTS, depths
from tests.lab.analysis.pipelines import load, mean_depth, run_of, shape


def test_fast_reader_fills_the_queue():
    one = load(50, shape(queue=2, requests=8, images=20), read=1, infer=8)
    queues = depths(run_of(one), one.shape)
    assert queues[FILLED][1].max() == 3  # two batches in the queue, and one that waits for room
    assert queues[RESULTS][1].max() == 1
    assert mean_depth(queues[FILLED]) > 2


def test_results_pile_up_before_a_slow_writer():
    one = load(50, shape(requests=9, images=20), read=1, infer=1, write=8)
    assert depths(run_of(one), one.shape)[RESULTS][1].max() >= 3


def test_loop_without_overlap_has_one_frame_in_flight():
    one = load(5, shape(sync=True), read=1, infer=1, write=1)
    queues = depths(run_of(one), one.shape)
    assert list(queues) == [IN_FLIGHT]
    assert queues[IN_FLIGHT][1].max() == 1


@pytest.mark.parametrize(
    "loop", [shape(), shape(batch=4, images=16), shape(concurrency=2, requests=6)]
)
def test_queues_are_empty_at_the_end(loop):
    one = load(23, loop, read=1, infer=3, head=0.5, write=2)
    for name, (_, levels) in depths(run_of(one), loop).items():
        assert levels[-1] == 0, name
        assert levels.min() >= 0, name
