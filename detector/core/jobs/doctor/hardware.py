"""Describe the CPU, the GPUs and the counters of this machine, and what they mean for a run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from detector.core.errors.machine import usable_cores
from detector.core.run.environment import describe_cpu, gpu_driver

RAPL = Path("/sys/class/powercap")


def readable_counters(rapl: Path = RAPL) -> dict[str, Any]:
    """Return which counters of the kernel are readable: those of energy (``rapl``, by zone) and of
    waits for a core (``schedstat``). ``perf_event_paranoid``: above 2, only root can use perf."""
    return {
        "rapl": {
            zone.name: _is_readable(zone / "energy_uj") for zone in sorted(rapl.glob("*rapl*:*"))
        },
        "schedstat": _is_readable(Path("/proc/self/schedstat")),
        "perf_event_paranoid": _read_number(Path("/proc/sys/kernel/perf_event_paranoid")),
    }


def nvtx_tool() -> dict[str, Any]:
    """Return whether a profiler gets our NVTX ranges. ``tool``: $NVTX_INJECTION64_PATH."""
    from detector.core.timeline.nvtx_ranges import TOOL, ThreadRange, attach

    tool = os.environ.get(TOOL)
    domain, lost = attach()
    if domain is not None:
        probe = ThreadRange(domain, "doctor", "work")
        probe.push(probe.attributes)
        probe.pop()
        return {
            "tool": tool,
            "attached": True,
            "reason": "a profiler is attached; sent it a range called doctor",
        }
    return {
        "tool": tool,
        "attached": False,
        "reason": lost or "no profiler is attached (nsys profile -t nvtx attaches one)",
    }


def _is_readable(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


FIELDS = ("index", "name", "driver_version", "compute_cap", "memory.total", "memory.free")
TIMEOUT_S = 20.0


def nvidia() -> dict[str, Any]:
    """Return facts about driver and GPUs. ``reason``: why no GPU is usable, or None."""
    gpus, reason = _list_gpus()
    return {
        "kernel_module": gpu_driver(),
        "gpus": gpus,
        "reason": reason,
        "energy_readable": energy_readable(),
    }


def _list_gpus() -> tuple[list[dict[str, str]], str | None]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return (
            [],
            "nvidia-smi not found: no NVIDIA driver is installed, so engines run on the CPU",
        )
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not respond: {' '.join(str(error).split())}"
    if done.returncode:
        output = " ".join((done.stdout + done.stderr).split())
        return [], f"nvidia-smi ended with status {done.returncode}: {output[:200]}"
    rows = [
        [cell.strip() for cell in line.split(",")]
        for line in done.stdout.splitlines()
        if line.strip()
    ]
    gpus = [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]
    return gpus, None if gpus else "nvidia-smi lists no GPU"


def energy_readable() -> bool | None:
    """Return whether NVML reports the energy use of the first GPU; None if NVML is missing."""
    from detector.core.errors.machine import NotHereError
    from detector.core.jobs.doctor.nvml import NvmlGpu

    try:
        gpu = NvmlGpu()
    except NotHereError:
        return None
    try:
        gpu.joules()
    except Exception:  # an error of NVML's own: the GPU does not report its energy
        return False
    return True


# Feature -> (its flags on x86 and ARM, what it does for a network)
FEATURES = {
    "AVX2": (("avx2",), "fp32 eight at a time"),
    "AVX-512": (("avx512f",), "fp32 sixteen at a time"),
    "VNNI": (("avx512_vnni", "avx_vnni", "asimddp"), "int8: four multiply-adds in one instruction"),
    "BF16": (("avx512_bf16", "bf16"), "bf16: twice the throughput of fp32"),
    "FP16": (("avx512_fp16", "asimdhp"), "fp16 arithmetic"),
    "AMX-BF16": (("amx_bf16",), "bf16 tiles: several times the throughput of vectors"),
    "AMX-INT8": (("amx_int8",), "int8 tiles: several times the throughput of vectors"),
    "AMX-FP16": (("amx_fp16",), "fp16 tiles"),
}
THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "OMP_DYNAMIC",
    "GOMP_SPINCOUNT",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "TBB_NUM_THREADS",
    "ORT_NUM_THREADS",
    "OPENCV_FFMPEG_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
)


def cpu() -> dict[str, Any]:
    processor = describe_cpu()
    flags = set(processor["flags"])
    features = {name: bool(flags & set(marks)) for name, (marks, _) in FEATURES.items()}
    usable, quota, warnings = usable_cores(), cgroup_quota(), []
    if quota is not None and quota < usable:
        warnings.append(
            f"the container has a CPU quota of {quota:g} of its {usable} cores and is throttled "
            f"beyond that; use --threads {max(1, int(quota))}"
        )
    return {
        "model": processor["model"],
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "quota_cores": quota,
        "memory_bytes": memory_bytes(),
        "features": features,
        "meaning": {name: FEATURES[name][1] for name, present in features.items() if present},
        "precision": precision_advice(features),
        "warnings": warnings,
    }


def precision_advice(features: dict[str, bool]) -> dict[str, str]:
    """Return for each precision how well this CPU supports it."""
    if features["AMX-INT8"]:
        int8 = "fast: AMX"
    elif features["VNNI"]:
        int8 = "fast: VNNI"
    else:
        int8 = "no VNNI: less gain, and 7-bit weights"
    if features["AMX-BF16"]:
        bf16 = "fast: AMX"
    elif features["BF16"]:
        bf16 = "fast: bf16 instructions"
    else:
        bf16 = "no bf16 instructions: has no effect, or is slower"
    fp16 = (
        "has fp16 instructions"
        if features["FP16"] or features["AMX-FP16"]
        else "no fp16 instructions: use a GPU"
    )
    return {"fp32": "always", "tf32": "GPU only", "bf16": bf16, "fp16": fp16, "int8": int8}


def threads() -> dict[str, Any]:
    """Return the environment variables that control thread pools, and warnings about them."""
    given = {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ}
    warnings = []
    if given.get("OMP_WAIT_POLICY", "").lower() == "active":
        warnings.append(
            "OMP_WAIT_POLICY=active: idle torch threads keep cores busy; unset it, or set it "
            "to passive"
        )
    number = given.get("OMP_NUM_THREADS", "").split(",")[0]
    if number.isdecimal() and int(number) > usable_cores():
        warnings.append(
            f"OMP_NUM_THREADS={number} is more than the {usable_cores()} cores that this process "
            "may use, so threads will wait for each other; lower it or unset it"
        )
    return {"settings": given, "warnings": warnings}


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the container's CPU limit in cores, from cgroup v2 or else v1; None if unlimited."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None


def memory_bytes() -> dict[str, int | None]:
    memory: dict[str, int | None] = {"total": None, "available": None}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                key = "total" if name == "MemTotal" else "available"
                memory[key] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return memory
