"""The two halves of a batch's life that both loops share: filling a request, and taking its outputs apart."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from detector.loop.parts import IMAGE_BYTES, BatchRequest, Outputs, Parts, Progress
from detector.loop.queues import AnyTrack, Pool
from detector.timeline import ANNOTATE, HEAD, NMS, PREPROCESS, READ, WRITE
from detector.types import Candidates, Detections, Frame, Image, Letterbox


@dataclass(slots=True)
class Batch:
    """``number`` counts batches from 0; ``fits[i]`` says where ``frames[i]`` lies in row i of the slot; ``last``: the
    source ended in it."""

    number: int
    request: BatchRequest
    frames: list[Frame]
    fits: list[Letterbox]
    outputs: Outputs | None = None
    device_ms: float | None = None  # of the infer that made them
    last: bool = False


def image_pool(parts: Parts) -> Pool[Image | None]:
    """Places for pictures in flight. Each starts empty (None): the source makes the picture, the pool then keeps it."""
    return Pool("image", [None] * image_count(parts))


def image_count(parts: Parts) -> int:
    """As many as all requests hold and a batch being written, within ``image_bytes``; never fewer than a batch and
    one, or a batch could not be filled."""
    info = parts.source.info
    return places(len(parts.requests[0].slot), len(parts.requests), info.width, info.height, parts.image_bytes)


def places(batch: int, requests: int, width: int, height: int, image_bytes: int = IMAGE_BYTES) -> int:
    """``image_count`` of parts of these sizes; ``width`` and ``height`` of a picture."""
    affordable = image_bytes // max(1, width * height * 3)
    return max(batch + 1, min(batch * (requests + 1), affordable))


def results_ahead(parts: Parts) -> int:
    """How many batches may be ahead of the one that is written next."""
    return parts.queue_batches + parts.concurrency


def fill(
    track: AnyTrack, parts: Parts, progress: Progress, images: Pool[Image | None], request: BatchRequest, number: int
) -> Batch | None:
    """Reads and preprocesses until the slot is full or the source ends; None when there was nothing left.

    The order of the source is the order of the rows. Spans carry the number of the frame in this run, from 0.
    """
    batch = Batch(number, request, [], [])
    while len(batch.frames) < len(request.slot) and not progress.stop.is_set():
        place = images.get(track, progress.read)
        with track.span(READ, progress.read):
            frame = parts.source.read(place)
        if frame is None:
            images.put(place)
            batch.last = True
            break
        with track.span(PREPROCESS, progress.read):
            fit = parts.preprocess(frame.image, request.slot[len(batch.frames)])
        batch.frames.append(frame)
        batch.fits.append(fit)
        progress.read += 1
    return batch if batch.frames else None


def decode(track: AnyTrack, parts: Parts, batch: Batch, outputs: Outputs, first: int) -> list[Candidates]:
    """The head of every picture in the batch. After it the request may go back: candidates are copies."""
    decoded = []
    for row in range(len(batch.frames)):
        with track.span(HEAD, first + row):
            decoded.append(parts.head([output[row : row + 1] for output in outputs]))
    return decoded


def select(
    track: AnyTrack, parts: Parts, batch: Batch, decoded: list[Candidates], first: int
) -> Generator[tuple[Frame, Detections], None, None]:
    for row, (frame, fit) in enumerate(zip(batch.frames, batch.fits, strict=True)):
        with track.span(NMS, first + row):
            detections = fit.to_source(parts.nms(decoded[row]))
        yield frame, detections


def deliver(
    track: AnyTrack, parts: Parts, progress: Progress, pairs: Generator[tuple[Frame, Detections], None, None]
) -> Generator[tuple[Frame, Detections], None, None]:
    """Draws and writes each frame, then hands it on. Spans carry the frame's number in this run."""
    for frame, detections in pairs:
        number = progress.written
        if parts.annotate is not None:
            with track.span(ANNOTATE, number):
                parts.annotate(frame.image, detections)
        with track.span(WRITE, number):
            for sink in parts.sinks:
                sink.write(frame, detections)
        progress.written = number + 1
        yield frame, detections
