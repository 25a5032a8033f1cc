"""Measure the joules of a run with the energy counters of RAPL (CPU) and NVML (GPU)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from detector.core.errors.machine import NotHereError
from detector.core.jobs.doctor.nvml import NvmlGpu
from detector.lab.analysis.energy import (
    Metered,
    energy_row,
    energy_samples,
    subtract_idle,
    sum_joules,
)
from detector.lab.profile.base import Occasion, Pass, PassSampler, find_frame_ends
from detector.lab.session.passes import EnergyFacts

POWERCAP = Path("/sys/class/powercap")
IDLE_S = 2.0
# RAPL updates every millisecond and wraps around after minutes. NVML updates every 20 to 100 ms.
EVERY_S = 0.1
TAGS = ("package", "core", "dram")  # prefixes of the names of RAPL's domains


@dataclass(frozen=True, slots=True)
class RaplCounter:
    """The energy counter of a RAPL domain, in microjoules. It wraps around to 0 at ``range_uj``."""

    tag: str
    path: Path
    range_uj: int

    def read(self) -> int:
        return int(self.path.read_text())


def meter_energy(occasion: Occasion) -> EnergyFacts:
    counters = rapl_counters(POWERCAP)
    gpu = open_gpu(occasion.config.runtime.device)
    if not counters and gpu is None:
        raise NotHereError(explain_absence(POWERCAP))
    with EnergyMeter(counters, gpu) as idling:
        time.sleep(IDLE_S)
    with EnergyMeter(counters, gpu) as running:
        session = occasion.rerun()
    idle, busy = idling.metered(), running.metered()
    frames = session.document.frames.written
    # The row "run" excludes loading and idle power; the samples include both.
    start, end = int(busy.times_ns[0]), int(busy.times_ns[-1])
    if len(session.spans["start_ns"]):
        start, end = int(session.spans["start_ns"].min()), int(session.spans["end_ns"].max())
    used = subtract_idle(busy.between(start, end), (end - start) / 1e9, idle)
    total = sum_joules(used)
    idle_ns = int(idle.times_ns[0]), int(idle.times_ns[-1])
    return EnergyFacts(
        rows=[
            energy_row(idle, "idle", *idle_ns, idle.total(), None),
            energy_row(busy, "run", start, end, used, frames),
        ],
        samples=[
            *energy_samples(idle, "idle sample"),
            *energy_samples(busy, "run sample", find_frame_ends(session.spans)),
        ],
        joules_per_frame=total / frames if frames else None,
        frames_per_joule=frames / total if total > 0 else None,
        idle_watts={tag: joules / idle.seconds for tag, joules in idle.total().items()},
        counters=sorted({*(counter.tag for counter in counters), *(["gpu"] if gpu else [])}),
        slowdown=occasion.slowdown(session),
    )


def rapl_counters(root: Path) -> list[RaplCounter]:
    """Return each RAPL domain that this user may read, but only once if mmio repeats it."""
    counters: dict[str, RaplCounter] = {}
    for folder in sorted(root.glob("*rapl*:*"), key=lambda one: ("mmio" in one.name, one.name)):
        try:
            name = (folder / "name").read_text().strip()
            tag = next((tag for tag in TAGS if name.startswith(tag)), None)
            if tag is None:
                continue
            counter = RaplCounter(
                tag, folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())
            )
            counter.read()
        except (OSError, ValueError):
            continue
        above = folder.with_name(folder.name.rpartition(":")[0]) / "name"
        # A name such as package-0/dram, which is the same in both interfaces of RAPL.
        domain = f"{above.read_text().strip()}/{name}" if above.is_file() else name
        counters.setdefault(domain, counter)
    return list(counters.values())


def explain_absence(root: Path) -> str:
    domains = [folder for folder in root.glob("*rapl*:*") if (folder / "energy_uj").exists()]
    if not domains:
        return (
            f"no RAPL counters under {root} (virtual machines rarely have them) "
            "and no GPU that NVML reports"
        )
    return f"{domains[0] / 'energy_uj'} cannot be read; as root: chmod a+r {root}/*rapl*/energy_uj"


def open_gpu(device: str) -> NvmlGpu | None:
    try:
        gpu = NvmlGpu(device)
        gpu.joules()
    except Exception:  # no GPU, or NVML does not report its energy
        return None
    return gpu


class EnergyMeter(PassSampler[tuple[list[int], float]]):
    """Reads all counters every 100 ms. In this time a counter wraps around at most once."""

    def __init__(self, counters: Sequence[RaplCounter], gpu: NvmlGpu | None) -> None:
        super().__init__(self._read, EVERY_S, "energy")
        self._counters, self._gpu = counters, gpu
        self._at = time.time()

    def _read(self) -> tuple[list[int], float]:
        counts = [counter.read() for counter in self._counters]
        return counts, self._gpu.joules() if self._gpu else 0.0

    def metered(self) -> Metered:
        samples = self.samples()
        joules: dict[str, Any] = {}
        for at, counter in enumerate(self._counters):
            counts = [counts[at] for _, (counts, _) in samples]
            steps = [joules_between(*pair, counter.range_uj) for pair in pairwise(counts)]
            joules[counter.tag] = joules.get(counter.tag, 0.0) + np.cumsum([0.0, *steps])
        if self._gpu:
            gpu = np.array([joules for _, (_, joules) in samples])
            joules["gpu"] = gpu - gpu[0]
        return Metered(self._at, np.array([when for when, _ in samples], np.int64), joules)


def joules_between(before_uj: int, after_uj: int, range_uj: int) -> float:
    return (after_uj - before_uj + (range_uj if after_uj < before_uj else 0)) / 1e6


PASS = Pass(order=90, what="joules, in one more run", facts=EnergyFacts, run=meter_energy)
