"""Stand-ins for the stages of a loop, to measure what the others do when one costs nothing.

A stand-in hands out, in turn, what its stage gave for the first pictures of the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from detector.core.loop.parts import BatchRequest, FrameSource, Outputs, Parts
from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE
from detector.core.types import (
    AnyPicture,
    Candidates,
    Detections,
    Fit,
    Frame,
    Image,
    Planes,
    SourceInfo,
)

KEPT = 48  # pictures, and what each stage made of them
KEPT_BYTES = 512 << 20

HOW = {
    READ: "pre-decoded pictures in rotation; each is still copied if boxes are drawn into it",
    PREPROCESS: "prepared network inputs in rotation; each is still copied",
    INFER: "precomputed outputs in rotation",
    HEAD: "pre-decoded candidates in rotation",
    NMS: "preselected detections in rotation",
    ANNOTATE: "nothing is drawn; outputs get the plain picture",
    WRITE: "no output is opened, written or closed; drawn pictures are discarded",
}


def what_replaces(stage: str) -> str:
    return HOW.get(stage, "its earlier detections in rotation")


@dataclass(slots=True)
class RecordedRows:
    """Records of a source's first pictures, a row each; ``outputs`` of whole batches."""

    frames: list[Frame] = field(default_factory=list)
    rows: list[tuple[Image, Fit]] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    detections: list[Detections] = field(default_factory=list)
    between: dict[str, list[Detections]] = field(default_factory=dict)  # stage -> what it gave


def record_stages(parts: Parts, source: FrameSource) -> RecordedRows:
    """Take pictures of ``source`` through the stages, up to ``KEPT`` or ``KEPT_BYTES``. Noise would
    change detections, and with them the costs of head, NMS and drawing."""
    kept, held = RecordedRows(), 0
    request, size = parts.requests[0], len(parts.requests[0].slot)
    while len(kept.frames) < KEPT and held < KEPT_BYTES:
        batch = [frame for _ in range(size) if (frame := source.read()) is not None]
        for frame, row in zip(batch, request.slot, strict=False):
            fit = parts.preprocess(frame.decoded, row)
            kept.frames.append(replace(frame, picture=frame.picture.copy()))
            kept.rows.append((row.copy(), fit))
            held += frame.picture.nbytes + row.nbytes
        if not batch:
            break
        outputs = [output.copy() for output in request.infer(len(batch))]
        held += sum(output.nbytes for output in outputs)
        for at, frame in enumerate(batch):
            kept.candidates.append(parts.head([output[at : at + 1] for output in outputs]))
            kept.detections.append(parts.nms(kept.candidates[-1]))
            found = kept.rows[len(kept.detections) - 1][1].to_source(kept.detections[-1])
            for name, between in parts.between.items():
                found = between(frame, found)
                kept.between.setdefault(name, []).append(found)
        if len(batch) == size or not kept.outputs:  # a batch of fewer serves no whole one
            kept.outputs.append(outputs)
        if len(batch) < size:
            break
    return kept


def why_none(parts: Parts, stage: str) -> str | None:
    if parts.source.info.kind != "pictures":
        return None
    return {
        READ: "outputs are named after their pictures, so no picture can be repeated",
        PREPROCESS: "pictures of different sizes are placed differently in the network's input",
    }.get(stage)


def replace_stage(parts: Parts, stage: str | None, kept: RecordedRows, frames: int) -> Parts:
    """The same parts with a stand-in for ``stage`` (None: none). ``frames``: of the source."""
    if stage == READ:
        return replace(parts, source=CachedSource(parts.source.info, kept.frames, frames))
    if stage == PREPROCESS:
        return replace(parts, preprocess=_copy_rows(kept.rows))
    if stage == INFER:
        turns = itertools.count()
        requests: list[BatchRequest] = [
            RecordedRequest(one.slot, kept.outputs, lambda: next(turns)) for one in parts.requests
        ]
        return replace(parts, requests=requests)
    if stage == HEAD:
        return replace(parts, head=_hand_out(kept.candidates))
    if stage == NMS:
        return replace(parts, nms=_hand_out(kept.detections))
    if stage in kept.between:
        return replace(parts, between={**parts.between, stage: _Recall(kept.between[stage])})
    if stage == ANNOTATE:
        return replace(parts, annotate=lambda frame, detections: None)
    return replace(parts, sinks=()) if stage == WRITE else parts


def _hand_out(kept: Sequence[Any]) -> Callable[[Any], Any]:
    turns = itertools.cycle(kept)
    return lambda given: next(turns)


class _Recall:
    def __init__(self, kept: Sequence[Detections]) -> None:
        self._turns = itertools.cycle(kept)

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        return next(self._turns)

    def close(self) -> Sequence[str]:
        return ()

    def findings(self) -> Mapping[str, Any]:
        return {}


def _copy_rows(kept: Sequence[tuple[Image, Fit]]) -> Callable[[AnyPicture, Image], Fit]:
    turns = itertools.cycle(kept)

    def copy(picture: AnyPicture, into: Image) -> Fit:
        row, fit = next(turns)
        np.copyto(into, row)
        return fit

    return copy


class CachedSource:
    """Frames decoded before, in turn, at the first two's pace; drawing into one spoils no other."""

    def __init__(self, info: SourceInfo, kept: Sequence[Frame], count: int) -> None:
        self.info = info
        self._kept, self._count, self._given = kept, count, 0
        first, second = kept[0], kept[min(1, len(kept) - 1)]
        self._ticks = max(1, second.pts - first.pts)  # an encoder refuses times that stand still
        self._seconds = second.time_s - first.time_s

    def read(self, into: Image | None = None) -> Frame | None:
        at = self._given
        if at == self._count:
            return None
        self._given += 1
        kept, first = self._kept[at % len(self._kept)], self._kept[0]
        picture = kept.picture  # drawing uses a copy of planes
        if not isinstance(picture, Planes):
            fits = into is not None and into.shape == picture.shape
            own = into if into is not None and fits else np.empty_like(picture)
            np.copyto(own, picture)
            picture = own
        return replace(
            kept,
            index=at,
            pts=first.pts + at * self._ticks,
            time_s=first.time_s + at * self._seconds,
            picture=picture,
        )


class RecordedRequest:
    device_ms: float | None = None

    def __init__(self, slot: Image, outputs: Sequence[Outputs], turn: Callable[[], int]) -> None:
        self.slot = slot
        self._outputs, self._turn = outputs, turn

    def infer(self, n: int) -> Outputs:
        return [output[:n] for output in self._outputs[self._turn() % len(self._outputs)]]
