"""What limits a run, what it would gain if that cost nothing, and what to try.

The gain is a bound, not a simulation. A stage that takes no time cannot make the run faster than
the slowest of what is left, nor than the CPU work of the other stages' own threads on the cores
there are; opening and closing files still takes its time; and the gain is no more than the time in
which the stage ran. CPU time of libraries' own threads is left out, so that "at most" stays true
(only Linux tells whose threads they are; ``profile`` measures the gain).

Where the cores are nearly full, of this run's work or of others', the bound does not hold: stages
that compete for cores slow each other down, and a stage that is gone gives its share back to the
others. Measured on two cores at 90%: the bound said 9%, and without inference the run was 66%
faster. There the sentence has no figure.

The stage that is named is the one that would bring most. Its share is that of its row in the
ledger, so that a reader finds the very figure there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from detector.core.errors.text import counted
from detector.core.session.document import CpuTime, StageFigures, ThreadFigures, Verdict
from detector.core.timeline.order import group_of, grouped
from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

OF_INPUT = (PREPROCESS, INFER, HEAD)  # take as long as the network's input is large, at most
CPU_FULL = 0.8  # share of all cores' time above which stages slow each other down
NOTHING = 1e-4  # of a frame's time: below it what is left is rounding
LEAST = 0.005  # of a frame's time; anything smaller rounds to 0%
NEAR = 0.02  # of the FPS: stages whose gains lie no further apart bring as much as each other
FILES = "opening and closing files"
FEW, ENOUGH = 30, 100  # frames; in fewer the start and the end weigh as much as the rest

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
    frames: int
    shares: dict[str, float]  # of its threads' time in the loop, as in the ledger, 0 to 1
    workers: int

    @property
    def groups(self) -> dict[str, float]:
        """Seconds a frame of each group that runs beside the others."""
        taken = {**self.stages, INFER: self.worker_s}
        parts = grouped(taken)
        return {group: sum(taken.get(name, 0) for name in names) for group, names in parts.items()}

    @property
    def cpu_share(self) -> float:
        """Of all cores' time, what this process used."""
        return min(1.0, self.process_cpu_s / self.cores / self.period_s)

    @property
    def cpu_is_full(self) -> bool:
        """True where stages compete for cores, so that a gain has no upper bound."""
        return not self.sync and self.cpu_share + self.others_share > CPU_FULL


@dataclass(frozen=True, slots=True)
class Choices:
    """What the run was asked to do, as far as an advice depends on it. ``outputs``: the kinds that
    were written. ``encoding``: the option that says how the video is encoded, and its value;
    ``encodings``: whether the video's format has such options. ``input``: of the network, height
    and width; ``smaller_input``: the next smaller one that the model was trained for, if any.
    ``between``: as ``RunFacts``."""

    outputs: Collection[str] = ()
    encoding: tuple[str, str] | None = None
    encodings: bool = True
    input: tuple[int, int] = (0, 0)
    smaller_input: tuple[int, int] | None = None
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def given_encoding(output: Mapping[str, object]) -> tuple[str, str] | None:
    """Of the configuration's group ``output``: the option that says how a video is encoded, and its
    value; None where nothing was said."""
    for name in ("preset", "quality", "crf"):
        if output.get(name) is not None:
            return f"--{name}", str(output[name])
    return None


def faster_encoding(given: tuple[str, str] | None) -> tuple[str, str] | None:
    """The option and value that encode fastest beside what was given; None: it is that already."""
    flag = "--quality" if given is None or given[0] == "--quality" else "--preset"
    fastest = flag, "fast" if flag == "--quality" else "ultrafast"
    return None if given == fastest else fastest


def has_encodings(video: str) -> bool:
    """Whether --quality means something for a video of this name."""
    return not video.lower().endswith((".avi", ".gif"))


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
    shares = {}
    for name, stage in stages.items():
        walls_s = sum(threads[one].wall_s if one in threads else loop_s for one in stage.threads)
        shares[name] = min(1.0, stage.busy_s / walls_s) if walls_s else 0.0
    process_share = min(1.0, cpu.process_s / cpu.cores / run_s)
    others_share = 0.0
    if cpu.libraries is not None and cpu.libraries.wall_s:
        others_share = (cpu.libraries.others_s or 0.0) / cpu.libraries.wall_s / cpu.cores
        # Both are of the same cores. The system's clocks tick coarsely, and they jump where the
        # computer is a guest.
        others_share = min(others_share, 1.0 - process_share)
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
        frames=frames,
        shares=shares,
        workers=len(stages[INFER].threads),
    )


