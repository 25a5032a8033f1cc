"""What a machine with a GPU and no network needs besides the checkout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

WHEELS = Path(__file__).resolve().parents[2] / "wheels"
EXTRAS = ("torch", "profile", "trt")
STEPS_OF = {  # packages that only some steps need; the others are detect-video's own
    "torch": "nearly all steps; a CUDA build, gigabytes: the machine should have it",
    "nvtx": "nsys, ncu",
    "nvidia-ml-py": "session",
    "psutil": "session",
    "cuda-python": "gil, memory, tensorrt: carry cuda-bindings and cuda-pathfinder, its parts",
    "tensorrt": "tensorrt: the wheel of its libraries is over 1 GB and not on PyPI",
    "tensorrt-rtx-cu13-bindings": "rtx: with a GeForce or RTX card (not Hopper)",
    "tensorrt-rtx-cu13-libs": "rtx: 95 MB",
}


def needed() -> list[str]:
    """Names of packages, as setup.py asks for them."""
    try:
        asked = requires("detect-video") or []
    except PackageNotFoundError:
        return sorted(STEPS_OF)
    wanted = []
    for line in asked:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra is None or extra.group(1) in EXTRAS:
            wanted.append(re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0])
    return sorted({*wanted, *STEPS_OF})


def what_to_carry() -> Iterator[str]:
    """Lines for the user: what lies in wheels/ already, and how to get the rest."""
    found = {re.split(r"-\d", file.name)[0].lower().replace("_", "-"): file for file in _wheels()}
    total = sum(file.stat().st_size for file in found.values())
    yield "in addition to the tracked files (including videos/ and engines/):"
    yield f"  wheels/  {len(found)} wheels, {total / 1e6:.1f} MB"
    yield "packages, and the steps that need them; skip what the machine has:"
    missing = []
    for name in needed():
        file = found.get(name.lower().replace("_", "-"))
        here = f"{file.stat().st_size / 1e6:.1f} MB" if file else "not in wheels/"
        yield f"  {name:28} {here:16} {STEPS_OF.get(name, 'all steps')}"
        if file is None and name not in ("torch", "tensorrt", "cuda-python"):
            missing.append(name)
    yield "to get them, with the machine's own version of Python:"
    yield (
        "  pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "
        f"--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d {WHEELS.name} "
        + " ".join([*missing, "cuda-bindings", "cuda-pathfinder"])
    )
    yield "nsys: its folder, if the machine has none (--nsys FOLDER); ncu likewise (--ncu FOLDER)"


def _wheels() -> list[Path]:
    return sorted(WHEELS.glob("*.whl"))
