"""What limits a run, what it would gain if that cost nothing, and what to try.

The gain is a bound, not a simulation. A stage that takes no time cannot make the run faster than
the slowest of what is left, nor than the CPU work of the other stages' own threads on the cores
there are; opening and closing files still takes its time; and the gain is no more than the time in
which the stage ran. CPU time of libraries' own threads is left out, so that "at most" stays true
(only Linux tells whose threads they are; the replay of ``profile`` counts them).

Where the cores are nearly full, of this run's work or of others', the bound does not hold: stages
that compete for cores slow each other down, and a stage that is gone gives its share back to the
others. Measured on two cores at 90%: the bound said 9%, and without inference the run was 66%
faster. There the sentence says "at least".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from detector.session.document import CpuTime, StageFigures, ThreadFigures, Verdict
from detector.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

# Stages that run one after the other in the overlapped loop; the groups run side by side.
GROUPS = {
    "reading": (READ, PREPROCESS),
    "inference": (INFER,),
    "writing": (HEAD, NMS, ANNOTATE, WRITE),
}
CPU_FULL = 0.8  # share of all cores' time above which stages slow each other down
LEAST = 0.005  # of a frame's time; anything smaller rounds to 0%

NAMES = {
    READ: "Reading the source",
    PREPROCESS: "Preprocessing the frames",
    INFER: "Inference",
    HEAD: "Decoding the network's outputs (head)",
    NMS: "Non-maximum suppression",
    ANNOTATE: "Drawing the boxes",
    WRITE: "Writing the results",
}
WRITING = {"video": "Writing the video", "pictures": "Writing the pictures"}
FASTEST_PRESET = "ultrafast"


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """One run, or one source of it: seconds a frame."""

    period_s: float  # run seconds / frames
    apart_s: float  # of it, outside the loop's threads: opening the source, closing the files
    stages: dict[str, float]  # busy; of infer, the time in which at least one call was running
    worker_s: float  # infer's busy time over its threads: what inference takes if nothing waits
    stage_cpu: dict[str, float]
    process_cpu_s: float
    others_share: float  # of all cores' time, what other processes used; 0 where nobody tells
    cores: int
    sync: bool

    @property
    def groups(self) -> dict[str, float]:
        """Seconds a frame of each group that runs beside the others."""
        taken = {**self.stages, INFER: self.worker_s}
        return {group: sum(taken.get(name, 0) for name in names) for group, names in GROUPS.items()}

    @property
    def cpu_share(self) -> float:
        """Of all cores' time, what this process used."""
        return self.process_cpu_s / self.cores / self.period_s

    @property
    def cpu_is_full(self) -> bool:
        """True where stages compete for cores, so that a gain has no upper bound."""
        return not self.sync and self.cpu_share + self.others_share > CPU_FULL


@dataclass(frozen=True, slots=True)
class Choices:
    """What the run was asked to do, as far as an advice depends on it. ``outputs``: the kinds that
    were written."""

    outputs: Collection[str] = ()
    preset: str | None = None


def frame_times(
    stages: Mapping[str, StageFigures],
    threads: Mapping[str, ThreadFigures],
    cpu: CpuTime,
    infer_s: float,
    run_s: float,
    frames: int,
    sync: bool,
) -> FrameTimes | None:
    """``infer_s``: the time in which at least one inference was running. None without a frame."""
    if not frames or run_s <= 0:
        return None
    busy = {name: stage.busy_s / frames for name, stage in stages.items()}
    loop_s = max((thread.wall_s for thread in threads.values()), default=run_s)
    others_share = 0.0
    if cpu.libraries is not None and cpu.libraries.wall_s:
        others_share = (cpu.libraries.others_s or 0.0) / cpu.libraries.wall_s / cpu.cores
    return FrameTimes(
        period_s=run_s / frames,
        apart_s=max(0.0, run_s - loop_s) / frames,
        stages={**busy, INFER: infer_s / frames},
        worker_s=busy[INFER] / len(stages[INFER].threads),
        stage_cpu={name: stage.cpu_s / frames for name, stage in stages.items()},
        process_cpu_s=cpu.process_s / frames,
        others_share=others_share,
        cores=cpu.cores,
        sync=sync,
    )


