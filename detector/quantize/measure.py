"""What a graph detects on a few frames, and how far that is from another graph's: through the engine ort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector import engines
from detector.analysis.agreement import agreement
from detector.config import SelectionConfig
from detector.engines.base import EngineOptions
from detector.models.base import Network
from detector.stages.nms import nms
from detector.types import Detections

if TYPE_CHECKING:
    import onnx

ENGINE = "ort"
SELECTION = SelectionConfig()  # thresholds by default, whatever a run asks for: a calibration serves many runs

Outputs = list[NDArray[np.float32]]  # of one picture, each with a leading axis of 1


def outputs(
    network: Network, graph: onnx.ModelProto, slots: NDArray[np.uint8], engine: str = ENGINE, **options: Any
) -> list[Outputs]:
    """Raw outputs of each frame. ``slots``: u8 RGB [N, H, W, 3]; a ragged last batch is filled up by the engine.
    ``options``: more of ``EngineOptions``."""
    asked = replace(network, graph=graph, path=None)
    found = []
    with engines.open(engine, asked, EngineOptions(batch=network.batch, requests=1, **options)) as opened:
        request = opened.requests[0]
        for start in range(0, len(slots), network.batch):
            part = slots[start : start + network.batch]
            request.slot[: len(part)] = part
            rows = request.infer(len(part))
            found += [[row[at : at + 1].copy() for row in rows] for at in range(len(part))]
    return found


def detections(network: Network, raw: Sequence[Outputs], conf: float = SELECTION.conf) -> list[Detections]:
    """Of each frame, in network pixels."""
    limits = {"iou": SELECTION.iou if network.needs_nms else None, "max_det": SELECTION.max_det, "names": network.names}
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
