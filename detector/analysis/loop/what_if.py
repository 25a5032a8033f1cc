"""What a call of each stage costs with the machine to itself, and who pays: the figures that a replay stands on.

CPU seconds are the recorded run's own: a stage's thread by its clock, the libraries' threads by the kernel's count,
each booked to the stage whose threads they are (``timeline/native.py``). Wall seconds come from a plain loop, in which
nothing else of ours runs, over the same clip with the same threads a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.analysis.loop.activities import Activity, LoopShape, activities_of, activity_graph
from detector.analysis.loop.critical_path import CriticalPath, critical_path
from detector.analysis.loop.replay import Beside, Load, replay, wall
from detector.session.document import SessionDocument
from detector.session.passes import Prediction
from detector.session.read import SavedSession
from detector.timeline import KINDS, OTHER
from detector.timeline.spans import INFER, PREPROCESS, READ, STAGES, WRITE

HAND_OVER = (
    READ,
    WRITE,
)  # their libraries may work on after a call, or ahead of it; infer waits, by its contract


@dataclass(frozen=True, slots=True)
class Aside:
    """Work for a call that a stage's threads do beside the calls. ``seconds``: of the thread that has most of it;
    ``cpu``: of all of them; ``room``: for how many calls at once."""

    seconds: float
    cpu: float
    room: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call on average, seconds: of wall time with the machine to itself, and of CPU within the call."""

    seconds: float
    cpu: float
    aside: Aside | None = None


@dataclass(frozen=True, slots=True)
class Alone:
    """Of a call of each stage in a plain loop, on average: seconds of wall time, and CPU seconds of the whole process
    meanwhile."""

    seconds: Mapping[str, float]
    cpu: Mapping[str, float]


def alone_in(document: SessionDocument) -> Alone:
    """From a session. Seconds without the time in which a stage's threads were ready but not scheduled: of a plain
    loop's session the share of it that other processes are to blame for; of an overlapped one all of it, and the rest
    of what threads do to each other (caches, locks) is still inside."""
    stages = _called(document)
    # Nothing is quicker than its own thread; where the CPU time is the process's, than all cores at once.
    width = document["cpu"]["cores"] if document["cpu"]["stages_include_libraries"] else 1
    blame = _foreign_share(document)
    seconds = {
        name: max(stage["cpu_s"] / width, stage["busy_s"] - blame * _hindered_s(document, name))
        for name, stage in stages.items()
    }
    return Alone(
        {name: seconds[name] / stage["calls"] for name, stage in stages.items()},
        {name: stage["cpu_s"] / stage["calls"] for name, stage in stages.items()},
    )


def costs(document: SessionDocument, alone: Alone | None = None) -> dict[str, Cost]:
    """Of each stage of a session. ``alone``: of a plain loop over the same clip with the same threads a request; by
    default as good as this session itself can tell."""
    seconds = (alone or alone_in(document)).seconds
    if document["cpu"][
        "stages_include_libraries"
    ]:  # a plain loop: every stage's CPU is the process's meanwhile
        return {
            s: Cost(seconds[s], stage["cpu_s"] / stage["calls"])
            for s, stage in _called(document).items()
        }
    burnt = _burnt(document)
    if burnt is None:
        return _guessed(document, seconds)
    found = {}
    for name, stage in _called(document).items():
        own, threads, took = (
            stage["cpu_s"] / stage["calls"],
            burnt.get(name),
            seconds.get(name, 0.0),
        )
        if threads is None:
            found[name] = Cost(max(own, took), own)
        elif name in HAND_OVER and _beside(
            name, threads, None if alone is None else alone.cpu.get(name, own) - own
        ):
            found[name] = Cost(
                own, own, Aside(threads.busiest, threads.cpu, round(threads.cpu / threads.busiest))
            )
        else:
            # An engine's threads work beside the caller's or instead of it; the encoder's while the caller sleeps.
            least = max(own, threads.busiest) if name == INFER else own + threads.busiest
            found[name] = Cost(max(least, took), own + threads.cpu)
    return found


