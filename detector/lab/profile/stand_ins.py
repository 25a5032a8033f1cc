"""The predictions of what-if, tested: the same loop with one thing changed.

Where the change is "a stage is free", a stand-in that costs next to nothing replaces the stage.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detector.core.config.schema import Config
from detector.core.loop.parts import BatchRequest, FrameSource, Outputs, Parts, Progress
from detector.core.run.limits import opencv_threads
from detector.core.run.looping import run_loop
from detector.core.run.outputs import OutputPlan
from detector.core.run.wire import (
    first_picture_size,
    load_model,
    open_sinks,
    open_source,
    wire_loop,
)
from detector.core.timeline import OffTimeline
from detector.core.types import Frame, Image, Planes
from detector.lab.profile.base import output_within
from detector.lab.session.passes import Prediction, Proof

if TYPE_CHECKING:
    from detector.core.sources.base import Source

FREE = {"infer free": "infer", "read free": "read", "write free": "write"}
ROUNDS = 3
KEPT = 48  # decoded pictures and raw outputs that stand-ins hand out in turn
KEPT_BYTES = 512 << 20
APART = 0.2  # of the lowest and highest measured gain: further apart, the measurement proves little


def prove(source: str, config: Config, predicted: Sequence[Prediction]) -> list[Proof]:
    """Tries each change that can be tried: a stage replaced, the overlap off (on), larger batches.

    The rounds are interleaved: each runs the plain loop once, then every change. The numbers of
    threads and requests stay those of ``config``. The measured gain is the median over the rounds
    of FPS with the change / FPS without - 1. FPS count from the first read to the last frame
    written, as in the replay.
    """
    changed = {
        row.change: how
        for row in predicted
        if (how := _apply_change(row.change, config)) is not None
    }
    plain: list[float] = []
    rates: dict[str, list[float]] = {change: [] for change in changed}
    for _ in range(ROUNDS):
        plain.append(_rate(source, config, ""))
        for change, how in changed.items():
            rates[change].append(_rate(source, *how))
    return [_compare(row, rates[row.change], plain) for row in predicted if row.change in changed]


def _apply_change(change: str, config: Config) -> tuple[Config, str] | None:
    """The configuration and the stage to replace ("" for none); None if it cannot be tried."""
    if change in FREE:
        return config, FREE[change]
    if change in ("overlap off", "overlap on"):
        return replace(config, loop=replace(config.loop, sync=change == "overlap off")), ""
    what, _, number = change.partition(" ")
    if what == "batch":
        return replace(config, runtime=replace(config.runtime, batch=int(number))), ""
    return None


def _compare(row: Prediction, rates: Sequence[float], plain: Sequence[float]) -> Proof:
    measured = [after / before - 1 for after, before in zip(rates, plain, strict=True)]
    median = statistics.median(measured)
    return Proof(
        change=row.change,
        predicted_gain=row.gain,
        predicted_fps=row.predicted_fps,
        measured_fps=statistics.median(rates),
        measured_gain=median,
        measured_low=min(measured),
        measured_high=max(measured),
        off_by=(1 + row.gain) / (1 + median) - 1,
    )


def list_unsteady(proofs: Sequence[Proof]) -> list[str]:
    """A line for each change whose own measurements lie far apart."""
    lines = []
    for proof in proofs:
        low, high = proof.measured_low, proof.measured_high
        if low is None or high is None or high - low <= APART * (1 + proof.measured_gain):
            continue
        lines.append(f"{proof.change}: the measured gain went from {low:+.0%} to {high:+.0%}")
    return lines


def _rate(source: str, config: Config, stage: str) -> float:
    """Frames a second of the whole loop with one stage replaced ("" for none), from before the
    first read to the last frame written."""
    machine = load_model(config, picture=first_picture_size([source], config))
    with (
        machine.engine,
        tempfile.TemporaryDirectory(prefix="detect-video-proof-") as folder,
        open_source(source, config) as opened,
    ):
        output = replace(output_within(Path(folder), config.output), run_dir=None)
        paths = OutputPlan(output, [source]).paths(source, opened.info, machine.engine.name)
        sinks = open_sinks(paths, opened.info, config, machine)
        try:
            parts = wire_loop(config, machine, opened, sinks)
            parts = replace_stage(parts, stage, lambda: open_source(source, config))
            progress = Progress()
            start = time.perf_counter()
            with opencv_threads(overlapped=not config.loop.sync):  # as the run has it
                for _ in run_loop(parts, config, OffTimeline(), progress):
                    pass
            return progress.written / (time.perf_counter() - start)
        finally:
            for sink in sinks:
                sink.abort()


def replace_stage(parts: Parts, stage: str, again: Callable[[], Source]) -> Parts:
    """The same parts with a stand-in for one stage, which is prepared before the clock starts.
    ``again`` opens the source once more."""
    if stage == "read":
        return replace(parts, source=CachedSource(parts.source))
    if stage == "infer":
        return replace(parts, requests=record_outputs(parts, again))
    if stage == "write":
        return replace(parts, sinks=())
    return parts


class CachedSource:
    """As many frames as the source has, all copies of a few that were decoded in advance."""

    def __init__(self, source: FrameSource) -> None:
        self.info = source.info
        self._kept: list[Frame] = []
        self._given = self._count = 0
        room = max(1, KEPT_BYTES // max(1, self.info.width * self.info.height * 3))
        while (frame := source.read()) is not None:
            self._count += 1
            if len(self._kept) < min(KEPT, room):
                self._kept.append(replace(frame, picture=frame.picture.copy()))

    def read(self, into: Image | None = None) -> Frame | None:
        if self._given == self._count:
            return None
        kept = self._kept[self._given % len(self._kept)]
        picture = kept.picture  # nobody draws into planes, but into a copy of them
        if not isinstance(picture, Planes):
            fits = into is not None and into.shape == picture.shape
            own = into if into is not None and fits else np.empty_like(picture)
            np.copyto(own, picture)
            picture = own
        frame = Frame(
            self._given, self._given, self._given / float(self.info.fps or 25), picture, kept.path
        )
        self._given += 1
        return frame


class RecordedRequest:
    """A request that computes nothing: it returns recorded outputs of real pictures in turn."""

    device_ms: float | None = None

    def __init__(self, slot: Image, outputs: Sequence[Outputs], turn: Callable[[], int]) -> None:
        self.slot = slot
        self._outputs, self._turn = outputs, turn

    def infer(self, n: int) -> Outputs:
        return [output[:n] for output in self._outputs[self._turn() % len(self._outputs)]]


def record_outputs(parts: Parts, again: Callable[[], Source]) -> list[BatchRequest]:
    """Stand-ins for the requests, with outputs of the engine for the first pictures of the source.

    Outputs of noise would give other detections, and then head, NMS and drawing would cost
    something else. The source is read again from where the run began.
    """
    request, rows = parts.requests[0], len(parts.requests[0].slot)
    kept: list[Outputs] = []
    with again() as source:
        while len(kept) * rows < KEPT:
            pictures = [frame for _ in range(rows) if (frame := source.read()) is not None]
            if len(pictures) < rows and kept:
                break
            for row, frame in enumerate(pictures):
                parts.preprocess(frame.picture, request.slot[row])
            kept.append([output.copy() for output in request.infer(rows)])
            if len(pictures) < rows:
                break
    turns = iter(range(1 << 62))
    return [RecordedRequest(one.slot, kept, lambda: next(turns)) for one in parts.requests]
