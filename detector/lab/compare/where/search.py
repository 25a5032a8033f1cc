"""Stage by stage: both sides get A's input, so that a difference is the stage's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import EngineError, ModelError
from detector.core.types import Candidates, Detections, Frame, Image, Letterbox, Picture
from detector.lab.compare.where.difference import (
    Apart,
    compare_pictures,
    compare_tensors,
    tolerance_of,
)
from detector.lab.compare.where.graph import Point, Tapped, common_points, infer
from detector.lab.compare.where.kinds import (
    COUNT,
    ROUNDING,
    STALE,
    Kind,
    kind_of_candidates,
    kind_of_detections,
    kind_of_picture,
    kind_of_tensor,
)
from detector.lab.session.where import Probe, Stage, StageDifference

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network

Array = NDArray[Any]
# A fault is a step: the layer's output is so many times as far apart as what goes into it. What
# grows by less from layer to layer is rounding that adds up.
STEP = 3.0
BOX_PIXELS = 0.01  # of the same candidates, two correct NMS and heads agree to float32


@dataclass(frozen=True)
class Side:
    """One configuration, as the functions that its loop calls. ``input_shape``: height and width.
    ``network``: in its precision. ``open``: an engine with one request on (a part of) a network."""

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
    """``shown``: what a picture can show: two arrays, or two lists of boxes in ``scene``."""

    stages: list[StageDifference] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    frames: int = 0
    shown: tuple[Array, Array] | None = None
    boxes: tuple[Array, Array] | None = None
    scene: Array | None = None

    @property
    def first(self) -> StageDifference | None:
        return next((one for one in self.stages if one.differs), None)

    def add(self, stage: StageDifference, **shown: Any) -> None:
        if stage.differs and self.first is None:
            for name, value in shown.items():
                setattr(self, name, value)
        self.stages.append(stage)


def search(
    a: Side, b: Side, count: int, step: Callable[[str], object] = lambda doing: None
) -> Differences:
    found = Differences()
    step("decode")
    frames, others = a.frames(count), b.frames(count)
    found.frames = len(frames)
    _compare_frames(found, frames, others)
    step("letterbox")
    slots = _compare_slots(found, a, b, frames)
    step("infer")
    outputs = _compare_outputs(found, a, b, slots, step)
    step("candidates")
    _compare_boxes(found, a, b, slots, outputs, frames)
    return found


def _row(
    stage: Stage, what: str, frame: int | None, apart: Apart, kind: Kind | None
) -> StageDifference:
    return StageDifference(
        stage,
        what,
        apart.differs,
        frame,
        apart.max,
        apart.rms,
        apart.relative,
        apart.beyond,
        apart.tolerance,
        kind.name if kind is not None and apart.differs else None,
        kind.detail if kind is not None and apart.differs else None,
    )


def _worst(pairs: Iterator[tuple[int, Apart]]) -> tuple[int, Apart]:
    seen = []
    for at, apart in pairs:
        if apart.differs:
            return at, apart
        seen.append((at, apart))
    return max(seen, key=lambda one: one[1].rms or 0.0)


def _compare_frames(found: Differences, frames: Sequence[Frame], others: Sequence[Frame]) -> None:
    if len(frames) != len(others):
        text = f"{len(frames)} and {len(others)} frames"
        apart = Apart(True, None, None, None, None, 0.0)
        found.add(_row("decode", "frames", None, apart, Kind(COUNT, text)))
        return
    pictures = [(one.image, other.image) for one, other in zip(frames, others, strict=True)]
    at, apart = _worst((at, compare_pictures(*pair)) for at, pair in enumerate(pictures))
    before = pictures[at - 1][0] if at else None
    kind = kind_of_picture(*pictures[at], before) if apart.differs else None
    row = _row("decode", "decoded pixels", frames[at].index, apart, kind)
    found.add(row, shown=pictures[at], scene=pictures[at][0])


def _compare_slots(found: Differences, a: Side, b: Side, frames: Sequence[Frame]) -> list[Image]:
    mine, theirs = (np.zeros((*side.input_shape, 3), np.uint8) for side in (a, b))
    slots: list[Image] = []
    others, fits = [], []
    for frame in frames:
        fits.append((a.preprocess(frame.picture, mine), b.preprocess(frame.picture, theirs)))
        slots.append(mine.copy())
        others.append(theirs.copy())
    at, apart = _worst(
        (at, _with_fits(compare_pictures(one, other), *fits[at]))
        for at, (one, other) in enumerate(zip(slots, others, strict=True))
    )
    kind = None
    if apart.differs:
        before = slots[at - 1] if at else None
        source = frames[at].image
        kind = kind_of_picture(slots[at], others[at], before, fits[at], source)
    row = _row("letterbox", "letterboxed input", frames[at].index, apart, kind)
    found.add(row, shown=(slots[at], others[at]), scene=slots[at][..., ::-1])
    return slots


def _with_fits(apart: Apart, a: Letterbox, b: Letterbox) -> Apart:
    """Boxes come back by the fit, so that a wrong one is a fault even in an even picture."""
    alike = np.allclose(
        (a.scale_x, a.scale_y, a.pad_x, a.pad_y), (b.scale_x, b.scale_y, b.pad_x, b.pad_y), 1e-4
    )
    return apart if alike else apart._replace(differs=True)


def _compare_outputs(
    found: Differences, a: Side, b: Side, slots: Sequence[Image], step: Callable[[str], object]
) -> list[list[Array]]:
    tolerance = tolerance_of(a.precision, b.precision)
    with np.errstate(all="ignore"):
        mine = _run(a, slots)
        if a.input_shape != b.input_shape:
            why = "the input sizes differ, so neither engine can read the other's input"
            found.add(StageDifference("outputs", "raw outputs", untold=why))
            return mine
        theirs = _run(b, slots)
        at, which, apart = _worst_output(mine, theirs, tolerance)
        if not apart.differs:
            hidden = _Tensors(found, a, b, slots[:1], (mine[0], theirs[0]), step).scan()
            if hidden is not None:
                row, shown = hidden
                found.add(replace(row, frame=0), shown=shown)
            found.add(_row("outputs", "raw outputs", at, apart, None))
            return mine
        ours, other = mine[at][which], theirs[at][which]
        before = mine[at - 1][which] if at else None
        if _is_late(mine, theirs, tolerance):
            kind = Kind(STALE, "they belong to the previous frame")
        else:
            kind = kind_of_tensor(ours, other, tolerance, before)
        if kind.name != STALE:
            inner = _Tensors(found, a, b, slots[: at + 1], (mine[at], theirs[at]), step).search()
            if inner is not None:
                row, shown = inner
                found.add(replace(row, frame=at), shown=shown)
        name = a.network.graph.graph.output[which].name if a.network.plan is None else str(which)
        row = _row("outputs", f"raw output {name}", at, apart, kind)
        found.add(row, shown=(ours, other))
        return mine


def _run(side: Side, slots: Sequence[Image]) -> list[list[Array]]:
    with side.open(side.network) as engine:
        return infer(engine.requests[0], slots)


def _worst_output(
    mine: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]], tolerance: float
) -> tuple[int, int, Apart]:
    """Number of the frame and of the output: the first that differ, else those farthest apart."""
    seen = []
    for at, (ours, others) in enumerate(zip(mine, theirs, strict=True)):
        if len(ours) != len(others):
            return at, 0, Apart(True, None, None, None, None, tolerance)
        for which, pair in enumerate(zip(ours, others, strict=True)):
            apart = compare_tensors(*pair, tolerance)
            if apart.differs:
                return at, which, apart
            seen.append((at, which, apart))
    return max(seen, key=lambda one: one[2].relative or 0.0)


def _is_late(
    mine: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]], tolerance: float
) -> bool:
    """Return whether B hands out what A handed out for the frame before; the first is unknown."""
    pairs = [
        (before, late)
        for earlier, others in zip(mine, theirs[1:], strict=False)
        for before, late in zip(earlier, others, strict=False)
    ]
    return bool(pairs) and not any(compare_tensors(*pair, tolerance).differs for pair in pairs)


# Inside the graph


class _Tensors:
    """The tensors that both graphs have, each compared once. ``untold``: why they are missing."""

    def __init__(
        self,
        found: Differences,
        a: Side,
        b: Side,
        slots: Sequence[Image],
        outputs: tuple[Sequence[Array], Sequence[Array]],
        step: Callable[[str], object],
    ) -> None:
        self._found, self._step = found, step
        self._tolerance = tolerance_of(a.precision, b.precision)
        self._a, self._b = Tapped(a, slots, outputs[0]), Tapped(b, slots, outputs[1])
        self._seen: dict[str, tuple[Array, Array, Apart]] = {}
        self._points: Sequence[Point] = ()
        if a.network.plan is not None or b.network.plan is not None:
            self._untold = "a TensorRT plan contains no graph"
        else:
            self._points = common_points(a.network.graph, b.network.graph)
            self._untold = "the graphs share no tensor with the same name and shape"

    def search(self) -> tuple[StageDifference, tuple[Array, Array]] | None:
        """The first tensor that differs though all that it is made of agree; None where all do."""
        points = self._points
        if not points:
            self._found.add(StageDifference("graph", "tensors inside", untold=self._untold))
            return None
        try:
            low, high = -1, len(points)  # low agrees, high differs
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self.at(points[middle]).differs else (middle, high)
            if high == len(points):
                return None
            # A graph can run in many orders: a tensor of another branch may differ earlier. The
            # search therefore continues with the tensor's own inputs.
            known = {point.name: point for point in points}
            point = points[high]
            while earlier := next(
                (known[name] for name in sorted(point.before) if self.at(known[name]).differs), None
            ):
                point = earlier
        except (EngineError, ModelError) as error:
            self._found.add(StageDifference("graph", "tensors inside", untold=str(error)))
            return None
        return self.describe(point)

    def scan(self) -> tuple[StageDifference, tuple[Array, Array]] | None:
        """A layer that is far off, though the outputs agree within a coarse type; None for fp32."""
        if self._tolerance <= tolerance_of("fp32") or not self._points:
            return None
        self._step("all tensors")
        try:
            apart = self.all(self._points)
            steps = [one for one in self._points if _is_step(one, apart, self._tolerance)]
            for point in steps[:1]:
                for name in (point.name, *sorted(point.before)):
                    self.at(next(one for one in self._points if one.name == name))
                return self.describe(point)
        except (EngineError, ModelError):
            pass  # the outputs agree, and nothing tells more
        return None

    def at(self, point: Point) -> Apart:
        if point.name not in self._seen:
            self._step(f"tensor {point.name}")
            left, how = self._a.read(point.a, self._tolerance)
            right, other = self._b.read(point.b, self._tolerance)
            apart = compare_tensors(left, right, self._tolerance)
            self._seen[point.name] = left, right, apart
            way = how if how == other else f"{how}; {other}"
            self._found.probes.append(Probe(point.name, way, apart.relative, apart.differs))
        return self._seen[point.name][2]

    def all(self, points: Sequence[Point]) -> dict[str, float]:
        left = self._a.read_all([point.a for point in points])
        right = self._b.read_all([point.b for point in points])
        return {
            point.name: compare_tensors(mine, theirs, self._tolerance).relative or 0.0
            for point, mine, theirs in zip(points, left, right, strict=True)
        }

    def describe(self, point: Point) -> tuple[StageDifference, tuple[Array, Array]]:
        left, right, apart = self._seen[point.name]
        kind = kind_of_tensor(left, right, self._tolerance)
        went_in = [self._seen[name][2].relative or 0.0 for name in point.before]
        grown = (apart.relative or 0.0) / max(went_in) if went_in and max(went_in) > 0 else None
        if grown is not None and grown < STEP and self._tolerance > tolerance_of("fp32"):
            kind = Kind(
                ROUNDING, f"{max(went_in):.1%} before this layer, {apart.relative:.1%} here"
            )
        stage: Stage = "graph" if point.computed else "input"
        what = f"{point.node} {point.name}"
        return _row(stage, what, None, apart, kind), (left, right)


def _is_step(point: Point, apart: dict[str, float], coarse: float) -> bool:
    before = max((apart[name] for name in point.before), default=0.0)
    return apart[point.name] > max(coarse, STEP * before)


# Boxes


def _compare_boxes(
    found: Differences,
    a: Side,
    b: Side,
    slots: Sequence[Image],
    outputs: Sequence[list[Array]],
    frames: Sequence[Frame],
) -> None:
    """Heads on A's outputs, NMS on A's candidates, drawing of A's detections."""
    candidates, theirs = [], []
    for own in outputs:
        candidates.append(a.head(own))
        try:
            theirs.append(b.head(own))
        except (ValueError, IndexError, TypeError, ModelError) as error:
            why = f"the head of B cannot read the outputs of A: {error}"
            found.add(StageDifference("candidates", "candidates", untold=why))
            return
    pairs = list(zip(candidates, theirs, strict=True))
    at, apart = _worst((at, _boxes_apart(*pair)) for at, pair in enumerate(pairs))
    kind = kind_of_candidates(*pairs[at]) if apart.differs else None
    scene = slots[at][..., ::-1]
    row = _row("candidates", "candidates of the head", at, apart, kind)
    found.add(row, boxes=(pairs[at][0].boxes, pairs[at][1].boxes), scene=scene)

    kept = [(a.nms(one), b.nms(one)) for one in candidates]
    at, apart = _worst((at, _boxes_apart(*map(_as_candidates, p))) for at, p in enumerate(kept))
    kind = None
    if apart.differs:
        mine, other = kept[at]
        kind = kind_of_detections(candidates[at], other, a.nms, _same, len(mine))
    row = _row("nms", "detections", at, apart, kind)
    boxes = kept[at][0].boxes, kept[at][1].boxes
    found.add(row, boxes=boxes, scene=slots[at][..., ::-1])
    _compare_drawings(found, a, b, frames, [mine for mine, _ in kept], slots)


