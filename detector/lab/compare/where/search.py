"""Compare sides A and B stage by stage. Both get A's input, so a difference is due to the stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import EngineError, ModelError
from detector.core.types import Candidates, Detections, Frame, Image, Letterbox, Picture
from detector.lab.compare.where.difference import (
    Deviation,
    compare_pictures,
    compare_tensors,
    tolerance_of,
)
from detector.lab.compare.where.graph import Point, TensorReader, common_points, infer
from detector.lab.compare.where.kinds import (
    COUNT,
    ROUNDING,
    STALE,
    Kind,
    classify_candidates,
    classify_detections,
    classify_picture,
    classify_tensor,
)
from detector.lab.session.where import Probe, Stage, StageDifference

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network

Array = NDArray[Any]
# A layer is at fault if its outputs differ STEP times as much as its inputs. If the difference
# grows by less than this factor at every layer, it is accumulated rounding.
STEP = 3.0
BOX_PIXELS = 0.01  # on the same input, correct heads and NMS agree up to float32 rounding


@dataclass(frozen=True)
class Side:
    """One configuration, as the functions that its loop calls. ``input_shape``: height and width.
    ``network``: the network in ``precision``. ``open``: opens an engine with one request."""

    name: str
    precision: str
    frames: Callable[[int], list[Frame]]
    preprocess: Callable[[Picture, Image], Letterbox]
    input_shape: tuple[int, int]
    network: Network
    open: Callable[[Network], Engine]
    head: Callable[[list[Array]], Candidates]
    nms: Callable[[Candidates], Detections]
    draw: Callable[[Frame, Detections], object]


@dataclass
class Differences:
    stages: list[StageDifference] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    frames: int = 0

    @property
    def first(self) -> StageDifference | None:
        return next((one for one in self.stages if one.differs), None)


def search(
    a: Side, b: Side, count: int, step: Callable[[str], object] = lambda doing: None
) -> Differences:
    result = Differences()
    step("decode")
    frames, others = a.frames(count), b.frames(count)
    result.frames = len(frames)
    _compare_frames(result, frames, others)
    step("letterbox")
    slots = _compare_slots(result, a, b, frames)
    step("infer")
    outputs = _compare_outputs(result, a, b, slots, step)
    step("candidates")
    _compare_boxes(result, a, b, outputs, frames)
    return result


def _make_row(
    stage: Stage, what: str, frame: int | None, deviation: Deviation, kind: Kind | None
) -> StageDifference:
    return StageDifference(
        stage,
        what,
        deviation.differs,
        frame,
        deviation.max,
        deviation.rms,
        deviation.relative,
        deviation.beyond,
        deviation.tolerance,
        kind.name if kind is not None and deviation.differs else None,
        kind.detail if kind is not None and deviation.differs else None,
    )


def _worst(pairs: Iterator[tuple[int, Deviation]]) -> tuple[int, Deviation]:
    measured = []
    for at, deviation in pairs:
        if deviation.differs:
            return at, deviation
        measured.append((at, deviation))
    return max(measured, key=lambda one: one[1].rms or 0.0)


def _compare_frames(result: Differences, frames: Sequence[Frame], others: Sequence[Frame]) -> None:
    if len(frames) != len(others):
        text = f"{len(frames)} and {len(others)} frames"
        deviation = Deviation(True, None, None, None, None, 0.0)
        result.stages.append(_make_row("decode", "frames", None, deviation, Kind(COUNT, text)))
        return
    pictures = [(one.image, other.image) for one, other in zip(frames, others, strict=True)]
    at, deviation = _worst((at, compare_pictures(*pair)) for at, pair in enumerate(pictures))
    before = pictures[at - 1][0] if at else None
    kind = classify_picture(*pictures[at], before) if deviation.differs else None
    result.stages.append(_make_row("decode", "decoded pixels", frames[at].index, deviation, kind))


def _compare_slots(result: Differences, a: Side, b: Side, frames: Sequence[Frame]) -> list[Image]:
    mine, theirs = (np.zeros((*side.input_shape, 3), np.uint8) for side in (a, b))
    slots: list[Image] = []
    others, fits = [], []
    for frame in frames:
        fits.append((a.preprocess(frame.picture, mine), b.preprocess(frame.picture, theirs)))
        slots.append(mine.copy())
        others.append(theirs.copy())
    at, deviation = _worst(
        (at, _include_fits(compare_pictures(one, other), *fits[at]))
        for at, (one, other) in enumerate(zip(slots, others, strict=True))
    )
    kind = None
    if deviation.differs:
        before = slots[at - 1] if at else None
        source = frames[at].image
        kind = classify_picture(slots[at], others[at], before, fits[at], source)
    row = _make_row("letterbox", "letterboxed input", frames[at].index, deviation, kind)
    result.stages.append(row)
    return slots


def _include_fits(deviation: Deviation, a: Letterbox, b: Letterbox) -> Deviation:
    """Report different fits even if the pictures agree, since a fit also maps boxes back."""
    same = np.allclose(
        (a.scale_x, a.scale_y, a.pad_x, a.pad_y), (b.scale_x, b.scale_y, b.pad_x, b.pad_y), 1e-4
    )
    return deviation if same else deviation._replace(differs=True)


def _compare_outputs(
    result: Differences, a: Side, b: Side, slots: Sequence[Image], step: Callable[[str], object]
) -> list[list[Array]]:
    tolerance = tolerance_of(a.precision, b.precision)
    with np.errstate(all="ignore"):
        mine = _run(a, slots)
        if a.input_shape != b.input_shape:
            reason = "the input sizes differ, so neither engine can read the other's input"
            result.stages.append(StageDifference("outputs", "raw outputs", untold=reason))
            return mine
        theirs = _run(b, slots)
        at, which, deviation = _worst_output(mine, theirs, tolerance)
        if not deviation.differs:
            hidden = _TensorSearch(result, a, b, slots[:1], (mine[0], theirs[0]), step).scan()
            if hidden is not None:
                result.stages.append(replace(hidden, frame=0))
            result.stages.append(_make_row("outputs", "raw outputs", at, deviation, None))
            return mine
        ours, other = mine[at][which], theirs[at][which]
        before = mine[at - 1][which] if at else None
        if _is_late(mine, theirs, tolerance):
            kind = Kind(STALE, "they belong to the previous frame")
        else:
            kind = classify_tensor(ours, other, tolerance, before)
        if kind.name != STALE:
            inner = _TensorSearch(
                result, a, b, slots[: at + 1], (mine[at], theirs[at]), step
            ).search()
            if inner is not None:
                result.stages.append(replace(inner, frame=at))
        name = a.network.graph.graph.output[which].name if a.network.plan is None else str(which)
        result.stages.append(_make_row("outputs", f"raw output {name}", at, deviation, kind))
        return mine


def _run(side: Side, slots: Sequence[Image]) -> list[list[Array]]:
    with side.open(side.network) as engine:
        return infer(engine.requests[0], slots)


def _worst_output(
    mine: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]], tolerance: float
) -> tuple[int, int, Deviation]:
    """Return (frame, output, deviation) of the first differing output or, if none, of the worst."""
    measured = []
    for at, (ours, others) in enumerate(zip(mine, theirs, strict=True)):
        if len(ours) != len(others):
            return at, 0, Deviation(True, None, None, None, None, tolerance)
        for which, pair in enumerate(zip(ours, others, strict=True)):
            deviation = compare_tensors(*pair, tolerance)
            if deviation.differs:
                return at, which, deviation
            measured.append((at, which, deviation))
    return max(measured, key=lambda one: one[2].relative or 0.0)


def _is_late(
    mine: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]], tolerance: float
) -> bool:
    """Return whether each of B's outputs is A's output for the previous frame."""
    pairs = [
        (before, late)
        for earlier, others in zip(mine, theirs[1:], strict=False)
        for before, late in zip(earlier, others, strict=False)
    ]
    return bool(pairs) and not any(compare_tensors(*pair, tolerance).differs for pair in pairs)


# Inside the graph


class _TensorSearch:
    """Compares the tensors that both graphs have. Each is compared only once."""

    def __init__(
        self,
        result: Differences,
        a: Side,
        b: Side,
        slots: Sequence[Image],
        outputs: tuple[Sequence[Array], Sequence[Array]],
        step: Callable[[str], object],
    ) -> None:
        self._result, self._step = result, step
        self._tolerance = tolerance_of(a.precision, b.precision)
        self._a, self._b = TensorReader(a, slots, outputs[0]), TensorReader(b, slots, outputs[1])
        self._compared: dict[str, tuple[Array, Array, Deviation]] = {}
        self._points: Sequence[Point] = ()
        if a.network.plan is not None or b.network.plan is not None:
            self._reason = "a TensorRT plan contains no graph"
        else:
            self._points = common_points(a.network.graph, b.network.graph)
            self._reason = "the graphs share no tensor with the same name and shape"

    def search(self) -> StageDifference | None:
        """Return the first tensor that differs although its inputs agree; None if all agree."""
        points = self._points
        if not points:
            self._result.stages.append(
                StageDifference("graph", "tensors inside", untold=self._reason)
            )
            return None
        try:
            low, high = -1, len(points)  # low agrees, high differs
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self.check(points[middle]).differs else (middle, high)
            if high == len(points):
                return None
            # A graph can run in many orders, so the tensor that was found may have inputs that
            # differ already. The search goes back along these inputs.
            known = {point.name: point for point in points}
            point = points[high]
            while earlier := next(
                (known[name] for name in sorted(point.before) if self.check(known[name]).differs),
                None,
            ):
                point = earlier
        except (EngineError, ModelError) as error:
            self._result.stages.append(
                StageDifference("graph", "tensors inside", untold=str(error))
            )
            return None
        return self.describe(point)

    def scan(self) -> StageDifference | None:
        """Find a faulty layer although the outputs agree: a coarse tolerance may hide a fault."""
        if self._tolerance <= tolerance_of("fp32") or not self._points:
            return None
        self._step("all tensors")
        try:
            left = self._a.read_all([point.a for point in self._points])
            right = self._b.read_all([point.b for point in self._points])
            deviations = {
                point.name: compare_tensors(mine, theirs, self._tolerance).relative or 0.0
                for point, mine, theirs in zip(self._points, left, right, strict=True)
            }
            steps = [one for one in self._points if _is_step(one, deviations, self._tolerance)]
            for point in steps[:1]:
                for name in (point.name, *sorted(point.before)):
                    self.check(next(one for one in self._points if one.name == name))
                return self.describe(point)
        except (EngineError, ModelError):
            pass  # the outputs agree, and the tensors cannot be read
        return None

    def check(self, point: Point) -> Deviation:
        if point.name not in self._compared:
            self._step(f"tensor {point.name}")
            left, how = self._a.read(point.a, self._tolerance)
            right, other = self._b.read(point.b, self._tolerance)
            deviation = compare_tensors(left, right, self._tolerance)
            self._compared[point.name] = left, right, deviation
            method = how if how == other else f"{how}; {other}"
            self._result.probes.append(
                Probe(point.name, method, deviation.relative, deviation.differs)
            )
        return self._compared[point.name][2]

    def describe(self, point: Point) -> StageDifference:
        left, right, deviation = self._compared[point.name]
        kind = classify_tensor(left, right, self._tolerance)
        before = [self._compared[name][2].relative or 0.0 for name in point.before]
        growth = (deviation.relative or 0.0) / max(before) if before and max(before) > 0 else None
        if growth is not None and growth < STEP and self._tolerance > tolerance_of("fp32"):
            kind = Kind(
                ROUNDING, f"{max(before):.1%} before this layer, {deviation.relative:.1%} here"
            )
        stage: Stage = "graph" if point.computed else "input"
        return _make_row(stage, f"{point.node} {point.name}", None, deviation, kind)


def _is_step(point: Point, deviations: dict[str, float], coarse: float) -> bool:
    before = max((deviations[name] for name in point.before), default=0.0)
    return deviations[point.name] > max(coarse, STEP * before)


# Boxes


def _compare_boxes(
    result: Differences, a: Side, b: Side, outputs: Sequence[list[Array]], frames: Sequence[Frame]
) -> None:
    """Compare heads on A's outputs, NMS on A's candidates, and drawings of A's detections."""
    candidates, theirs = [], []
    for own in outputs:
        candidates.append(a.head(own))
        try:
            theirs.append(b.head(own))
        except (ValueError, IndexError, TypeError, ModelError) as error:
            reason = f"the head of B cannot read the outputs of A: {error}"
            result.stages.append(StageDifference("candidates", "candidates", untold=reason))
            return
    pairs = list(zip(candidates, theirs, strict=True))
    at, deviation = _worst((at, _compare_rows(*pair)) for at, pair in enumerate(pairs))
    kind = classify_candidates(*pairs[at]) if deviation.differs else None
    row = _make_row("candidates", "candidates of the head", at, deviation, kind)
    result.stages.append(row)

    detections = [(a.nms(one), b.nms(one)) for one in candidates]
    at, deviation = _worst(
        (at, _compare_rows(*map(_as_candidates, p))) for at, p in enumerate(detections)
    )
    kind = None
    if deviation.differs:
        mine, other = detections[at]
        kind = classify_detections(candidates[at], other, a.nms, _same, len(mine))
    result.stages.append(_make_row("nms", "detections", at, deviation, kind))
    _compare_drawings(result, a, b, frames, [mine for mine, _ in detections])


