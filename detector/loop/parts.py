"""The two halves of a batch's life that both loops share: filling a request, and taking its outputs
apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from detector.loop.queues import AnyTrack, Pool
from detector.timeline import ANNOTATE, HEAD, NMS, PREPROCESS, READ, WRITE
from detector.types import Candidates, Detections, Frame, Image, Letterbox, SourceInfo

# ----------------------------------------------------------------------
# What the loop is handed, and what it says of itself while it runs.

Outputs = list[NDArray[np.float32]]
IMAGE_BYTES = 512 << 20


class FrameSource(Protocol):
    info: SourceInfo

    def read(self, into: Image | None = None) -> Frame | None: ...


class BatchRequest(Protocol):
    slot: NDArray[np.uint8]
    device_ms: float | None  # of the last infer, where the device tells

    def infer(self, n: int) -> Outputs: ...


class FrameSink(Protocol):
    def write(self, frame: Frame, detections: Detections) -> None: ...


@dataclass(slots=True)
class Parts:
    """One source's way through one engine. The stage functions have their options bound."""

    source: FrameSource
    requests: Sequence[BatchRequest]
    concurrency: int
    preprocess: Callable[[Image, Image], Letterbox]  # picture, row of the slot -> where it lies
    head: Callable[[Outputs], Candidates]  # outputs of one picture, each [1, ...]
    nms: Callable[[Candidates], Detections]  # boxes in network pixels
    annotate: Callable[[Image, Detections], None] | None = (
        None  # None where nobody looks at the picture
    )
    sinks: Sequence[FrameSink] = ()
    queue_batches: int = (
        2  # filled batches that may wait for a worker, and results that may wait for their turn
    )
    image_bytes: int = (
        IMAGE_BYTES  # all pictures in flight together; one batch and one picture are always allowed
    )


@dataclass(slots=True)
class Progress:
    """Read by the live line while the loop runs; each field is written by one thread only."""

    read: int = 0
    written: int = 0
    device_ms: float | None = (
        None  # of all batches that were taken apart; None where the device tells none
    )
    stop: threading.Event = field(
        default_factory=threading.Event
    )  # set it, and the loop ends after what it has read

    def add_device_ms(self, milliseconds: float | None) -> None:
        """Of one batch; called by the thread that takes batches apart."""
        if milliseconds is not None:
            self.device_ms = (self.device_ms or 0.0) + milliseconds


@dataclass(slots=True)
class Batch:
    """``number`` counts batches from 0; ``fits[i]`` says where ``frames[i]`` lies in row i of the
    slot; ``last``: the source ended in it.
    """

    number: int
    request: BatchRequest
    frames: list[Frame]
    fits: list[Letterbox]
    outputs: Outputs | None = None
    device_ms: float | None = None  # of the infer that made them
    last: bool = False


def image_pool(parts: Parts) -> Pool[Image | None]:
    """Places for pictures in flight. Each starts empty (None): the source makes the picture, the
    pool then keeps it.
    """
    return Pool("image", [None] * image_count(parts))


def image_count(parts: Parts) -> int:
    """As many as all requests hold and a batch being written, within ``image_bytes``; never fewer
    than a batch and one, or a batch could not be filled.
    """
    info = parts.source.info
    return places(
        len(parts.requests[0].slot), len(parts.requests), info.width, info.height, parts.image_bytes
    )


def places(
    batch: int, requests: int, width: int, height: int, image_bytes: int = IMAGE_BYTES
) -> int:
    """``image_count`` of parts of these sizes; ``width`` and ``height`` of a picture."""
    affordable = image_bytes // max(1, width * height * 3)
    return max(batch + 1, min(batch * (requests + 1), affordable))


def results_ahead(parts: Parts) -> int:
    """How many batches may be ahead of the one that is written next."""
    return parts.queue_batches + parts.concurrency


def fill(
    track: AnyTrack,
    parts: Parts,
    progress: Progress,
    images: Pool[Image | None],
    request: BatchRequest,
    number: int,
) -> Batch | None:
    """Reads and preprocesses until the slot is full or the source ends; None when there was nothing
    left.

    The order of the source is the order of the rows. Spans carry the number of the frame in this
    run, from 0.
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


def decode(
    track: AnyTrack, parts: Parts, batch: Batch, outputs: Outputs, first: int
) -> list[Candidates]:
    """The head of every picture in the batch. After it the request may go back: candidates are
    copies.
    """
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
    track: AnyTrack,
    parts: Parts,
    progress: Progress,
    pairs: Generator[tuple[Frame, Detections], None, None],
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