def doubts(document: SessionDocument, replay_error: float) -> list[str]:
    """Why what-if may be wrong about this run, one line each; none is the good answer."""
    found = []
    libraries, frames = document["cpu"].get("libraries"), document["frames"]["written"]
    if abs(replay_error) > ERROR:
        found.append(f"the replay of the run as it was is off by {replay_error:+.0%}")
    if libraries is None:
        found.append(
            "this system does not tell what libraries' threads burn: their CPU seconds are booked by a guess"
        )
    elif libraries["process_s"]:
        unknown = libraries["unknown_s"] / libraries["process_s"]
        if unknown > UNKNOWN:
            found.append(
                f"{unknown:.0%} of the CPU seconds were burnt by threads of which no stage is known"
            )
        others = (libraries["others_s"] or 0.0) / (libraries["wall_s"] * document["cpu"]["cores"])
        if others > OTHERS and libraries["wall_s"] > TOLD:
            found.append(
                f"other processes took {min(1.0, others):.0%} of the cores during the run: measure on a quiet machine"
            )
    if frames < FEW:
        few = "1 frame is" if frames == 1 else f"{frames} frames are"
        found.append(f"{few} few: start and end of the run weigh as much as what lies between")
    return found


ERROR = 0.1  # what a prediction may be off by; a replay that misses its own run by more promises nothing
UNKNOWN = (
    0.05  # of the CPU seconds: what half of the error above is made of where the cores are full
)
OTHERS = 0.05  # of the cores
TOLD = 0.5  # seconds of a run below which the kernel's ticks of 10 ms say little about others
INSIDE = 0.8  # of threads' CPU time: threads that only ever work for a call that waits for them are near 1
FEW = 60  # some ten times what queues and pools hold


@dataclass(frozen=True, slots=True)
class _Threads:
    """A stage's libraries' threads, seconds a call."""

    count: int
    cpu: float
    busiest: float
    ready: float


def _called(document: SessionDocument) -> dict[str, dict[str, Any]]:
    return {name: stage for name, stage in document["stages"].items() if stage["calls"]}


def _burnt(document: SessionDocument) -> dict[str, _Threads] | None:
    """None where the session does not tell: another system than Linux, or a session of an earlier version."""
    libraries = document["cpu"].get("libraries")
    if libraries is None:
        return None
    return {
        name: _Threads(
            one["threads"], *(one[key] / one["calls"] for key in ("cpu_s", "busiest_s", "ready_s"))
        )
        for name, one in libraries["stages"].items()
        if one["calls"] > 0
    }


def _beside(name: str, threads: _Threads, inside: float | None) -> bool:
    """Whether threads work while their stage is not being called: by how much of their CPU time is burnt ``inside`` its
    calls in a plain loop. Without a plain loop: FFmpeg's decoders read ahead, and x264 encodes within the call as PyAV
    sets it up (slices)."""
    return name == READ if inside is None else inside < INSIDE * threads.cpu


def _foreign_share(document: SessionDocument) -> float:
    """Of the time that threads of this run waited for a core: what others made them wait, by the CPU time that each
    burnt. Where nothing of ours ran beside a stage but its own libraries, they belong to what the stage takes."""
    libraries = document["cpu"].get("libraries")
    if (
        not document["cpu"]["stages_include_libraries"]
        or libraries is None
        or libraries["others_s"] is None
    ):
        return 1.0
    return float(libraries["others_s"] / ((libraries["others_s"] + libraries["process_s"]) or 1.0))


def _hindered_s(document: SessionDocument, name: str) -> float:
    """Seconds in which the stage's thread, or the busiest of its libraries', was ready but not scheduled."""
    stage = document["stages"][name]
    own = [
        document["threads"][thread]
        for thread in stage["thread"].split(",")
        if thread in document["threads"]
    ]
    ready, cpu = (sum(thread[key] or 0.0 for thread in own) for key in ("ready_s", "cpu_s"))
    mine = float(stage["cpu_s"] * ready / cpu if cpu else 0.0)
    threads = (_burnt(document) or {}).get(name)
    theirs = threads.ready * float(stage["calls"]) if threads is not None and name != READ else 0.0
    return max(mine, theirs) if name == INFER else mine + theirs


