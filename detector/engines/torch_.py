"""PyTorch on the CPU: the graph as a ``torch.fx.GraphModule`` of ordinary modules, by the layers' own names."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.engines.base import Engine, EngineOptions, LayerExecution, Request, cpu_threads, translated
from detector.errors import EngineError
from detector.models.base import Network

LIBRARY = "torch"
INSTALL = "pip install 'detect-video[torch]'"
AUTO = 10
WHY = "torch is installed"
PRECISIONS = {"fp32": "fp32"}
DEVICES = ("cpu",)
OPTIONS: dict[str, str] = {}


class CallingThreads(threading.local):
    """Sets torch's number of threads once in each thread that runs the network.

    OpenMP keeps that number per calling thread: what was set where the engine was opened does not hold in a worker,
    whose sums are then split otherwise and differ in the last bit from those of the plain loop.
    """

    ready = False

    def __init__(self, count: int) -> None:
        self._count = count

    def prepare(self) -> None:
        if not self.ready:
            import torch

            torch.set_num_threads(self._count)
            self.ready = True


class TorchRequest(Request):
    """``slot`` is shared with a tensor; results are copied into arrays of this request's own, made once."""

    def __init__(self, module: Any, network: Network, threads: CallingThreads) -> None:
        import torch

        self._threads = threads
        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._input = torch.from_numpy(self.slot)
        self._targets = [torch.from_numpy(output) for output in self._outputs]
        self._module = module

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        import torch

        if self._module is None:
            raise EngineError("engine torch: infer after close")
        with translated("torch", "run the network"), torch.inference_mode():
            self._threads.prepare()
            for target, result in zip(self._targets, self._module(self._input), strict=True):
                target.copy_(result)
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._module = None


class TorchEngine(Engine):
    """``module`` is the GraphModule, for torch's own tools."""

    name = "torch"

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.concurrency = options.concurrency or 1
        self.threads = cpu_threads(options)
        with translated("torch", "load the graph"):
            from detector.engines.torch_graph import graph_module

            threads = CallingThreads(self.threads)
            self.module: Any = graph_module(network.graph)  # None after close
            self._check_contract(network)
            self.requests: list[TorchRequest] = [
                TorchRequest(self.module, network, threads) for _ in range(options.requests)
            ]

    def _check_contract(self, network: Network) -> None:
        from detector.engines.torch_graph import signature

        found = signature(network.graph)
        wanted = ([("uint8", network.input_shape)], [("float32", tuple(shape)) for shape in network.output_shapes])
        if found != wanted:
            raise EngineError(f"engine torch: the graph of {network.name} takes and gives {found}; wanted {wanted}")

    def execution(self) -> list[LayerExecution]:
        calls = [node.target for node in self.module.graph.nodes if node.op == "call_module"] if self.module else []
        return [LayerExecution(name, type(self.module.get_submodule(name)).__name__, "fp32") for name in calls]

    def close(self) -> None:
        self.module = None
        for request in self.requests:
            request.release()


def create(network: Network, options: EngineOptions) -> Engine:
    return TorchEngine(network, options)
