"""What this user may read of the machine's counters, and whether our NVTX ranges reach a tool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

RAPL = Path("/sys/class/powercap")


def readable_counters(rapl: Path = RAPL) -> dict[str, Any]:
    """``rapl``: zones of the CPU's energy counter, each with whether it can be read; ``schedstat``: time ready without
    a core; ``perf_event_paranoid``: above 2, perf counts nothing for ordinary users."""
    return {
        "rapl": {zone.name: _readable(zone / "energy_uj") for zone in sorted(rapl.glob("*rapl*:*"))},
        "schedstat": _readable(Path("/proc/self/schedstat")),
        "perf_event_paranoid": _number(Path("/proc/sys/kernel/perf_event_paranoid")),
    }


def nvtx_tool() -> dict[str, Any]:
    """``tool``: what NVTX_INJECTION64_PATH names; ``attached``: ranges of this process really reach it."""
    tool = os.environ.get("NVTX_INJECTION64_PATH")
    try:
        import nvtx  # noqa: F401
    except ImportError as error:
        return {"tool": tool, "attached": False, "reason": f"nvtx cannot be imported ({error}): pip install nvtx"}
    from detector.timeline.ranges import ThreadRange, open_domain

    domain = open_domain()
    if domain is not None:
        probe = ThreadRange(domain, "doctor", "work")
        probe.push(0)
        probe.pop()
        return {"tool": tool, "attached": True, "reason": "a tool is attached, and was sent a range called doctor"}
    if tool is None:
        return {"tool": None, "attached": False, "reason": "no tool is attached; nsys profile -t nvtx attaches one"}
    there = "the tool did not take them" if Path(tool).is_file() else "there is no such file"
    return {"tool": tool, "attached": False, "reason": there}


def _readable(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
