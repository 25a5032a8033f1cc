"""What both loops share: the parts that they are handed, and the steps of a batch around inference.

A batch is filled (read, preprocess), inferred, decoded (head) and selected (nms). What follows goes
by the order of frames: stages that look at earlier ones, annotate and write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from detector.core.loop.queues import AnyTrack, Pool
from detector.core.timeline import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WAIT_OUTPUT, WRITE
from detector.core.timeline.order import longest_batch
from detector.core.types import AnyPicture, Detections, Fit, Frame, FrameTimes, Image, SourceInfo

if TYPE_CHECKING:
    from detector.core.stages.between.base import Schedule
    from detector.core.stages.still import Stillness

Outputs = list[NDArray[np.float32]]
Pairs = Iterator[tuple[Frame, Detections]]
IMAGE_BYTES = 512 << 20
SHAPE = "shape"  # what the reader waits for while an input of another shape is made


class FrameSource(Protocol):
    info: SourceInfo

    def read(self, into: Image | None = None) -> Frame | None: ...


class BatchRequest(Protocol):
    @property
    def slot(self) -> NDArray[np.uint8]: ...

    device_ms: float | None  # of the last infer, where the device tells

    def infer(self, n: int) -> Outputs: ...


class InputShapes(Protocol):
    """The shapes that the network's input has, where each picture has its own (--rect)."""

    def has(self, picture: AnyPicture) -> bool:
        """Return whether the shape for this picture is ready."""

    def prepare(self, picture: AnyPicture) -> None:
        """Make it ready, which takes as long as loading a model."""

    def give(self, request: Any, picture: AnyPicture) -> Callable[[Outputs], Any]:
        """Give a free request of ``Parts`` the slot of that shape; return its outputs' head."""


class FrameInputs(Protocol):
    """How many inputs of the network a frame is, where frames differ (--tiles auto of cameras)."""

    def give(self, frame: Frame, request: Any, row: int) -> Callable[[AnyPicture, Image], Fit]:
        """Tell the request how many the frame in this row is; return what fills the row."""


class FrameStage(Protocol):
    def __call__(self, frame: Frame, detections: Detections) -> Detections: ...

    def close(self) -> Sequence[str]: ...

    def findings(self) -> Mapping[str, Any]: ...


class FrameSink(Protocol):
    def write(self, frame: Frame, detections: Detections) -> None: ...


@dataclass(slots=True)
class Parts:
    """The parts that take one source through one engine, with bound options."""

    source: FrameSource
    requests: Sequence[BatchRequest]
    concurrency: int
    preprocess: Callable[[AnyPicture, Image], Fit]  # picture, row of the slot -> where it lies
    head: Callable[[Outputs], Any]  # outputs of one picture, each [1, ...] -> Candidates
    nms: Callable[[Any], Any]  # these -> Detections in network pixels, which the fit maps back
    # Stages between nms and annotate, by name, in the order of their calls.
    between: Mapping[str, FrameStage] = field(default_factory=dict)
    # Draws into the frame's picture. None: no sink needs it.
    annotate: Callable[[Frame, Detections], None] | None = None
    # Threads that draw ahead of the writer, where a frame's drawing depends on nothing else.
    drawers: int = 0
    sinks: Sequence[FrameSink] = ()
    # Filled batches that may wait for a worker, and results that may wait for their turn.
    queue_batches: int = 2
    # All pictures in flight together. One batch and one picture are always allowed.
    image_bytes: int = IMAGE_BYTES
    # Hooks for cameras. All are None for sources that never make the loop wait.
    #
    # Waits for a picture: (track, its number in this run, row of the batch) -> whether ``read`` may
    # be called. It returns within a second. False for the first row means "not yet": it is called
    # again. False for a later row submits the batch unfilled.
    arrive: Callable[[AnyTrack, int, int], bool] | None = None
    # Take pictures only when a worker is free for them, so that none goes stale in a queue.
    fresh: bool = False
    # Frame, detections in source pixels -> the detections to keep; in the source's order.
    keep: Callable[[Frame, Detections], Detections] | None = None
    # Decides whether ``annotate`` is called for this frame.
    wanted: Callable[[Frame], bool] | None = None
    # Gives the moments of a picture's way (``Arrival``), nanoseconds.
    clock: Callable[[], int] | None = None
    # Which frames repeat the detections of the last one that was inferred.
    still: Stillness | None = None
    # Which frames are inferred at all. The others get detections from the stages between.
    schedule: Schedule | None = None
    # If set, each frame records its stages' times (``Frame.times``).
    timed: bool = False
    # Where pictures decide the input's shape; batches are of one picture then.
    shapes: InputShapes | None = None
    # Where frames are of several inputs, and not all of as many: takes the place of preprocess.
    inputs: FrameInputs | None = None


