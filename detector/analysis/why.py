"""Why a saved run took as long as it did: its critical path, and what would change it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.analysis.activities import LoopShape, activities_of, activity_graph
from detector.analysis.costs import Alone, costs
from detector.analysis.critical_path import CriticalPath, critical_path
from detector.analysis.what_if import Replayed, load_of, replayed
from detector.session.reading import SavedSession
from detector.timeline import KINDS, OTHER


def path_of(session: SavedSession, source: int = 0) -> CriticalPath | None:
    """The critical path of one source's run; None where nothing was recorded."""
    activities = activities_of(session.spans, source)
    return critical_path(activity_graph(activities, shape_of(session, source))) if activities else None


def shape_of(session: SavedSession, source: int = 0) -> LoopShape:
    return LoopShape.of(session.document["loop"][source])


def replay_of(session: SavedSession, source: int = 0, alone: Alone | None = None) -> Replayed | None:
    """``alone``: of a plain loop over the same clip, with the same threads a request; by default as good as this
    session itself can tell. None where nothing was recorded."""
    activities = activities_of(session.spans, source)
    if not activities:
        return None
    document = session.document
    load = load_of(
        activities, shape_of(session, source), costs(document, alone), _between_s(session, source),
        int(document["cpu"]["cores"]),
    )  # fmt: skip
    measured = (max(one.end_ns for one in activities) - min(one.start_ns for one in activities)) / 1e9
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
            found[name] = float(np.sum((columns["end_ns"] - columns["start_ns"])[gaps & inside])) / 1e9
    return found
