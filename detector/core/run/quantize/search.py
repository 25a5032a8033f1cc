"""Find which units (groups of nodes) must stay float so that int8 agrees with fp32.

1. ``rank_units`` makes one unit at a time int8 and measures the error of the raw outputs on a few
   frames. It ranks units by this error divided by the square root of their multiply-accumulates
   (MACs). If two units have equal errors, the cheaper one ranks higher. (On yolo-fastest-1.1 this
   kept 26 % of the MACs float. Ranking by error alone kept 31 %, by error per MAC 28 %.)
2. ``choose_float_units`` bisects that ranking. It finds how many of the worst units must stay float
   so that agreement on the held-out frames reaches the budget (the lowest agreement to accept).
3. It then tries the most expensive of those units in int8 again, one after the other.

The number of runs is bounded, and nothing is random: the same graph, frames and library give the
same result. ``Reference`` runs the graphs, by default in ``ort``, and compares them with fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core import engines
from detector.core.analysis.agreement import agreement
from detector.core.config.schema import SelectionConfig
from detector.core.engines.base import EngineOptions
from detector.core.models.base import Network
from detector.core.models.graph.qdq import Unit
from detector.core.stages.nms import nms
from detector.core.types import Detections

if TYPE_CHECKING:
    import onnx

RANKING_FRAMES = 4  # frames on which ``rank_units`` measures errors
TRIALS = 16  # step 3 tries at most this many units
MIN_SHARE = 1e-3  # a unit with a smaller share of all MACs is ranked as if it had this share
ENGINE = "ort"  # runs the compared graphs
OPENVINO = "openvino"  # runs graphs that ONNX Runtime refuses, and mixes int8 and bf16
# The default thresholds, not a run's, because one calibration serves many runs.
SELECTION = SelectionConfig()

Outputs = list[NDArray[np.float32]]  # one picture's outputs, each with a leading axis of 1
MakeGraph = Callable[[Sequence[Unit]], "onnx.ModelProto"]
"""Units that stay float -> the quantised graph."""
Score = Callable[["onnx.ModelProto"], float]
Progress = Callable[[str, int, int], None]
"""(what is being done, steps done, steps in all). It raises an error to stop the search."""


def raw_outputs(
    network: Network,
    graph: onnx.ModelProto,
    slots: NDArray[np.uint8],
    engine: str = ENGINE,
    **options: Any,
) -> list[Outputs]:
    """Run ``graph`` instead of the network's own, and return each frame's raw outputs. ``slots``:
    u8 RGB [N, H, W, 3]. ``options``: further fields of ``EngineOptions``."""
    variant = replace(network, graph=graph, path=None)
    results: list[Outputs] = []
    with engines.open(
        engine, variant, EngineOptions(batch=network.batch, requests=1, **options)
    ) as opened:
        request = opened.requests[0]
        for start in range(0, len(slots), network.batch):
            pictures = slots[start : start + network.batch]
            request.slot[: len(pictures)] = pictures
            rows = request.infer(len(pictures))
            results += [[row[at : at + 1].copy() for row in rows] for at in range(len(pictures))]
    return results


def detections(
    network: Network, outputs: Sequence[Outputs], conf: float = SELECTION.conf
) -> list[Detections]:
    """Return the detections of each frame, in network pixels."""
    limits = {
        "iou": SELECTION.iou if network.needs_nms else None,
        "max_det": SELECTION.max_det,
        "names": network.names,
    }
    return [nms(network.head(output, conf), **limits) for output in outputs]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Reference:
    """The fp32 graph's results on some frames, to which other graphs are compared."""

    network: Network
    slots: NDArray[np.uint8]  # RGB [N, H, W, 3]
    outputs: list[Outputs]
    detections: list[Detections]
    engine: str = ENGINE  # runs the other graphs
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of ``EngineOptions``

    @staticmethod
    def of(network: Network, slots: NDArray[np.uint8]) -> Reference:
        outputs = raw_outputs(network, network.graph, slots)
        return Reference(network, slots, outputs, detections(network, outputs))

    def with_slots(self, slots: NDArray[np.uint8]) -> Reference:
        """Return a reference for other frames. Runs the network's own graph on them."""
        own = raw_outputs(self.network, self.network.graph, slots)
        return replace(self, slots=slots, outputs=own, detections=detections(self.network, own))

    def by_openvino(self, kind: str, float_type: str) -> Reference:
        """Return a reference that runs graphs in OpenVINO, with float layers in ``float_type``."""
        options = {"precision": "int8", "concurrency": 1, "own": {"float": float_type}}
        network = replace(self.network, precision=kind)
        return replace(self, network=network, engine=OPENVINO, options=options)

    def run(self, graph: onnx.ModelProto) -> list[Outputs]:
        return raw_outputs(self.network, graph, self.slots, self.engine, **self.options)

    def agreement(self, graph: onnx.ModelProto) -> float:
        """Return 2 x matched / (A + B), 0..1. The graph has A detections, the reference has B."""
        return agreement(self.detections, detections(self.network, self.run(graph))).share

    def error(self, graph: onnx.ModelProto) -> float:
        return sum(noise_over_signal(self.outputs, self.run(graph)))


