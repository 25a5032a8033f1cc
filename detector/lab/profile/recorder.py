"""Record CPU times, page faults and clock speeds at each frame of a run.

After each frame, the writer's thread records a row, outside all spans: it reads a small file in
/proc for each thread, and one in /sys for each core. The facts contain the cost of a row.
"""

from __future__ import annotations

import gc
import resource
import threading
import time
from collections import defaultdict
from contextlib import suppress
from glob import glob
from itertools import pairwise
from statistics import median
from typing import Any, Self

from detector.core.timeline.native import Times, name_of, task_ids, times_of
from detector.core.types import Detections, Frame
from detector.lab.analysis.loop.why import LIBRARY
from detector.lab.session.passes import Collection, MomentsFacts, ThreadMoments

MAIN = "main"
RELIST_EVERY = 16  # frames until threads are listed again
CLOCKS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"


class Recorder:
    """Records rows inside a ``with``. Call ``begin`` once, and this object after each frame."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.at_ns: list[int] = []
        self.costs_ns: list[int] = []
        self._began_ns = 0
        self._spent: list[dict[str, Times]] = []  # thread -> its times since the previous row
        self._faults: list[tuple[int, int]] = []  # page faults so far, and those that read a disk
        self._mhz: list[float] = []
        self._collections: list[Collection] = []
        self._collecting = 0
        self._names: dict[int, str] = {}
        self._last: dict[int, Times] = {}
        self._clocks = glob(CLOCKS)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._collected)
        return self

    def __exit__(self, *exception: object) -> None:
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, about: dict[str, Any]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting = now
        else:
            self._collections.append(Collection(self._collecting, now, about["generation"]))

    def begin(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self._names = _name_threads()
        self._spend()
        self._faults = [_page_faults()]

    def __call__(self, frame: Frame, detections: Detections) -> None:
        start = time.perf_counter_ns()
        if len(self.frames) % RELIST_EVERY == 0:
            self._names = _name_threads()
        self._spent.append(self._spend())
        self._faults.append(_page_faults())
        if (mhz := self._clock_mhz()) is not None:
            self._mhz.append(mhz)
        self.frames.append(frame.index)
        self.at_ns.append(start)
        self.costs_ns.append(time.perf_counter_ns() - start)

    def _spend(self) -> dict[str, Times]:
        """Return each thread's times since the last call, or since the thread started."""
        spent: dict[str, Times] = defaultdict(lambda: Times(0, 0))
        for task, name in self._names.items():
            if (times := times_of(task)) is not None:
                before = self._last.get(task, Times(0, 0))
                cpu, ready = spent[name]
                spent[name] = Times(
                    cpu + times.cpu - before.cpu, ready + times.ready - before.ready
                )
                self._last[task] = times
        return spent

    def _clock_mhz(self) -> float | None:
        clocks = []
        for path in self._clocks:
            with suppress(OSError, ValueError), open(path, "rb") as file:
                clocks.append(int(file.read()) / 1e3)
        return sum(clocks) / len(clocks) if clocks else None

    def facts(self, run_s: float, sync: bool) -> MomentsFacts:
        """Return the facts. Without ``sync``, the main thread is the loop's writer."""
        names = dict.fromkeys(name for row in self._spent for name in row)
        steps = [
            (after[0] - before[0], after[1] - before[1]) for before, after in pairwise(self._faults)
        ]
        rows = len(self.frames)
        return MomentsFacts(
            began_ns=self._began_ns,
            frames=self.frames,
            at_ns=self.at_ns,
            threads={
                (name if sync or name != MAIN else "writer"): ThreadMoments(
                    [row[name].cpu / 1e6 if name in row else 0.0 for row in self._spent],
                    [row[name].ready / 1e6 if name in row else 0.0 for row in self._spent],
                )
                for name in names
            },
            faults=[one for one, _ in steps],
            disk_faults=[one for _, one in steps],
            mhz=self._mhz if len(self._mhz) == rows else [],
            collections=[one for one in self._collections if one.end_ns > self._began_ns],
            cost_us=median(self.costs_ns) / 1e3,
            slowdown=1 + sum(self.costs_ns) / 1e9 / max(run_s, 1e-9),
        )


def _name_threads() -> dict[int, str]:
    """Return thread id -> name in the spans; "library" if it has none. Call in the main thread."""
    main = threading.get_native_id()
    python = {one.native_id for one in threading.enumerate()}
    return {
        task: MAIN if task == main else name_of(task) if task in python else LIBRARY
        for task in task_ids()
    }


def _page_faults() -> tuple[int, int]:
    """Return this process's number of page faults, and how many of them read from disk."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt, used.ru_majflt
