"""Find the chain of calls that makes up the wall time of the plain run, from that run's spans."""

from __future__ import annotations

from detector.core.errors.machine import NotHereError
from detector.lab.analysis.loop.critical_path import find_path
from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import CriticalPathFacts


def find_critical_path(occasion: Occasion) -> CriticalPathFacts:
    path = find_path(occasion.plain)
    if path is None:
        raise NotHereError("the run recorded no spans")
    return path.facts()


PASS = Pass(
    order=1,
    what="the chain of calls that sets the wall time",
    facts=CriticalPathFacts,
    run=find_critical_path,
    undisturbed="uses the plain run",
)
