"""Device memory as torch tensors, using only torch's caching allocator and streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LIBRARY = "torch"


class TorchStream:
    """A CUDA stream. ``own``: torch's object; ``handle``: CUDA's handle."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.own = torch.cuda.Stream(device=device)
        self.handle = int(self.own.cuda_stream)

    def free(self) -> None:
        self.own = None


class TorchEvent:
    def __init__(self, torch: Any) -> None:
        self._own = torch.cuda.Event(enable_timing=True, blocking=True)

    def record(self, stream: TorchStream) -> None:
        self._own.record(stream.own)

    def wait(self) -> None:
        self._own.synchronize()

    def ms_since(self, earlier: TorchEvent) -> float:
        return float(earlier._own.elapsed_time(self._own))

    def free(self) -> None:
        self._own = None


class TorchBuffer:
    """A page-locked tensor of bytes (``host`` is its array view) and a tensor on the GPU."""

    def __init__(self, torch: Any, device: Any, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._torch = torch
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        self._device = torch.empty(size, dtype=torch.uint8, device=device)
        self.host: NDArray[Any] = self._pinned.numpy().view(dtype).reshape(shape)
        self.address = int(self._device.data_ptr())

    def upload(self, stream: TorchStream) -> None:
        with self._torch.cuda.stream(stream.own):
            self._device.copy_(self._pinned, non_blocking=True)

    def download(self, stream: TorchStream) -> None:
        with self._torch.cuda.stream(stream.own):
            self._pinned.copy_(self._device, non_blocking=True)

    def free(self) -> None:
        self._device = self._pinned = None


class TorchMemory:
    name = "torch"

    def __init__(self, device: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", device)

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._torch.cuda.device(self._device):
            yield

    def buffer(self, shape: tuple[int, ...], dtype: DTypeLike) -> TorchBuffer:
        return TorchBuffer(self._torch, self._device, shape, dtype)

    def stream(self) -> TorchStream:
        return TorchStream(self._torch, self._device)

    def event(self) -> TorchEvent:
        return TorchEvent(self._torch)

    def close(self) -> None:
        """Do nothing: the buffers own the tensors, and the context belongs to torch."""
