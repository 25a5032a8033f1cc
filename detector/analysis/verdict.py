"""What limits the run, and what it would gain if that cost nothing.

A bound, not a simulation: a stage that is free cannot make the run faster than the slowest of what is left, nor than
the CPU work of the other stages' own threads on the cores there are; opening and closing files stays; and no more is
gained than the time in which the stage ran. What libraries burn in threads of their own is left out (only Linux tells
whose they are; the replay counts it), so that "at most" stays true. Where the cores are nearly full, of this run's work
or of others', it does not: the stages' times hold what was taken from them, and a stage that is free gives its share
back.
Measured on two cores at 90%: "9%", and 66% when inference was really free. There the sentence says "or more".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Stages that run one after the other in the overlapped loop; the groups run side by side.
GROUPS = {
    "reading": ("read", "preprocess"),
    "inference": ("infer",),
    "writing": ("head", "nms", "annotate", "write"),
}
CPU_FULL = 0.8  # share of all cores' time above which stages slow each other down
LEAST = 0.005  # of a frame's time; what is below rounds to 0%


@dataclass(frozen=True, slots=True)
class Load:
    """One run, or one source of it, per frame in seconds."""

    period_s: float  # run seconds / frames
    apart_s: float  # of it, before the loop's threads and after them: opening the source, closing the files
    stages: dict[str, float]  # busy, infer as the time in which at least one was running
    worker_s: float  # infer's busy time over its threads: what their group takes where nothing holds it up
    stage_cpu: dict[str, float]
    process_cpu_s: float
    others_share: float  # of all cores' time, what other processes took; 0 where the system does not tell
    cores: int
    sync: bool

    @property
    def groups(self) -> dict[str, float]:
        """Seconds a frame of each group that runs beside the others."""
        taken = {**self.stages, "infer": self.worker_s}
        return {group: sum(taken.get(name, 0) for name in names) for group, names in GROUPS.items()}

    @property
    def cpu_share(self) -> float:
        """Of all cores' time, what this process took."""
        return self.process_cpu_s / self.cores / self.period_s


def load_of(
    stages: Mapping[str, Any], threads: Mapping[str, Any], cpu: Mapping[str, Any], infer_s: float, run_s: float,
    frames: int, sync: bool,
) -> Load | None:  # fmt: skip
    """``stages``, ``threads`` and ``cpu`` as in the summary. None without a frame."""
    if not frames or run_s <= 0:
        return None
    busy = {name: stage["busy_s"] / frames for name, stage in stages.items()}
    workers = len(stages["infer"]["thread"].split(","))
    loop_s = max((thread["wall_s"] for thread in threads.values()), default=run_s)
    libraries = cpu["libraries"] or {}
    others_s, seen_s = libraries.get("others_s") or 0.0, libraries.get("wall_s") or 0.0
    return Load(
        period_s=run_s / frames,
        apart_s=max(0.0, run_s - loop_s) / frames,
        stages={**busy, "infer": infer_s / frames},
        worker_s=busy["infer"] / workers,
        stage_cpu={name: stage["cpu_s"] / frames for name, stage in stages.items()},
        process_cpu_s=cpu["process_s"] / frames,
        others_share=others_s / seen_s / cpu["cores"] if seen_s else 0.0,
        cores=cpu["cores"],
        sync=sync,
    )


def without(load: Load, stage: str) -> float:
    """Seconds a frame would take at least, were ``stage`` free: never less than by the time in which it ran."""
    rest = max(0.0, load.period_s - load.stages[stage])
    if load.sync:
        return rest
    own = load.worker_s if stage == "infer" else load.stages[stage]
    groups = [seconds - own * (stage in GROUPS[group]) for group, seconds in load.groups.items()]
    cpu = sum(seconds for name, seconds in load.stage_cpu.items() if name != stage) / load.cores
    return max(rest, load.apart_s + max(cpu, *groups))


def gain(load: Load, stage: str) -> float:
    """Growth of end-to-end FPS at most, were ``stage`` free: 0.08 = 8% faster. Infinite where nothing is left."""
    rest = without(load, stage)
    return max(0.0, load.period_s / rest - 1) if rest > 0 else float("inf")


def verdict(load: Load | None) -> dict[str, Any]:
    """``bottleneck``: the stage to change first; ``sentence``; the gains that it stands on."""
    if load is None:
        return {"bottleneck": None, "sentence": "no frame went through: nothing to judge"}
    groups = load.groups
    slowest = max(groups, key=lambda group: groups[group])
    candidates = load.stages if load.sync else GROUPS[slowest]
    stage = max(candidates, key=lambda name: load.stages.get(name, 0))
    if not load.stages.get(stage):
        return {"bottleneck": None, "sentence": "the instruments were off: nothing to judge"}
    gains = {name: gain(load, name) for name in dict.fromkeys((stage, "infer"))}
    return {
        "bottleneck": stage,
        "sentence": _sentence(load, stage, gains),
        "gain_if_free": {name: None if value == float("inf") else round(value, 4) for name, value in gains.items()},
        "cpu_share": round(load.cpu_share, 4),
    }


def _sentence(load: Load, stage: str, gains: dict[str, float]) -> str:
    full = not load.sync and load.cpu_share + load.others_share > CPU_FULL
    share = load.stages[stage] / load.period_s
    text = f"{stage}-bound: {stage} takes {share:.0%} of the time of a frame"
    text += f"; inference could be free and you would gain {_percent(load, 'infer', gains['infer'], full)}"
    if stage != "infer":
        text += f", {stage} could be free and you would gain {_percent(load, stage, gains[stage], full)}"
    if load.sync:
        text += " (stages run in turn: without --sync they overlap)"
    elif full:
        others = load.others_share * load.cores
        beside = f", other processes take {others:.1f}" if others >= 0.05 else ""
        text += f" (the CPU is full: {load.cpu_share * load.cores:.1f} of {load.cores} cores busy{beside})"
    return text


def _percent(load: Load, stage: str, value: float, full: bool) -> str:
    if value == float("inf"):
        return "everything"
    if full and load.stages[stage] / load.period_s >= LEAST:
        return f"{value:.0%} or more"
    return "nothing" if value < LEAST else f"at most {value:.0%}"
