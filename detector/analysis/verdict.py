"""What limits the run, and what it would gain if that cost nothing.

A bound, not a simulation: a stage that is free cannot make the run faster than the slowest of what is left, nor than
the CPU work of the other stages' own threads on the cores there are. What libraries burn in threads of their own is
left out (only Linux tells whose they are; the replay counts it), so that "at most" stays true. Where the cores are
nearly full it does not: the stages' times hold what they took from each other, and a stage that is free gives its
share back.
Measured on two cores at 90%: "9%", and 66% when inference was really free. There the sentence says "or more".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Stages that run one after the other in the overlapped loop; the groups run side by side.
GROUPS = {
    "reading": ("read", "preprocess"),
    "inference": ("infer",),
    "writing": ("head", "nms", "annotate", "write"),
}
CPU_FULL = 0.8  # share of all cores' time above which stages slow each other down


@dataclass(frozen=True, slots=True)
class Load:
    """One run, or one source of it, per frame in seconds."""

    period_s: float  # run seconds / frames
    stages: dict[str, float]  # busy, infer as the time in which at least one was running
    stage_cpu: dict[str, float]
    process_cpu_s: float
    cores: int
    sync: bool


def load_of(
    stages: dict[str, Any], infer_s: float, run_s: float, process_cpu_s: float, frames: int, cores: int, sync: bool
) -> Load | None:
    """``stages`` as in the summary. None without a frame."""
    if not frames or run_s <= 0:
        return None
    busy = {name: stage["busy_s"] / frames for name, stage in stages.items()}
    busy["infer"] = infer_s / frames
    cpu = {name: stage["cpu_s"] / frames for name, stage in stages.items()}
    return Load(run_s / frames, busy, cpu, process_cpu_s / frames, cores, sync)


def without(load: Load, *stages: str) -> float:
    """Seconds a frame would take at least, were ``stages`` free."""
    busy = {name: 0.0 if name in stages else seconds for name, seconds in load.stages.items()}
    groups = [sum(busy.get(name, 0) for name in names) for names in GROUPS.values()]
    cpu = (
        0.0
        if load.sync
        else sum(seconds for name, seconds in load.stage_cpu.items() if name not in stages) / load.cores
    )
    return max(cpu, sum(groups) if load.sync else max(groups))


def gain(load: Load, *stages: str) -> float:
    """Growth of end-to-end FPS at most, were ``stages`` free: 0.08 = 8% faster. Infinite where nothing is left."""
    rest = without(load, *stages)
    return max(0.0, load.period_s / rest - 1) if rest > 0 else float("inf")


def verdict(load: Load | None) -> dict[str, Any]:
    """``bottleneck``: the stage to change first; ``sentence``; the gains that it stands on."""
    if load is None:
        return {"bottleneck": None, "sentence": "no frame went through: nothing to judge"}
    groups = {group: sum(load.stages.get(name, 0) for name in names) for group, names in GROUPS.items()}
    slowest = max(groups, key=lambda group: groups[group])
    candidates = load.stages if load.sync else GROUPS[slowest]
    stage = max(candidates, key=lambda name: load.stages.get(name, 0))
    if not load.stages.get(stage):
        return {"bottleneck": None, "sentence": "the instruments were off: nothing to judge"}
    gains = {name: gain(load, name) for name in dict.fromkeys((stage, "infer"))}
    cpu_share = load.process_cpu_s / load.cores / load.period_s
    return {
        "bottleneck": stage,
        "sentence": _sentence(load, stage, gains, cpu_share),
        "gain_if_free": {name: None if value == float("inf") else round(value, 4) for name, value in gains.items()},
        "cpu_share": round(cpu_share, 4),
    }


def _sentence(load: Load, stage: str, gains: dict[str, float], cpu_share: float) -> str:
    full = not load.sync and cpu_share > CPU_FULL
    share = load.stages[stage] / load.period_s
    text = f"{stage}-bound: {stage} takes {share:.0%} of the time of a frame"
    if stage == "infer":
        text += f"; inference could be free and you would gain {_percent(gains['infer'], full)}"
    else:
        text += (
            f"; inference could be free and you would gain {_percent(gains['infer'], full)}, "
            f"{stage} could be free and you would gain {_percent(gains[stage], full)}"
        )
    if load.sync:
        text += " (stages run in turn: without --sync they overlap)"
    elif full:
        text += f" (the CPU is full: {cpu_share * load.cores:.1f} of {load.cores} cores busy)"
    return text


def _percent(value: float, full: bool = False) -> str:
    if value == float("inf"):
        return "everything"
    if full:
        return f"{value:.0%} or more"
    return "nothing" if value < 0.005 else f"at most {value:.0%}"
