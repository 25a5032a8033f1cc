"""Find torch's device, and why a device or a precision cannot be used on this machine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Set
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detector.core.errors import EngineError
from detector.core.errors.machine import BF16, cpu_flags

CUDA_TORCH = (
    "or install one with CUDA: pip install torch --index-url https://download.pytorch.org/whl/cu130"
)


def device_of(asked: str) -> tuple[Any, str]:
    """Return the torch.device for "auto", "cpu", "cuda" or "cuda:N", and a note on the choice for
    "auto" (otherwise ""). Raises EngineError."""
    import torch

    if asked == "cpu":
        return torch.device("cpu"), ""
    reason = why_no_cuda()
    if asked == "auto":
        if reason:
            return torch.device("cpu"), f"engine torch runs on the CPU: {reason}"
        name = torch.cuda.get_device_name(0)
        return torch.device("cuda:0"), f"engine torch runs on cuda:0, {name}"
    if reason:
        cure = "" if torch.version.cuda else f", {CUDA_TORCH}"
        raise EngineError(f"engine torch: --device {asked}: {reason}; use --device cpu{cure}")
    device = torch.device(asked if ":" in asked else "cuda:0")
    if device.index >= (count := torch.cuda.device_count()):
        listed = ", ".join(f"cuda:{at}" for at in range(count))
        raise EngineError(f"engine torch: --device {asked}: no such GPU; use one of {listed}")
    return device, ""


def best_concurrency(asked: str) -> int:
    """Return 1 on a CPU, and 2 on a GPU, so that one request uploads while the other computes."""
    return 2 if device_of(asked)[0].type == "cuda" else 1


def is_built_for_cuda() -> bool:
    """Return whether torch may have CUDA. Reads its version file: an import would take 1 to 2 s."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        versions = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return True  # unknown, so the caller must import torch
    return re.search(r"^cuda\b.*=\s*None\s*$", versions, re.MULTILINE) is None


def why_no_cuda() -> str:
    """Return why torch cannot use a GPU here; "" if it can."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    if torch.cuda.is_available():
        return ""
    return "torch finds no GPU, or no driver for it (check with nvidia-smi)"


def refusal(precision: str, device: Any) -> str | None:
    """Return why a precision cannot run on a torch.device; None if it can."""
    if device.type == "cuda":
        return _gpu_refusal(precision, device)
    if precision == "tf32":
        return "TF32 needs an NVIDIA GPU, but torch runs on the CPU; use --precision fp32 or bf16"
    if precision == "fp16" and not has_fp16():
        return (
            "this CPU has no fp16 arithmetic (AVX512-FP16 or AMX-FP16); "
            "use --precision fp32 or bf16"
        )
    return None


def _gpu_refusal(precision: str, device: Any) -> str | None:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if precision in ("tf32", "bf16") and major < 8:
        name = torch.cuda.get_device_name(device)
        return f"{name} has compute capability {major}.{minor}; {precision} needs 8.0"
    return None


def has_fp16() -> bool:
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def has_bf16() -> bool:
    """Return whether the CPU can multiply bf16. If not, oneDNN converts the values to float32."""
    return bool(cpu_facts() & BF16)


def cpu_facts() -> Set[str]:
    """Return the CPU's feature flags from the kernel, or from torch if the kernel lists none."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return cpu_flags() or {name for name, value in capabilities.items() if value is True}


def check_compiler(device: Any) -> None:
    """Raise EngineError if there is no C++ compiler, which torch.compile needs for a CPU."""
    asked = os.environ.get("CXX")
    if device.type == "cpu" and not any(
        shutil.which(name) for name in ([asked] if asked else ["g++", "clang++"])
    ):
        problem = f"CXX={asked} is no program" if asked else "g++ and clang++ are missing"
        raise EngineError(
            f"engine torch: --engine-options compile needs a C++ compiler, and {problem}; install "
            "a compiler (apt install g++), or omit the option"
        )
