"""Choose engine, precision and options for ``auto``, and explain the choice. ``choose`` uses the
first of these that applies:

1. The saved result of ``compare --use`` or of ``tune --use``, whichever is newer. A row of a
   comparison counts only if its slowest round was faster than the fastest round of choice 3, and if
   its detections agree with fp32 within the budget. The options that ``tune`` found apply only to
   the kind of source that ``tune`` ran on, and only if the user set neither engine, precision nor
   batch. If the user sets another tuned option, the user's value counts.
2. The model's timing at its first run on this machine (``self_timing``), judged like a comparison.
   It counts only if inference becomes at least 1.2 times as fast as with choice 3.
3. The choice by rank: the first engine in a fixed order that is usable here, with fp32.

``measurements`` decides which records are valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config
from detector.core.run import measurements
from detector.core.run.canvas import own_canvas
from detector.core.run.measurements import Timing
from detector.core.run.prepare import ignore_progress
from detector.core.types import Background

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.models.base import Network
    from detector.core.run.reading import SourceReading
    from detector.core.session.measured import Measurement

UNDO = "detect-video tune --undo"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``config``: has the choice instead of ``auto``. ``tuned``: options that ``tune`` saved.
    ``reason``: text for the user, None if the user decided. ``timed_s``: duration of the timing."""

    config: Config
    reason: str | None
    tuned: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    timed_s: float = 0.0


def choose(
    network: Network,
    config: Config,
    *,
    measured: bool = True,
    timed: bool = False,
    kind: Callable[[], str | None] | None = None,
    ahead: tuple[SourceReading, Sequence[str]] | None = None,
    progress: BuildProgress = ignore_progress,
) -> EngineChoice:
    """Choose engine and precision for ``auto``, and the options that ``tune`` found.

    ``measured``: whether to use what ``--use`` saved (``eval`` does not). ``timed``: whether to use
    a timing, which is made now if none is saved and nothing else decides. ``ahead``: the run's
    sources. ``kind``: returns the kind of source; None ignores the results of ``tune``.
    """
    notes = measurements.why_not_read(config) if measured or timed else []
    records = measurements.find(config, network, ("compare", "tune")) if measured else []
    search, tuned = None, dict[str, Any]()
    if records and kind:
        from detector.core.run import judging

        search = judging.find_search(records, config, kind)
    if search is not None:
        tuned = judging.select_options(search, config)
        config = judging.apply(config, search, tuned)
        if "engine" in tuned:
            records = []  # a comparison must not replace the engine that ``tune`` chose
    by_rank, runtime = choose_by_rank(config), config.runtime
    hint = None
    if runtime.engine in ("auto", "openvino"):
        from detector.core.engines import _ranking

        hint = _ranking.suggest_library(runtime.device)
    comparisons = [record for record in records if record.kind == "compare"]
    judged = (judge(record, config, by_rank) for record in comparisons)
    choice, timed_s, just_timed = next(filter(None, judged), None), 0.0, False
    if choice is None and timed:
        start = time.perf_counter()
        timing = find_timing(network, config, ahead, progress)
        timed_s = time.perf_counter() - start
        if timing is not None:
            notes += filter(None, [timing.note])
            just_timed = timing.note is not None
            choice = judge(timing.measurement, config, by_rank, just_timed)
            if just_timed and choice is None:
                kept = f"kept {by_rank.config.runtime.engine} {by_rank.config.runtime.precision}"
                least = measurements.MIN_SPEEDUP
                notes.append(f"{kept}: nothing else was {least:g}x as fast with enough agreement")
        else:
            notes += _describe_unused(network, config, by_rank)
    if hint:
        notes.append(hint if just_timed else Background(hint))
    choice = choice or by_rank
    reason = choice.reason
    if search is not None:
        reason = f"{judging.describe(search)}; to undo: {UNDO}"
    return EngineChoice(choice.config, reason, tuned, tuple(notes), timed_s)


def _describe_unused(network: Network, config: Config, by_rank: EngineChoice) -> Iterator[str]:
    """Describe a saved choice that is not used because of --threads or --concurrency."""
    free = replace(config, runtime=replace(config.runtime, threads=0, concurrency=0))
    if free != config and measurements.may_time(free, network):
        saved = measurements.find(free, network, ["compare"])
        saved += measurements.find(free, network, ["self-timing"], own_canvas(network, free))
        if saved and (other := judge(saved[0], free, by_rank)) is not None:
            yield f"unused with --threads or --concurrency: {str(other.reason).partition(';')[0]}"


def find_timing(
    network: Network,
    config: Config,
    ahead: tuple[SourceReading, Sequence[str]] | None = None,
    progress: BuildProgress = ignore_progress,
) -> Timing | None:
    """Return the network's timing on this machine, saved or new; None if it must not be timed."""
    if not measurements.may_time(config, network):
        return None
    saved = measurements.find(config, network, ["self-timing"], own_canvas(network, config))
    if saved:
        return Timing(saved[0])
    from detector.core.run import self_timing

    return self_timing.make(network, config, ahead, progress)


def choose_by_rank(config: Config) -> EngineChoice:
    runtime = config.runtime
    engine, precision, why = runtime.engine, runtime.precision, None
    if precision == "auto":
        precision = "fp32"
    if engine == "auto":
        from detector.core.engines import _ranking

        engine, why = _ranking.choose_by_rank(precision, runtime.device)
    return EngineChoice(config.with_options({"engine": engine, "precision": precision}), why)


def judge(
    record: Measurement, config: Config, by_rank: EngineChoice, just_timed: bool = False
) -> EngineChoice | None:
    from detector.core.run import judging

    judged = judging.judge(record, config, by_rank.config, just_timed)
    return None if judged is None else EngineChoice(*judged)