def _compare_drawings(
    found: Differences,
    a: Side,
    b: Side,
    frames: Sequence[Frame],
    kept: Sequence[Detections],
    slots: Sequence[Image],
) -> None:
    pictures = []
    scratch = np.zeros((*a.input_shape, 3), np.uint8)
    for frame, detections in zip(frames, kept, strict=True):
        fit = a.preprocess(frame.picture, scratch)
        placed = fit.to_source(detections)
        drawn = []
        for side in (a, b):
            copy = replace(frame, picture=frame.image.copy())
            side.draw(copy, placed)
            drawn.append(copy.image)
        pictures.append((drawn[0], drawn[1]))
    at, apart = _worst((at, compare_pictures(*pair, 0)) for at, pair in enumerate(pictures))
    kind = kind_of_picture(*pictures[at]) if apart.differs else None
    found.add(
        _row("annotate", "drawn picture", frames[at].index, apart, kind),
        shown=pictures[at],
        scene=pictures[at][0],
    )


def _as_candidates(detections: Detections) -> Candidates:
    return Candidates(detections.boxes, detections.scores, detections.class_ids)


def _same(a: Detections, b: Detections) -> bool:
    return not _boxes_apart(_as_candidates(a), _as_candidates(b)).differs


def _boxes_apart(a: Candidates, b: Candidates) -> Apart:
    """Equal inputs give equal boxes, in one order; float32 alone may round."""
    if len(a.scores) != len(b.scores):
        return Apart(True, None, None, None, None, BOX_PIXELS)
    off = np.abs(a.boxes.astype(np.float64) - b.boxes)
    scores = np.abs(a.scores.astype(np.float64) - b.scores)
    wrong = (off > BOX_PIXELS).any(1) | (scores > 1e-4) | (a.class_ids != b.class_ids)
    size = float(np.sqrt(np.mean(np.square(off)))) if off.size else 0.0
    beyond = float(wrong.mean()) if len(wrong) else 0.0
    return Apart(bool(wrong.any()), float(off.max(initial=0)), size, None, beyond, BOX_PIXELS)
