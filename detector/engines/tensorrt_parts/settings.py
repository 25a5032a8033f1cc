"""The options of trt alone, ``--engine-options NAME=VALUE,...``, read once and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detector.engines.base import EngineOptions
from detector.errors import UsageError

OPTIONS = {
    "min_batch": "smallest batch that the plan takes; default: --batch",
    "max_batch": "largest batch that the plan takes; default: --batch",
    "opt_batch": "batch that the plan is tuned for; default: the largest",
    "workspace_mb": "GPU memory that a layer may use while it works, at most; default: all",
    "level": "how long TensorRT searches, 0 to 5; default: its own (3)",
    "version_compatible": "1: the plan runs with later versions of the same TensorRT major too",
    "hardware_compatible": "same: any GPU of this compute capability; ampere: any from 8.0 on",
    "detailed": "0: leave the layers' types out of the plan: precision executed is then unknown",
    "host_code": "1: let a plan of yours start the runtime that it carries; only for files that you trust",
}
HARDWARE = {"": "NONE", "same": "SAME_COMPUTE_CAPABILITY", "ampere": "AMPERE_PLUS"}
LEVELS = range(6)


@dataclass(frozen=True, slots=True)
class Settings:
    """``batches``: (smallest, best, largest) that the plan takes."""

    batches: tuple[int, int, int]
    workspace_mb: int = 0
    level: int | None = None
    version_compatible: bool = False
    hardware_compatible: str = ""
    detailed: bool = True
    host_code: bool = False


def read(options: EngineOptions) -> Settings:
    """Raises UsageError."""
    own = options.own
    low, high = _number(own, "min_batch", options.batch, 1), _number(own, "max_batch", options.batch, 1)
    best = _number(own, "opt_batch", high, 1)
    if not low <= options.batch <= high:
        raise UsageError(f"--batch {options.batch} is outside of the plan's batches {low}..{high}")
    if not low <= best <= high:
        raise UsageError(f"--engine-options opt_batch={best}: outside of the plan's batches {low}..{high}")
    hardware = own.get("hardware_compatible", "")
    if hardware not in HARDWARE:
        raise UsageError(f"--engine-options hardware_compatible={hardware}: it is same or ampere")
    level = _number(own, "level", -1, 0) if "level" in own else None
    if level is not None and level not in LEVELS:
        raise UsageError(f"--engine-options level={level}: it is 0 to {LEVELS[-1]}")
    return Settings(
        batches=(low, best, high),
        workspace_mb=_number(own, "workspace_mb", 0, 1),
        level=level,
        version_compatible=_switch(own, "version_compatible", False),
        hardware_compatible=hardware,
        detailed=_switch(own, "detailed", True),
        host_code=_switch(own, "host_code", False),
    )


def _number(own: Mapping[str, str], name: str, default: int, at_least: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < at_least:
        raise UsageError(f"--engine-options {name}={text}: a whole number from {at_least} on is wanted")
    return int(text)


def _switch(own: Mapping[str, str], name: str, default: bool) -> bool:
    text = own.get(name)
    if text is None:
        return default
    if text.lower() not in ("0", "1", "true", "false", "yes", "no"):
        raise UsageError(f"--engine-options {name}={text}: 1 or 0 is wanted")
    return text.lower() in ("1", "true", "yes")
