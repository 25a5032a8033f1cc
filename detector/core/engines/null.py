"""The engine null. It returns constants and runs no network, so that the rest can be timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detector.core.engines.base import PRECISIONS, Engine, EngineOptions, RawRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from detector.core.models.base import Network

# The logit in every output, which is a probability of 4e-44. Zeros (probability 0.5) would give
# thousands of boxes, and a run would measure NMS instead of the loop.
RAW_OUTPUT = -100.0


class NullRequest(RawRequest):
    def __init__(self, network: Network) -> None:
        import numpy as np

        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.full(shape, RAW_OUTPUT, np.float32) for shape in network.output_shapes]

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        return [output[:n] for output in self._outputs]


class NullEngine(Engine):
    name = "null"
    precisions = dict.fromkeys(PRECISIONS, "fp32")  # accepts all, since it computes nothing
    precision = "none"
    not_timed = "it computes nothing"

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.requests = [NullRequest(network) for _ in range(options.requests)]
        self.concurrency = options.concurrency or 1
