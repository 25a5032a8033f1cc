"""Requests of the engine torch, on the CPU (``TorchRequest``) or on a GPU (``CudaRequest``).

A GPU request has its own stream and events, and pinned memory for pictures and results. Its
``infer`` never waits for other requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.core.engines.base import RawRequest, translated
from detector.core.errors import EngineError
from detector.core.models.base import Network

Run = Callable[[Tensor], Sequence[Tensor]]
"""u8 [B, H, W, 3] -> the graph's outputs, float32."""


class CallingThreads(threading.local):
    """Sets torch's number of threads once in each thread that runs the network, since OpenMP keeps
    one number per calling thread. With another number, results differ in the last bit."""

    ready = False

    def __init__(self, count: int) -> None:
        self._count = count

    def prepare(self) -> None:
        if not self.ready:
            torch.set_num_threads(self._count)
            self.ready = True


class TorchRequest(RawRequest):
    """A request on the CPU. The input tensor uses the memory of ``slot``; results are copied."""

    def __init__(self, run: Run, network: Network, threads: CallingThreads) -> None:
        self._threads = threads
        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._input = torch.from_numpy(self.slot)
        self._targets = [torch.from_numpy(output) for output in self._outputs]
        self._run: Any = run  # None after close

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._run is None:
            raise EngineError("engine torch: infer() called after close()")
        with translated("torch", "run the network"), torch.inference_mode():
            self._threads.prepare()
            for target, result in zip(self._targets, self._run(self._input), strict=True):
                target.copy_(result)
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._run = None


WARM_UPS = 3  # runs before a capture; libraries choose kernels and allocate memory in these runs


class CudaRequest(RawRequest):
    """A GPU request with pinned memory. ``tf32`` and ``benchmark``: see ``arithmetic``."""

    def __init__(
        self, run: Run, network: Network, device: Any, tf32: bool, benchmark: bool = False
    ) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pinned = allocate_pinned(network.input_shape, torch.uint8)  # [B, H, W, 3] RGB
        self.slot = self._pinned.numpy()
        self._input = torch.empty(network.input_shape, dtype=torch.uint8, device=device)
        self._results = [allocate_pinned(shape, torch.float32) for shape in network.output_shapes]
        self._outputs = [result.numpy() for result in self._results]
        self._start_event = torch.cuda.Event(enable_timing=True)
        # ``blocking`` lets a waiting thread sleep instead of spin.
        self._end_event = torch.cuda.Event(enable_timing=True, blocking=True)
        self._arithmetic = tf32, benchmark
        self._run: Any = run  # None after close
        self._graph: Any = None

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._run is None:
            raise EngineError("engine torch: infer() called after close()")
        with (
            translated("torch", "run the network"),
            raise_gpu_error(self._stream),
            torch.inference_mode(),
            torch.cuda.stream(self._stream),
        ):
            self._start_event.record()
            self._input.copy_(self._pinned, non_blocking=True)
            with arithmetic(*self._arithmetic):
                results = self._run(self._input)
            for target, result in zip(self._results, results, strict=True):
                target.copy_(result, non_blocking=True)
            self._end_event.record()
            self._end_event.synchronize()
        self.device_ms = float(self._start_event.elapsed_time(self._end_event))
        return [output[:n] for output in self._outputs]

    def capture(self) -> None:
        """Record one run over this request's buffers as a CUDA graph for ``infer`` to replay."""
        run = self._run
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run(self._input)
            self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # With "thread_local", calls of other threads cannot break the capture.
        with (
            torch.inference_mode(),
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
        ):
            results = run(self._input)

        def replay(given: Tensor) -> Any:
            graph.replay()
            return results

        self._graph, self._run = graph, replay

    def release(self) -> None:
        self._run = self._graph = None


@contextmanager
def raise_gpu_error(stream: Any) -> Iterator[None]:
    """Raise the GPU's first error. Later ones mislead (CUDNN_STATUS_INTERNAL_ERROR on an H100)."""
    try:
        yield
    except RuntimeError as error:
        try:
            stream.query()
        except RuntimeError as first:
            raise RuntimeError(str(first).partition("\n")[0]) from error
        raise