def period_without(times: FrameTimes, stage: str) -> float:
    """Seconds that a frame would take at least if ``stage`` took none."""
    return period_with(times, {stage: 0.0})


def period_with(times: FrameTimes, left: Mapping[str, float]) -> float:
    """Seconds that a frame would take at least if of each stage in ``left`` this share remained,
    0 to 1."""
    saved = {name: times.stages.get(name, 0) * (1 - share) for name, share in left.items()}
    rest = max(0.0, times.period_s - sum(saved.values()))
    if times.sync:
        return rest
    if INFER in left:
        saved[INFER] = times.worker_s * (1 - left[INFER])
    parts = grouped(times.stages)
    groups = [
        seconds - sum(saved.get(name, 0) for name in parts[group])
        for group, seconds in times.groups.items()
    ]
    cpu = sum(seconds * left.get(name, 1) for name, seconds in times.stage_cpu.items())
    return max(rest, times.apart_s + max(cpu / times.cores, *groups))


def limit_without(times: FrameTimes, stage: str) -> str | None:
    """What limits the run when ``stage`` takes no time: a group, "the CPU", or FILES. None where it
    is only what is left of the frame's own time."""
    rest = max(0.0, times.period_s - times.stages[stage])
    if times.sync or period_without(times, stage) <= rest:
        return None
    own = times.worker_s if stage == INFER else times.stages[stage]
    left = {
        group: seconds - own * (group == group_of(stage)) for group, seconds in times.groups.items()
    }
    slowest = max(left, key=lambda group: left[group])
    cpu = sum(seconds for name, seconds in times.stage_cpu.items() if name != stage) / times.cores
    if times.apart_s > max(cpu, left[slowest]):
        return FILES
    return "the CPU" if cpu > left[slowest] else slowest


def gain_without(times: FrameTimes, stage: str) -> float:
    """Bound of the growth of end-to-end FPS if ``stage`` took no time: 0.08 = 8% faster. Infinite
    where nothing else takes time."""
    return _gain_to(times, period_without(times, stage))


def gain_with_smaller_input(times: FrameTimes, choices: Choices) -> float:
    """The same bound for the smaller input: no stage that works on the network's input becomes
    faster than its area becomes smaller. Never more than inference that takes no time would bring,
    which the user reads beside it. 0 where there is none."""
    if choices.smaller_input is None:
        return 0.0
    gain = _gain_to(times, period_with(times, dict.fromkeys(OF_INPUT, _area_left(choices))))
    return min(gain, gain_without(times, INFER))


def _gain_to(times: FrameTimes, period_s: float) -> float:
    nothing_left = period_s <= times.period_s * NOTHING
    return float("inf") if nothing_left else max(0.0, times.period_s / period_s - 1)


def _area_left(choices: Choices) -> float:
    """Of the input's area in the smaller input, 0 to 1."""
    assert choices.smaller_input is not None
    (height, width), (smaller_height, smaller_width) = choices.input, choices.smaller_input
    return min(1.0, smaller_height * smaller_width / (height * width))


def judge(times: FrameTimes | None, choices: Choices = Choices()) -> Verdict:
    """The stage to change first, a sentence for the user, and the gains on which it stands."""
    if times is None:
        return Verdict(bottleneck=None, sentence="no frame went through: nothing to judge")
    stage = _stage_to_change(times)
    if stage is None:
        return Verdict(bottleneck=None, sentence="the instruments were off: nothing to judge")
    gains = {name: gain_without(times, name) for name in dict.fromkeys((stage, INFER))}
    few = times.frames < FEW
    smaller = choices.smaller_input
    if few or stage != INFER or gain_with_smaller_input(times, choices) < LEAST:
        smaller = None
    choices = replace(choices, smaller_input=smaller)
    return Verdict(
        bottleneck=None if few else stage,
        sentence=_too_few(times.frames) if few else _sentence(times, stage, gains, choices),
        gain_if_free={
            name: None if value == float("inf") else round(value, 4)
            for name, value in gains.items()
        },
        cpu_share=round(times.cpu_share, 4),
        smaller_input=UNSET if smaller is None else smaller,
        advice="" if few else _advice(stage, choices),
    )


