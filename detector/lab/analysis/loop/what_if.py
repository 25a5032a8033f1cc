"""What a run would do if one thing were different, predicted by replaying it.

The predictions are made in three steps, and the file has a part for each:

1. What a call of each stage costs with the computer to itself (``stage_costs``). CPU seconds are
   the recorded run's own: a stage's thread by its clock, library threads by the operating system's
   count, each booked to the stage that its threads belong to (core/timeline/native.py). Wall
   seconds come from a plain loop over the same clip with the same threads a request, in which
   nothing else of ours runs.
2. The load of the recorded run (``build_load``): each call's recorded duration, scaled so that the
   mean of its stage is what a call costs alone.
3. The load replayed as it was and with one change at a time (``predict``). The replay says by what
   factor a change helps; the measured rate times that factor is the prediction.

The last part reads all this out of a saved session, and its critical path too. ``list_doubts``
says when not to trust the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors.text import counted
from detector.core.session.document import SessionDocument, StageFigures
from detector.core.timeline import KINDS, OTHER
from detector.core.timeline.spans import INFER, PREPROCESS, READ, STAGES, WRITE
from detector.lab.analysis.loop.activities import Activity, LoopShape, activities_of, activity_graph
from detector.lab.analysis.loop.critical_path import CriticalPath, critical_path
from detector.lab.analysis.loop.replay import Beside, Load, replay, wall
from detector.lab.session.passes import Prediction
from detector.lab.session.read import SavedSession

# ----------------------------------------------------------------------
# 1. What a call of each stage costs

# The libraries of these stages may work on after a call, or ahead of it. Infer waits, by its
# contract.
HAND_OVER = (READ, WRITE)
# Share of library threads' CPU time that is used inside the calls. Threads that only work for a
# call that waits for them are near 1.
INSIDE = 0.8


@dataclass(frozen=True, slots=True)
class Aside:
    """Work that a stage's library threads do for each call, beside the calls. ``seconds``: of the
    busiest of the threads; ``cpu``: of all of them; ``room``: for how many calls at once."""

    seconds: float
    cpu: float
    room: int


@dataclass(frozen=True, slots=True)
class Cost:
    """One call on average: seconds with the computer to itself, and CPU seconds within the call."""

    seconds: float
    cpu: float
    aside: Aside | None = None


@dataclass(frozen=True, slots=True)
class Alone:
    """An average call of each stage in a plain loop: seconds, and CPU seconds of the whole process
    during the call."""

    seconds: Mapping[str, float]
    cpu: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _LibraryThreads:
    """Of a stage, in seconds a call."""

    count: int
    cpu: float
    busiest: float
    ready: float


def alone_in(document: SessionDocument) -> Alone:
    """What calls take in this session, without the time in which a stage's threads were ready but
    not scheduled.

    In a plain loop's session only the share of that time that other processes caused is left out.
    In an overlapped one all of it is; what threads do to each other otherwise (caches, locks) is
    still inside.
    """
    stages = _called_stages(document)
    # A call takes at least its own thread's CPU time. Where the CPU time is the whole process's, it
    # takes at least that time spread over all cores.
    width = document.cpu.cores if document.cpu.stages_include_libraries else 1
    blame = _foreign_share(document)
    seconds = {
        name: max(stage.cpu_s / width, stage.busy_s - blame * _waited_for_core_s(document, name))
        for name, stage in stages.items()
    }
    return Alone(
        {name: seconds[name] / stage.calls for name, stage in stages.items()},
        {name: stage.cpu_s / stage.calls for name, stage in stages.items()},
    )


def stage_costs(document: SessionDocument, alone: Alone | None = None) -> dict[str, Cost]:
    """The cost of each stage's calls. ``alone``: measured in a plain loop over the same clip with
    the same threads a request; without it, the best that this session itself can tell."""
    seconds = (alone or alone_in(document)).seconds
    stages = _called_stages(document)
    if document.cpu.stages_include_libraries:
        # A plain loop: every stage's CPU time is that of the whole process during its calls.
        return {
            name: Cost(seconds[name], stage.cpu_s / stage.calls) for name, stage in stages.items()
        }
    libraries = _library_threads(document)
    if libraries is None:
        return _guess_costs(document, seconds)
    costs = {}
    for name, stage in stages.items():
        own = stage.cpu_s / stage.calls
        threads, took = libraries.get(name), seconds.get(name, 0.0)
        inside = None if alone is None else alone.cpu.get(name, own) - own
        if threads is None:
            costs[name] = Cost(max(own, took), own)
        elif name in HAND_OVER and _works_beside(name, threads, inside):
            room = round(threads.cpu / threads.busiest)
            costs[name] = Cost(own, own, Aside(threads.busiest, threads.cpu, room))
        else:
            # An engine's threads work beside the caller or instead of it. The encoder's work while
            # the caller sleeps.
            least = max(own, threads.busiest) if name == INFER else own + threads.busiest
            costs[name] = Cost(max(least, took), own + threads.cpu)
    return costs


def _called_stages(document: SessionDocument) -> dict[str, StageFigures]:
    return {name: stage for name, stage in document.stages.items() if stage.calls}


def _library_threads(document: SessionDocument) -> dict[str, _LibraryThreads] | None:
    """By stage. None where the session does not tell: it ran on another system than Linux, or an
    earlier version wrote it."""
    libraries = document.cpu.libraries
    if libraries is None:
        return None
    return {
        name: _LibraryThreads(
            count=one.threads,
            cpu=one.cpu_s / one.calls,
            busiest=one.busiest_s / one.calls,
            ready=one.ready_s / one.calls,
        )
        for name, one in libraries.stages.items()
        if one.calls > 0
    }


def _works_beside(name: str, threads: _LibraryThreads, inside: float | None) -> bool:
    """Whether library threads work while their stage is not being called.

    ``inside``: their CPU seconds within a call of the plain loop; if much less than all of them,
    they work beside the calls. Without a plain loop: FFmpeg's decoders read ahead, and x264 encodes
    within the call, because PyAV has it encode in slices.
    """
    return name == READ if inside is None else inside < INSIDE * threads.cpu


def _foreign_share(document: SessionDocument) -> float:
    """The share of waiting for a core that other processes caused, by the CPU time that each used.

    In an overlapped loop it is 1, since there all waiting for a core is left out. In a plain loop
    nothing of ours runs beside a stage but its own libraries, and waiting for them is part of what
    the stage takes.
    """
    libraries = document.cpu.libraries
    if not document.cpu.stages_include_libraries or libraries is None or libraries.others_s is None:
        return 1.0
    return libraries.others_s / ((libraries.others_s + libraries.process_s) or 1.0)


def _waited_for_core_s(document: SessionDocument, name: str) -> float:
    """Seconds in which the stage's thread, or its busiest library thread, was ready but not
    scheduled."""
    stage = document.stages[name]
    own = [document.threads[thread] for thread in stage.threads if thread in document.threads]
    ready, cpu = sum(thread.ready_s or 0.0 for thread in own), sum(thread.cpu_s for thread in own)
    mine = stage.cpu_s * ready / cpu if cpu else 0.0
    threads = (_library_threads(document) or {}).get(name)
    theirs = threads.ready * stage.calls if threads is not None and name != READ else 0.0
    return max(mine, theirs) if name == INFER else mine + theirs


def _guess_costs(document: SessionDocument, alone: Mapping[str, float]) -> dict[str, Cost]:
    """Where the system does not tell whose the library threads are: an engine of N threads uses at
    most N times its own wall time, and the rest is booked to the encoder."""
    stages = _called_stages(document)
    cpu = {name: stage.cpu_s for name, stage in stages.items()}
    libraries = document.cpu.library_threads_s
    room = (
        max(0.0, stages[INFER].busy_s * document.engine_threads - cpu[INFER])
        if INFER in stages
        else 0.0
    )
    for name, part in ((INFER, min(libraries, room)), (WRITE, libraries - min(libraries, room))):
        if name in cpu:
            cpu[name] += part
    return {
        name: Cost(
            max(alone[name], stages[name].cpu_s / stages[name].calls),
            cpu[name] / stages[name].calls,
        )
        for name in STAGES
        if name in stages
    }


# ----------------------------------------------------------------------
# 2. The load of a recorded run


def build_load(
    activities: Sequence[Activity],
    shape: LoopShape,
    costs: Mapping[str, Cost],
    between_s: Mapping[str, float],
    cores: float,
) -> Load:
    """The recorded calls as a load to replay.

    The durations were recorded while the threads slowed each other down, and the replay slows them
    down again. So the calls of each stage are scaled to what they cost alone, on average.
    ``between_s``: seconds that each thread spent outside of any span.
    """
    recorded = {stage: _durations(activities, stage) for stage in STAGES}
    scale = {stage: _ratio(cost.seconds, _mean(recorded[stage])) for stage, cost in costs.items()}
    demand = {stage: _ratio(cost.cpu, cost.seconds, otherwise=0.0) for stage, cost in costs.items()}
    frames = len(recorded[PREPROCESS])
    beside = {
        stage: Beside(
            [cost.aside.seconds] * frames, cost.aside.cpu / cost.aside.seconds, cost.aside.room
        )
        for stage, cost in costs.items()
        if cost.aside is not None and cost.aside.seconds
    }
    between = _spread_over_calls(activities, between_s)
    load = Load(frames, shape, recorded, demand, between, cores).scaled(scale)
    return replace(load, beside=beside)


def rebatch(load: Load, batch: int, ratio: float, images: int) -> Load:
    """The same frames in batches of another size. ``ratio``: the time of an infer call of the new
    batch over one of the old; ``images``: the size of the pool then.

    Each frame has its part of the old call's duration, scaled by the ratio for one frame; a new
    call takes the sum of its frames' parts.
    """
    old, each = load.shape.batch, ratio * load.shape.batch / batch
    calls = load.seconds[INFER]
    by_frame = [
        calls[frame // old] / old for frame in range(load.frames) if frame // old < len(calls)
    ]
    infer = [each * sum(by_frame[start : start + batch]) for start in range(0, load.frames, batch)]
    if infer and load.frames % batch:  # the last batch has fewer frames, but takes as long
        infer[-1] *= batch / (load.frames % batch)
    return replace(
        load,
        shape=replace(load.shape, batch=batch, images=images),
        seconds={**load.seconds, INFER: infer},
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ratio(above: float | None, below: float | None, otherwise: float = 1.0) -> float:
    return otherwise if above is None or not below else above / below


def _durations(activities: Sequence[Activity], stage: str) -> list[float]:
    """Seconds of each call by its number; 0 where a call was not recorded."""
    seconds = {
        one.number: (one.end_ns - one.start_ns) / 1e9 for one in activities if one.stage == stage
    }
    return [seconds.get(index, 0.0) for index in range(max(seconds, default=-1) + 1)]


def _spread_over_calls(
    activities: Sequence[Activity], between_s: Mapping[str, float]
) -> dict[str, float]:
    """Stage -> seconds after each call: a thread's time outside of spans, spread over its calls."""
    calls: dict[str, int] = {}
    for one in activities:
        calls[one.thread] = calls.get(one.thread, 0) + 1
    thread_of = {one.stage: one.thread for one in activities}
    return {
        stage: between_s.get(thread, 0.0) / calls[thread] for stage, thread in thread_of.items()
    }


