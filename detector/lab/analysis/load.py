"""Compare two runs under different loads of other programs.

Wall times do not show whether the run itself or the load caused a difference. CPU times do, since
they count only a stage's own work. Load raises CPU times only a little (programs share caches).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detector.core.analysis.ledger import stage_cpu_s
from detector.core.analysis.verdict import MAX_OTHERS
from detector.core.session.document import Summary

# While one or two other programs computed on the same two cores, stages longer than 0.5 ms needed
# up to 11% more CPU time for equal work (scripts/load_check; AMD EPYC). We allow a little more.
SHARED_CACHES = 0.15
# If other programs use a larger share of the cores, even CPU times are unreliable: while detectors
# used 72% of two cores, equal runs took 34 and 44 ms of CPU per frame; stages varied by up to 48%.
CROWDED = 0.5
MATERIAL = 0.02  # share of the CPU time per frame; smaller growth changes no conclusion


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """Mean number of the ``cores`` that were busy with other programs during each run."""

    before: float
    after: float
    cores: int

    @property
    def differs(self) -> bool:
        """Return whether wall times are not comparable: the loads are unequal, or high."""
        return abs(self.after - self.before) > MAX_OTHERS * self.cores or self.crowded

    @property
    def crowded(self) -> bool:
        """Return whether CPU times are not comparable, either."""
        return max(self.before, self.after) > CROWDED * self.cores

    def as_json(self) -> dict[str, Any]:
        return {
            "before_cores": self.before,
            "after_cores": self.after,
            "cores": self.cores,
            "differs": self.differs,
            "crowded": self.crowded,
        }


@dataclass(frozen=True, slots=True)
class CpuChange:
    """CPU milliseconds per frame of a stage (its libraries' threads included) or of the process.
    ``all_ms``: the value of the whole process in the first run."""

    what: str
    before: float
    after: float
    all_ms: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else float("inf")

    def regresses(self, limit: float) -> bool:
        """Return whether CPU time grew by more than ``limit`` (0.05 = 5%) plus ``SHARED_CACHES``,
        and by more than ``MATERIAL``."""
        allowed = self.before * (1 + limit + SHARED_CACHES)
        return self.after > allowed and self.after - self.before > MATERIAL * self.all_ms

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "before_ms": self.before, "after_ms": self.after}


def others_cores(summary: Summary) -> float | None:
    """Return the mean number of this run's cores that other programs used; None if unknown."""
    libraries = summary.cpu.libraries
    if libraries is None or libraries.others_s is None or not libraries.wall_s:
        return None
    return libraries.others_s / libraries.wall_s


def compare_load(before: Summary, after: Summary) -> OtherLoad | None:
    first, second = others_cores(before), others_cores(after)
    if first is None or second is None or before.cpu.cores != after.cpu.cores:
        return None
    return OtherLoad(first, second, before.cpu.cores)


WHOLE = "the whole process"


def compare_cpu(before: Summary, after: Summary) -> list[CpuChange]:
    first, second = _cpu_ms(before), _cpu_ms(after)
    return [
        CpuChange(name, first[name], second[name], first[WHOLE])
        for name in first
        if name in second and (first[name] or second[name])
    ]


def most_grown(changes: Sequence[CpuChange], limit: float) -> CpuChange | None:
    grown = [one for one in changes if one.regresses(limit)]
    stages = [one for one in grown if one.what != WHOLE]
    return max(stages or grown, key=lambda one: one.after - one.before, default=None)


def _cpu_ms(summary: Summary) -> Mapping[str, float]:
    frames = summary.frames.written
    if not frames:
        return {}
    stages = {name: stage_cpu_s(summary, name) for name in summary.stages}
    seconds = {WHOLE: summary.cpu.process_s, **stages}
    return {name: 1e3 * one / frames for name, one in seconds.items()}
