"""Collect facts about the computer and the libraries of a run, for its session."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from detector.core import __version__
from detector.core.errors.machine import usable_cores

# Python distributions that runs use; the engines add their own.
_LIBRARIES = (
    "numpy",
    "opencv-python-headless",
    "opencv-python",
    "onnx",
    "av",
    "nvtx",
    "faster-coco-eval",
)


def environment() -> dict[str, Any]:
    """Return CPU model, flags and cores, versions, and GPU driver; unknown values are None."""
    return {
        "detect_video": __version__,
        "commit": find_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": describe_cpu(),
        "libraries": {name: text for name in _list_libraries() if (text := version_of(name))},
        "gpu_driver": gpu_driver(),
    }


@functools.cache
def find_commit() -> str | None:
    """Return the commit of the checkout that this program runs from, with ``-dirty`` if its code is
    changed. Return None outside a checkout, or without git."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    # This takes a quarter of the CPU time of ``git describe --dirty``, and no lock.
    status = "git --no-optional-locks status --porcelain=v2 --branch -- detector cfg".split()
    try:
        text = subprocess.check_output(
            status, cwd=checkout, stderr=subprocess.DEVNULL, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = text.splitlines()
    commit = lines[0].rpartition(" ")[2][:12]  # "# branch.oid 0123abcd..."
    return f"{commit}-dirty" if any(not line.startswith("#") for line in lines) else commit


def describe_cpu() -> dict[str, Any]:
    """Return the CPU's ``model``, its ``flags`` (Linux's names), and the ``cores`` we may use."""
    return {
        "model": _read_cpuinfo("model name"),
        "flags": (_read_cpuinfo("flags") or "").split(),
        "cores": usable_cores(),
    }


def gpu_driver() -> str | None:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None


def process_age_s() -> float | None:
    """Return the seconds since this process started, to 10 ms. Return None if not on Linux."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        starttime = int(fields[19])  # field 22 of stat
        return max(0.0, uptime - starttime / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def _read_cpuinfo(key: str) -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def _list_libraries() -> list[str]:
    """Return the Python packages whose versions we record. GPU builds may be called NAME-gpu."""
    from detector.core import engines

    return [*_LIBRARIES, *(name for each in engines.libraries() for name in (each, f"{each}-gpu"))]


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
