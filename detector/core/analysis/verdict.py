"""Find the stage that limits a run, estimate the gain if that stage took no time, and give advice.

Stages are judged by the time that they need. This time excludes all waits for a core, even the
waits of libraries' threads that work for a stage. So a busy machine does not change the verdict.
A run takes as long as its slowest group of stages (``timeline.order``), or as its CPU time per core
if that is longer. The verdict names the stage with the largest gain, and the share of its threads'
time that it took.

The gain assumes that nothing else changes. Without a stage, a run takes as long as its slowest
remaining group or CPU work, plus opening and closing files. The time saved is at most the time that
the stage ran. We report the gain only if it is reliable. The machine must have free cores and
little other work: with two cores 90% busy, we estimated a gain of 9%, but measured 66%. The gain
must be below ``MAX_GAIN``. A second estimate of it, from the times that stages need, may differ by
at most ``MAX_ERROR``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from detector.core.errors.text import counted
from detector.core.session.document import (
    CpuTime,
    LibraryThreads,
    StageFigures,
    ThreadFigures,
    Verdict,
)
from detector.core.timeline.order import grouped
from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

INPUT_STAGES = (PREPROCESS, INFER, HEAD)  # their time depends on the network's input size
CPU_FULL = 0.8  # share of all cores' time above which stages slow each other down
# While a stage's threads sleep, libraries' threads may work for it. If that explains more than this
# share of the sleep, we assume that it explains all of it (see ``need_s``).
MOSTLY_LIBRARIES = 0.5
ROUNDING = 1e-4  # share of a frame's time; anything smaller is a rounding error
MAX_OTHERS = 0.05  # share of all cores; if other programs use more, we do not trust a run's times
MAX_ERROR = 0.1  # share of the FPS by which the two estimates of a reported gain may differ
# We report no larger gain: its error could exceed MAX_ERROR. Without a stage, the others get faster
# too (warmer caches), together by up to 0.3 of that stage's time (scripts/gain_check).
MAX_GAIN = 0.25
NEGLIGIBLE = 0.005  # share of a frame's time, or gain; anything smaller counts as 0
EQUAL = 0.02  # share of the FPS; gains that differ by less count as equal
CPU = "the CPU"
FILES = "opening and closing files"
# Below FEW frames, a run's start and end weigh too much for a verdict. Messages advise ENOUGH.
FEW, ENOUGH = 30, 100

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
UNMEASURED = "A plain run cannot tell the gain; `detect-video profile` measures it."


@dataclass(frozen=True, slots=True)
class FrameCosts:
    """The times of a run, or of one of its sources, in seconds per frame."""

    period_s: float  # seconds of the run / frames
    outside_s: float  # part of the period outside the loop: opening the source, closing files
    stages: dict[str, float]  # time needed; for infer, the time with at least one call running
    # Busy time of the stage's threads, including waits for a core. If libraries' threads used more
    # CPU time for the stage than its own threads slept, the difference is added.
    ran: dict[str, float]
    per_thread: dict[str, float]  # time needed, divided by the number of the stage's threads
    stage_cpu: dict[str, float]  # CPU time, with libraries' threads if their stage is known
    process_cpu_s: float
    between_cpu_s: float  # part of ``process_cpu_s`` outside stages; 0 if unknown
    others_share: float  # share of all cores' time used by other processes; 0 if unknown
    others_known: bool  # whether ``others_share`` is known
    cores: int
    sync: bool
    frames: int
    shares: dict[str, float]  # stage -> share (0 to 1) of its threads' time, as in the ledger
    threads: dict[str, list[str]]
    # The thread that spent the largest share (0 to 1) of its loop time waiting for cores that other
    # threads of this run used: its name and this share. None if unknown, or if no thread waited.
    crowded: tuple[str, float] | None = None

    def groups(self, remaining: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds per frame that each concurrent group needs. ``remaining``: stage ->
        share (0 to 1) of its time that is left after a change; 1 for stages that are not listed."""
        return {
            group: sum(self.per_thread.get(name, 0) * remaining.get(name, 1) for name in names)
            for group, names in grouped(self.stages).items()
        }

    @property
    def cpu_share(self) -> float:
        return min(1.0, self.process_cpu_s / self.cores / self.period_s)

    @property
    def cpu_is_full(self) -> bool:
        return not self.sync and self.cpu_share + self.others_share > CPU_FULL

    @property
    def others_cores(self) -> float:
        return self.others_share * self.cores


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of a run that the advice depends on.

    ``outputs``: kinds of outputs. ``encoding``: the option that sets how the video is encoded, and
    its value; ``encodings``: whether the video's format has such an option. ``input``: height and
    width of the network's input. ``smaller_input``: the next smaller input for which the network
    was trained, if any. ``between``: as in ``RunSettings``.
    """

    outputs: Collection[str] = ()
    encoding: tuple[str, str] | None = None
    encodings: bool = True
    input: tuple[int, int] = (0, 0)
    smaller_input: tuple[int, int] | None = None
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def given_encoding(output: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the option in ``output`` that sets the encoding, and its value; None if unset."""
    for name in ("preset", "quality", "crf"):
        if output.get(name) is not None:
            return f"--{name}", str(output[name])
    return None


