"""The plain loop: one thread, one batch at a time, every stage in turn."""

from __future__ import annotations

from collections.abc import Generator

from detector.core.loop.parts import (
    Parts,
    Progress,
    decode,
    deliver,
    draw,
    fill,
    follow,
    image_pool,
    infer,
    select,
)
from detector.core.loop.queues import AnyTrack
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.core.types import Detections, Frame


def frames_in_turn(
    parts: Parts, timeline: Timeline | OffTimeline, progress: Progress
) -> Generator[tuple[Frame, Detections], None, None]:
    """Yield each frame after the sinks have written it. The next frame may reuse the picture."""
    with timeline.track("main") as track:
        pairs = draw(track, parts, _detect(track, parts, progress))
        yield from deliver(track, parts, progress, pairs)


def _detect(
    track: AnyTrack, parts: Parts, progress: Progress
) -> Generator[tuple[Frame, Detections], None, None]:
    images, request, number = image_pool(parts), parts.requests[0], 0
    while (batch := fill(track, parts, progress, images, request, number)) is not None:
        infer(track, parts, batch)
        progress.add_device_ms(batch.device_ms)
        select(track, parts, batch, decode(track, parts, batch))
        for frame, detections in follow(track, parts, batch):
            yield frame, detections
            images.put(frame.buffer)
        if batch.last:
            break
        number += 1
