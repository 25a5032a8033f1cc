"""Device memory through pycuda. Each thread pushes the GPU's primary context, which we retain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import DTypeLike, NDArray

from detector.core.engines.trt.memory import ending_with

LIBRARY = "pycuda"
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream


class PycudaStream:
    def __init__(self, driver: Any) -> None:
        self.own = driver.Stream(NON_BLOCKING)
        self.handle = int(self.own.handle)

    def free(self) -> None:
        self.own = None


class PycudaEvent:
    def __init__(self, driver: Any) -> None:
        self._own = driver.Event(driver.event_flags.BLOCKING_SYNC)

    def record(self, stream: PycudaStream) -> None:
        self._own.record(stream.own)

    def wait(self) -> None:
        self._own.synchronize()

    def ms_since(self, earlier: PycudaEvent) -> float:
        return float(self._own.time_since(earlier._own))

    def free(self) -> None:
        self._own = None


class PycudaBuffer:
    def __init__(self, driver: Any, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._driver = driver
        self.host: NDArray[Any] = driver.pagelocked_empty(shape, dtype)
        self.host.fill(0)
        self._device = driver.mem_alloc(self.host.nbytes)
        self.address = int(self._device)

    def upload(self, stream: PycudaStream) -> None:
        self._driver.memcpy_htod_async(self._device, self.host, stream.own)

    def download(self, stream: PycudaStream) -> None:
        self._driver.memcpy_dtoh_async(self.host, self._device, stream.own)

    def free(self) -> None:
        self._device.free()


class PycudaMemory:
    name = "pycuda"

    def __init__(self, device: int) -> None:
        from pycuda import driver  # loads libcuda, so import it only when needed

        driver.init()
        self._driver = driver
        self._context: Any = driver.Device(device).retain_primary_context()

    @contextmanager
    def active(self) -> Iterator[None]:
        self._context.push()
        with ending_with(self._driver.Context.pop):
            yield

    def buffer(self, shape: tuple[int, ...], dtype: DTypeLike) -> PycudaBuffer:
        return PycudaBuffer(self._driver, shape, dtype)

    def stream(self) -> PycudaStream:
        return PycudaStream(self._driver)

    def event(self) -> PycudaEvent:
        return PycudaEvent(self._driver)

    def close(self) -> None:
        """Release the context. It stays alive until its last page-locked array is freed."""
        self._context = None
