# mypy: allow-subclassing-any
"""Runs that time every layer, by hooks before and after each module that the graph calls.

The graph has no containers, so these are leaves. On a GPU each call is waited for: a layer's time holds its launch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from detector.engines.base import LayerExecution
from detector.engines.layer_timing import in_order

if TYPE_CHECKING:
    from detector.engines.torch_ import TorchEngine


class TorchLayerProfiler:
    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._layers = engine.execution()
        self._on_gpu = engine.device != "cpu"
        self._told: list[list[tuple[str, str, float]]] = []
        self._open_ns = 0
        targets = {str(node.target) for node in engine.module.graph.nodes if node.op == "call_module"}
        for target in targets:
            part = engine.module.get_submodule(target)
            part.register_forward_pre_hook(self._before)
            part.register_forward_hook(self._behind(target, type(part).__name__))

    def run(self, slot: NDArray[np.uint8]) -> None:
        self._told.append([])
        request = self._engine.requests[0]
        np.copyto(request.slot, slot)
        request.infer(len(slot))

    def _before(self, part: Any, given: Any) -> None:
        self._open_ns = self._now()

    def _behind(self, name: str, kind: str) -> Any:
        def note(part: Any, given: Any, result: Any) -> None:
            self._told[-1].append((name, kind, (self._now() - self._open_ns) / 1e6))

        return note

    def _now(self) -> int:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter_ns()

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return in_order(self._layers, self._told)

    def close(self) -> None:
        self._engine.close()
