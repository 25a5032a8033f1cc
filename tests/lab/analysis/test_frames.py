"""The parts of a frame's time."""

import pytest

from detector.lab.analysis.loop.why import Explanation, RunEvidence
from tests.lab.analysis.pipelines import load, run_of, shape

LOOPS = [shape(), shape(batch=4, images=16), shape(concurrency=2, requests=6), shape(sync=True)]


@pytest.mark.parametrize("loop", LOOPS)
def test_parts_of_a_frame_cover_its_time(loop):
    """Calls and the waits before them cover the frame's time. Calls of a batch may overlap."""
    one = load(23, loop, read=1, infer=3, head=0.5, write=2)
    calls = run_of(one)
    explanation = Explanation(calls, loop, RunEvidence())
    assert explanation.frames == list(range(23))
    for frame in explanation.frames:
        frame_report = explanation.explain(frame)
        assert sum(part.ms for part in frame_report.parts) >= frame_report.ms - 1e-6
        assert all(part.ms >= 0 for part in frame_report.parts)


def test_longest_wait_names_the_stage_that_the_frame_waited_for():
    one = load(30, shape(queue=2, requests=8, images=20), read=1, infer=8)
    last = Explanation(run_of(one), one.shape, RunEvidence()).explain(20)
    waits = {part.stage: part.ms for part in last.parts if part.waits}
    assert max(waits, key=lambda stage: waits[stage]) == "infer"
