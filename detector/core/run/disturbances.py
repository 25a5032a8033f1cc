"""External disturbances that the system reports for a run: swap, CPU quota, heat, governor."""

from __future__ import annotations

from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detector.core.session.document import Disturbances, Summary

HOT = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
STATUS = "/proc/self/status"
CGROUP = "/proc/self/cgroup"
CGROUPS = "/sys/fs/cgroup"


class DisturbanceMonitor:
    def __init__(self) -> None:
        self._hot, self._throttled_us = _count_heat_throttling(), _read_throttled_us()

    def finish(self, summary: Summary) -> Summary:
        disturbances = self.end()
        return summary if disturbances is None else replace(summary, disturbed=disturbances)

    def end(self) -> Disturbances | None:
        """Return the disturbances of the run; None if there were none."""
        from detector.core.session.document import Disturbances

        governor = _read(GOVERNOR).strip()
        disturbances = Disturbances(
            swapped_mb=_find_number(_read(STATUS), "VmSwap:") * 1024 / 1e6,
            throttled_s=max(0, _read_throttled_us() - self._throttled_us) / 1e6,
            hot=max(0, _count_heat_throttling() - self._hot),
            governor=governor if governor == "powersave" else None,
        )
        return disturbances if disturbances != Disturbances() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _count_heat_throttling() -> int:
    """Return how often heat throttled a core since the machine started."""
    counts = (_read(path).strip() for path in glob(HOT))
    return sum(int(count) for count in counts if count.isdigit())


def _read_throttled_us() -> int:
    """Return how long (us) this process's cgroup (v2) was throttled because of its CPU quota."""
    group = next((line[3:] for line in _read(CGROUP).splitlines() if line.startswith("0::")), "/")
    return _find_number(_read(f"{CGROUPS}{group.rstrip('/')}/cpu.stat"), "throttled_usec")


def _find_number(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0
