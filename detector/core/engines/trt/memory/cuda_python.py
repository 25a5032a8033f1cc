"""Device memory through NVIDIA's cuda-python, whose calls return (error, results...)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from detector.core.engines.trt.memory import ending_with

LIBRARY = "cuda.bindings"


class CudaError(Exception):
    """A call of the CUDA runtime failed."""


class Runtime:
    """Calls ``cuda.bindings.runtime``; raises CudaError instead of returning an error code."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self.names = runtime

    def __call__(self, name: str, *arguments: Any) -> Any:
        error, *results = getattr(self.names, name)(*arguments)
        if int(error) != 0:
            _, text = self.names.cudaGetErrorString(error)
            raise CudaError(
                f"{name}: {text.decode() if isinstance(text, bytes) else text} (error {int(error)})"
            )
        return results[0] if results else None


class Pinned:
    """Page-locked bytes, which are freed when no array uses them any more."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self._runtime = runtime
        self.address = int(runtime("cudaHostAlloc", size, runtime.names.cudaHostAllocDefault))
        ctypes.memset(self.address, 0, size)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._runtime.names.cudaFreeHost(self.address)


class CudaStream:
    def __init__(self, runtime: Runtime) -> None:
        from cuda.bindings.utils import get_cuda_native_handle

        self._runtime = runtime
        self.own = runtime("cudaStreamCreateWithFlags", runtime.names.cudaStreamNonBlocking)
        # TensorRT needs the handle itself; ``getPtr()`` returns the handle's address.
        self.handle = int(get_cuda_native_handle(self.own))

    def free(self) -> None:
        self._runtime("cudaStreamDestroy", self.own)


class CudaEvent:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._own = runtime("cudaEventCreateWithFlags", runtime.names.cudaEventBlockingSync)

    def record(self, stream: CudaStream) -> None:
        self._runtime("cudaEventRecord", self._own, stream.own)

    def wait(self) -> None:
        self._runtime("cudaEventSynchronize", self._own)

    def ms_since(self, earlier: CudaEvent) -> float:
        return float(self._runtime("cudaEventElapsedTime", earlier._own, self._own))

    def free(self) -> None:
        self._runtime("cudaEventDestroy", self._own)


class CudaBuffer:
    def __init__(self, runtime: Runtime, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._runtime = runtime
        self._size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pinned = Pinned(runtime, self._size)
        self.host: NDArray[Any] = np.asarray(pinned).view(dtype).reshape(shape)
        self._host = pinned.address
        self.address = int(runtime("cudaMalloc", self._size))

    def upload(self, stream: CudaStream) -> None:
        kind = self._runtime.names.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._runtime("cudaMemcpyAsync", self.address, self._host, self._size, kind, stream.own)

    def download(self, stream: CudaStream) -> None:
        kind = self._runtime.names.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._runtime("cudaMemcpyAsync", self._host, self.address, self._size, kind, stream.own)

    def free(self) -> None:
        self._runtime("cudaFree", self.address)


class CudaPythonMemory:
    name = "cuda-python"

    def __init__(self, device: int) -> None:
        self._runtime, self._device = Runtime(), device

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the device current in this thread. Restore the previous device at the end."""
        before = self._runtime("cudaGetDevice")
        self._runtime("cudaSetDevice", self._device)
        with ending_with(partial(self._restore, before)):
            yield

    def _restore(self, before: int) -> None:
        if before != self._device:
            self._runtime("cudaSetDevice", before)

    def buffer(self, shape: tuple[int, ...], dtype: DTypeLike) -> CudaBuffer:
        return CudaBuffer(self._runtime, shape, dtype)

    def stream(self) -> CudaStream:
        return CudaStream(self._runtime)

    def event(self) -> CudaEvent:
        return CudaEvent(self._runtime)

    def close(self) -> None:
        """Do nothing: the primary context belongs to the process."""