def noise_over_signal(expected: Sequence[Outputs], actual: Sequence[Outputs]) -> list[float]:
    """Return noise / signal of each output (sums of squares); just the noise if the signal is 0."""
    shares = []
    for at in range(len(expected[0])):
        signal = sum(float(np.square(picture[at], dtype=np.float64).sum()) for picture in expected)
        noise = sum(
            float(np.square(first[at] - second[at], dtype=np.float64).sum())
            for first, second in zip(expected, actual, strict=True)
        )
        shares.append(noise / signal if signal else noise)
    return shares


def rank_units(
    units: Sequence[Unit], make_graph: MakeGraph, error: Score, progress: Progress = lambda *_: None
) -> list[Unit]:
    """Return the units, worst first, sorted by error relative to cost (see the module)."""
    all_macs = sum(unit.macs for unit in units) or 1
    harm = {}
    for done, unit in enumerate(units, 1):
        others = [other for other in units if other is not unit]
        share = max(unit.macs / all_macs, MIN_SHARE)
        harm[unit.name] = error(make_graph(others)) / share**0.5
        progress("int8: error of each unit", done, len(units))
    return sorted(units, key=lambda unit: -harm[unit.name])  # stable: ties keep the graph's order


@dataclass(slots=True)
class FloatChoice:
    """The result of a search. ``kept``: the units that stay float. ``plain``: the agreement with no
    unit float. ``reached``: the agreement with ``kept`` float. ``agreements``: (number of float
    units, agreement) of every choice measured, in order."""

    kept: list[Unit]
    plain: float
    reached: float
    agreements: list[tuple[int, float]] = field(default_factory=list)


def choose_float_units(
    ranking: Sequence[Unit],
    make_graph: MakeGraph,
    agreement: Score,
    budget: float,
    progress: Progress = lambda *_: None,
) -> FloatChoice:
    """Return the units to keep float for an agreement of ``budget``. ``ranking``: worst first."""
    choice = FloatChoice([], 0.0, 0.0)
    runs = 1 + len(ranking).bit_length() + TRIALS

    def measure(kept: Sequence[Unit]) -> float:
        share = agreement(make_graph(kept))
        choice.agreements.append((len(kept), share))
        progress("int8: agreement", len(choice.agreements), max(runs, len(choice.agreements)))
        return share

    choice.plain = choice.reached = measure([])
    if choice.plain >= budget:
        return choice
    choice.kept, choice.reached = _bisect(ranking, measure, budget)
    _return_expensive_units(choice, measure, budget)
    return choice


def _bisect(
    ranking: Sequence[Unit], measure: Callable[[Sequence[Unit]], float], budget: float
) -> tuple[list[Unit], float]:
    """Return the units that must stay float to reach the budget: as few as possible, from the
    start of the ranking. Also return the agreement that they reach."""
    low, high, best = 0, len(ranking), 1.0
    while high - low > 1:
        middle = (low + high) // 2
        share = measure(ranking[:middle])
        if share >= budget:
            high, best = middle, share
        else:
            low = middle
    return list(ranking[:high]), best


def _return_expensive_units(
    choice: FloatChoice, measure: Callable[[Sequence[Unit]], float], budget: float
) -> None:
    """Make the most expensive float units int8 again, if the agreement still reaches the budget."""
    for unit in sorted(choice.kept, key=lambda unit: -unit.macs)[:TRIALS]:
        fewer = [other for other in choice.kept if other is not unit]
        share = measure(fewer)
        if share >= budget:
            choice.kept, choice.reached = fewer, share
