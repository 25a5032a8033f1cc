"""Fakes of pycuda, cuda-python and torch.cuda: the parts for device memory, on the fake device.

The signatures are written by hand. For cuda-python and torch, a test compares the names with the
real packages. pycuda cannot be imported without a driver, so its fake follows the documentation of
pycuda, and is checked by real runs on a GPU.
"""

import ctypes
import importlib.machinery
import threading
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np

from tests.fakes.device import Device, DeviceFaultError, Event, Stream


def module(name: str, **content) -> ModuleType:
    package = ModuleType(name)
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    package.__path__ = []
    vars(package).update(content)
    return package


class PycudaError(Exception):
    pass


def fake_pycuda(  # noqa: C901
    device: Device,
) -> dict[str, ModuleType]:
    """Fake ``pycuda`` and ``pycuda.driver``, which require init() and a context that is current in
    this thread."""
    state = SimpleNamespace(ready=False, pinned=[])

    def require() -> None:
        if not state.ready:
            raise PycudaError("cuInit has not been called")
        device.require_current()

    class Context:
        def __init__(self, number: int) -> None:
            self.number = number

        def push(self) -> None:
            device.push(self.number)

        pop = staticmethod(device.pop)

    class CudaDevice:
        def __init__(self, number: int) -> None:
            if not state.ready:
                raise PycudaError("cuInit has not been called")
            self.number = number

        def retain_primary_context(self) -> Context:
            return Context(self.number)

    class DeviceAllocation:
        def __init__(self, size: int) -> None:
            self._address = device.allocate(size)

        def __int__(self) -> int:
            return self._address

        def free(self) -> None:
            require()
            device.free(self._address)

    class PycudaStream:
        def __init__(self, flags: int = 0) -> None:
            require()
            if flags != 1:
                raise DeviceFaultError("a blocking stream waits for the default stream's work")
            self.own = device.stream()
            self.handle = self.own.handle

    class PycudaEvent(Event):
        def __init__(self, flags: int = 0) -> None:
            require()
            super().__init__()

        def record(self, stream: PycudaStream | None = None) -> None:
            require()
            super().record(_own(stream))

        def synchronize(self) -> None:
            require()
            self.wait()

        time_since = Event.ms_since

    def _own(stream: PycudaStream | None) -> Stream:
        if stream is None:
            raise DeviceFaultError("the default stream")
        return stream.own

    def pagelocked_empty(shape, dtype, order="C", mem_flags=0) -> np.ndarray:
        require()
        array = np.empty(shape, dtype, order)
        state.pinned.append(array)
        return array

    def pinned(array: np.ndarray) -> np.ndarray:
        if not any(array is known for known in state.pinned):
            raise PycudaError("not page-locked: the copy would not be asynchronous")
        return array

    def mem_alloc(size: int) -> DeviceAllocation:
        require()
        try:
            return DeviceAllocation(size)
        except MemoryError:
            raise PycudaError("cuMemAlloc failed: out of memory") from None

    def memcpy_htod_async(dest, src, stream=None) -> None:
        require()
        _own(stream).upload(int(dest), pinned(src))

    def memcpy_dtoh_async(dest, src, stream=None) -> None:
        require()
        _own(stream).download(pinned(dest), int(src))

    def init(flags: int = 0) -> None:
        state.ready = True

    driver = module(
        "pycuda.driver",
        init=init,
        Device=CudaDevice,
        Context=Context,
        Stream=PycudaStream,
        Event=PycudaEvent,
        DeviceAllocation=DeviceAllocation,
        event_flags=SimpleNamespace(DEFAULT=0, BLOCKING_SYNC=1),
        pagelocked_empty=pagelocked_empty,
        mem_alloc=mem_alloc,
        memcpy_htod_async=memcpy_htod_async,
        memcpy_dtoh_async=memcpy_dtoh_async,
    )
    return {"pycuda": module("pycuda", driver=driver), "pycuda.driver": driver}


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
        "cuda.bindings.utils": utils,  # CUDA builds of torch since 2.15 import this
    }


def fake_torch(  # noqa: C901
    device: Device,
) -> dict[str, ModuleType]:
    """Fake the parts of torch that our code uses. Copies use this thread's current stream."""
    current = threading.local()

    class Tensor:
        def __init__(self, array=None, address=None, size=0, is_pinned=False) -> None:
            self.array, self.address, self.size, self.is_pinned = array, address, size, is_pinned

        def __del__(self) -> None:
            if self.address is not None:
                device.free(self.address)

        def numpy(self):
            if self.array is None:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return self.array

        def data_ptr(self) -> int:
            return self.address if self.array is None else self.array.ctypes.data

        def copy_(self, other, non_blocking=False):
            stream = getattr(current, "stream", None)
            if stream is None or not non_blocking:
                raise DeviceFaultError("a copy on the default stream, or one that waits")
            if self.array is None:
                stream.own.upload(self.address, _pinned(other))
            else:
                stream.own.download(_pinned(self), other.address)
            return self

    def _pinned(tensor: Tensor) -> np.ndarray:
        if not tensor.is_pinned:
            raise DeviceFaultError("not page-locked: the copy would not be asynchronous")
        return tensor.array

    class TorchStream:
        def __init__(self, device=None, priority=0) -> None:
            with device_context(device):
                self.own = fake.stream()
            self.cuda_stream = self.own.handle

    class TorchEvent(Event):
        def __init__(self, enable_timing=False, blocking=False, interprocess=False) -> None:
            super().__init__()
            self.enable_timing = enable_timing

        def record(self, stream=None) -> None:
            if stream is None:
                raise DeviceFaultError("an event on the default stream")
            super().record(stream.own)

        def synchronize(self) -> None:
            self.wait()

        def elapsed_time(self, end_event) -> float:
            if not (self.enable_timing and end_event.enable_timing):
                raise RuntimeError("both events must be created with enable_timing=True")
            return end_event.ms_since(self)

    @contextmanager
    def stream(stream):
        before = getattr(current, "stream", None)
        current.stream = stream
        yield
        current.stream = before

    @contextmanager
    def device_context(device):
        before, fake.number = fake.number, device[1]
        try:
            yield
        finally:
            fake.number = before

    def zeros(size, dtype=None, device=None, pin_memory=False):
        return Tensor(np.zeros(size, np.uint8), is_pinned=pin_memory)

    def empty(size, dtype=None, device=None, pin_memory=False):
        if device is None:
            raise DeviceFaultError("a device tensor without a device")
        try:
            with device_context(device):
                return Tensor(address=fake.allocate(size), size=size)
        except MemoryError:
            raise RuntimeError("CUDA out of memory. Tried to allocate") from None

    fake = device
    cuda = module(
        "torch.cuda",
        Stream=TorchStream,
        Event=TorchEvent,
        stream=stream,
        device=device_context,
        is_available=lambda: True,
    )
    torch = module(
        "torch",
        cuda=cuda,
        Tensor=Tensor,
        uint8="uint8",
        zeros=zeros,
        empty=empty,
        device=lambda kind, index: (kind, index),
    )
    return {"torch": torch, "torch.cuda": cuda}


PACKAGES = {"pycuda": fake_pycuda, "cuda-python": fake_cuda_python, "torch": fake_torch}
