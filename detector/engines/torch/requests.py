"""A request on a GPU: a stream of its own, pinned memory at both ends, and an event that it waits for.

Nothing in ``infer`` waits for the device as a whole, nor for another request. Loading may: it takes place once.
"""

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

# ----------------------------------------------------------------------
# A request on the CPU: torch computes in the calling thread and in the threads of its own pool.

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


WARM_UPS = 3  # before a capture: libraries choose their kernels and allocate on the first runs


class CudaRequest(Request):
    """``slot`` is pinned, so that the upload of u8 is a copy that the device does alone; so is what is read back.

    ``tf32``: whether convolutions of float32 may round what they multiply to TF32. That is a setting of the process;
    torch allows it by default, and with it fp32 would be no fp32. It is set before each launch, where another engine
    of this process may have asked for the other.
    """

    def __init__(
        self, run: Run, network: Network, device: Any, tf32: bool, finished: Callable[[float], None]
    ) -> None:
        """``finished``: told the milliseconds on the device after each run."""
        self._stream = torch.cuda.Stream(device)
        self._pinned = pinned(network.input_shape, torch.uint8)  # [B, H, W, 3] RGB
        self.slot = self._pinned.numpy()
        self._given = torch.empty(network.input_shape, dtype=torch.uint8, device=device)
        self._results = [pinned(shape, torch.float32) for shape in network.output_shapes]
        self._outputs = [result.numpy() for result in self._results]
        self._begun = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(
            enable_timing=True, blocking=True
        )  # the waiting thread sleeps
        self._tf32, self._finished = tf32, finished
        self._run: Any = run  # None after close
        self._graph: Any = None

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._run is None:
            raise EngineError("engine torch: infer after close")
        with (
            translated("torch", "run the network"),
            torch.inference_mode(),
            torch.cuda.stream(self._stream),
        ):
            allow_tf32(self._tf32)
            self._begun.record()
            self._given.copy_(self._pinned, non_blocking=True)
            for target, result in zip(self._results, self._run(self._given), strict=True):
                target.copy_(result, non_blocking=True)
            self._ended.record()
            self._ended.synchronize()
        self.device_ms = float(self._begun.elapsed_time(self._ended))
        self._finished(self.device_ms)
        return [output[:n] for output in self._outputs]

    def capture(self) -> None:
        """Records the kernels of one run as a CUDA graph over this request's own buffers; ``infer`` then replays it:
        one launch for all of them."""
        run = self._run
        allow_tf32(self._tf32)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run(self._given)
            self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Only this thread's unsafe calls end a capture: another request may be running.
        with (
            torch.inference_mode(),
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
        ):
            results = run(self._given)

        def replay(given: Tensor) -> Any:
            graph.replay()
            return results

        self._graph, self._run = graph, replay

    def release(self) -> None:
        self._run = self._graph = None


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=True)


def allow_tf32(allowed: bool) -> None:
    if torch.backends.cudnn.allow_tf32 != allowed:
        torch.backends.cudnn.allow_tf32 = allowed
    if torch.backends.cuda.matmul.allow_tf32 != allowed:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def check_memory(run: Run, network: Network, device: Any, concurrency: int) -> None:
    """Runs one full batch on as many streams as there will be requests at once, so that what does not fit fails while
    loading. Raises EngineError that says the batch that fits."""
    if fits(run, network, device, concurrency, network.batch):
        return
    # Not inside an except clause: the exception would hold the frames, and these the memory.
    raise EngineError(
        out_of_memory(network.batch, lambda batch: fits(run, network, device, concurrency, batch))
    )


def fits(run: Run, network: Network, device: Any, concurrency: int, batch: int) -> bool:
    streams = [torch.cuda.Stream(device) for _ in range(concurrency)]
    try:
        with torch.inference_mode():
            for stream in streams:  # one after the other; what each allocated stays with its stream
                with torch.cuda.stream(stream):
                    run(
                        torch.zeros(
                            (batch, *network.input_shape[1:]), dtype=torch.uint8, device=device
                        )
                    )
                    stream.synchronize()
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def out_of_memory(batch: int, fits: Callable[[int], bool]) -> str:
    """One line for the user; tries half of the batch, half of that, and so on."""
    smaller = batch // 2
    while smaller and not fits(smaller):
        smaller //= 2
    said = f"engine torch: out of GPU memory at batch {batch}; "
    if not smaller:
        return (
            said
            + "not even batch 1 fits: free the GPU of other programs, or use a smaller --size or --device cpu"
        )
    return said + f"batch {smaller} fits: use --batch {smaller}"
