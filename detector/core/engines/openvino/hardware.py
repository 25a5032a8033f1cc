"""Find Intel's GPUs and NPUs in /dev and /sys. Explain why OpenVINO does not list them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DEV, SYS = Path("/dev"), Path("/sys")
INTEL = "0x8086"  # PCI vendor


class DeviceKind(NamedTuple):
    what: str
    files: str  # pattern below /dev
    sys_class: str  # folder below /sys/class
    pci: str  # prefix of the PCI class
    module: str  # kernel module
    packages: str


KINDS = {
    "gpu": DeviceKind(
        "Intel GPU",
        "dri/renderD*",
        "drm",
        "0x03",
        "i915 or xe",
        "intel-opencl-icd (Debian, Ubuntu)",
    ),
    "npu": DeviceKind(
        "Intel NPU",
        "accel/accel*",
        "accel",
        "0x1200",
        "intel_vpu",
        "intel-level-zero-npu and intel-driver-compiler-npu (Intel's linux-npu-driver)",
    ),
}


def device_files(kind: str) -> list[Path]:
    devices = SYS / "class" / KINDS[kind].sys_class
    return [
        file
        for file in sorted(DEV.glob(KINDS[kind].files))
        if _read(devices / file.name / "device" / "vendor") == INTEL
    ]


def why_missing(kind: str) -> str:
    """Return why OpenVINO lists no device of this kind, and the fix, if known."""
    entry, files = KINDS[kind], device_files(kind)
    if not files:
        if not _is_on_pci(entry):
            return f"the kernel lists no {entry.what}; if there is one, install {entry.packages}"
        return (
            f"the machine has an {entry.what}, but there is no {DEV / entry.files}; load the "
            f"kernel's driver ({entry.module}), or pass {(DEV / entry.files).parent} into the "
            "container (docker run --device)"
        )
    if not any(os.access(file, os.R_OK | os.W_OK) for file in files):
        try:
            group = files[0].group()
        except KeyError:  # the group has no name
            group = str(files[0].stat().st_gid)
        return (
            f"no permission for {files[0]}; add your account to its group (sudo usermod -aG "
            f"{group} $USER, then log in again; for a container --group-add {group})"
        )
    return (
        f"{files[0]} is there, but OpenVINO finds no driver for it; install or update "
        f"{entry.packages}"
    )


def _is_on_pci(entry: DeviceKind) -> bool:
    return any(
        _read(device / "vendor") == INTEL and _read(device / "class").startswith(entry.pci)
        for device in (SYS / "bus" / "pci" / "devices").glob("*")
    )


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
