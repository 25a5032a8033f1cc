"""Query the NVIDIA driver through ctypes before we use TensorRT. Without a driver, ``Runtime`` of
TensorRT 10.16 and 11.4 logs an error and returns an object that segfaults at its next use."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
NAME_BYTES = 256
BUS_ID_BYTES = 32  # room for "0000:3B:00.0" and its terminator
DEVICE = re.compile(r"auto|cuda(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    capability: tuple[int, int]  # compute capability, such as (8, 9)
    memory_bytes: int


class DriverError(Exception):
    """No GPU can be used, --device names no GPU, or a driver's call failed. The text says why."""


def library() -> Any:
    return ctypes.CDLL(LIBRARY)


def absent() -> str | None:
    """Return why no NVIDIA GPU can be used here, and the fix; None if a GPU can be used."""
    try:
        cuda = library()
    except OSError:
        return (
            f"no NVIDIA driver ({LIBRARY} cannot be opened); install it, or use --engine auto if "
            "there is no NVIDIA GPU"
        )
    code = cuda.cuInit(0)
    count = ctypes.c_int(0)
    if code == 0:
        code = cuda.cuDeviceGetCount(ctypes.byref(count))
    if code == NO_DEVICE or (code == 0 and count.value == 0):
        return "the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if code != 0:
        return f"the NVIDIA driver does not start ({_error_name(cuda, code)}); check nvidia-smi"
    return None


def gpus() -> list[Gpu]:
    if absent() is not None:
        return []
    cuda = library()
    count = ctypes.c_int(0)
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    return [_gpu(cuda, index) for index in range(count.value)]


def gpu_of(device: str) -> Gpu:
    """Return the GPU "cuda:N", or the first GPU for "auto" and "cuda". Raises DriverError."""
    if reason := absent():
        raise DriverError(reason)
    listed = gpus()
    if not (match := DEVICE.fullmatch(device)):
        raise DriverError(f"--device {device} is not a GPU; give cuda or cuda:N, such as cuda:0")
    index = int(match.group(1) or 0)
    if index >= len(listed):
        known = ", ".join(f"cuda:{gpu.index} {gpu.name}" for gpu in listed)
        raise DriverError(f"there is no {device}; GPUs here: {known}")
    return listed[index]


def cuda_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports; (0, 0) without a driver."""
    try:
        cuda = library()
    except OSError:
        return 0, 0
    version = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return 0, 0
    return version.value // 1000, version.value % 1000 // 10


@contextmanager
def current(index: int) -> Iterator[None]:
    """Make a GPU's primary context (that of torch and the CUDA runtime) current in this thread."""
    cuda = library()
    context = ctypes.c_void_p()
    device = _device(cuda, index)
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call(cuda, "cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _call(cuda, "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        _call(cuda, "cuDevicePrimaryCtxRelease_v2", device)


def free_bytes(index: int) -> int:
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    with current(index):
        _call(library(), "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def pci_bus_id(device: str) -> str:
    """Return a GPU's PCI bus id, such as "0000:3B:00.0", to find it in NVML. NVML's indexes differ
    from CUDA's, since NVML also counts GPUs that CUDA_VISIBLE_DEVICES hides."""
    index = gpu_of(device).index
    cuda, bus_id = library(), ctypes.create_string_buffer(BUS_ID_BYTES)
    _call(cuda, "cuDeviceGetPCIBusId", bus_id, BUS_ID_BYTES, _device(cuda, index))
    return bus_id.value.decode()


def _gpu(cuda: Any, index: int) -> Gpu:
    device = _device(cuda, index)
    name = ctypes.create_string_buffer(NAME_BYTES)
    _call(cuda, "cuDeviceGetName", name, NAME_BYTES, device)
    numbers = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        value = ctypes.c_int(0)
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        numbers.append(value.value)
    memory = ctypes.c_size_t(0)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    return Gpu(index, name.value.decode("utf-8", "replace"), (numbers[0], numbers[1]), memory.value)


def _device(cuda: Any, index: int) -> ctypes.c_int:
    device = ctypes.c_int(0)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), index)
    return device


def _call(cuda: Any, name: str, *arguments: Any) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise DriverError(f"{name}: {_error_name(cuda, code)}")


def _error_name(cuda: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(code, ctypes.byref(text)) != 0 or not text.value:
        return f"error {code}"
    return f"{text.value.decode()}, error {code}"
