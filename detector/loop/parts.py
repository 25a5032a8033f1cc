"""What the loop is handed, and what it says of itself while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from detector.types import Candidates, Detections, Frame, Image, Letterbox, SourceInfo

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
    annotate: Callable[[Image, Detections], None] | None = None  # None where nobody looks at the picture
    sinks: Sequence[FrameSink] = ()
    queue_batches: int = 2  # filled batches that may wait for a worker, and results that may wait for their turn
    image_bytes: int = IMAGE_BYTES  # all pictures in flight together; one batch and one picture are always allowed


@dataclass(slots=True)
class Progress:
    """Read by the live line while the loop runs; each field is written by one thread only."""

    read: int = 0
    written: int = 0
    device_ms: float | None = None  # of all batches that were taken apart; None where the device tells none
    stop: threading.Event = field(default_factory=threading.Event)  # set it, and the loop ends after what it has read

    def add_device_ms(self, milliseconds: float | None) -> None:
        """Of one batch; called by the thread that takes batches apart."""
        if milliseconds is not None:
            self.device_ms = (self.device_ms or 0.0) + milliseconds
