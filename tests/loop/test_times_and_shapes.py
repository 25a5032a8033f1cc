"""Stage times of each frame (Parts.timed), and pictures that decide the input's shape."""

import numpy as np
import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import Progress
from detector.core.loop.sync import frames_in_turn
from detector.core.timeline.timeline import Timeline
from detector.core.types import Candidates
from tests.loop.stubs import FakeClock, stub_parts

LOOPS = [frames_in_turn, frames_overlapped]
COST = {"read": 1, "preprocess": 2, "infer": 60, "head": 4, "nms": 5, "annotate": 7}  # ms


def frames_of(loop, parts, timeline):
    return [frame for frame, _ in loop(parts, timeline, Progress())]


@pytest.mark.parametrize("batch", [1, 3])
def test_frame_has_the_cost_of_each_stage_and_its_share_of_inference(batch):
    """The last of seven frames is alone in its batch, so it has the whole inference time."""
    clock = FakeClock()
    parts = stub_parts(
        7, batch, work=lambda name: clock.sleep(COST.get(name, 0) * 10**6), timed=True
    )
    frames = frames_of(frames_in_turn, parts, Timeline(clock=clock, nvtx=False))
    for frame in frames:
        rows = 1 if frame.index == 6 else batch
        expected = {**COST, "infer": COST["infer"] / rows}
        assert frame.times.ms == pytest.approx(expected)
        assert (frame.times.batch, frame.times.input) == (rows, (8, 8))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("timed", [False, True])
def test_times_of_all_frames_add_up_to_those_of_the_timeline(loop, timed):
    timeline = Timeline(nvtx=False)
    parts = stub_parts(9, 2, concurrency=2, timed=timed)
    frames = frames_of(loop, parts, timeline)
    if not timed:
        assert {frame.times for frame in frames} == {None}
        return
    spans = [(key, span) for track in timeline.tracks.values() for key, span in track.spans.items()]
    for stage in ("preprocess", "infer", "head", "nms", "annotate"):
        spent = sum(span.self_ns for key, span in spans if key == (stage, "work")) / 1e6
        assert sum(frame.times.ms[stage] for frame in frames) == pytest.approx(spent)


class StubShapes:
    """Three shapes, which pictures use in turn. The head of shape N adds 100 * N to the score."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.prepared: list[int] = []

    def has(self, picture):
        return int(picture[0, 0, 0]) % 3 in self.ready

    def prepare(self, picture):
        self.prepared.append(int(picture[0, 0, 0]) % 3)
        self.ready.add(self.prepared[-1])

    def give(self, request, picture):
        shape = int(picture[0, 0, 0]) % 3
        assert request.inside == 0
        request.slot = np.zeros((1, 8 + shape, 8, 3), np.uint8)

        def head(outputs):
            return Candidates(
                np.zeros((1, 4), np.float32), outputs[0][0] + 100 * shape, np.zeros(1, np.int64)
            )

        return head


def into_corner(image, row):
    from detector.core.types import Letterbox

    row[:8] = image
    return Letterbox(1, 1, 0, 0, 8, 8)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_each_picture_uses_slot_and_head_of_its_shape(loop, concurrency):
    shapes, timeline = StubShapes(), Timeline(nvtx=False)
    parts = stub_parts(20, 1, 5, concurrency, shapes=shapes, timed=True)
    parts.preprocess = into_corner
    results = [
        (frame.index, float(detections.scores[0]), frame.times.input)
        for frame, detections in loop(parts, timeline, Progress())
    ]
    assert results == [(i, float(i + 100 * (i % 3)), (8 + i % 3, 8)) for i in range(20)]
    assert shapes.prepared == [0, 1, 2]
    reader = timeline.tracks["main" if loop is frames_in_turn else "reader"]
    assert reader.spans["shape", "wait_output"].calls == 3
