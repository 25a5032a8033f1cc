"""Find how well an engine in some precision agrees with fp32, from a record or by measuring."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from detector.core.errors.machine import BF16, EXACT_INT8, adds_int8_in_16_bits, cpu_flags

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from detector.core.engines.base import Engine
    from detector.core.models.base import InputRules, Network
    from detector.core.run.quantize.calibrate import Calibration
    from detector.core.run.quantize.search import Outputs
    from detector.core.run.sampling import Ahead
    from detector.core.types import Detections, Picture

LIMIT_S = 3.0  # longest time that a timing may take
SHARE = 0.05  # share of a run's time that a timing may take, if the length of the run is known
MIN_S = 0.3  # a shorter timing could not even open one engine
CORE_FLOPS = 1e11  # roughly the most fp32 operations that a core does per second
MIN_OBJECTS = 10  # the frames must have this many detections above the threshold
THRESHOLDS = (0.25, 0.1, 0.05)  # thresholds for scores, tried in turn
MAX_NOISE = 0.1  # largest ratio of noise power to signal power in a raw output; rounding has less


@dataclass(frozen=True, slots=True)
class KnownLosses:
    """Agreement of int8 and bf16 with fp32, as recorded in a model's packaged calibration."""

    are_known: ClassVar[bool] = True
    by_precision: dict[str | tuple[str, str], float]

    @staticmethod
    def of(calibration: Calibration) -> KnownLosses:
        from detector.core.models.graph.int8 import FRONT
        from detector.core.run.quantize.calibrate import FLOAT_IN_BF16, NARROW

        known = {kind: result.agreement for kind, result in calibration.result.items()}
        by_precision: dict[str | tuple[str, str], float] = {"fp32": 1.0}
        if cpu_flags() & BF16:  # without it, OpenVINO runs fp32 instead
            by_precision["bf16"] = known.get("bf16", 0.0)
        if cpu_flags() & EXACT_INT8:
            by_precision["int8"] = min(known["int8-u8"], known["int8-s8"])
            by_openvino = known.get(FRONT, by_precision["int8"])
            if cpu_flags() & BF16:
                by_openvino = min(by_openvino, known.get(FLOAT_IN_BF16, by_openvino))
            by_precision["openvino", "int8"] = by_openvino
        elif adds_int8_in_16_bits() and NARROW in known:
            by_precision["int8"] = known[NARROW]
        return KnownLosses(by_precision)

    @property
    def precisions(self) -> Collection[object]:
        return self.by_precision

    def limit_s(self, frame_s: float) -> float:
        return LIMIT_S

    def agreement(self, engine: Engine, name: str, precision: str) -> float | None:
        return self.by_precision.get((name, precision), self.by_precision[precision])


@dataclass(slots=True)
class MeasuredLosses:
    """Losses that we measure on frames of the sources. If the frames show few objects, we lower the
    threshold for scores."""

    are_known: ClassVar[bool] = False
    network: Network
    ahead: Ahead
    frames: int | None
    precisions: Collection[object]
    _slots: NDArray[np.uint8] | None = None  # RGB [N, H, W, 3]
    _conf: float = 1.0
    _outputs: list[Outputs] = field(default_factory=list)
    _expected: list[Detections] = field(default_factory=list)

    @staticmethod
    def at(network: Network, ahead: Ahead, on_gpu: bool, cores: int) -> MeasuredLosses | None:
        """Prepare to measure. Return None if no file opens or the run is too short for a timing."""
        cpu = {"fp32", "bf16"} if cpu_flags() & BF16 else {"fp32"}
        precisions = {"fp32", "tf32", "fp16"} if on_gpu else cpu
        losses = MeasuredLosses(network, ahead, ahead.count_frames(), precisions)
        if losses.frames == 0:
            return None
        frame_s = 0.0 if on_gpu else 2 * network.macs / (CORE_FLOPS * cores)
        return losses if losses.limit_s(frame_s) >= MIN_S or not frame_s else None

    def limit_s(self, frame_s: float) -> float:
        """Return how long a timing may take, in seconds, if fp32 takes ``frame_s`` per frame."""
        return LIMIT_S if self.frames is None else min(LIMIT_S, SHARE * self.frames * frame_s)

    def agreement(self, engine: Engine, name: str, precision: str) -> float | None:
        """Return the agreement with fp32, None if unknown. The first call must be for fp32."""
        from detector.core.analysis.agreement import agreement
        from detector.core.run.quantize import search

        if self._slots is None:
            sample = self.ahead.sample()
            if sample is None or precision != "fp32":
                return None
            self._slots = _letterbox_all(sample.pictures, self.network.input)
            self._outputs = self._infer(engine)
            for self._conf in THRESHOLDS:
                self._expected = search.detections(self.network, self._outputs, self._conf)
                if sum(map(len, self._expected)) >= MIN_OBJECTS:
                    return 1.0
            return None
        outputs = self._infer(engine)
        noises = search.noise_over_signal(self._outputs, outputs)
        if not all(noise <= MAX_NOISE for noise in noises):  # true also if a noise is NaN
            return 0.0
        return agreement(self._expected, search.detections(self.network, outputs, self._conf)).share

    def _infer(self, engine: Engine) -> list[Outputs]:
        """Return the outputs for each picture. Run as many concurrent requests as a run does."""
        from concurrent.futures import ThreadPoolExecutor

        requests = engine.requests[: engine.concurrency]
        slots = [] if self._slots is None else list(self._slots)

        def infer(first: int) -> list[Outputs]:
            request, outputs = requests[first], []
            for slot in slots[first :: len(requests)]:
                request.slot[0] = slot
                outputs.append([output[:1].copy() for output in request.infer(1)])
            return outputs

        with ThreadPoolExecutor(len(requests)) as pool:
            each = list(pool.map(infer, range(len(requests))))
        return [each[at % len(requests)][at // len(requests)] for at in range(len(slots))]


def _letterbox_all(pictures: Sequence[Picture], rules: InputRules) -> NDArray[np.uint8]:
    from detector.core.stages.preprocess import letterbox

    slots = np.empty((len(pictures), rules.height, rules.width, 3), np.uint8)
    for picture, slot in zip(pictures, slots, strict=True):
        letterbox(
            picture,
            slot,
            geometry=rules.geometry,
            pad_value=rules.pad_value,
            of_picture=rules.of_picture,
        )
    return slots