@dataclass(slots=True)
class Progress:
    """State for the live display while the loop runs. One thread writes each field."""

    read: int = 0
    written: int = 0
    reused: int = 0  # of the written frames
    coasted: int = 0  # of the written frames
    device_ms: float | None = None  # of all decoded batches; None if the device reports none
    # When it is set, the loop ends after the frames that it has read.
    stop: threading.Event = field(default_factory=threading.Event)

    def add_device_ms(self, milliseconds: float | None) -> None:
        """Add one batch's time. Called by the thread that decodes batches."""
        if milliseconds is not None:
            self.device_ms = (self.device_ms or 0.0) + milliseconds


@dataclass(slots=True)
class Batch:
    number: int  # counted from 0
    first: int  # number of its first frame in this run
    request: BatchRequest
    frames: list[Frame]
    fits: list[Fit | None]  # the position of frames[i] in its row of the slot, if any
    head: Callable[[Outputs], Any] | None = None  # in place of that of ``Parts``
    rows: int = 0  # of the slot that are filled, and to be inferred
    outputs: Outputs | None = None
    device_ms: float | None = None  # of the infer that made the outputs
    found: list[Detections] = field(default_factory=list)  # of each frame, source pixels
    failure: BaseException | None = None  # of head or nms: raised when it is this batch's turn
    last: bool = False  # the source ended in it


def image_pool(parts: Parts) -> Pool[Image | None]:
    """Places for pictures in flight: empty (None) until the source makes one, then reused."""
    return Pool("image", [None] * image_count(parts))


def image_count(parts: Parts) -> int:
    """Return how many pictures may be in flight: those of all requests and one batch being written,
    limited by ``image_bytes``, but at least one batch and one picture; plus those being drawn."""
    info, batch = parts.source.info, len(parts.requests[0].slot)
    # A batch that is read, one that is written, and those in the engine.
    ahead = 0 if parts.schedule is None else (parts.concurrency + 2) * parts.schedule.spared
    sizes = info.width, info.height, parts.image_bytes, ahead
    return places(batch, len(parts.requests), *sizes) + parts.drawers


def places(
    batch: int,
    requests: int,
    width: int,
    height: int,
    image_bytes: int = IMAGE_BYTES,
    ahead: int = 0,
) -> int:
    """Compute ``image_count`` from sizes; ``width`` and ``height`` are a picture's. ``ahead``:
    pictures for each row of a batch, at least."""
    affordable = image_bytes // max(1, width * height * 3)
    return max(batch + 1, min(batch * max(requests + 1, ahead), affordable))


def results_ahead(parts: Parts) -> int:
    """Return how many batches may be done ahead of the one that is written next."""
    return parts.queue_batches + parts.concurrency


def fill(
    track: AnyTrack,
    parts: Parts,
    progress: Progress,
    images: Pool[Image | None],
    request: BatchRequest,
    number: int,
) -> Batch | None:
    """Read and preprocess until the slot is full or the source ends; None if nothing was left. Rows
    keep the source's order; spans carry the frame's number in this run, from 0. Frames that are not
    inferred take no row, and a batch of cameras does not wait for more because of them."""
    batch, most = Batch(number, progress.read, request, [], []), len(request.slot)
    if parts.arrive is None:
        most = longest_batch(most, len(images))
    while (
        batch.rows < len(request.slot) and len(batch.frames) < most and not progress.stop.is_set()
    ):
        if not _has_arrived(track, parts, progress, images, len(batch.frames)):
            break
        place = images.get(track, progress.read)
        with track.span(READ, progress.read):
            frame = parts.source.read(place)
        if frame is None:
            images.put(place)
            batch.last = True
            break
        schedule, fit = parts.schedule, None
        if schedule is not None:
            waits = partial(track.span, "tracks", progress.read, WAIT_OUTPUT)
            frame.coasting = not schedule.wants(frame, waits, images.check)
        if parts.timed:
            frame.times = FrameTimes(request.slot.shape[-3:-1])
            _note_times(track, frame, READ)
        if not frame.coasting:
            if parts.shapes is not None:
                batch.head = _fit_shape(track, parts.shapes, request, frame.decoded, progress.read)
            with track.span(PREPROCESS, progress.read):
                row, preprocess = request.slot[batch.rows], parts.preprocess
                if parts.inputs is not None:
                    preprocess = parts.inputs.give(frame, request, batch.rows)
                fit = preprocess(frame.decoded, row)
                frame.reused = parts.still is not None and parts.still.is_still(frame, row, fit)
            if frame.times is not None:
                frame.times.input = row.shape[-3:-1]
                _note_times(track, frame, PREPROCESS)
        batch.rows += frame.inferred
        batch.frames.append(frame)
        batch.fits.append(fit)
        progress.read += 1
    return batch if batch.frames else None


