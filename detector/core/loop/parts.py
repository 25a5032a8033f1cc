"""The parts that both loops receive, and the steps that they run on a batch.

A batch is filled (read, preprocess), inferred, decoded (head) and selected (nms). Later steps run
in the order of frames: stages that depend on earlier frames, annotate and write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from detector.core.loop.queues import AnyTrack, LendingPool
from detector.core.timeline.order import longest_batch
from detector.core.timeline.spans import (
    ANNOTATE,
    HEAD,
    INFER,
    NMS,
    PREPROCESS,
    READ,
    WAIT_OUTPUT,
    WRITE,
)
from detector.core.types import AnyPicture, Detections, Fit, Frame, FrameTimes, Image, SourceInfo

if TYPE_CHECKING:
    from detector.core.stages.between.base import Schedule
    from detector.core.stages.still import Stillness

Outputs = list[NDArray[np.float32]]
Pairs = Iterator[tuple[Frame, Detections]]
IMAGE_BYTES = 512 << 20
SHAPE = "shape"  # name of the span in which the reader prepares an input of another shape


class FrameSource(Protocol):
    info: SourceInfo

    def read(self, into: Image | None = None) -> Frame | None: ...


class BatchRequest(Protocol):
    @property
    def slot(self) -> NDArray[np.uint8]: ...

    device_ms: float | None  # time of the last infer; None if the device does not report it

    def infer(self, n: int) -> Outputs: ...


class ShapedInputs(Protocol):
    """The input shapes of a network whose input fits each picture (--rect)."""

    def has(self, picture: AnyPicture) -> bool:
        """Return whether the shape for this picture is ready."""

    def prepare(self, picture: AnyPicture) -> None:
        """Prepare the shape for this picture. This takes as long as loading a model."""

    def give(self, request: Any, picture: AnyPicture) -> Callable[[Outputs], Any]:
        """Give a free request a slot of the picture's shape; return the head for this shape."""


class FrameInputs(Protocol):
    """The number of network inputs of each frame, if cameras differ in ``tiles``."""

    def give(self, frame: Frame, request: Any, row: int) -> Callable[[AnyPicture, Image], Fit]:
        """Set how many inputs the frame in this row has; return the function that fills the row."""


class FrameStage(Protocol):
    def __call__(self, frame: Frame, detections: Detections) -> Detections: ...

    def close(self) -> Sequence[str]: ...

    def findings(self) -> Mapping[str, Any]: ...


class FrameSink(Protocol):
    def write(self, frame: Frame, detections: Detections) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopHooks:
    """What the loop calls for a source whose pictures arrive in real time."""

    # (track, picture's number in this run, row of the batch) -> whether ``read`` may be called.
    # Waits for a picture, at most a second. If it returns False for row 0, the loop calls it
    # again; for a later row, the loop submits the batch before it is full.
    arrive: Callable[[AnyTrack, int, int], bool]
    # Take pictures only when a worker is free for them, so that none goes stale in a queue.
    fresh: bool = False
    # (frame, detections in source pixels) -> detections to keep. Called in the source's order.
    keep: Callable[[Frame, Detections], Detections] = lambda frame, detections: detections
    # Decides whether to call ``annotate`` for this frame.
    wanted: Callable[[Frame], bool] = lambda frame: True
    # Clock, in nanoseconds, for the moments in a picture's ``Arrival``.
    clock: Callable[[], int] = time.perf_counter_ns
    # Set if frames have different numbers of inputs; replaces preprocess.
    inputs: FrameInputs | None = None


@dataclass(slots=True)
class Parts:
    """The parts of a loop for one source and one engine. Their options are set already."""

    source: FrameSource
    requests: Sequence[BatchRequest]
    concurrency: int
    # Fills a row of the slot: (picture, row) -> where the picture lies in the network's input
    preprocess: Callable[[AnyPicture, Image], Fit]
    head: Callable[[Outputs], Any]  # outputs of one picture, each [1, ...] -> Candidates
    nms: Callable[[Any], Any]  # candidates -> Detections in network pixels (see ``Fit.to_source``)
    # Stages between nms and annotate: name -> stage, in the order of their calls.
    between: Mapping[str, FrameStage] = field(default_factory=dict)
    # Draws into the frame's picture. None if no sink needs it.
    annotate: Callable[[Frame, Detections], None] | None = None
    # Number of threads that draw ahead of the writer; 0 if drawing depends on earlier frames.
    drawers: int = 0
    sinks: Sequence[FrameSink] = ()
    # Limit on filled batches that wait for a worker. ``results_ahead`` limits finished batches.
    queue_batches: int = 2
    # Limit on the bytes of all pictures in flight. A batch and one more picture are always allowed.
    image_bytes: int = IMAGE_BYTES
    # None for sources that never make the loop wait.
    hooks: LoopHooks | None = None
    # Decides which frames repeat the detections of the last inferred one.
    still: Stillness | None = None
    # Decides which frames are inferred. The others get detections from the stages between.
    schedule: Schedule | None = None
    # Whether each frame records its stages' times (``Frame.times``).
    timed: bool = False
    # Set if pictures decide the input's shape; batches then hold one picture.
    shapes: ShapedInputs | None = None