def faster_encoding(given: tuple[str, str] | None) -> tuple[str, str] | None:
    """Return the fastest option and value for encoding; None if that is already ``given``."""
    flag = "--quality" if given is None or given[0] == "--quality" else "--preset"
    fastest = flag, "fast" if flag == "--quality" else "ultrafast"
    return None if given == fastest else fastest


def has_encodings(video: str) -> bool:
    """Return whether --quality applies to a video of this name."""
    return not video.lower().endswith((".avi", ".gif"))


def frame_times(
    stages: Mapping[str, StageFigures],
    threads: Mapping[str, ThreadFigures],
    cpu: CpuTime,
    infer_s: float,
    run_s: float,
    frames: int,
    sync: bool,
) -> FrameCosts | None:
    """Compute times per frame; None without frames. ``infer_s``: time with an inference running."""
    if not frames or run_s <= 0:
        return None
    needs = {name: need_s(name, stage, cpu.libraries) / frames for name, stage in stages.items()}
    infer = stages[INFER]
    loop_s = max((thread.wall_s for thread in threads.values()), default=run_s)
    shares = {}
    for name, stage in stages.items():
        walls_s = sum(
            threads[thread].wall_s if thread in threads else loop_s for thread in stage.threads
        )
        shares[name] = min(1.0, stage.busy_s / walls_s) if walls_s else 0.0
    process_share = min(1.0, cpu.process_s / cpu.cores / run_s)
    others_share = 0.0
    if cpu.libraries is not None and cpu.libraries.wall_s:
        others_share = (cpu.libraries.others_s or 0.0) / cpu.libraries.wall_s / cpu.cores
        # The measured shares may sum to above 1: clocks are coarse, and on VMs they jump.
        others_share = min(others_share, 1.0 - process_share)
    used = infer_s / infer.busy_s if infer.busy_s else 0.0  # below 1 if calls overlap
    stage_cpu = {name: _stage_cpu_s(stage, sync) / frames for name, stage in stages.items()}
    between_s = max(0.0, cpu.process_s / frames - sum(stage_cpu.values()))
    return FrameCosts(
        period_s=run_s / frames,
        outside_s=max(0.0, run_s - loop_s) / frames,
        stages={**needs, INFER: needs[INFER] * used},
        ran={name: _ran_s(name, stage, infer_s) / frames for name, stage in stages.items()},
        per_thread={name: needs[name] / len(stage.threads) for name, stage in stages.items()},
        stage_cpu=stage_cpu,
        process_cpu_s=cpu.process_s / frames,
        between_cpu_s=0.0 if cpu.libraries is None else between_s,
        others_share=others_share,
        others_known=cpu.libraries is not None and cpu.libraries.others_s is not None,
        cores=cpu.cores,
        sync=sync,
        frames=frames,
        shares=shares,
        threads={name: stage.threads for name, stage in stages.items()},
        crowded=_find_most_crowded(threads),
    )


def _stage_cpu_s(stage: StageFigures, sync: bool) -> float:
    """Return CPU seconds of the stage's thread and of libraries' threads working for it. In the
    plain loop (``sync``), ``cpu_s`` includes other stages' codecs; ``split.on_cpu_s`` does not."""
    if not sync:
        return stage.cpu_s + (stage.library_cpu_s or 0.0)
    if stage.split is None or stage.library_cpu_s is None:
        return stage.cpu_s
    return stage.split.on_cpu_s + stage.library_cpu_s