def period_without(times: FrameTimes, stage: str) -> float:
    """Seconds that a frame would take at least if ``stage`` took none."""
    rest = max(0.0, times.period_s - times.stages[stage])
    if times.sync:
        return rest
    own = times.worker_s if stage == INFER else times.stages[stage]
    groups = [seconds - own * (stage in GROUPS[group]) for group, seconds in times.groups.items()]
    cpu = sum(seconds for name, seconds in times.stage_cpu.items() if name != stage) / times.cores
    return max(rest, times.apart_s + max(cpu, *groups))


def gain_without(times: FrameTimes, stage: str) -> float:
    """Bound of the growth of end-to-end FPS if ``stage`` took no time: 0.08 = 8% faster. Infinite
    where nothing else takes time."""
    rest = period_without(times, stage)
    return max(0.0, times.period_s / rest - 1) if rest > 0 else float("inf")


def judge(times: FrameTimes | None, choices: Choices = Choices()) -> Verdict:
    """The stage to change first, a sentence for the user, and the gains on which it stands."""
    if times is None:
        return Verdict(bottleneck=None, sentence="no frame went through: nothing to judge")
    groups = times.groups
    slowest = max(groups, key=lambda group: groups[group])
    candidates = times.stages if times.sync else GROUPS[slowest]
    stage = max(candidates, key=lambda name: times.stages.get(name, 0))
    if not times.stages.get(stage):
        return Verdict(bottleneck=None, sentence="the instruments were off: nothing to judge")
    gains = {name: gain_without(times, name) for name in dict.fromkeys((stage, INFER))}
    return Verdict(
        bottleneck=stage,
        sentence=_sentence(times, stage, gains, choices),
        gain_if_free={
            name: None if value == float("inf") else round(value, 4)
            for name, value in gains.items()
        },
        cpu_share=round(times.cpu_share, 4),
    )


def _sentence(times: FrameTimes, stage: str, gains: Mapping[str, float], choices: Choices) -> str:
    """``Writing the video limits this run: it takes 67% of each frame's time. Without it ...``"""
    share = times.stages[stage] / times.period_s
    advice = _advice(stage, choices)
    sentences = [
        f"{_name(stage, choices)} limits this run: it takes {share:.0%} of the time of a frame.",
        f"Without it you would get {_gain(times, stage, gains[stage])}"
        + (f": try {advice}." if advice else "."),
    ]
    if stage != INFER:
        sentences.append(f"Without inference you would get {_gain(times, INFER, gains[INFER])}.")
    if times.sync:
        sentences.append("Stages run in turn; without `--sync` they overlap.")
    elif times.cpu_is_full:
        others = times.others_share * times.cores
        beside = f", and other processes {others:.1f}" if others >= 0.05 else ""
        sentences.append(
            f"The CPU is full: this run keeps {times.cpu_share * times.cores:.1f} of "
            f"{times.cores} cores busy{beside}."
        )
    return " ".join(sentences)


def _name(stage: str, choices: Choices) -> str:
    if stage == WRITE:
        for kind, name in WRITING.items():
            if kind in choices.outputs:
                return name
    return NAMES.get(stage, stage)


def _advice(stage: str, choices: Choices) -> str:
    """Options that take work out of ``stage``; empty where there is none."""
    drawn = any(kind in choices.outputs for kind in WRITING)
    if stage == WRITE and drawn:
        preset = "video" in choices.outputs and choices.preset != FASTEST_PRESET
        return (f"`--preset {FASTEST_PRESET}` or " if preset else "") + "`--no-video`"
    if stage == ANNOTATE and drawn:
        return "`--no-video`"
    if stage in (HEAD, NMS):
        return "a higher `--conf`"
    if stage == INFER:
        return "another engine or precision (`detect-video compare` measures them)"
    return ""


def _gain(times: FrameTimes, stage: str, value: float) -> str:
    if value == float("inf"):
        return "more FPS without a bound, because nothing else takes time"
    if times.cpu_is_full and times.stages[stage] / times.period_s >= LEAST:
        return f"at least {value:.0%} more FPS"
    return "no more FPS" if value < LEAST else f"at most {value:.0%} more FPS"
