"""Analyse a whole run of a job: where its seconds went, and what more workers would gain."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from detector.batch.documents import BatchReport, Forecast, SlowItem, WorkerReport
from detector.batch.progress import Tally
from detector.core.errors.text import counted

MOST_WORKERS = 4096  # the largest number that is simulated
WORTH = 1.1  # scaling stops where doubling the workers gains less than this factor
MB = 1e6


@dataclass(slots=True)
class RunFacts:
    """Facts about a run. ``walls``: seconds of each item on its worker, in order of submission.
    ``straggling_s``: from the time when a worker first found no task left to the end of the last.
    ``chain_s`` and ``chain_of``: see ``long_items.LongItems``."""

    seconds: float
    cores: float
    tally: Tally = field(default_factory=Tally)
    workers: Sequence[WorkerReport] = ()
    walls: Sequence[float] = ()
    stragglers: Sequence[SlowItem] = ()
    straggling_s: float = 0.0
    longest: str = ""
    chain_s: float = 0.0
    chain_of: str = ""


def report_on(facts: RunFacts) -> BatchReport:
    tally = facts.tally
    busy_s = sum(worker.busy_s for worker in facts.workers)
    held = facts.cores * facts.seconds
    forecasts, limit = forecast(facts)
    return BatchReport(
        ledger=tally.ledger,
        workers=list(facts.workers),
        slowest=list(tally.slowest),
        stragglers=list(facts.stragglers),
        straggling_s=facts.straggling_s,
        between_s=max(0.0, sum(facts.walls) - tally.item_run_s),
        cpu_share=tally.ledger.cpu_s / held if held > 0 and busy_s > 0 else None,
        forecasts=forecasts,
        limit=limit,
        core_hours=held / 3600,
    )


def forecast(facts: RunFacts) -> tuple[list[Forecast], str]:
    """Simulate the run with more workers of the same size. Return the forecasts, and a sentence
    about where scaling stops."""
    walls, now = list(facts.walls), len(facts.workers)
    if not walls or not now:
        return [], "no item was done, so none can be forecast"
    loads = [worker.load_s / worker.starts for worker in facts.workers if worker.starts]
    load_s = sum(loads) / len(loads) if loads else 0.0
    base = makespan(walls, now, load_s, facts.chain_s)
    found, workers, stops = [], now, None
    while True:
        seconds = makespan(walls, workers, load_s, facts.chain_s)
        found.append(
            Forecast(
                workers=workers,
                seconds=seconds,
                speedup=base / seconds,
                read_mb_s=facts.tally.bytes_done / MB / seconds,
            )
        )
        if len(found) > 1 and found[-2].seconds < WORTH * seconds:
            stops = found[-2]
            break
        if workers >= MOST_WORKERS:
            break
        workers *= 2
    return found, _limit(facts, walls, load_s, stops)


def makespan(walls: Sequence[float], workers: int, load_s: float, least_s: float = 0.0) -> float:
    """Return the seconds until the last item is done. ``least_s``: the part that must run
    serially."""
    free = [load_s] * min(workers, max(1, len(walls)))
    for wall in walls:
        heapq.heapreplace(free, free[0] + wall)
    return max(*free, load_s + least_s)


def _limit(facts: RunFacts, walls: Sequence[float], load_s: float, stops: Forecast | None) -> str:
    if stops is None:
        return f"it scales to at least {MOST_WORKERS} workers, the largest number simulated"
    longest, spent_s = max(walls), stops.seconds - load_s
    if facts.chain_s > longest and spent_s < 1.5 * facts.chain_s:
        why = (
            f"{facts.chain_of} takes {facts.chain_s:.1f} s for planning, its longest part, and "
            "joining"
        )
    elif spent_s < 1.5 * longest and len(walls) > stops.workers:
        slowest = facts.tally.slowest
        name = facts.longest or (slowest[0].name if slowest else "the longest file")
        why = f"{name} alone takes {longest:.1f} s"
    elif load_s > stops.seconds / 2:
        why = f"loading the model takes {load_s:.1f} s in each worker"
    else:
        why = "there are not enough files for more"
    return (
        f"it stops scaling at about {counted(stops.workers, 'worker')} ({stops.read_mb_s:,.1f} "
        f"MB/s read): {why}"
    )
