"""Joules of a run, from counters that the machine really has: RAPL of the processor, NVML of the GPU. No estimates."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from detector.analysis.energy import Metered, in_all, net, row, samples
from detector.jobs.profile.base import NotHereError, Occasion, written_ns
from detector.session.read import SavedSession

ORDER = 90
WHAT = "two idle seconds, then one more run"
POWERCAP = Path("/sys/class/powercap")
IDLE_S = 2.0
EVERY_S = 0.1  # a counter wraps once in minutes at most, and steps every millisecond (NVML: every 20 to 100)
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
    counters = rapl_counters(POWERCAP)
    gpu = Gpu.open()
    if not counters and gpu is None:
        raise NotHereError(why_not(POWERCAP))
    with Meter(counters, gpu) as idling:
        time.sleep(IDLE_S)
    with Meter(counters, gpu) as running:
        session = occasion.again()
    return facts_of(idling.metered(), running.metered(), session) | {
        "counters": sorted({*(counter.tag for counter in counters), *(["gpu"] if gpu else [])}),
        "slowdown": occasion.slowdown(session),
    }


def facts_of(idle: Metered, busy: Metered, session: SavedSession) -> dict[str, Any]:
    """``rows``: the idle seconds as they were, and the run with the idle power taken off, from its first call to its
    last: loading is not in it. ``samples``: both over time, loading and idle power included."""
    frames = int(session.document["frames"]["written"])
    start, end = _loop_ns(session, busy)
    used = net(busy.between(start, end), (end - start) / 1e9, idle)
    total = in_all(used)
    idle_end = int(idle.times_ns[-1])
    return {
        "rows": [
            row(idle, "idle", int(idle.times_ns[0]), idle_end, idle.whole(), None),
            row(busy, "run", start, end, used, frames),
        ],
        "samples": [
            *samples(idle, "idle sample"),
            *samples(busy, "run sample", written_ns(session.spans)),
        ],
        "joules_per_frame": total / frames if frames else None,
        "frames_per_joule": frames / total if total > 0 else None,
        "idle_watts": {tag: joules / idle.seconds for tag, joules in idle.whole().items()},
    }


def _loop_ns(session: SavedSession, busy: Metered) -> tuple[int, int]:
    """From the first recorded call to the last; all of it where nothing was recorded."""
    spans = session.spans
    if not len(spans["start_ns"]):
        return int(busy.times_ns[0]), int(busy.times_ns[-1])
    return int(spans["start_ns"].min()), int(spans["end_ns"].max())


def rapl_counters(root: Path) -> list[Counter]:
    """Every RAPL domain that may be read, once: a package that is there through its registers and through memory
    (intel-rapl-mmio) has one counter. Packages of several sockets have one each, of the same tag."""
    found: dict[str, Counter] = {}
    for folder in sorted(root.glob("*rapl*:*"), key=lambda one: ("mmio" in one.name, one.name)):
        try:
            name = (folder / "name").read_text().strip()
            tag = next((tag for start, tag in TAGS.items() if name.startswith(start)), None)
            if tag is None:
                continue
            counter = Counter(
                tag, folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())
            )
            counter.read()
        except (OSError, ValueError):
            continue
        found.setdefault(_place(folder, name), counter)
    return list(found.values())


def _place(folder: Path, name: str) -> str:
    """``package-0/dram`` of intel-rapl:0:2, so that the ways to one counter have one name."""
    above = folder.with_name(folder.name.rpartition(":")[0]) / "name"
    return f"{above.read_text().strip()}/{name}" if above.is_file() else name


def why_not(root: Path) -> str:
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


class Meter:
    """Reads all counters every 100 ms from a thread of its own. Each reading adds what came since the one before, so
    a counter may start again at 0 as often as it likes, but once between two readings."""

    def __init__(self, counters: Sequence[Counter], gpu: Gpu | None) -> None:
        self._counters, self._gpu = counters, gpu
        self._rows: list[tuple[int, list[int], float]] = []
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="detect-video energy", daemon=True)
        self._at = time.time()

    def _watch(self) -> None:
        while self._failure is None and not self._stop.wait(EVERY_S):
            self._read()

    def _read(self) -> None:
        try:
            counts = [counter.read() for counter in self._counters]
            self._rows.append(
                (time.perf_counter_ns(), counts, self._gpu.read() if self._gpu else 0.0)
            )
        except Exception as error:  # the right to read was taken back, the driver has gone
            self._failure = error

    def __enter__(self) -> Meter:
        self._at = time.time()
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._read()

    def metered(self) -> Metered:
        """Raises NotHereError where a counter no longer answers."""
        if self._failure is not None:
            raise NotHereError(f"a counter stopped answering: {self._failure}")
        joules: dict[str, Any] = {}
        for at, counter in enumerate(self._counters):
            counts = [counts[at] for _, counts, _ in self._rows]
            steps = [joules_between(*pair, counter.range_uj) for pair in pairwise(counts)]
            joules[counter.tag] = joules.get(counter.tag, 0.0) + np.cumsum([0.0, *steps])
        if self._gpu:
            gpu = np.array([joules for *_, joules in self._rows])
            joules["gpu"] = gpu - gpu[0]
        return Metered(self._at, np.array([when for when, *_ in self._rows], np.int64), joules)


def joules_between(before_uj: int, after_uj: int, range_uj: int) -> float:
    """What was used between two readings, also where the counter started again at 0 in between."""
    return (after_uj - before_uj + (range_uj if after_uj < before_uj else 0)) / 1e6