@dataclass(slots=True)
class Progress:
    """State for the live display while the loop runs. Each field is written by one thread."""

    read: int = 0
    written: int = 0
    reused: int = 0  # written frames with the detections of an earlier frame
    coasted: int = 0  # written frames with boxes from tracks
    device_ms: float | None = None  # sum over decoded batches; None if the device reports no time
    # When set, the loop ends after the frames already read.
    stop: threading.Event = field(default_factory=threading.Event)

    def add_device_ms(self, milliseconds: float | None) -> None:
        """Add one batch's time. Call it from one thread only."""
        if milliseconds is not None:
            self.device_ms = (self.device_ms or 0.0) + milliseconds


@dataclass(slots=True)
class Batch:
    number: int  # counted from 0
    first: int  # number of its first frame in this run
    request: BatchRequest
    frames: list[Frame]
    fits: list[Fit | None]  # where frames[i] lies in its network input; None: it has no row
    head: Callable[[Outputs], Any] | None = None  # replaces the head of ``Parts``
    rows: int = 0  # rows of the slot that are filled and need inference
    outputs: Outputs | None = None
    device_ms: float | None = None  # time of the infer call that made the outputs
    detections: list[Detections] = field(default_factory=list)  # one per frame, in source pixels
    failure: BaseException | None = None  # from head or nms; re-raised in this batch's turn
    last: bool = False  # the source ended in this batch


def image_pool(parts: Parts) -> LendingPool[Image | None]:
    """Make a pool for pictures in flight; entries are None until the source fills them."""
    return LendingPool("image", [None] * image_count(parts))


def image_count(parts: Parts) -> int:
    """Return how many pictures may be in flight: enough for all requests and for one batch that is
    being written. ``image_bytes`` may reduce this number, but not below a batch and one more
    picture. Each drawing thread adds one picture."""
    info, batch, batches = parts.source.info, len(parts.requests[0].slot), len(parts.requests) + 1
    if parts.schedule is not None:  # a batch then has ``schedule.every`` frames per inferred frame
        # One batch is being read, one written, and ``concurrency`` batches are in the engine.
        batches = max(batches, (parts.concurrency + 2) * parts.schedule.every)
    affordable = parts.image_bytes // max(1, info.width * info.height * 3)
    return max(batch + 1, min(batch * batches, affordable)) + parts.drawers


def results_ahead(parts: Parts) -> int:
    """Return how many batches may be finished ahead of the next batch to write."""
    return parts.queue_batches + parts.concurrency


def fill(
    track: AnyTrack,
    parts: Parts,
    progress: Progress,
    images: LendingPool[Image | None],
    request: BatchRequest,
    number: int,
) -> Batch | None:
    """Read and preprocess until the slot is full or the source ends. Return None if no frame was
    left. Rows keep the source's order; spans carry the frame's number in this run, from 0. Frames
    that are not inferred take no row. With cameras, a batch has no more frames than the slot has
    rows: otherwise frames without a row would wait until inferred frames fill the slot."""
    batch, max_frames = Batch(number, progress.read, request, [], []), len(request.slot)
    if parts.hooks is None:
        max_frames = longest_batch(max_frames, len(images))
    while (
        batch.rows < len(request.slot)
        and len(batch.frames) < max_frames
        and not progress.stop.is_set()
    ):
        if not _has_arrived(track, parts, progress, images, len(batch.frames)):
            break
        image = images.get(track, progress.read)
        with track.span(READ, progress.read):
            frame = parts.source.read(image)
        if frame is None:
            images.put(image)
            batch.last = True
            break
        schedule, fit = parts.schedule, None
        if schedule is not None:
            frame.coasting = not schedule.wants(frame)
        if parts.timed:
            frame.times = FrameTimes(request.slot.shape[-3:-1])
            _note_time(track, frame, READ)
        if not frame.coasting:
            if parts.shapes is not None:
                batch.head = _fit_shape(track, parts.shapes, request, frame.decoded, progress.read)
            with track.span(PREPROCESS, progress.read):
                row, preprocess = request.slot[batch.rows], parts.preprocess
                if parts.hooks is not None and parts.hooks.inputs is not None:
                    preprocess = parts.hooks.inputs.give(frame, request, batch.rows)
                fit = preprocess(frame.decoded, row)
                frame.reused = parts.still is not None and parts.still.is_still(frame, row, fit)
            if frame.times is not None:
                frame.times.input = row.shape[-3:-1]
                _note_time(track, frame, PREPROCESS)
        batch.rows += frame.inferred
        batch.frames.append(frame)
        batch.fits.append(fit)
        progress.read += 1
    return batch if batch.frames else None


