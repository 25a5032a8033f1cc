"""Requests whose rows are frames of several inputs."""

import numpy as np
import pytest

from detector.core.loop.overlapped import frames_overlapped
from detector.core.loop.parts import Progress
from detector.core.loop.sync import frames_in_turn
from detector.core.loop.tiled import TiledRequest
from detector.core.timeline import OffTimeline, Timeline
from detector.core.types import Candidates, Detections
from tests.loop.stubs import StubRequest, stub_parts

TILES = 3


class Timed(StubRequest):
    calls = 0

    def infer(self, n):
        self.calls += 1
        self.device_ms = 2.0
        return super().infer(n)


@pytest.mark.parametrize(
    ("batch", "frames", "calls"), [(1, 1, 3), (2, 1, 2), (3, 1, 1), (5, 1, 1), (7, 2, 1)]
)
def test_inputs_go_through_the_engine_in_its_batches(batch, frames, calls):
    inner = Timed(batch)
    request = TiledRequest(inner, TILES)
    assert request.slot.shape[:2] == (frames, TILES)
    for value in (10, 100):  # a second time over the same memory
        filled = np.arange(value, value + frames * TILES, dtype=np.uint8).reshape(frames, TILES)
        request.slot[:] = filled[:, :, None, None, None]
        inner.calls = 0
        (output,) = request.infer(frames)
        assert output[..., 0].tolist() == filled.tolist()
        assert inner.calls == calls
        assert request.device_ms == 2.0 * calls


class Sum:
    """A frame's score is the sum of its inputs'."""

    def to_source(self, found):
        joined = Candidates(*(np.concatenate(own) for own in zip(*found, strict=True)))
        total = joined.scores.sum(keepdims=True)
        return Detections(joined.boxes[:1], total, joined.class_ids[:1])


def fill(picture, slot):
    for at, row in enumerate(slot):
        row[:] = picture + at
    return Sum()


@pytest.mark.parametrize("loop", [frames_in_turn, frames_overlapped])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_frame_is_inferred_once_whatever_its_tiles(loop, batch):
    parts = stub_parts(9, batch, 4, 2)
    one_head = parts.head
    parts.requests = [TiledRequest(one, TILES) for one in parts.requests]
    parts.preprocess, parts.nms = fill, lambda found: found
    parts.head = lambda outputs: [one_head([outputs[0][0, at : at + 1]]) for at in range(TILES)]
    timeline, progress = Timeline(), Progress()
    pairs = list(loop(parts, timeline, progress))
    scores = [float(found.scores[0]) for _, found in pairs]
    assert scores == [3.0 * frame + 3 for frame in range(9)]
    calls = sum(
        span.calls for track in timeline.tracks.values() for key, span in track.spans.items()
        if key[0] == "infer"
    )  # fmt: skip
    assert calls == -(-9 // max(1, batch // TILES))
    assert not isinstance(timeline, OffTimeline)
