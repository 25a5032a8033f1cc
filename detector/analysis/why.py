"""Why a saved run took as long as it did: its critical path, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.analysis.activities import LoopShape, activities_of, activity_graph
from detector.analysis.critical_path import CriticalPath, critical_path
from detector.analysis.what_if import Replayed, load_of, replayed
from detector.session.reading import SavedSession
from detector.timeline import KINDS, OTHER
from detector.timeline.stages import INFER, WRITE


def path_of(session: SavedSession, source: int = 0) -> CriticalPath | None:
    """The critical path of one source's run; None where nothing was recorded."""
    activities = activities_of(session.spans, source)
    return critical_path(activity_graph(activities, shape_of(session, source))) if activities else None


def shape_of(session: SavedSession, source: int = 0) -> LoopShape:
    return LoopShape.of(session.document["loop"][source])


@dataclass(frozen=True, slots=True)
class Alone:
    """What a call of each stage takes with the machine to itself, on average: seconds of wall time, and CPU seconds
    with what libraries burn for it."""

    seconds: Mapping[str, float]
    cpu: Mapping[str, float]


def alone_in(document: dict[str, Any]) -> Alone:
    """From a session. A --sync run measures it: nothing else runs meanwhile. Of an overlapped run it is what is left
    when the time ready but not scheduled is taken off, which the kernel tells by thread."""
    stages = {name: stage for name, stage in document["stages"].items() if stage["calls"]}
    calls = {name: stage["calls"] for name, stage in stages.items()}
    if document["cpu"]["stages_include_libraries"]:
        cpu = {name: stage["cpu_s"] for name, stage in stages.items()}
        seconds = {name: stage["busy_s"] for name, stage in stages.items()}
    else:
        cpu = _with_libraries(document, stages)
        seconds = {name: _unhindered(stage, document["threads"]) for name, stage in stages.items()}
    return Alone({s: seconds[s] / calls[s] for s in stages}, {s: cpu[s] / calls[s] for s in stages})


def replay_of(session: SavedSession, source: int = 0, alone: Alone | None = None) -> Replayed | None:
    """``alone``: of a --sync pass over the same clip; by default as good as this session itself can tell."""
    activities = activities_of(session.spans, source)
    if not activities:
        return None
    alone = alone or alone_in(session.document)
    other, cores = _other_of(session.spans, source), int(session.document["cpu"]["cores"])
    load = load_of(activities, shape_of(session, source), alone.seconds, alone.cpu, other, cores)
    measured = (max(one.end_ns for one in activities) - min(one.start_ns for one in activities)) / 1e9
    return replayed(load, measured) if load.frames else None


def _unhindered(stage: dict[str, Any], threads: dict[str, Any]) -> float:
    """Busy seconds of a stage without its share of the time in which its threads were ready but not scheduled."""
    own = [threads[name] for name in stage["thread"].split(",") if name in threads]
    ready, cpu = (sum(thread[key] or 0.0 for thread in own) for key in ("ready_s", "cpu_s"))
    hindered = stage["cpu_s"] * ready / cpu if cpu else 0.0
    return float(max(stage["cpu_s"], stage["busy_s"] - hindered))


def _with_libraries(document: dict[str, Any], stages: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of each stage, the libraries' threads booked: an engine of N threads burns at most N times its own
    wall time; what is more is the encoder's."""
    cpu = {name: float(stage["cpu_s"]) for name, stage in stages.items()}
    libraries = float(document["cpu"]["library_threads_s"])
    room = max(0.0, stages[INFER]["busy_s"] * document["engine_threads"] - cpu[INFER]) if INFER in stages else 0.0
    for name, part in ((INFER, min(libraries, room)), (WRITE, libraries - min(libraries, room))):
        if name in cpu:
            cpu[name] += part
    return cpu


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
            found[name] = float(np.sum((columns["end_ns"] - columns["start_ns"])[gaps & inside])) / 1e9
    return found