def capture_graphs(
    requests: Sequence[CudaRequest], run: Run, network: Network, device: Any
) -> str | None:
    """Capture a CUDA graph for each request. Return why that failed, or None."""
    if not fits(run, network, device, len(requests), network.batch):
        return f"the graphs of {len(requests)} requests take more memory than the GPU has left"
    try:
        for request in requests:
            request.capture()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=True)


_changed = threading.Condition()
# One entry for each active block of ``arithmetic``; all entries are equal.
_users: list[tuple[bool, bool]] = []


@contextmanager
def arithmetic(tf32: bool, benchmark: bool) -> Iterator[None]:
    """During the block, set how a GPU's libraries compute in the whole process. Threads that need
    other settings wait. ``benchmark``: cuDNN tries its algorithms once per shape."""
    requested = tf32, benchmark
    with _changed:
        _changed.wait_for(lambda: not _users or _users[0] == requested)
        _users.append(requested)
        allow_tf32(tf32)
        if torch.backends.cudnn.benchmark != benchmark:
            torch.backends.cudnn.benchmark = benchmark
    try:
        yield
    finally:
        with _changed:
            _users.pop()
            _changed.notify_all()


def allow_tf32(allowed: bool) -> None:
    if torch.backends.cudnn.allow_tf32 != allowed:
        torch.backends.cudnn.allow_tf32 = allowed
    if torch.backends.cuda.matmul.allow_tf32 != allowed:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def check_memory(run: Run, network: Network, device: Any, concurrency: int) -> None:
    """Run one full batch on each of ``concurrency`` streams. If GPU memory is too small, raises
    EngineError, which names a batch that fits."""
    if fits(run, network, device, concurrency, network.batch):
        return
    # Do this outside an ``except``: the exception's traceback would keep GPU memory alive.
    raise EngineError(
        out_of_memory(network.batch, lambda batch: fits(run, network, device, concurrency, batch))
    )


def fits(run: Run, network: Network, device: Any, concurrency: int, batch: int) -> bool:
    """Return whether ``concurrency`` simultaneous runs of ``batch`` pictures fit in memory."""
    shape = (batch, *network.input_shape[1:])
    streams = [torch.cuda.Stream(device) for _ in range(concurrency)]
    held: list[Any] = []  # keeps memory allocated: inputs, results, and peaks
    try:
        for stream in streams:
            with torch.cuda.stream(stream):
                before = begin_peak(device)
                # Create the tensor outside inference mode, as requests do, or torch would compile
                # the module for a second kind of tensor.
                pictures = torch.zeros(shape, dtype=torch.uint8, device=device)
                with torch.inference_mode():
                    held += [pictures, run(pictures)]
                held.append(hold_peak(device, before))
        for stream in streams:
            stream.synchronize()
    except torch.OutOfMemoryError:
        return False
    finally:
        held.clear()
        torch.cuda.empty_cache()
        begin_peak(device)  # exclude this trial from the run's figures
    return True


def begin_peak(device: Any) -> int:
    """Reset torch's record of the peak memory on a GPU. Return the bytes allocated now."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def hold_peak(device: Any, before: int) -> Tensor | None:
    """Allocate a tensor as large as the memory freed since the peak, so that the peaks of all
    streams add up. ``before``: the bytes from ``begin_peak``."""
    if device.type != "cuda":
        return None
    peak, now = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    return torch.empty(max(0, int(peak - max(before, now))), dtype=torch.uint8, device=device)


def out_of_memory(batch: int, fits: Callable[[int], bool]) -> str:
    """Return the message for the user, with the largest of batch / 2, batch / 4... that fits."""
    smaller = batch // 2
    while smaller and not fits(smaller):
        smaller //= 2
    prefix = f"engine torch: out of GPU memory at batch {batch}; "
    if not smaller:
        return (
            f"{prefix}not even batch 1 fits; close other programs on the GPU, use a smaller "
            "--size, or --device cpu"
        )
    return prefix + f"batch {smaller} fits: use --batch {smaller}"
