"""What every layer takes, by TensorRT's own ``IProfiler``, on an engine that runs for nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.engines.base import Engine, LayerExecution
from detector.engines.layer_timing import in_order
from detector.engines.tensorrt_parts.inspection import UNKNOWN
from detector.engines.tensorrt_parts.running import TrtRequest
from detector.errors import EngineError


def kept_times(trt: Any) -> Any:
    """An ``IProfiler`` that keeps what it is told. ``taken()`` hands that out, (layer, ms) in order, and forgets it."""

    class KeptTimes(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._told: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """Called by TensorRT's C++, which no exception may pass through: nothing here can raise."""
            self._told.append((layer_name, ms))

        def taken(self) -> list[tuple[str, float]]:
            told, self._told = self._told, []
            return told

    return KeptTimes()


class TrtLayerProfiler:
    """``engine``: of one request; it becomes the profiler's own."""

    def __init__(self, trt: Any, engine: Engine, request: TrtRequest) -> None:
        self._engine, self._request = engine, request
        self._layers = engine.execution()
        self._kept = kept_times(trt)  # outlives the context that calls it
        self._told: list[list[tuple[str, str, float]]] = []
        request.attach(self._kept)

    def run(self, slot: NDArray[np.uint8]) -> None:
        np.copyto(self._request.slot, slot)
        self._request.infer(len(slot))
        self._request.report()
        run = [(str(name), UNKNOWN, float(ms)) for name, ms in self._kept.taken()]
        if not run:
            raise EngineError("engine trt: no layer times: TensorRT's profiler was told of no layer")
        self._told.append(run)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return in_order(self._layers, self._told)

    def close(self) -> None:
        self._engine.close()
