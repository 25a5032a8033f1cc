"""Time every layer. A call that reads the clock is inserted into the graph after each module.

A layer's time lasts from the end of the layer before it to its own end. Reading the clock costs
some 100 ns, hooks several microseconds (docs/decisions.md). On a GPU we wait for each layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from detector.core.engines._layer_times import match_layers
from detector.core.engines.base import Engine, LayerExecution


class TorchLayerProfiler:
    def __init__(self, engine: Engine, module: Any) -> None:
        self._engine = engine
        self._layers = engine.execution()
        self._stamps: list[int] = []
        self._timed = insert_clock(module, self._stamps, engine.device != "cpu")
        self._runs: list[list[tuple[str, str, float]]] = []

    def run(self, slot: NDArray[np.uint8]) -> None:
        self._stamps.clear()
        request = self._engine.requests[0]
        np.copyto(request.slot, slot)
        request.infer(len(slot))
        durations = np.diff(self._stamps) / 1e6
        self._runs.append(
            [
                (name, kind, ms)
                for (name, kind), ms in zip(self._timed, durations.tolist(), strict=True)
            ]
        )

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return match_layers(self._layers, self._runs)

    def close(self) -> None:
        self._engine.close()


def insert_clock(module: Any, stamps: list[int], on_gpu: bool) -> list[tuple[str, str]]:
    """Insert calls that append the time (ns) to ``stamps``: one before the first node, one after
    each. Return each node's (name, type). A node without a module has the type ``Function``."""
    graph = module.graph
    work = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    read_clock = _clock_reader(stamps, on_gpu)
    with graph.inserting_before(work[0]):
        graph.call_function(read_clock)
    for node in work:
        with graph.inserting_after(node):
            graph.call_function(read_clock)
    module.recompile()
    return [_describe(module, node) for node in work]


def _describe(module: Any, node: Any) -> tuple[str, str]:
    if node.op != "call_module":
        return str(node.name), "Function"
    return str(node.target), type(module.get_submodule(node.target)).__name__


def _clock_reader(stamps: list[int], on_gpu: bool) -> Callable[[], None]:
    append, now = stamps.append, time.perf_counter_ns

    def read_clock() -> None:
        append(now())

    def read_clock_when_done() -> None:
        torch.cuda.synchronize()
        append(now())

    return read_clock_when_done if on_gpu else read_clock