def _find_most_crowded(threads: Mapping[str, ThreadFigures]) -> tuple[str, float] | None:
    waited = {
        name: (thread.ready_s or 0.0) * (1 - (thread.foreign_share or 0.0)) / thread.wall_s
        for name, thread in threads.items()
        if thread.wall_s
    }
    name = max(waited, key=lambda name: waited[name], default="")
    return (name, min(1.0, waited[name])) if name and waited[name] >= NEGLIGIBLE else None


def _ran_s(name: str, stage: StageFigures, infer_s: float) -> float:
    busy_s = infer_s if name == INFER else stage.busy_s
    if stage.split is None or stage.library_cpu_s is None:
        return busy_s
    return busy_s + max(0.0, stage.library_cpu_s - stage.split.blocked_s)


def need_s(name: str, stage: StageFigures, libraries: LibraryThreads | None) -> float:
    """Return the seconds that a stage's calls needed, excluding waits for a core; ``busy_s`` if
    unknown. The waits of the stage's own thread are measured. While this thread sleeps, libraries'
    threads work for it, and may wait for a core too. We look at the busiest of these threads, and
    exclude its waits. If its work and waits fill more than MOSTLY_LIBRARIES of the sleep, we assume
    the same ratio of work to waits in the whole sleep."""
    split = stage.split
    if split is None or not stage.calls:
        return stage.busy_s
    library = None if libraries is None else libraries.stages.get(name)
    if library is None or not library.calls or not library.busiest_s:
        return split.on_cpu_s + split.blocked_s
    scale = stage.calls / library.calls
    busiest, ready = library.busiest_s * scale, max(0.0, library.ready_s) * scale
    # If several threads call the stage, the busiest library thread may work for only one of them.
    slept = min(split.blocked_s, (busiest + ready) * len(stage.threads))
    if slept > MOSTLY_LIBRARIES * split.blocked_s:
        # The rest of the sleep was probably spent on locks, held by threads that wait for a core.
        slept = split.blocked_s
    needed = split.on_cpu_s + split.blocked_s - slept * ready / (busiest + ready)
    return min(stage.busy_s, max(needed, busiest))


def period_without(times: FrameCosts, stage: str) -> float:
    """Return the least possible seconds per frame if ``stage`` took no time."""
    return period_with(times, {stage: 0.0})


def period_with(times: FrameCosts, remaining: Mapping[str, float]) -> float:
    """Return the least possible seconds per frame. ``remaining``: as in ``groups``."""
    saved_s = sum(times.ran.get(name, 0) * (1 - share) for name, share in remaining.items())
    rest = max(0.0, times.period_s - saved_s)
    if times.sync:  # codecs' threads work at the same time, so the CPU time may be the limit
        return max(rest, times.outside_s + _cpu_s(times, remaining)) if times.others_known else rest
    return max(rest, explained_s(times, remaining))


def explained_s(times: FrameCosts, remaining: Mapping[str, float]) -> float:
    """Return the seconds per frame of a run if each stage takes the time that it needs. The slowest
    group decides, or the CPU time per core if longer; in the plain loop, all stages add up."""
    if times.sync:
        needs = (seconds * remaining.get(name, 1) for name, seconds in times.stages.items())
        return times.outside_s + sum(needs)
    return times.outside_s + max(_limits(times, remaining).values())


def _limits(times: FrameCosts, remaining: Mapping[str, float]) -> dict[str, float]:
    return times.groups(remaining) | {CPU: _cpu_s(times, remaining)}


def _cpu_s(times: FrameCosts, remaining: Mapping[str, float]) -> float:
    cpu = sum(seconds * remaining.get(name, 1) for name, seconds in times.stage_cpu.items())
    return (cpu + times.between_cpu_s) / times.cores


def estimate_without(times: FrameCosts, stage: str) -> float:
    """Return the growth of end-to-end FPS without ``stage``, estimated with ``explained_s``."""
    return _growth(explained_s(times, {}), explained_s(times, {stage: 0.0}))