def _fit_shape(
    track: AnyTrack, shapes: InputShapes, request: BatchRequest, picture: AnyPicture, index: int
) -> Callable[[Outputs], Any]:
    """Wait until there is an input of this picture's shape, and give it to the request."""
    if not shapes.has(picture):
        with track.span(SHAPE, index, WAIT_OUTPUT):
            shapes.prepare(picture)
    return shapes.give(request, picture)


def _note_times(track: AnyTrack, frame: Frame, *stages: str) -> None:
    if frame.times is not None:
        frame.times.ms.update((stage, track.last_ms(stage)) for stage in stages)


def _has_arrived(
    track: AnyTrack, parts: Parts, progress: Progress, images: Pool[Image | None], row: int
) -> bool:
    """Wait for the picture of a row. False: submit the batch unfilled, or end the loop."""
    if parts.arrive is None:
        return True
    while not parts.arrive(track, progress.read, row):
        if row or progress.stop.is_set():
            return False
        images.check()
    return True


def infer(track: AnyTrack, parts: Parts, batch: Batch) -> None:
    """Run a batch through its request, and note on pictures of cameras when that was."""
    if parts.clock is not None:
        began = parts.clock()
        for frame in batch.frames:
            if frame.arrival is not None:
                frame.arrival.began_ns = began
    if batch.rows:
        with track.span(INFER, batch.number):
            batch.outputs = batch.request.infer(batch.rows)
        batch.device_ms = batch.request.device_ms
        for frame in batch.frames if parts.timed else ():
            if frame.times is not None and frame.inferred:
                frame.times.batch = batch.rows
                frame.times.ms[INFER] = track.last_ms(INFER) / batch.rows
    if parts.clock is not None:
        ended = parts.clock()
        for frame in batch.frames:
            if frame.arrival is not None:
                frame.arrival.inferred_ns = ended


def decode(track: AnyTrack, parts: Parts, batch: Batch) -> list[Any]:
    """The candidates of each inferred picture, as copies, so that the request may go back."""
    decoded: list[Any] = []
    head, outputs, batch.outputs = batch.head or parts.head, batch.outputs or [], None
    for number, frame in enumerate(batch.frames, batch.first):
        if not frame.inferred:
            continue
        row = len(decoded)
        with track.span(HEAD, number):
            decoded.append(head([output[row : row + 1] for output in outputs]))
        _note_times(track, frame, HEAD)
    return decoded


def select(track: AnyTrack, parts: Parts, batch: Batch, decoded: Sequence[Any]) -> None:
    """Run NMS on each picture in the batch; pictures not inferred get no detections."""
    rows = iter(decoded)
    for number, (frame, fit) in enumerate(zip(batch.frames, batch.fits, strict=True), batch.first):
        with track.span(NMS, number):
            if fit is None or not frame.inferred:
                batch.found.append(Detections.empty())
            else:
                batch.found.append(fit.to_source(parts.nms(next(rows))))
        _note_times(track, frame, NMS)


def follow(track: AnyTrack, parts: Parts, batch: Batch) -> Pairs:
    """Take the frames of a batch, in the source's order, through what depends on earlier ones."""
    found = zip(batch.frames, batch.found, strict=True)
    for number, (frame, detections) in enumerate(found, batch.first):
        if parts.still is not None and frame.reused:
            detections = parts.still.recall(frame)
        elif parts.still is not None and frame.inferred:
            parts.still.remember(frame, detections)
        if parts.keep is not None:
            detections = parts.keep(frame, detections)
        if parts.clock is not None and frame.arrival is not None:
            frame.arrival.result_ns = parts.clock()
        for name, stage in parts.between.items():
            with track.span(name, number):
                detections = stage(frame, detections)
            _note_times(track, frame, name)
        if parts.schedule is not None and not frame.coasting:
            parts.schedule.told(frame, detections)
        yield frame, detections


def draw(track: AnyTrack, parts: Parts, pairs: Pairs) -> Pairs:
    for number, (frame, detections) in enumerate(pairs):
        if parts.annotate is not None and (parts.wanted is None or parts.wanted(frame)):
            with track.span(ANNOTATE, number):
                parts.annotate(frame, detections)
            _note_times(track, frame, ANNOTATE)
        yield frame, detections


def deliver(
    track: AnyTrack, parts: Parts, progress: Progress, pairs: Pairs
) -> Generator[tuple[Frame, Detections], None, None]:
    """Hand each frame to the sinks, and then on."""
    for number, (frame, detections) in enumerate(pairs):
        with track.span(WRITE, number):
            for sink in parts.sinks:
                sink.write(frame, detections)
        progress.reused += frame.reused
        progress.coasted += frame.coasting
        progress.written = number + 1
        yield frame, detections
