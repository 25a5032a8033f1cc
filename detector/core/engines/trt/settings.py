"""Parse and check ``--engine-options`` of the engines trt and rtx."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from detector.core.engines.base import EngineOptions, read_switch
from detector.core.errors import UsageError

HARDWARE = {"": "NONE", "same": "SAME_COMPUTE_CAPABILITY", "ampere": "AMPERE_PLUS"}
MOST_LEVEL = 5
# Compute capability -> member of tensorrt_rtx.ComputeCapability.
TARGETS = {
    "7.5": "SM75",
    "8.0": "SM80",
    "8.6": "SM86",
    "8.9": "SM89",
    "12.0": "SM120",
    "12.1": "SM121",
}


@dataclass(frozen=True, slots=True)
class TrtSettings:
    """Options of a plan. ``batches``: (smallest, tuned, largest). ``targets``: compute
    capabilities, () for the default. ``graphs``: use a CUDA graph; None: only if it is faster."""

    batches: tuple[int, int, int]
    workspace_mb: int = 0
    level: int | None = None
    version_compatible: bool = False
    hardware_compatible: str = ""
    detailed: bool = True
    host_code: bool = False
    targets: tuple[str, ...] = ()
    graphs: bool | None = None


def read(options: EngineOptions) -> TrtSettings:
    """Parse and check ``--engine-options``. Raises UsageError."""
    own = options.own
    low = _number(own, "min_batch", 1) or options.batch
    high = _number(own, "max_batch", 1) or options.batch
    best = _number(own, "opt_batch", 1) or high
    if not low <= options.batch <= high:
        raise UsageError(f"--batch {options.batch} is outside the plan's batches {low}..{high}")
    if not low <= best <= high:
        raise UsageError(
            f"--engine-options opt_batch={best}: outside the plan's batches {low}..{high}"
        )
    hardware = own.get("hardware_compatible", "")
    if hardware not in HARDWARE:
        raise UsageError(f"--engine-options hardware_compatible={hardware}: give same or ampere")
    return TrtSettings(
        batches=(low, best, high),
        workspace_mb=_number(own, "workspace_mb", 1) or 0,
        level=_number(own, "level", 0, MOST_LEVEL),
        version_compatible=read_switch(own, "version_compatible", False),
        hardware_compatible=hardware,
        detailed=read_switch(own, "detailed", True),
        host_code=read_switch(own, "host_code", False),
        targets=_targets(own.get("targets", ""), options.precision),
        graphs=read_switch(own, "graphs", False) if "graphs" in own else None,
    )


def _targets(text: str, precision: str) -> tuple[str, ...]:
    """Parse ``8.6+12.0``. Return each target once, in ascending order."""
    names = [name.strip() for name in text.split("+")] if text else []
    for name in names:
        if name not in TARGETS:
            raise UsageError(
                f"--engine-options targets={text}: no plan can be built for "
                f"{name or 'an empty target'}; give one or more of: {'+'.join(TARGETS)}"
            )
    if precision in ("tf32", "bf16") and "7.5" in names:
        raise UsageError(
            f"--engine-options targets={text}: compute capability 7.5 (Turing) has no "
            f"{precision}; omit 7.5, or use --precision fp16"
        )
    return tuple(name for name in TARGETS if name in names)


def _number(
    own: Mapping[str, str], name: str, at_least: int, at_most: float = math.inf
) -> int | None:
    text = own.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not at_least <= int(text) <= at_most:
        most = "" if at_most == math.inf else f" and at most {at_most}"
        raise UsageError(
            f"--engine-options {name}={text}: give a whole number, at least {at_least}{most}"
        )
    return int(text)
