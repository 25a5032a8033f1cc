"""Joules of a run, from counters that the machine really has: RAPL of the processor, NVML of the GPU. No estimates."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detector.passes.base import NotHereError, Occasion

ORDER = 90
POWERCAP = Path("/sys/class/powercap")
IDLE_S = 2.0
TAGS = {"package": "package", "core": "core", "dram": "dram"}


@dataclass(frozen=True, slots=True)
class Counter:
    """One RAPL domain: microjoules that count up to ``range_uj`` and start again at 0."""

    tag: str
    path: Path
    range_uj: int

    def read(self) -> int:
        return int(self.path.read_text())


def run(occasion: Occasion) -> dict[str, Any]:
    counters = rapl_counters()
    gpu = Gpu.open()
    if not counters and gpu is None:
        raise NotHereError(why_not())
    idle = measure(counters, gpu, lambda: time.sleep(IDLE_S))
    kept: list[Any] = []
    busy = measure(counters, gpu, lambda: kept.append(occasion.again()))
    session = kept[0]
    frames = int(session.document["frames"]["written"])
    used = net(busy, idle)
    total = sum(used[tag] for tag in ("package", "gpu") if tag in used)
    row = {
        "timestamp": busy["at"],
        "tag": "run",
        "duration": busy["seconds"],
        **used,
        "joules_per_frame": total / frames,
    }
    return {
        "rows": [{"timestamp": idle["at"], "tag": "idle", "duration": idle["seconds"], **idle["joules"],
                  "joules_per_frame": None}, row],
        "joules_per_frame": total / frames,
        "frames_per_joule": frames / total if total > 0 else None,
        "idle_watts": {tag: joules / idle["seconds"] for tag, joules in idle["joules"].items()},
        "counters": sorted({*(counter.tag for counter in counters), *(["gpu"] if gpu else [])}),
        "slowdown": occasion.slowdown(session),
    }  # fmt: skip


def rapl_counters(root: Path = POWERCAP) -> list[Counter]:
    """Every RAPL domain that may be read. Packages of several sockets have one counter each, of the same tag."""
    found = []
    for folder in sorted(root.glob("*rapl*:*")):
        try:
            name = (folder / "name").read_text().strip()
            tag = next((tag for start, tag in TAGS.items() if name.startswith(start)), None)
            if tag is None:
                continue
            counter = Counter(tag, folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()))
            counter.read()
        except (OSError, ValueError):
            continue
        found.append(counter)
    return found


def why_not(root: Path = POWERCAP) -> str:
    """The reason why there is no counter, for the user."""
    domains = [folder for folder in root.glob("*rapl*:*") if (folder / "energy_uj").exists()]
    if not domains:
        return f"no RAPL counters under {root} (virtual machines rarely have them) and no GPU that NVML reports"
    return f"{domains[0] / 'energy_uj'} may not be read; as root: chmod a+r {root}/*rapl*/energy_uj"


class Gpu:
    """NVML's total energy counter of the first GPU, millijoules since the driver was loaded."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls) -> Gpu | None:
        try:
            import pynvml

            pynvml.nvmlInit()
            gpu = cls(pynvml, pynvml.nvmlDeviceGetHandleByIndex(0))
            gpu.read()
        except Exception:  # no library, no driver, an old card: there is no counter then
            return None
        return gpu

    def read(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


def measure(counters: list[Counter], gpu: Gpu | None, do: Any) -> dict[str, Any]:
    """Joules by tag that went while ``do`` ran. A counter must not wrap twice: at 200 W that takes some 20 minutes,
    so long runs are read through ``joules_between``'s single wrap only."""
    at, start = time.time(), time.perf_counter()
    before, gpu_before = [counter.read() for counter in counters], gpu.read() if gpu else 0.0
    do()
    joules: dict[str, float] = {}
    for counter, first in zip(counters, before, strict=True):
        joules[counter.tag] = joules.get(counter.tag, 0.0) + joules_between(first, counter.read(), counter.range_uj)
    if gpu:
        joules["gpu"] = gpu.read() - gpu_before
    return {"at": at, "seconds": time.perf_counter() - start, "joules": joules}


def joules_between(before_uj: int, after_uj: int, range_uj: int) -> float:
    """What was used between two readings, also where the counter started again at 0 in between."""
    return (after_uj - before_uj + (range_uj if after_uj < before_uj else 0)) / 1e6


def net(busy: dict[str, Any], idle: dict[str, Any]) -> dict[str, float]:
    """Joules beyond what the machine uses doing nothing, by tag."""
    share = busy["seconds"] / idle["seconds"]
    return {tag: max(0.0, joules - idle["joules"].get(tag, 0.0) * share) for tag, joules in busy["joules"].items()}
