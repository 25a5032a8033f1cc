"""Facts about the computer and the libraries of a run, for its session."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from detector import __version__

_LIBRARIES = (
    "numpy",
    "opencv-python-headless",
    "opencv-python",
    "onnxruntime",
    "onnx",
    "openvino",
    "torch",
    "av",
    "nvtx",
    "faster-coco-eval",
)
_HASH_LIMIT_BYTES = 2 << 30  # some two seconds of reading; a larger clip gets no hash


def environment() -> dict[str, Any]:
    """CPU model, flags and cores, versions, GPU driver. None for what the system does not tell."""
    return {
        "detect_video": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {
            "model": _cpu("model name"),
            "flags": (_cpu("flags") or "").split(),
            "cores": cores(),
        },
        "libraries": {name: found for name in _LIBRARIES if (found := _version_of(name))},
        "gpu_driver": _first_line("/proc/driver/nvidia/version"),
    }


def cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def sha256_of(path: str) -> str | None:
    """Hex digest of a file; None for folders, globs and files over 2 GiB."""
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > _HASH_LIMIT_BYTES:
            return None
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None


def process_age_s() -> float | None:
    """Seconds since this process started, interpreter included; None where unknown.

    Linux only, to 10 ms.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        starttime = int(fields[19])  # field 22 of stat
        return max(0.0, uptime - starttime / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def _cpu(key: str) -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