def _stage_to_change(times: FrameTimes) -> str | None:
    """The longest of the slowest group, unless another stage brings more. None where none ran."""
    groups = times.groups
    slowest = max(groups, key=lambda group: groups[group])
    candidates = times.stages if times.sync else grouped(times.stages)[slowest]
    stage = max(candidates, key=lambda name: times.stages.get(name, 0))
    if not times.stages.get(stage):
        return None
    gains = {name: gain_without(times, name) for name in times.stages}
    best = max(gains, key=lambda name: gains[name])
    return best if 1 + gains[best] > (1 + gains[stage]) * (1 + NEAR) else stage


def _too_few(frames: int) -> str:
    few = f"{counted(frames, 'frame', 'is')} too few"
    return f"{few} to tell what limits this run: use {ENOUGH} or more."


def _sentence(times: FrameTimes, stage: str, gains: Mapping[str, float], choices: Choices) -> str:
    """``Writing the video limits this run: `write` takes 68.6% of its thread's time. The next limit
    is inference`` and so on. A figure stands there only where it is a bound."""
    advice = _advice(stage, choices)
    whose = "threads'" if stage == INFER and times.workers > 1 else "thread's"
    sentences = [
        f"{_name(stage, choices)} limits this run: `{stage}` takes {times.shares[stage]:.1%} of "
        f"its {whose} time.",
        *_next_limit(times, limit_without(times, stage), gains[stage]),
        *([f"Try {advice}."] if advice else []),
    ]
    if choices.smaller_input is not None:
        height, width = choices.smaller_input
        most = _times(times, gain_with_smaller_input(times, choices))
        sentences.append(
            f"`--size {width}x{height}` is {_area_left(choices):.0%} of the network's input"
            f"{most and f', {most}'}; it misses more small objects."
        )
    if times.sync:
        sentences.append("Stages run in turn; without `--sync` they overlap.")
    elif times.cpu_is_full:
        others = times.others_share * times.cores
        beside = f", and other processes {others:.1f}" if others >= 0.05 else ""
        sentences.append(
            f"The CPU is full: this run keeps {times.cpu_share * times.cores:.1f} of "
            f"{counted(times.cores, 'core')} busy{beside}."
        )
    return " ".join(sentences)


def _name(stage: str, choices: Choices) -> str:
    if stage == WRITE:
        for kind, name in WRITING.items():
            if kind in choices.outputs:
                return name
    return NAMES.get(stage) or choices.between.get(stage, (stage, ""))[0]


def _advice(stage: str, choices: Choices) -> str:
    """Options that take work out of ``stage``; empty where there is none."""
    drawn = any(kind in choices.outputs for kind in WRITING)
    if stage == WRITE and drawn:
        encodes = "video" in choices.outputs and choices.encodings
        faster = faster_encoding(choices.encoding) if encodes else None
        return (f"`{' '.join(faster)}` or " if faster else "") + "`--no-video`"
    if stage == ANNOTATE and drawn:
        return "`--no-video`"
    if stage in (HEAD, NMS):
        return "a higher `--conf`"
    if stage == INFER:
        return "another engine or precision (`detect-video compare` measures them)"
    return choices.between.get(stage, ("", ""))[1]


def _next_limit(times: FrameTimes, limit: str | None, gain: float) -> list[str]:
    """What a run meets when the stage that limits it costs nothing."""
    if gain == float("inf"):
        return ["Nothing else takes time."]
    most = _times(times, gain)
    if limit is None:
        return [f"Without it: {most}."] if most else []
    if gain < LEAST:
        return [f"{limit[0].upper()}{limit[1:]} limits it as much."]
    return [f"The next limit is {limit}{most and f', at {most}'}."]


def _times(times: FrameTimes, gain: float) -> str:
    """``1.3x the FPS at most``; empty where the CPU is full, so that there is no bound."""
    return "" if times.cpu_is_full else f"{1 + gain:.2f}x the FPS at most"