# ----------------------------------------------------------------------
# 3. Predictions, and reasons to doubt them

FREED = (INFER, READ, WRITE, PREPROCESS)  # stages that are predicted as free

ERROR = 0.1  # a replay that misses its own run by more promises nothing
# Of the CPU seconds: where the cores are full, this makes up half of the error above.
UNKNOWN = 0.05
OTHERS = 0.05  # of the cores
TOLD = 0.5  # seconds: in a shorter run the kernel's ticks of 10 ms say little about others
FEW = 60  # frames: some ten times what queues and pools hold


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run beside its replay. ``error``: replayed wall time / measured - 1."""

    load: Load
    wall_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.wall_s / self.measured_s - 1 if self.measured_s else 0.0


def replay_load(load: Load, measured_s: float) -> Replayed:
    return Replayed(load, wall(replay(load)), measured_s)


def predict(base: Replayed, larger: Load | None = None) -> list[Prediction]:
    """The usual changes, the largest gain first. ``larger``: the load in larger batches, where
    their cost was measured."""
    load = base.load
    changes = {
        f"{stage} free": load.scaled({stage: 0.0})
        for stage in FREED
        if sum(load.seconds.get(stage, ()))
    }
    changes["infer twice as fast"] = load.scaled({INFER: 0.5})
    other_loop = replace(load, shape=replace(load.shape, sync=not load.shape.sync))
    changes["overlap on" if load.shape.sync else "overlap off"] = other_loop
    if larger is not None:
        changes[f"batch {larger.shape.batch}"] = larger
    changes["one more core"] = replace(load, cores=load.cores + 1)
    predictions = [_predict_one(name, changed, base) for name, changed in changes.items()]
    return sorted((one for one in predictions if one is not None), key=lambda one: -one.gain)


def _predict_one(name: str, changed: Load, base: Replayed) -> Prediction | None:
    """None where the replay then takes no time at all: a rate without a bound is no prediction."""
    seconds = wall(replay(changed))
    factor = base.wall_s / seconds if seconds else math.inf
    rate = base.load.frames / base.measured_s * factor if base.measured_s else math.inf
    return Prediction(name, rate, factor - 1) if math.isfinite(rate) else None


def list_doubts(document: SessionDocument, replay_error: float) -> list[str]:
    """Why the predictions may be wrong, one line for each reason."""
    reasons = []
    libraries, frames = document.cpu.libraries, document.frames.written
    if abs(replay_error) > ERROR:
        reasons.append(f"the replay of the run as it was is off by {replay_error:+.0%}")
    if libraries is None:
        reasons.append(
            "this system does not tell how much CPU time library threads use, so it is booked to "
            "stages by a guess"
        )
    elif libraries.process_s:
        unknown = libraries.unknown_s / libraries.process_s
        if unknown > UNKNOWN:
            reasons.append(f"{unknown:.0%} of the CPU time was used by threads of unknown stages")
        others = (libraries.others_s or 0.0) / (libraries.wall_s * document.cpu.cores)
        if others > OTHERS and libraries.wall_s > TOLD:
            reasons.append(
                f"other processes took {min(1.0, others):.0%} of the cores during the run: measure "
                "on a quiet computer"
            )
    if frames < FEW:
        few = counted(frames, "frame", "is")
        reasons.append(f"{few} few: the start and the end weigh as much as the steady state")
    return reasons


# ----------------------------------------------------------------------
# A saved session: its critical path and its replay


def find_path(session: SavedSession, source: int = 0) -> CriticalPath | None:
    """The critical path of one source's run; None where nothing was recorded."""
    activities = activities_of(session.spans, source)
    if not activities:
        return None
    return critical_path(activity_graph(activities, _loop_shape(session, source)))


