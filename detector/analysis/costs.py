"""What a call of each stage costs with the machine to itself, and who pays: the figures that a replay stands on.

CPU seconds are the recorded run's own: a stage's thread by its clock, the libraries' threads by the kernel's count,
each booked to the stage whose threads they are (``timeline/native.py``). Wall seconds come from a plain loop, in which
nothing else of ours runs, over the same clip with the same threads a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detector.timeline.stages import INFER, READ, STAGES, WRITE

HAND_OVER = (READ, WRITE)  # their libraries may work on after a call, or ahead of it; infer waits, by its contract


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


def alone_in(document: dict[str, Any]) -> Alone:
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


def costs(document: dict[str, Any], alone: Alone | None = None) -> dict[str, Cost]:
    """Of each stage of a session. ``alone``: of a plain loop over the same clip with the same threads a request; by
    default as good as this session itself can tell."""
    seconds = (alone or alone_in(document)).seconds
    if document["cpu"]["stages_include_libraries"]:  # a plain loop: every stage's CPU is the process's meanwhile
        return {s: Cost(seconds[s], stage["cpu_s"] / stage["calls"]) for s, stage in _called(document).items()}
    burnt = _burnt(document)
    if burnt is None:
        return _guessed(document, seconds)
    found = {}
    for name, stage in _called(document).items():
        own, threads, took = stage["cpu_s"] / stage["calls"], burnt.get(name), seconds.get(name, 0.0)
        if threads is None:
            found[name] = Cost(max(own, took), own)
        elif name in HAND_OVER and _beside(name, threads, None if alone is None else alone.cpu.get(name, own) - own):
            found[name] = Cost(own, own, Aside(threads.busiest, threads.cpu, round(threads.cpu / threads.busiest)))
        else:
            # An engine's threads work beside the caller's or instead of it; the encoder's while the caller sleeps.
            least = max(own, threads.busiest) if name == INFER else own + threads.busiest
            found[name] = Cost(max(least, took), own + threads.cpu)
    return found


def doubts(document: dict[str, Any], replay_error: float) -> list[str]:
    """Why what-if may be wrong about this run, one line each; none is the good answer."""
    found = []
    libraries, frames = document["cpu"].get("libraries"), document["frames"]["written"]
    if abs(replay_error) > ERROR:
        found.append(f"the replay of the run as it was is off by {replay_error:+.0%}")
    if libraries is None:
        found.append("this system does not tell what libraries' threads burn: their CPU seconds are booked by a guess")
    elif libraries["process_s"]:
        unknown = libraries["unknown_s"] / libraries["process_s"]
        if unknown > UNKNOWN:
            found.append(f"{unknown:.0%} of the CPU seconds were burnt by threads of which no stage is known")
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
UNKNOWN = 0.05  # of the CPU seconds: what half of the error above is made of where the cores are full
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


def _called(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: stage for name, stage in document["stages"].items() if stage["calls"]}


def _burnt(document: dict[str, Any]) -> dict[str, _Threads] | None:
    """None where the session does not tell: another system than Linux, or a session of an earlier version."""
    libraries = document["cpu"].get("libraries")
    if libraries is None:
        return None
    return {
        name: _Threads(one["threads"], *(one[key] / one["calls"] for key in ("cpu_s", "busiest_s", "ready_s")))
        for name, one in libraries["stages"].items()
        if one["calls"] > 0
    }


def _beside(name: str, threads: _Threads, inside: float | None) -> bool:
    """Whether threads work while their stage is not being called: by how much of their CPU time is burnt ``inside`` its
    calls in a plain loop. Without a plain loop: FFmpeg's decoders read ahead, and x264 encodes within the call as PyAV
    sets it up (slices)."""
    return name == READ if inside is None else inside < INSIDE * threads.cpu


def _foreign_share(document: dict[str, Any]) -> float:
    """Of the time that threads of this run waited for a core: what others made them wait, by the CPU time that each
    burnt. Where nothing of ours ran beside a stage but its own libraries, they belong to what the stage takes."""
    libraries = document["cpu"].get("libraries")
    if not document["cpu"]["stages_include_libraries"] or libraries is None or libraries["others_s"] is None:
        return 1.0
    return float(libraries["others_s"] / ((libraries["others_s"] + libraries["process_s"]) or 1.0))


def _hindered_s(document: dict[str, Any], name: str) -> float:
    """Seconds in which the stage's thread, or the busiest of its libraries', was ready but not scheduled."""
    stage = document["stages"][name]
    own = [document["threads"][thread] for thread in stage["thread"].split(",") if thread in document["threads"]]
    ready, cpu = (sum(thread[key] or 0.0 for thread in own) for key in ("ready_s", "cpu_s"))
    mine = float(stage["cpu_s"] * ready / cpu if cpu else 0.0)
    threads = (_burnt(document) or {}).get(name)
    theirs = threads.ready * float(stage["calls"]) if threads is not None and name != READ else 0.0
    return max(mine, theirs) if name == INFER else mine + theirs


def _guessed(document: dict[str, Any], alone: Mapping[str, float]) -> dict[str, Cost]:
    """Where nobody tells whose the libraries' threads are: an engine of N threads burns at most N times its own wall
    time; what is more is the encoder's."""
    stages = _called(document)
    cpu = {name: float(stage["cpu_s"]) for name, stage in stages.items()}
    libraries = float(document["cpu"]["library_threads_s"])
    room = max(0.0, stages[INFER]["busy_s"] * document["engine_threads"] - cpu[INFER]) if INFER in stages else 0.0
    for name, part in ((INFER, min(libraries, room)), (WRITE, libraries - min(libraries, room))):
        if name in cpu:
            cpu[name] += part
    return {s: Cost(max(alone[s], stages[s]["cpu_s"] / stages[s]["calls"]), cpu[s] / stages[s]["calls"])
            for s in STAGES if s in stages}  # fmt: skip