def _compare_drawings(
    result: Differences,
    a: Side,
    b: Side,
    frames: Sequence[Frame],
    detections_of_frames: Sequence[Detections],
) -> None:
    pictures = []
    scratch = np.zeros((*a.input_shape, 3), np.uint8)
    for frame, detections in zip(frames, detections_of_frames, strict=True):
        fit = a.preprocess(frame.picture, scratch)
        placed = fit.to_source(detections)
        drawn = []
        for side in (a, b):
            copy = replace(frame, picture=frame.image.copy())
            side.draw(copy, placed)
            drawn.append(copy.image)
        pictures.append((drawn[0], drawn[1]))
    at, deviation = _worst((at, compare_pictures(*pair, 0)) for at, pair in enumerate(pictures))
    kind = classify_picture(*pictures[at]) if deviation.differs else None
    result.stages.append(_make_row("annotate", "drawn picture", frames[at].index, deviation, kind))


def _as_candidates(detections: Detections) -> Candidates:
    return Candidates(detections.boxes, detections.scores, detections.class_ids)


def _same(a: Detections, b: Detections) -> bool:
    return not _compare_rows(_as_candidates(a), _as_candidates(b)).differs


def _compare_rows(a: Candidates, b: Candidates) -> Deviation:
    """Compare boxes in order; equal inputs give equal boxes up to float32 rounding."""
    if len(a.scores) != len(b.scores):
        return Deviation(True, None, None, None, None, BOX_PIXELS)
    off = np.abs(a.boxes.astype(np.float64) - b.boxes)
    scores = np.abs(a.scores.astype(np.float64) - b.scores)
    wrong = (off > BOX_PIXELS).any(1) | (scores > 1e-4) | (a.class_ids != b.class_ids)
    size = float(np.sqrt(np.mean(np.square(off)))) if off.size else 0.0
    beyond = float(wrong.mean()) if len(wrong) else 0.0
    return Deviation(bool(wrong.any()), float(off.max(initial=0)), size, None, beyond, BOX_PIXELS)
