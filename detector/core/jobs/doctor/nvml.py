"""A GPU, as NVML (the package nvidia-ml-py) tells about it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from detector.core.errors.machine import NotHereError


class GpuBytes(NamedTuple):
    """``process``: of this one alone, None in a container with its own process numbers."""

    process: int | None
    used: int
    total: int


class NvmlGpu:
    """A handle of NVML. Its methods raise NVML's own errors where a card does not tell."""

    def __init__(self, device: str = "cpu") -> None:
        """``device``: "cuda:1", else the first GPU. Raises NotHereError."""
        try:
            import pynvml

            pynvml.nvmlInit()
            if device.startswith("cuda"):
                from detector.core.engines.trt.driver import pci_bus_id

                place = pci_bus_id(device)
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(place)
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:  # each of them is ordinary, and NVML has errors of its own
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NotHereError(f"NVML: {reason}") from error
        self._nvml: Any = pynvml

    def joules(self) -> float:
        """Return the energy that the GPU has used since its driver was loaded."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def memory(self) -> GpuBytes:
        whole = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return GpuBytes(self._of_this_process(), int(whole.used), int(whole.total))

    def _of_this_process(self) -> int | None:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except Exception:  # NVML's own error: the card, or the system, does not tell
            return None
        mine = [one.usedGpuMemory for one in running if one.pid == os.getpid()]
        return int(mine[0]) if mine and mine[0] is not None else None
