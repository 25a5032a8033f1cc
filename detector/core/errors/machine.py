"""The resources that this process may use: cores, their instructions, and memory. Requests that can
never fit are refused in advance: Linux promises more memory than it has and later kills the
process, so no MemoryError would come."""

from __future__ import annotations

import os
import platform
import resource
from functools import cache
from pathlib import Path

GB = 1 << 30
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# cv2 and FFmpeg have separate code for ARM, which rounds pixels differently from x86.
ARM64 = platform.machine() in ("aarch64", "arm64")

# x86 instructions that multiply u8 by s8 and add four products in 32 bits. Without them ONNX
# Runtime and OpenVINO add pairs in 16 bits.
EXACT_INT8 = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
# Instructions that multiply bf16, on x86 and ARM. Other CPUs convert it to fp32 and back.
BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Set for a cluster worker whose share of a node is a number of cores, not particular ones.
CORES_VARIABLE = "DETECT_VIDEO_CORES"


def usable_cores() -> int:
    """Return how many cores this process may use, perhaps fewer than the computer has."""
    there = len(os.sched_getaffinity(0))
    share = os.environ.get(CORES_VARIABLE, "")
    return min(there, max(1, int(share))) if share.isdecimal() else there


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's abilities: flags on x86, features on ARM; empty except on Linux."""
    try:
        lines = (PROC / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    named = (line for line in lines if line.startswith(("flags", "Features")))
    return frozenset(flag for line in named for flag in line.partition(":")[2].split())


def adds_int8_in_16_bits() -> bool:
    """Return whether sums of u8 x s8 products can overflow on this CPU. False if unknown."""
    return "sse2" in cpu_flags() and not cpu_flags() & EXACT_INT8


@cache
def machine_bytes(proc: Path = PROC, root: Path = CGROUPS) -> int:
    """Return the memory of the computer, or of the container if less; not what is free, so that a
    run that fits today is not refused tomorrow because of another program."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = container_limit(proc, root)
    return min(there, limit) if limit else there


def resident_bytes(proc: Path = PROC) -> int | None:
    """Return the physical memory that this process holds now; None if unknown."""
    try:
        return int((proc / "self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def peak_memory_mb(proc: Path = PROC) -> float | None:
    """Return the peak resident memory of this process, 10^6 bytes; None except on Linux.
    ``ru_maxrss`` would start at the size of the parent process."""
    try:
        found = (proc / "self/status").read_text().partition("VmHWM:")[2]
        return int(found.split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return None


def too_much(needed: int) -> str | None:
    """Return a message if ``needed`` bytes exceed the memory or ``ulimit -v``; None if they fit."""
    there, whose = machine_bytes(), "this machine has"
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < there:
        there, whose = space, "ulimit -v leaves"
    if needed <= there:
        return None
    return f"{needed / GB:,.1f} GB, and {whose} {there / GB:,.1f} GB"


def container_limit(proc: Path = PROC, root: Path = CGROUPS) -> int | None:
    """Return the bytes that the process may use under cgroup v2 or v1; None without a limit."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    found: list[int] = []
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            found += _limits_up(root / "memory", path, "memory.limit_in_bytes")
        elif not controllers:
            found += _limits_up(root, path, "memory.max")
    return min(found, default=None)


def _limits_up(root: Path, path: str, name: str) -> list[int]:
    """Return the limits of the process's group and its parents; a container's may be the root."""
    place = root / path.lstrip("/")
    found = []
    for folder in {root, place, *place.parents}:
        if folder.is_relative_to(root):
            try:
                found.append(int((folder / name).read_text()))
            except (OSError, ValueError):  # no such file; "max"
                continue
    return found


class NotHereError(Exception):
    """A pass cannot run with this computer, engine or permission; the text is the reason."""
