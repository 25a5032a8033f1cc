"""Pictures as they were decoded, by their digest, and what was found in them, from process to process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from detector.types import Detections, Frame, Image

if TYPE_CHECKING:
    from detector.loop.parts import FrameSource


class Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


class HashingSource:
    """A source whose pictures go through a digest on their way: what is given is the same, or the digest is not."""

    def __init__(self, source: FrameSource, digest: Digest) -> None:
        self.info = source.info
        self._source, self._digest = source, digest

    def read(self, into: Image | None = None) -> Frame | None:
        frame = self._source.read(into)
        if frame is not None:
            self._digest.update(f"{frame.index} {frame.pts} {frame.image.shape}".encode())
            self._digest.update(np.ascontiguousarray(frame.image).data)
        return frame


def save_detections(path: Path, found: Sequence[Detections]) -> None:
    """All frames in four arrays, exactly as they were found; class names are left out."""
    lengths = np.array([len(detections) for detections in found], np.int64)
    with path.open("wb") as file:
        np.savez(
            file,
            lengths=lengths,
            boxes=np.concatenate([np.zeros((0, 4), np.float32), *(one.boxes for one in found)]),
            scores=np.concatenate([np.zeros(0, np.float32), *(one.scores for one in found)]),
            class_ids=np.concatenate([np.zeros(0, np.int64), *(one.class_ids for one in found)]),
        )


def load_detections(path: Path) -> list[Detections]:
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["lengths"])
        boxes, scores, class_ids = arrays["boxes"], arrays["scores"], arrays["class_ids"]
    starts = [0, *ends.tolist()]
    return [
        Detections(boxes[start:end], scores[start:end], class_ids[start:end])
        for start, end in zip(starts, ends.tolist(), strict=False)
    ]
