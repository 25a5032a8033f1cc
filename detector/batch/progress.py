"""A job's progress: counts, rates, the remaining time and the cost; and the report at its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from detector.batch.documents import (
    BatchProgress,
    BatchReport,
    ItemRecord,
    Ledger,
    SlowItem,
    StageSeconds,
    WorkerReport,
    WorkerState,
)

WINDOW_S = 60.0  # the displayed rate is the mean over this window
SLOWEST = 10


@dataclass(slots=True)
class Tally:
    """Counts of one run. ``bytes_left``: total size of the sources still to process."""

    skipped: int = 0
    left: int = 0
    bytes_left: int = 0
    cores: float = 1.0
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    failed: int = 0
    retried: int = 0
    damaged: int = 0
    frames: int = 0
    bytes_done: int = 0
    item_run_s: float = 0.0
    wall_s: float = 0.0  # summed over tasks: time from submission until the result is recorded
    ledger: Ledger = field(default_factory=Ledger)
    slowest: list[SlowItem] = field(default_factory=list)
    started: float = 0.0
    parts: int = 0
    parts_done: int = 0
    _window: deque[tuple[float, int]] = field(default_factory=deque)

    def start(self) -> None:
        self.started = self.clock()
        self._window.append((self.started, 0))

    def seconds(self) -> float:
        return self.clock() - self.started

    def finish(self, item: SlowItem, ledger: Ledger, damaged: bool) -> None:
        self._spend(item.seconds, item.frames, ledger)
        self._finish(item, damaged)
        self._take_off(item.size)

    def finish_step(self, record: ItemRecord, size: int) -> None:
        self._spend(record.seconds, record.frames, record.ledger)
        self._count_bytes(size)

    def finish_joined(self, item: SlowItem, damaged: bool, size: int) -> None:
        """Count an item whose steps are done. ``size``: the bytes that no step has counted."""
        self._finish(item, damaged)
        self._take_off(size)

    def take_back(self, frames: int, size: int) -> None:
        """Subtract parts that were discarded. Their cost stays in the ledger."""
        self.frames -= frames
        self._count_bytes(-size)

    def set_aside(self, size: int) -> None:
        self.failed += 1
        self._take_off(size)

    def _spend(self, run_s: float, frames: int, ledger: Ledger) -> None:
        self.frames += frames
        self.item_run_s += run_s
        self.ledger = add_ledgers(self.ledger, ledger)

    def _finish(self, item: SlowItem, damaged: bool) -> None:
        self.done += 1
        self.damaged += damaged
        self.slowest.append(item)
        self.slowest.sort(key=lambda one: -one.seconds)
        del self.slowest[SLOWEST:]

    def _take_off(self, size: int) -> None:
        self.left -= 1
        self._count_bytes(size)

    def _count_bytes(self, size: int) -> None:
        self.bytes_left -= size
        self.bytes_done += size

    def progress(self, workers: Sequence[WorkerState]) -> BatchProgress:
        now = self.clock()
        seconds = now - self.started
        frames = self.frames + sum(worker.frames for worker in workers)
        self._window.append((now, frames))
        while len(self._window) > 2 and now - self._window[1][0] > WINDOW_S:
            self._window.popleft()
        then, before = self._window[0]
        passed = now - then
        eta_s = None if self.left else 0.0
        if self.left and self.bytes_done > 0:  # assuming a constant rate in bytes
            eta_s = self.bytes_left * seconds / self.bytes_done
        return BatchProgress(
            time=time.time(),
            seconds=seconds,
            total=self.done + self.skipped + self.failed + self.left,
            done=self.done,
            skipped=self.skipped,
            failed=self.failed,
            retried=self.retried,
            left=self.left,
            frames=frames,
            # Frames of a lost worker are subtracted, so ``frames`` may be below ``before``.
            fps=(frames - before) / passed if passed > 0 and frames > before else None,
            eta_s=eta_s,
            core_hours=self.cores * seconds / 3600,
            cpu_hours=self.ledger.cpu_s / 3600,
            workers=list(workers),
            parts=self.parts,
            parts_done=self.parts_done,
        )

    def report(self, workers: Sequence[WorkerReport], core_s: float) -> BatchReport:
        """Report on the whole run. ``core_s``: the run's seconds times its number of cores."""
        busy = core_s > 0 and any(worker.busy_s > 0 for worker in workers)
        return BatchReport(
            ledger=self.ledger,
            workers=list(workers),
            slowest=self.slowest,
            between_s=max(0.0, self.wall_s - self.item_run_s),
            cpu_share=self.ledger.cpu_s / core_s if busy else None,
            core_hours=core_s / 3600,
        )


def add_ledgers(one: Ledger, other: Ledger) -> Ledger:
    stages = dict(one.stages)
    for name, stage in other.stages.items():
        known = stages.get(name, StageSeconds())
        stages[name] = StageSeconds(
            calls=known.calls + stage.calls,
            busy_s=known.busy_s + stage.busy_s,
            cpu_s=known.cpu_s + stage.cpu_s,
        )
    waits = dict(one.waits)
    for what, waited in other.waits.items():
        waits[what] = waits.get(what, 0.0) + waited
    return Ledger(
        infer_s=one.infer_s + other.infer_s,
        cpu_s=one.cpu_s + other.cpu_s,
        stages=stages,
        waits=waits,
    )
