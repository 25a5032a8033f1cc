"""Requests in which each frame has several inputs (tiles)."""

import numpy as np
import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import Progress
from detector.core.loop.sync import frames_in_turn
from detector.core.loop.tiled import TiledRequest
from detector.core.timeline.timeline import Timeline
from detector.core.types import Candidates, Detections
from tests.loop.stubs import StubRequest, stub_parts, work_calls

TILES = 3


class TimedRequest(StubRequest):
    calls = 0

    def infer(self, n):
        self.calls += 1
        self.device_ms = 2.0
        return super().infer(n)


@pytest.mark.parametrize(
    ("batch", "frames", "calls"), [(1, 1, 3), (2, 1, 2), (3, 1, 1), (5, 1, 1), (7, 2, 1)]
)
def test_tiles_are_inferred_in_batches_of_the_engine(batch, frames, calls):
    inner = TimedRequest(batch)
    request = TiledRequest(inner, TILES)
    assert request.slot.shape[:2] == (frames, TILES)
    for value in (10, 100):  # the second call reuses the memory
        filled = np.arange(value, value + frames * TILES, dtype=np.uint8).reshape(frames, TILES)
        request.slot[:] = filled[:, :, None, None, None]
        inner.calls = 0
        (output,) = request.infer(frames)
        assert output[..., 0].tolist() == filled.tolist()
        assert inner.calls == calls
        assert request.device_ms == 2.0 * calls


class Sum:
    """Joins the candidates of all tiles into one detection, whose score is the sum of scores."""

    def to_source(self, tiles):
        joined = Candidates(*(np.concatenate(own) for own in zip(*tiles, strict=True)))
        total = joined.scores.sum(keepdims=True)
        return Detections(joined.boxes[:1], total, joined.class_ids[:1])


def fill(picture, slot):
    for at, row in enumerate(slot):
        row[:] = picture + at
    return Sum()


@pytest.mark.parametrize("loop", [frames_in_turn, frames_overlapped])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_frame_of_several_tiles_is_inferred_once(loop, batch):
    parts = stub_parts(9, batch, 4, 2)
    plain_head = parts.head
    parts.requests = [TiledRequest(one, TILES) for one in parts.requests]
    parts.preprocess, parts.nms = fill, lambda found: found
    parts.head = lambda outputs: [plain_head([outputs[0][0, at : at + 1]]) for at in range(TILES)]
    timeline, progress = Timeline(), Progress()
    pairs = list(loop(parts, timeline, progress))
    scores = [float(found.scores[0]) for _, found in pairs]
    assert scores == [3.0 * frame + 3 for frame in range(9)]
    assert work_calls(timeline)["infer"] == -(-9 // max(1, batch // TILES))
