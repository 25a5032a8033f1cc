"""The resources that this process may use: cores, their instructions, and memory. We refuse
requests that can never fit into memory. Python would not raise MemoryError for them, because Linux
overcommits memory and later kills the process."""

from __future__ import annotations

import os
import platform
import resource
from functools import cache
from pathlib import Path

GB = 1 << 30
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# On ARM, cv2 and FFmpeg round pixels differently than on x86, because they run other code.
ARM64 = platform.machine() in ("aarch64", "arm64")

# x86 instructions that multiply u8 by s8 and add four products in 32 bits. Without them ONNX
# Runtime and OpenVINO add pairs of products in 16 bits, which may overflow.
EXACT_INT8 = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
# Instructions that multiply bf16, on x86 and ARM. Other CPUs convert it to fp32 and back.
BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# This environment variable limits the cores of a cluster worker that claimed no particular cores.
CORES_VARIABLE = "DETECT_VIDEO_CORES"


def usable_cores() -> int:
    """Return how many cores this process may use. The computer may have more."""
    cores = len(os.sched_getaffinity(0))
    share = os.environ.get(CORES_VARIABLE, "")
    return min(cores, max(1, int(share))) if share.isdecimal() else cores


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's flags (x86) or features (ARM), or none if this is not Linux."""
    try:
        lines = (PROC / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    listings = (line for line in lines if line.startswith(("flags", "Features")))
    return frozenset(flag for line in listings for flag in line.partition(":")[2].split())


def adds_int8_in_16_bits() -> bool:
    """Return whether sums of u8 x s8 products can overflow on this CPU. False if unknown."""
    return "sse2" in cpu_flags() and not cpu_flags() & EXACT_INT8


@cache
def machine_bytes(proc: Path = PROC, root: Path = CGROUPS) -> int:
    """Return the memory of the computer, or of the container if that is less. Memory in use
    counts too, so that other programs do not decide whether we refuse a run."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = container_limit(proc, root)
    return min(memory, limit) if limit else memory


def resident_bytes(proc: Path = PROC) -> int | None:
    """Return the resident memory of this process in bytes; None if unknown."""
    try:
        return int((proc / "self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def peak_memory_mb(proc: Path = PROC) -> float | None:
    """Return the peak resident memory of this process in 10^6 bytes, or None if not on Linux.
    (``ru_maxrss`` would not do: it starts at the size of the parent process.)"""
    try:
        peak = (proc / "self/status").read_text().partition("VmHWM:")[2]
        return int(peak.split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return None


def too_much(needed: int) -> str | None:
    """Return a text for messages if ``needed`` bytes exceed memory or ``ulimit -v``; else None."""
    available, owner = machine_bytes(), "this machine has"
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < available:
        available, owner = space, "ulimit -v leaves"
    if needed <= available:
        return None
    return f"{needed / GB:,.1f} GB, and {owner} {available / GB:,.1f} GB"


def container_limit(proc: Path = PROC, root: Path = CGROUPS) -> int | None:
    """Return the memory limit of our cgroup (v2 or v1) in bytes; None without a limit."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    limits: list[int] = []
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            limits += _read_limits(root / "memory", path, "memory.limit_in_bytes")
        elif not controllers:
            limits += _read_limits(root, path, "memory.max")
    return min(limits, default=None)


def _read_limits(root: Path, path: str, name: str) -> list[int]:
    """Return the limits of a cgroup and its parents. In a container, ``root`` may be our cgroup."""
    group = root / path.lstrip("/")
    limits = []
    for folder in {root, group, *group.parents}:
        if folder.is_relative_to(root):
            try:
                limits.append(int((folder / name).read_text()))
            except (OSError, ValueError):  # no such file; "max"
                continue
    return limits


class NotHereError(Exception):
    """Raised if computer, engine or permissions do not allow a measurement. The text says why."""
