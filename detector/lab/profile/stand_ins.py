"""Stand-ins for the stages of a loop, to measure the loop as if one stage cost nothing.

A stand-in returns, in rotation, the results of its stage for the source's first pictures.
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

MAX_PICTURES = 48  # pictures that are recorded, with the results of each stage
MAX_BYTES = 512 << 20

HOW = {
    READ: "pre-decoded pictures in rotation; each is still copied if boxes are drawn into it",
    PREPROCESS: "prepared network inputs in rotation; each is still copied",
    INFER: "precomputed outputs in rotation",
    HEAD: "pre-decoded candidates in rotation",
    NMS: "preselected detections in rotation",
    ANNOTATE: "nothing is drawn; outputs get the plain picture",
    WRITE: "no output is opened, written or closed; drawn pictures are discarded",
}


def describe_replacement(stage: str) -> str:
    return HOW.get(stage, "its earlier detections in rotation")


@dataclass(slots=True)
class RecordedRows:
    """The recorded results: in ``outputs`` one per batch, in the other lists one per picture."""

    frames: list[Frame] = field(default_factory=list)
    rows: list[tuple[Image, Fit]] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)  # of full batches, if there are any
    candidates: list[Candidates] = field(default_factory=list)
    detections: list[Detections] = field(default_factory=list)
    between: dict[str, list[Detections]] = field(default_factory=dict)  # stage -> its results


def record_stages(parts: Parts, source: FrameSource) -> RecordedRows:
    """Run the stages on the first pictures of ``source``, and record the results. Random pictures
    would change the number of detections, and so the cost of head, NMS and drawing."""
    recorded, held_bytes = RecordedRows(), 0
    request, size = parts.requests[0], len(parts.requests[0].slot)
    while len(recorded.frames) < MAX_PICTURES and held_bytes < MAX_BYTES:
        batch = [frame for _ in range(size) if (frame := source.read()) is not None]
        for frame, row in zip(batch, request.slot, strict=False):
            fit = parts.preprocess(frame.decoded, row)
            recorded.frames.append(replace(frame, picture=frame.picture.copy()))
            recorded.rows.append((row.copy(), fit))
            held_bytes += frame.picture.nbytes + row.nbytes
        if not batch:
            break
        outputs = [output.copy() for output in request.infer(len(batch))]
        held_bytes += sum(output.nbytes for output in outputs)
        for at, frame in enumerate(batch):
            recorded.candidates.append(parts.head([output[at : at + 1] for output in outputs]))
            recorded.detections.append(parts.nms(recorded.candidates[-1]))
            detections = recorded.rows[len(recorded.detections) - 1][1].to_source(
                recorded.detections[-1]
            )
            for name, between in parts.between.items():
                detections = between(frame, detections)
                recorded.between.setdefault(name, []).append(detections)
        if len(batch) == size or not recorded.outputs:  # full batches cannot use partial outputs
            recorded.outputs.append(outputs)
        if len(batch) < size:
            break
    return recorded


def why_irreplaceable(parts: Parts, stage: str) -> str | None:
    if parts.source.info.kind != "pictures":
        return None
    return {
        READ: "outputs are named after their pictures, so no picture can be repeated",
        PREPROCESS: "pictures of different sizes are placed differently in the network's input",
    }.get(stage)


def replace_stage(parts: Parts, stage: str | None, recorded: RecordedRows, frames: int) -> Parts:
    """Return ``parts`` with a stand-in for ``stage``, if given. ``frames``: the source's length."""
    if stage == READ:
        return replace(parts, source=CachedSource(parts.source.info, recorded.frames, frames))
    if stage == PREPROCESS:
        return replace(parts, preprocess=_copy_rows(recorded.rows))
    if stage == INFER:
        turns = itertools.count()
        requests: list[BatchRequest] = [
            RecordedRequest(one.slot, recorded.outputs, lambda: next(turns))
            for one in parts.requests
        ]
        return replace(parts, requests=requests)
    if stage == HEAD:
        return replace(parts, head=_repeat(recorded.candidates))
    if stage == NMS:
        return replace(parts, nms=_repeat(recorded.detections))
    if stage in recorded.between:
        return replace(
            parts, between={**parts.between, stage: _RepeatedStage(recorded.between[stage])}
        )
    if stage == ANNOTATE:
        return replace(parts, annotate=lambda frame, detections: None)
    return replace(parts, sinks=()) if stage == WRITE else parts


def _repeat(recorded: Sequence[Any]) -> Callable[[Any], Any]:
    turns = itertools.cycle(recorded)
    return lambda given: next(turns)


class _RepeatedStage:
    def __init__(self, recorded: Sequence[Detections]) -> None:
        self._turns = itertools.cycle(recorded)

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        return next(self._turns)

    def close(self) -> Sequence[str]:
        return ()

    def findings(self) -> Mapping[str, Any]:
        return {}


def _copy_rows(recorded: Sequence[tuple[Image, Fit]]) -> Callable[[AnyPicture, Image], Fit]:
    turns = itertools.cycle(recorded)

    def copy(picture: AnyPicture, into: Image) -> Fit:
        row, fit = next(turns)
        np.copyto(into, row)
        return fit

    return copy


class CachedSource:
    """Returns recorded frames in rotation. Times rise evenly, by the interval between the first two
    recorded frames. Each BGR picture is copied, so that drawing does not change the recording."""

    def __init__(self, info: SourceInfo, recorded: Sequence[Frame], count: int) -> None:
        self.info = info
        self._recorded, self._count, self._given = recorded, count, 0
        first, second = recorded[0], recorded[min(1, len(recorded) - 1)]
        self._ticks = max(1, second.pts - first.pts)  # encoders require rising times
        self._seconds = second.time_s - first.time_s

    def read(self, into: Image | None = None) -> Frame | None:
        at = self._given
        if at == self._count:
            return None
        self._given += 1
        recorded, first = self._recorded[at % len(self._recorded)], self._recorded[0]
        picture = recorded.picture
        if not isinstance(picture, Planes):  # drawing makes its own copy of planes
            fits = into is not None and into.shape == picture.shape
            own = into if into is not None and fits else np.empty_like(picture)
            np.copyto(own, picture)
            picture = own
        return replace(
            recorded,
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
