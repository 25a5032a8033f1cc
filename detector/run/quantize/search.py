"""What must stay float, so that int8 keeps its agreement with fp32: a search with a bounded number of runs.

1. Every unit alone is made int8, and what that does to the raw outputs is measured on a few frames. Units are ranked
   by that error over the square root of their multiply-accumulates: of two that hurt alike, the cheap one goes back to
   float first (on yolo-fastest-1.1 this kept 26 % of the MACs float; by error alone 31 %, by error per MAC 28 %).
2. A bisection finds how many of the worst must stay float for the agreement on the held-out frames.
3. Of those kept, the most expensive ones are tried in int8 once more, one after the other.

Nothing is drawn by chance: the same graph, frames and library give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector import engines
from detector.analysis.accuracy.agreement import agreement
from detector.config.schema import SelectionConfig
from detector.engines.base import EngineOptions
from detector.models.base import Network
from detector.models.graph.qdq import Unit
from detector.stages.nms import nms
from detector.types import Detections

if TYPE_CHECKING:
    import onnx


RANKING_FRAMES = 4
TRIALS = 16  # of step 3
SMALLEST = 1e-3  # of all MACs: what a unit without MACs, or nearly so, counts as

Graph = Callable[[Sequence[Unit]], "onnx.ModelProto"]
"""Units that stay float -> the quantised graph."""
Score = Callable[["onnx.ModelProto"], float]
Step = Callable[[str, int, int], None]


@dataclass(slots=True)
class Found:
    """``agreements``: of every choice that was measured, in order: how many units were float, and the agreement."""

    kept: list[Unit]
    plain: float  # agreement with everything int8
    reached: float
    agreements: list[tuple[int, float]] = field(default_factory=list)


def ranked(
    units: Sequence[Unit], graph: Graph, error: Score, step: Step = lambda *_: None
) -> list[Unit]:
    """Worst first."""
    whole = sum(unit.macs for unit in units) or 1
    worth = {}
    for done, unit in enumerate(units, 1):
        others = [other for other in units if other is not unit]
        worth[unit.name] = error(graph(others)) / max(unit.macs / whole, SMALLEST) ** 0.5
        step("int8: error of each unit", done, len(units))
    order = {unit.name: at for at, unit in enumerate(units)}
    return sorted(units, key=lambda unit: (-worth[unit.name], order[unit.name]))


def search(
    order: Sequence[Unit],
    graph: Graph,
    agreement: Score,
    budget: float,
    step: Step = lambda *_: None,
) -> Found:
    """The units to keep float, so that ``agreement`` is at least ``budget``. ``order``: worst first."""
    found = Found([], 0.0, 0.0)
    runs = 1 + len(order).bit_length() + TRIALS

    def reached(kept: Sequence[Unit]) -> float:
        share = agreement(graph(kept))
        found.agreements.append((len(kept), share))
        step("int8: agreement", len(found.agreements), max(runs, len(found.agreements)))
        return share

    found.plain = found.reached = reached([])
    if found.plain >= budget:
        return found
    found.kept, found.reached = _bisected(order, reached, budget)
    _returned(found, reached, budget)
    return found


def _bisected(
    order: Sequence[Unit], reached: Callable[[Sequence[Unit]], float], budget: float
) -> tuple[list[Unit], float]:
    """The shortest beginning of ``order`` that is enough, as far as halving can tell; all of it is fp32 again."""
    low, high, best = 0, len(order), 1.0
    while high - low > 1:
        middle = (low + high) // 2
        share = reached(order[:middle])
        if share >= budget:
            high, best = middle, share
        else:
            low = middle
    return list(order[:high]), best


def _returned(found: Found, reached: Callable[[Sequence[Unit]], float], budget: float) -> None:
    """Tries the most expensive of the kept ones in int8 again."""
    for unit in sorted(found.kept, key=lambda unit: -unit.macs)[:TRIALS]:
        fewer = [other for other in found.kept if other is not unit]
        share = reached(fewer)
        if share >= budget:
            found.kept, found.reached = fewer, share


# ----------------------------------------------------------------------
# What a graph detects on a few frames, and how far that is from another graph's: through the engine ort.

ENGINE = "ort"
SELECTION = (
    SelectionConfig()
)  # thresholds by default, whatever a run asks for: a calibration serves many runs

Outputs = list[NDArray[np.float32]]  # of one picture, each with a leading axis of 1


def outputs(
    network: Network,
    graph: onnx.ModelProto,
    slots: NDArray[np.uint8],
    engine: str = ENGINE,
    **options: Any,
) -> list[Outputs]:
    """Raw outputs of each frame. ``slots``: u8 RGB [N, H, W, 3]; a ragged last batch is filled up by the engine.
    ``options``: more of ``EngineOptions``."""
    asked = replace(network, graph=graph, path=None)
    found = []
    with engines.open(
        engine, asked, EngineOptions(batch=network.batch, requests=1, **options)
    ) as opened:
        request = opened.requests[0]
        for start in range(0, len(slots), network.batch):
            part = slots[start : start + network.batch]
            request.slot[: len(part)] = part
            rows = request.infer(len(part))
            found += [[row[at : at + 1].copy() for row in rows] for at in range(len(part))]
    return found


def detections(
    network: Network, raw: Sequence[Outputs], conf: float = SELECTION.conf
) -> list[Detections]:
    """Of each frame, in network pixels."""
    limits = {
        "iou": SELECTION.iou if network.needs_nms else None,
        "max_det": SELECTION.max_det,
        "names": network.names,
    }
    return [nms(network.head(one, conf), **limits) for one in raw]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Reference:
    """The fp32 graph's answers on some frames, to compare with."""

    network: Network
    slots: NDArray[np.uint8]
    raw: list[Outputs]
    found: list[Detections]

    @staticmethod
    def of(network: Network, slots: NDArray[np.uint8]) -> Reference:
        raw = outputs(network, network.graph, slots)
        return Reference(network, slots, raw, detections(network, raw))

    def agreement(self, graph: onnx.ModelProto) -> float:
        """2 x matched / (A + B) of the graph's detections with the reference's."""
        other = detections(self.network, outputs(self.network, graph, self.slots))
        return agreement(self.found, other).share

    def error(self, graph: onnx.ModelProto) -> float:
        """Noise over signal of the raw outputs, each output by itself, summed."""
        other = outputs(self.network, graph, self.slots)
        total = 0.0
        for at in range(len(self.raw[0])):
            signal = sum(float(np.square(one[at], dtype=np.float64).sum()) for one in self.raw)
            noise = sum(
                float(np.square(one[at] - two[at], dtype=np.float64).sum())
                for one, two in zip(self.raw, other, strict=True)
            )
            total += noise / signal if signal else noise
        return total
