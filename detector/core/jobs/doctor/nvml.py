"""Read a GPU's energy and memory with NVML (the package nvidia-ml-py)."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from detector.core.errors.machine import NotHereError


class GpuBytes(NamedTuple):
    """GPU memory. ``process``: the memory of this process; None in a container that has its own
    process ids."""

    process: int | None
    used: int
    total: int


class NvmlGpu:
    """A GPU, opened in NVML. Methods raise NVML's errors if the GPU does not report a value."""

    def __init__(self, device: str = "cpu") -> None:
        """``device``: "cuda:1", or any other text for the first GPU. Raises NotHereError."""
        try:
            import pynvml

            pynvml.nvmlInit()
            if device.startswith("cuda"):
                from detector.core.engines.trt.driver import pci_bus_id

                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id(device))
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:  # without package, driver or GPU; NVML has its own errors
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NotHereError(f"NVML: {reason}") from error
        self._nvml: Any = pynvml

    def joules(self) -> float:
        """Return the energy that the GPU has used since its driver was loaded."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def memory(self) -> GpuBytes:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return GpuBytes(self._read_own_bytes(), int(memory.used), int(memory.total))

    def _read_own_bytes(self) -> int | None:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except Exception:  # one of NVML's errors: the GPU or the system does not report the bytes
            return None
        own = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
        return int(own[0]) if own and own[0] is not None else None