def _guessed(document: SessionDocument, alone: Mapping[str, float]) -> dict[str, Cost]:
    """Where nobody tells whose the libraries' threads are: an engine of N threads burns at most N times its own wall
    time; what is more is the encoder's."""
    stages = _called(document)
    cpu = {name: float(stage["cpu_s"]) for name, stage in stages.items()}
    libraries = float(document["cpu"]["library_threads_s"])
    room = (
        max(0.0, stages[INFER]["busy_s"] * document["engine_threads"] - cpu[INFER])
        if INFER in stages
        else 0.0
    )
    for name, part in ((INFER, min(libraries, room)), (WRITE, libraries - min(libraries, room))):
        if name in cpu:
            cpu[name] += part
    return {
        s: Cost(max(alone[s], stages[s]["cpu_s"] / stages[s]["calls"]), cpu[s] / stages[s]["calls"])
        for s in STAGES
        if s in stages
    }


# ----------------------------------------------------------------------
# What the run would do if a stage were free, if nothing overlapped, if there were one more core: by replay.


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run beside its replay. ``error``: replayed wall time / measured - 1."""

    load: Load
    wall_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.wall_s / self.measured_s - 1 if self.measured_s else 0.0


def load_of(
    activities: Sequence[Activity],
    shape: LoopShape,
    costs: Mapping[str, Cost],
    between_s: Mapping[str, float],
    cores: float,
) -> Load:
    """The load of a recorded run. Its durations were recorded while the threads slowed each other down; the replay does
    so again, so each stage's calls are scaled to what they take alone, on average.

    ``between_s``: seconds that a thread spent outside of any span, by thread.
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
    load = Load(frames, shape, recorded, demand, _between(activities, between_s), cores).scaled(
        scale
    )
    return replace(load, beside=beside)


