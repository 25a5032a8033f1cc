"""The part of cuda-python that handles device memory, on the fake device.

Its signatures are written by hand; a test compares the names with the real package.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
from types import ModuleType, SimpleNamespace

import numpy as np

from tests.fakes.device import Device, DeviceFaultError, Event


def module(name: str, **content) -> ModuleType:
    package = ModuleType(name)
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    package.__path__ = []
    vars(package).update(content)
    return package


class Result(int):
    """cudaError_t."""


def fake_cuda_python(  # noqa: C901
    device: Device,
) -> dict[str, ModuleType]:
    """Fake ``cuda.bindings.runtime``, whose calls return a tuple with the error first."""
    host: dict[int, ctypes.Array] = {}
    events: dict[int, Event] = {}
    ok = Result(0)

    def refusing(call):
        def wrapped(*args):
            try:
                return call(*args)
            except MemoryError:
                return Result(2), None

        wrapped.__name__ = call.__name__
        return wrapped

    class Handle(int):
        """cudaStream_t, cudaEvent_t."""

    def cudaGetErrorString(error):  # noqa: N802
        return ok, {2: b"out of memory"}.get(int(error), b"unknown error")

    def cudaGetDevice():  # noqa: N802
        return ok, fake.number

    def cudaSetDevice(device):  # noqa: N802
        fake.number = device
        return (ok,)

    def cudaHostAlloc(size, flags):  # noqa: N802
        block = (ctypes.c_uint8 * size)()
        host[ctypes.addressof(block)] = block
        return ok, ctypes.addressof(block)

    def cudaFreeHost(ptr):  # noqa: N802
        if host.pop(int(ptr), None) is None:
            raise DeviceFaultError("cudaFreeHost of what was not allocated")
        return (ok,)

    @refusing
    def cudaMalloc(size):  # noqa: N802
        return ok, device.allocate(size)

    def cudaFree(devPtr):  # noqa: N802, N803
        device.free(int(devPtr))
        return (ok,)

    def cudaStreamCreateWithFlags(flags):  # noqa: N802
        if flags != 1:
            raise DeviceFaultError("a blocking stream waits for the default stream's work")
        return ok, Handle(device.stream().handle)

    def cudaStreamDestroy(stream):  # noqa: N802
        del device.streams[int(stream)]
        return (ok,)

    def cudaEventCreateWithFlags(flags):  # noqa: N802
        number = 0x9000 + len(events)
        events[number] = Event()
        return ok, Handle(number)

    def cudaEventRecord(event, stream):  # noqa: N802
        events[int(event)].record(device.streams[int(stream)])
        return (ok,)

    def cudaEventSynchronize(event):  # noqa: N802
        events[int(event)].wait()
        return (ok,)

    def cudaEventElapsedTime(start, end):  # noqa: N802
        return ok, events[int(end)].ms_since(events[int(start)])

    def cudaEventDestroy(event):  # noqa: N802
        events[int(event)] = Event()
        return (ok,)

    def bytes_at(address: int, count: int) -> np.ndarray:
        for start, block in host.items():
            if start <= address and address + count <= start + len(block):
                return np.frombuffer(block, np.uint8)[address - start : address - start + count]
        raise DeviceFaultError(f"{address:#x} is not page-locked host memory")

    def cudaMemcpyAsync(dst, src, count, kind, stream):  # noqa: N802
        queue = device.streams[int(stream)]
        if kind == 1:
            queue.upload(int(dst), bytes_at(int(src), count))
        elif kind == 2:
            queue.download(bytes_at(int(dst), count), int(src))
        else:
            raise DeviceFaultError(f"copy of kind {kind}")
        return (ok,)

    fake = device
    calls = {name: thing for name, thing in locals().items() if name.startswith("cuda")}
    runtime = module("cuda.bindings.runtime", **calls)
    runtime.cudaStreamNonBlocking = runtime.cudaEventBlockingSync = 1
    runtime.cudaHostAllocDefault = 0
    runtime.cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    utils = module("cuda.bindings.utils", get_cuda_native_handle=int)
    bindings = module("cuda.bindings", runtime=runtime, utils=utils)
    return {
        "cuda": module("cuda", bindings=bindings),
        "cuda.bindings": bindings,
        "cuda.bindings.runtime": runtime,
        "cuda.bindings.utils": utils,  # torch's CUDA builds import it since 2.15
    }