def replay_session(
    session: SavedSession, source: int = 0, alone: Alone | None = None
) -> Replayed | None:
    """The replay of one source's run as it was; None where nothing was recorded. ``alone``: as for
    ``stage_costs``."""
    activities = activities_of(session.spans, source)
    if not activities:
        return None
    document = session.document
    load = build_load(
        activities,
        _loop_shape(session, source),
        stage_costs(document, alone),
        _between_s(session, source),
        document.cpu.cores,
    )
    measured_ns = max(one.end_ns for one in activities) - min(one.start_ns for one in activities)
    return replay_load(load, measured_ns / 1e9) if load.frames and measured_ns else None


def _loop_shape(session: SavedSession, source: int) -> LoopShape:
    return LoopShape.of(session.document.loop[source])


def _between_s(session: SavedSession, source: int) -> dict[str, float]:
    """Seconds of each thread outside of any span, with the computer to itself. Where the thread's
    clock tells, that is at most the CPU time that its stages did not use."""
    outside, document = _outside_spans_s(session.spans, source), session.document
    if document.cpu.stages_include_libraries:
        return outside
    cpu = {name: thread.cpu_s for name, thread in document.threads.items()}
    for stage in document.stages.values():
        names = [name for name in stage.threads if name in cpu]
        for name in names:
            cpu[name] -= stage.cpu_s / len(names)
    return {name: min(seconds, max(0.0, cpu[name])) for name, seconds in outside.items()}


def _outside_spans_s(columns: dict[str, NDArray[Any]], source: int) -> dict[str, float]:
    """Seconds of each thread outside of any span, between its first call and its last. What comes
    before and after is start-up and tear-down."""
    outside: dict[str, float] = {}
    own = columns["source"] == source
    for code, name in enumerate(columns["thread_names"].tolist()):
        mine = own & (columns["thread"] == code)
        work = mine & (columns["kind"] == KINDS.index("work"))
        gaps = mine & (columns["kind"] == KINDS.index(OTHER))
        if work.any():
            inside = (columns["start_ns"] >= columns["start_ns"][work].min()) & (
                columns["end_ns"] <= columns["end_ns"][work].max()
            )
            ns = np.sum((columns["end_ns"] - columns["start_ns"])[gaps & inside])
            outside[name] = float(ns) / 1e9
    return outside
