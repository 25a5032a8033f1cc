"""One interface to device memory through any installed CUDA package. All packages use the GPU's
primary context, as torch and the CUDA runtime do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from detector.core.errors import EngineError, UsageError


class Stream(Protocol):
    """A non-default stream. Its work is done in order, independently of other streams."""

    handle: int

    def free(self) -> None: ...


class DeviceEvent(Protocol):
    def record(self, stream: Any) -> None:
        """Record the event after all work that is queued in the stream."""

    def wait(self) -> None:
        """Sleep until the stream has reached the event."""

    def ms_since(self, earlier: Any) -> float:
        """Return milliseconds on the device since an ``earlier`` event; both must have happened."""

    def free(self) -> None: ...


class Buffer(Protocol):
    """An array in page-locked memory, and its copy on the device. ``free`` keeps ``host`` valid."""

    host: NDArray[Any]
    address: int  # on the device

    def upload(self, stream: Any) -> None:
        """Queue a copy to the device. The host array must not change until the copy has ended."""

    def download(self, stream: Any) -> None:
        """Queue a copy to the host. Wait for a later event before reading the host array."""

    def free(self) -> None: ...


class DeviceMemory(Protocol):
    """A GPU's memory, used through a package. Each thread that uses it must enter ``active()``."""

    name: str

    def active(self) -> AbstractContextManager[None]: ...

    def buffer(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer: ...

    def stream(self) -> Stream: ...

    def event(self) -> DeviceEvent: ...

    def close(self) -> None: ...


@contextmanager
def ending_with(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo`` at the end of the block. An error of the block hides an error of ``undo``."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            undo()
        raise
    undo()


PROVIDERS = {"pycuda": "pycuda", "torch": "torch", "cuda-python": "cuda_python"}
INSTALL = {
    "pycuda": "pip install 'detect-video[pycuda]'",
    "torch": "pip install torch (a CUDA build)",
    "cuda-python": "pip install 'detect-video[cuda]'",
}


def choose_provider(asked: str) -> str:
    """Choose the package. ``auto`` takes the first usable one of: torch if it is imported already,
    pycuda, cuda-python, torch. Raises UsageError and EngineError."""
    if asked != "auto":
        if asked not in PROVIDERS:
            raise UsageError(f"--device-memory {asked}: give auto, {', '.join(PROVIDERS)}")
        if reason := why_unusable(asked):
            raise EngineError(
                f"--device-memory {asked}: {reason}; install it with: {INSTALL[asked]}"
            )
        return asked
    if "torch" in sys.modules and why_unusable("torch") is None:
        return "torch"
    for name in ("pycuda", "cuda-python", "torch"):
        if why_unusable(name) is None:
            return name
    cures = " or ".join(INSTALL[name] for name in ("cuda-python", "pycuda", "torch"))
    raise EngineError(f"engine trt: no library to allocate GPU memory; install one: {cures}")


def open_memory(name: str, device: int) -> DeviceMemory:
    """Open a GPU's memory by the package ``name``. Raises the package's own errors."""
    file = PROVIDERS[name]
    module = importlib.import_module(f"{__package__}.{file}")
    make: Callable[[int], DeviceMemory] = getattr(module, f"{file.title().replace('_', '')}Memory")
    return make(device)


def why_unusable(name: str) -> str | None:
    if not _installed(name):
        return "not installed"
    return "this torch has no CUDA" if name == "torch" and not _torch_has_cuda() else None


def _installed(name: str) -> bool:
    library = importlib.import_module(f"{__package__}.{PROVIDERS[name]}").LIBRARY
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # find_spec imports ``cuda`` to look for ``cuda.bindings``
        return False


def _torch_has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())