def _fit_shape(
    track: AnyTrack, shapes: ShapedInputs, request: BatchRequest, picture: AnyPicture, index: int
) -> Callable[[Outputs], Any]:
    if not shapes.has(picture):
        with track.span(SHAPE, index, WAIT_OUTPUT):
            shapes.prepare(picture)
    return shapes.give(request, picture)


def _note_time(track: AnyTrack, frame: Frame, stage: str) -> None:
    if frame.times is not None:
        frame.times.ms[stage] = track.last_ms(stage)


def _has_arrived(
    track: AnyTrack, parts: Parts, progress: Progress, images: LendingPool[Image | None], row: int
) -> bool:
    """Wait for a row's picture. Return False if the batch has to end before this row."""
    if parts.hooks is None:
        return True
    while not parts.hooks.arrive(track, progress.read, row):
        if row or progress.stop.is_set():
            return False
        images.check()
    return True


def infer(track: AnyTrack, parts: Parts, batch: Batch) -> None:
    """Infer a batch. In frames of cameras, record when the inference began and ended."""
    hooks = parts.hooks
    began = hooks.clock() if hooks is not None else 0
    if batch.rows:
        with track.span(INFER, batch.number):
            batch.outputs = batch.request.infer(batch.rows)
        batch.device_ms = batch.request.device_ms
        for frame in batch.frames if parts.timed else ():
            if frame.times is not None and frame.inferred:
                frame.times.batch = batch.rows
                frame.times.ms[INFER] = track.last_ms(INFER) / batch.rows
    if hooks is not None:
        ended = hooks.clock()
        for frame in batch.frames:
            if frame.arrival is not None:
                frame.arrival.began_ns, frame.arrival.inferred_ns = began, ended


def decode(track: AnyTrack, parts: Parts, batch: Batch) -> list[Any]:
    """Return each inferred picture's candidates, copied so that the request can be reused."""
    decoded: list[Any] = []
    head, outputs, batch.outputs = batch.head or parts.head, batch.outputs or [], None
    for number, frame in enumerate(batch.frames, batch.first):
        if not frame.inferred:
            continue
        row = len(decoded)
        with track.span(HEAD, number):
            decoded.append(head([output[row : row + 1] for output in outputs]))
        _note_time(track, frame, HEAD)
    return decoded


def select(track: AnyTrack, parts: Parts, batch: Batch, decoded: Sequence[Any]) -> None:
    """Run NMS on each picture in the batch; pictures not inferred get no detections."""
    rows = iter(decoded)
    for number, (frame, fit) in enumerate(zip(batch.frames, batch.fits, strict=True), batch.first):
        with track.span(NMS, number):
            if fit is None or not frame.inferred:
                batch.detections.append(Detections.empty())
            else:
                batch.detections.append(fit.to_source(parts.nms(next(rows))))
        _note_time(track, frame, NMS)


def follow(track: AnyTrack, parts: Parts, batch: Batch) -> Pairs:
    """For each frame, in the source's order, run the stages that depend on earlier frames."""
    pairs = zip(batch.frames, batch.detections, strict=True)
    for number, (frame, detections) in enumerate(pairs, batch.first):
        if parts.still is not None and frame.reused:
            detections = parts.still.recall(frame)
        elif parts.still is not None and frame.inferred:
            parts.still.remember(frame, detections)
        if parts.hooks is not None:
            detections = parts.hooks.keep(frame, detections)
            if frame.arrival is not None:
                frame.arrival.result_ns = parts.hooks.clock()
        for name, stage in parts.between.items():
            with track.span(name, number):
                detections = stage(frame, detections)
            _note_time(track, frame, name)
        yield frame, detections


def draw(track: AnyTrack, parts: Parts, pairs: Pairs) -> Pairs:
    for number, (frame, detections) in enumerate(pairs):
        if parts.annotate is not None and (parts.hooks is None or parts.hooks.wanted(frame)):
            with track.span(ANNOTATE, number):
                parts.annotate(frame, detections)
            _note_time(track, frame, ANNOTATE)
        yield frame, detections


def deliver(
    track: AnyTrack, parts: Parts, progress: Progress, pairs: Pairs
) -> Generator[tuple[Frame, Detections], None, None]:
    """Pass each frame to the sinks, then to the caller."""
    for number, (frame, detections) in enumerate(pairs):
        with track.span(WRITE, number):
            for sink in parts.sinks:
                sink.write(frame, detections)
        progress.reused += frame.reused
        progress.coasted += frame.coasting
        progress.written = number + 1
        yield frame, detections