def rebatch(load: Load, batch: int, ratio: float, images: int) -> Load:
    """The same frames in other batches. ``ratio``: of an infer call's time, the new batch over the old one;
    ``images``: in the pool then. An infer call takes what its frames took, times what the ratio leaves of each."""
    old, each = load.shape.batch, ratio * load.shape.batch / batch
    calls = load.seconds[INFER]
    by_frame = [
        calls[frame // old] / old for frame in range(load.frames) if frame // old < len(calls)
    ]
    infer = [each * sum(by_frame[start : start + batch]) for start in range(0, load.frames, batch)]
    # A ragged last batch runs full.
    if infer and load.frames % batch:
        infer[-1] *= batch / (load.frames % batch)
    return replace(
        load,
        shape=replace(load.shape, batch=batch, images=images),
        seconds={**load.seconds, INFER: infer},
    )


def replayed(load: Load, measured_s: float) -> Replayed:
    return Replayed(load, wall(replay(load)), measured_s)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ratio(above: float | None, below: float | None, otherwise: float = 1.0) -> float:
    return otherwise if above is None or not below else above / below


def _durations(activities: Sequence[Activity], stage: str) -> list[float]:
    found = {
        one.number: (one.end_ns - one.start_ns) / 1e9 for one in activities if one.stage == stage
    }
    return [found.get(index, 0.0) for index in range(max(found, default=-1) + 1)]


def _between(activities: Sequence[Activity], between_s: Mapping[str, float]) -> dict[str, float]:
    """A thread's unclaimed time, shared out evenly over its calls."""
    calls: dict[str, int] = {}
    for one in activities:
        calls[one.thread] = calls.get(one.thread, 0) + 1
    thread_of = {one.stage: one.thread for one in activities}
    return {
        stage: between_s.get(thread, 0.0) / calls[thread] for stage, thread in thread_of.items()
    }


def predict(base: Replayed, larger: Load | None = None) -> list[Prediction]:
    """The usual questions, best answer first. The replay says by how much a change helps; from the measured rate on.
    ``larger``: the load in larger batches, where somebody measured what they cost."""
    load = base.load
    changes = {
        f"{stage} free": load.scaled({stage: 0.0})
        for stage in FREED
        if sum(load.seconds.get(stage, ()))
    }
    changes["infer twice as fast"] = load.scaled({INFER: 0.5})
    if load.shape.sync:
        changes["overlap on"] = replace(load, shape=replace(load.shape, sync=False))
    else:
        changes["overlap off"] = replace(load, shape=replace(load.shape, sync=True))
    if larger is not None:
        changes[f"batch {larger.shape.batch}"] = larger
    changes["one more core"] = replace(load, cores=load.cores + 1)
    found = [_prediction(name, changed, base) for name, changed in changes.items()]
    return sorted(found, key=lambda one: -one.gain)


FREED = (INFER, READ, WRITE, PREPROCESS)


def _prediction(name: str, changed: Load, base: Replayed) -> Prediction:
    seconds = wall(replay(changed))
    factor = base.wall_s / seconds if seconds else float("inf")
    return Prediction(name, base.load.frames / base.measured_s * factor, factor - 1)


# ----------------------------------------------------------------------
# Why a saved run took as long as it did: its critical path, and what would change it.


def path_of(session: SavedSession, source: int = 0) -> CriticalPath | None:
    """The critical path of one source's run; None where nothing was recorded."""
    activities = activities_of(session.spans, source)
    return (
        critical_path(activity_graph(activities, shape_of(session, source))) if activities else None
    )


def shape_of(session: SavedSession, source: int = 0) -> LoopShape:
    return LoopShape.of(session.document["loop"][source])


def replay_of(
    session: SavedSession, source: int = 0, alone: Alone | None = None
) -> Replayed | None:
    """``alone``: of a plain loop over the same clip, with the same threads a request; by default as good as this
    session itself can tell. None where nothing was recorded."""
    activities = activities_of(session.spans, source)
    if not activities:
        return None
    document = session.document
    load = load_of(
        activities,
        shape_of(session, source),
        costs(document, alone),
        _between_s(session, source),
        int(document["cpu"]["cores"]),
    )
    measured = (
        max(one.end_ns for one in activities) - min(one.start_ns for one in activities)
    ) / 1e9
    return replayed(load, measured) if load.frames else None


def _between_s(session: SavedSession, source: int) -> dict[str, float]:
    """Seconds of each thread outside of any span, with the machine to itself: never more than the CPU time that its
    stages did not burn, where a thread's clock tells."""
    found, document = _other_of(session.spans, source), session.document
    if document["cpu"]["stages_include_libraries"]:
        return found
    cpu = {name: thread["cpu_s"] for name, thread in document["threads"].items()}
    for stage in document["stages"].values():
        names = [name for name in stage["thread"].split(",") if name in cpu]
        for name in names:
            cpu[name] -= stage["cpu_s"] / len(names)
    return {name: min(seconds, max(0.0, cpu[name])) for name, seconds in found.items()}


def _other_of(columns: dict[str, NDArray[Any]], source: int) -> dict[str, float]:
    """Seconds outside of any span, by thread, between its first and last call: what happens before and after is
    start-up and tear-down."""
    found: dict[str, float] = {}
    own = columns["source"] == source
    for code, name in enumerate(columns["thread_names"].tolist()):
        mine = own & (columns["thread"] == code)
        work = mine & (columns["kind"] == KINDS.index("work"))
        gaps = mine & (columns["kind"] == KINDS.index(OTHER))
        if work.any():
            inside = (columns["start_ns"] >= columns["start_ns"][work].min()) & (
                columns["end_ns"] <= columns["end_ns"][work].max()
            )
            found[name] = (
                float(np.sum((columns["end_ns"] - columns["start_ns"])[gaps & inside])) / 1e9
            )
    return found
