"""A request on the CPU: torch computes in the calling thread and in the threads of its own pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.engines.base import Request, translated
from detector.errors import EngineError
from detector.models.base import Network

Run = Callable[[Tensor], Sequence[Tensor]]
"""u8 [B, H, W, 3] -> the graph's outputs, float32."""


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
            torch.set_num_threads(self._count)
            self.ready = True


class TorchRequest(Request):
    """``slot`` is shared with a tensor; results are copied into arrays of this request's own, made once."""

    def __init__(self, run: Run, network: Network, threads: CallingThreads) -> None:
        self._threads = threads
        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._input = torch.from_numpy(self.slot)
        self._targets = [torch.from_numpy(output) for output in self._outputs]
        self._run: Any = run  # None after close

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._run is None:
            raise EngineError("engine torch: infer after close")
        with translated("torch", "run the network"), torch.inference_mode():
            self._threads.prepare()
            for target, result in zip(self._targets, self._run(self._input), strict=True):
                target.copy_(result)
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._run = None
