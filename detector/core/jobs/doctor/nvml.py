"""The first GPU, as NVML (the package nvidia-ml-py) tells about it."""

from __future__ import annotations

from typing import Any

from detector.core.errors.machine import NotHereError


class Gpu:
    """A handle of NVML. Its methods raise NVML's own errors where a card does not tell."""

    def __init__(self) -> None:
        """Raises NotHereError where there is no library, no driver or no GPU."""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:  # each of them is ordinary, and NVML has errors of its own
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NotHereError(f"NVML: {reason}") from error
        self._nvml: Any = pynvml

    def joules(self) -> float:
        """The energy that the GPU has used since its driver was loaded."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def used_bytes(self) -> int:
        """The GPU's memory in use now, by all processes."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
