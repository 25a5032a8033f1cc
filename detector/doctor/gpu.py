"""NVIDIA's driver and GPUs, as nvidia-smi tells them; energy by NVML. Where there is none, all of it is null."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

FIELDS = ("index", "name", "driver_version", "compute_cap", "memory.total", "memory.free")
PATIENCE_S = 20.0
OK = 0


def nvidia() -> dict[str, Any]:
    """``reason``: why there is no GPU to be used."""
    module = _first_line(Path("/proc/driver/nvidia/version"))
    found, reason = _listed()
    return {"kernel_module": module, "gpus": found, "reason": reason, "energy_readable": energy_readable()}


def _listed() -> tuple[list[dict[str, str]], str | None]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "nvidia-smi is not there: no NVIDIA driver is installed (engines run on the CPU)"
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi gives no answer: {' '.join(str(error).split())}"
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        return [], f"nvidia-smi ended with status {done.returncode}: {said[:200]}"
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    found = [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]
    return found, None if found else "nvidia-smi lists no GPU"


def energy_readable() -> bool | None:
    """Whether NVML tells the energy that the first GPU has used; None without NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != OK:
        return None
    try:
        device, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != OK:
            return None
        return bool(nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)) == OK)
    finally:
        with suppress(AttributeError):
            nvml.nvmlShutdown()


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