def is_reliable(times: FrameCosts, remaining: Mapping[str, float]) -> bool:
    """Return whether we can report the gain of a change. ``remaining``: as in ``groups``.

    We cannot if the cores are full before or after the change: only a measurement shows how much
    faster the other stages become. (In the plain loop, only libraries' threads can fill the cores.)
    We also cannot if the gain is above MAX_GAIN, or if closing files takes much of the run. With
    --save crops, we computed a gain of 49% but measured 17%: the disk had worked during inference.
    """
    if times.others_share > MAX_OTHERS:
        return False
    period_s = period_with(times, remaining)
    bound = _gain_to(times, period_s)
    full = _cpu_s(times, remaining) > CPU_FULL * period_s
    if times.sync and times.others_known and full:
        return False
    if bound < NEGLIGIBLE or bound == float("inf"):
        return True  # the gain is 0 or infinite, even if the times are inaccurate
    if bound > MAX_GAIN or times.cpu_is_full or (full and not times.sync):
        return False
    # In a shorter run, the disk writes less in the background, so closing files may take longer.
    at_worst_s = period_s + min(times.outside_s, max(0.0, times.period_s - period_s))
    if bound - _gain_to(times, at_worst_s) > MAX_ERROR:
        return False
    return abs(bound - _growth(explained_s(times, {}), explained_s(times, remaining))) <= MAX_ERROR


def limit_without(times: FrameCosts, stage: str) -> str | None:
    """Return what limits a run without ``stage``: a group, CPU or FILES. None if nothing limits it:
    the run then becomes shorter by the stage's whole time."""
    rest = max(0.0, times.period_s - times.ran[stage])
    if times.sync or period_without(times, stage) <= rest:
        return None
    limits = _limits(times, {stage: 0.0})
    slowest = max(limits, key=lambda name: limits[name])
    return FILES if times.outside_s > limits[slowest] else slowest


def gain_without(times: FrameCosts, stage: str) -> float:
    """Return the growth of end-to-end FPS without ``stage`` (0.08: 8% faster); may be infinite."""
    return _gain_to(times, period_without(times, stage))


def gain_with_smaller_input(times: FrameCosts, choices: Choices) -> float:
    """Return the gain of the smaller input, 0 if there is none. Times of ``INPUT_STAGES`` shrink
    with the area. The gain is at most the gain without inference."""
    if choices.smaller_input is None:
        return 0.0
    gain = _gain_to(times, period_with(times, dict.fromkeys(INPUT_STAGES, _area_left(choices))))
    return min(gain, gain_without(times, INFER))


def _gain_to(times: FrameCosts, period_s: float) -> float:
    return _growth(times.period_s, period_s)


def _growth(before_s: float, after_s: float) -> float:
    return float("inf") if after_s <= before_s * ROUNDING else max(0.0, before_s / after_s - 1)


def _area_left(choices: Choices) -> float:
    assert choices.smaller_input is not None
    (height, width), (smaller_height, smaller_width) = choices.input, choices.smaller_input
    return min(1.0, smaller_height * smaller_width / (height * width))


def judge(times: FrameCosts | None, choices: Choices = Choices()) -> Verdict:
    """Return the stage to change first, a sentence for the user, and the gains that support it."""
    if times is None:
        return Verdict(
            bottleneck=None, sentence="no frame was processed, so no verdict is possible"
        )
    stage = _stage_to_change(times)
    if stage is None:
        return Verdict(
            bottleneck=None, sentence="the instruments were off, so no verdict is possible"
        )
    gains = {
        name: gain_without(times, name)
        for name in dict.fromkeys((stage, INFER))
        if is_reliable(times, {name: 0.0})
    }
    few = times.frames < FEW
    smaller = choices.smaller_input
    if few or stage != INFER or gain_with_smaller_input(times, choices) < NEGLIGIBLE:
        smaller = None
    choices = replace(choices, smaller_input=smaller)
    return Verdict(
        bottleneck=None if few else stage,
        sentence=_describe_too_few(times.frames)
        if few
        else _sentence(times, stage, gains, choices),
        gain_if_free={
            name: None if value == float("inf") else round(value, 4)
            for name, value in gains.items()
        },
        cpu_share=round(times.cpu_share, 4),
        smaller_input=UNSET if smaller is None else smaller,
        advice="" if few else _advice(stage, choices),
        others_cores=round(times.others_cores, 2) if times.others_known else None,
    )


def _stage_to_change(times: FrameCosts) -> str | None:
    """Return the longest stage of the slowest group, or another stage if its gain is larger. Return
    None if no stage ran. We use the times that stages need, which other programs do not change."""
    groups = times.groups({})
    slowest = max(groups, key=lambda group: groups[group])
    candidates = times.stages if times.sync else grouped(times.stages)[slowest]
    stage = max(candidates, key=lambda name: times.stages.get(name, 0))
    if not times.stages.get(stage):
        return None
    gains = {name: estimate_without(times, name) for name in times.stages}
    best = max(gains, key=lambda name: gains[name])
    return best if 1 + gains[best] > (1 + gains[stage]) * (1 + EQUAL) else stage


def _describe_too_few(frames: int) -> str:
    few = f"{counted(frames, 'frame', 'is')} too few"
    return f"{few} to show what limits this run; use {ENOUGH} or more."


def _sentence(times: FrameCosts, stage: str, gains: Mapping[str, float], choices: Choices) -> str:
    """Return ``Writing the video limits this run: its thread spends 68.6% of its time in `write`.
    The next limit is inference`` and so on. Gains are included only if ``is_reliable``."""
    advice = _advice(stage, choices)
    try_it = f"Try {advice}." if advice else ""
    several = len(times.threads[stage]) > 1
    share_text = (
        "its threads spend {:.1%} of their" if several else "its thread spends {:.1%} of its"
    )
    limits = f"{_name(stage, choices)} limits this run"
    sentences = [f"{limits}: {share_text.format(times.shares[stage])} time in `{stage}`."]
    if others := describe_others(times.others_cores, times.cores):
        sentences += [
            f"{others.capitalize()}, so this verdict ignores waits for a core and estimates no "
            "gain. Measure again when the machine is less busy."
        ]
        return " ".join([*sentences, *([try_it] if advice else [])])
    if stage in gains:
        sentences += _next_limit(limit_without(times, stage), gains[stage])
    else:
        sentences.append(UNMEASURED)
    sentences += [try_it] if advice else []
    smaller = choices.smaller_input
    if smaller is not None:
        height, width = smaller
        gain_text = ""
        factors = dict.fromkeys(INPUT_STAGES, _area_left(choices))
        if INFER in gains and is_reliable(times, factors):
            gain_text = f", {_times(gain_with_smaller_input(times, choices))} at best"
        sentences.append(
            f"`--size {width}x{height}` has {_area_left(choices):.0%} of the input's pixels"
            f"{gain_text}; it misses more small objects."
        )
    if times.sync:
        sentences.append("Stages run in turn; without `--sync` they overlap.")
    elif times.cpu_is_full:
        crowded = ""
        if times.crowded is not None:
            name, share = times.crowded
            crowded = f", and `{name}` spent {share:.0%} of its time waiting for a core"
        sentences.append(
            f"The CPU is full: the threads of this run keep {times.cpu_share * times.cores:.1f} of "
            f"{counted(times.cores, 'core')} busy{crowded}."
        )
    return " ".join(sentences)


def describe_others(used: float | None, cores: int) -> str | None:
    """Return ``other programs used 1.0 of 2 cores``; None if it was little or is unknown."""
    if used is None or used <= MAX_OTHERS * cores:
        return None
    return f"other programs used {used:.1f} of {counted(cores, 'core')}"


def _name(stage: str, choices: Choices) -> str:
    if stage == WRITE:
        for kind, name in WRITING.items():
            if kind in choices.outputs:
                return name
    return NAMES.get(stage) or choices.between.get(stage, (stage, ""))[0]


def _advice(stage: str, choices: Choices) -> str:
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


def _next_limit(limit: str | None, gain: float) -> list[str]:
    if gain == float("inf"):
        return ["Nothing else takes time."]
    if limit is None:
        return [f"Without it: {_times(gain)}."]
    if gain < NEGLIGIBLE:
        return [f"{limit[0].upper()}{limit[1:]} limits this run just as much."]
    return [f"The next limit is {limit}, at {_times(gain)}."]


def _times(gain: float) -> str:
    return f"about {1 + gain:.2f}x the FPS"
