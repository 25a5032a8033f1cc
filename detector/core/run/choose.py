"""What ``auto`` chooses for a run, and why: ``choose`` decides.

1. What ``compare --use`` or ``tune --use`` saved, whichever is newer. A row of a comparison
   replaces the choice by rank only if its slowest round beat the fastest round of that choice, and
   if its detections agree with fp32 within the budget. The options that a search found apply to the
   kind of source that it searched, if the user set neither engine, precision nor batch; other
   options that the user sets take precedence.
2. The model's timing at its first run on this machine (``self_timing``), judged like a comparison,
   if it makes inference at least 1.2 times as fast.
3. The first engine by rank that is usable here, and fp32.

``measurements`` decides which records count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from detector.core import engines
from detector.core.config.schema import PACKAGED, Config
from detector.core.errors import EngineError, UsageError
from detector.core.run import measurements
from detector.core.run.canvas import own_canvas
from detector.core.run.measurements import Timing
from detector.core.run.prepare import silent
from detector.core.session.measured import Interval, Kind, MeasuredRow, Measurement
from detector.core.types import Background

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.models.base import Network
    from detector.core.run.reading import SourceReading

# Options that are one decision: setting one of them decides all.
ENCODING = ("quality", "preset", "crf", "encoder")
UNDO = "detect-video tune --undo"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """A decision. ``config``: with engine, precision, calibration. ``tuned``: options that ``tune
    --use`` saved. ``reason``: a sentence, None if the user set both. ``timed_s``: of the timing."""

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
    progress: BuildProgress = silent,
) -> EngineChoice:
    """Choose engine and precision for ``auto``, and the options of a search.

    ``measured``: False ignores what ``--use`` saved, as ``eval`` does. ``timed``: whether a timing
    counts; it is made if there is none yet and nothing else decides. ``ahead``: what the run reads.
    ``kind``: returns the kind of source, to find a search; None uses none.
    """
    notes = measurements.why_not_read(config) if measured or timed else []
    kept = measurements.find(config, network, ("compare", "tune")) if measured else []
    search = _find_search(kept, config, kind) if kind else None
    tuned: dict[str, Any] = {}
    if search is not None:
        tuned = _options_of(search, config)
        config = _with(config, search, tuned)
        if "engine" in tuned:
            kept = []
        # Without a named engine, it was measured with the choice of auto at that time, and now.
    by_rank, runtime = _by_rank(config), config.runtime
    free = runtime.engine in ("auto", "openvino")
    hint = engines.suggest_library(runtime.device) if free else None
    comparisons = [record for record in kept if record.kind == "compare"]
    judged = (_judge(record, config, by_rank) for record in comparisons)
    choice, timed_s, now = next(filter(None, judged), None), 0.0, False
    if choice is None and timed:
        start = time.perf_counter()
        timing = find_timing(network, config, ahead, progress)
        timed_s = time.perf_counter() - start
        if timing is not None:
            notes += filter(None, [timing.note])
            now = timing.note is not None
            choice = _judge(timing.measurement, config, by_rank, now)
    if hint:
        notes.append(hint if now else Background(hint))
    choice = choice or by_rank
    reason = choice.reason if search is None else f"{describe(search)}; to undo: {UNDO}"
    return EngineChoice(choice.config, reason, tuned, tuple(notes), timed_s)


def find_timing(
    network: Network,
    config: Config,
    ahead: tuple[SourceReading, Sequence[str]] | None = None,
    progress: BuildProgress = silent,
) -> Timing | None:
    """The timing of this network on this machine, kept or made; None if it is not timed."""
    if not measurements.may_time(config, network):
        return None
    kept = measurements.find(config, network, ["self-timing"], own_canvas(network, config))
    if kept:
        return Timing(kept[0])
    from detector.core.run import self_timing

    return self_timing.make(network, config, ahead, progress)


def _by_rank(config: Config) -> EngineChoice:
    runtime = config.runtime
    engine, precision, why = runtime.engine, runtime.precision, None
    if precision == "auto":
        precision = "fp32"
    if engine == "auto":
        engine, why = engines.choose_by_rank(precision, runtime.device)
    return EngineChoice(config.with_options({"engine": engine, "precision": precision}), why)


# ---- A comparison or a timing


def _judge(
    record: Measurement, config: Config, by_rank: EngineChoice, now: bool = False
) -> EngineChoice | None:
    """Return the choice that a record supports, if any. ``now``: just made, so show its note."""
    asked, runtime = config.runtime, by_rank.config.runtime
    rows = [
        row
        for row in record.rows
        if row.options.get("batch", 1) == asked.batch and measurements.can_run(row, record)
    ]
    default = next(
        (row for row in rows if (row.engine, row.precision) == (runtime.engine, runtime.precision)),
        None,
    )
    allowed = [
        row
        for row in rows
        if row is not default
        and asked.engine in ("auto", row.engine)
        and asked.precision in ("auto", row.precision)
    ]
    if default is None or not allowed:
        return None
    speed, is_timing = _speed(default), record.kind == "self-timing"
    budget = config.calibration.budget
    if is_timing and record.calibration.calibrate != PACKAGED:  # measured on a few frames
        budget = max(budget, measurements.SAFE)
    better = [row for row in allowed if _is_better(row, speed, budget)]
    if is_timing:
        better = [row for row in better if _speed(row).median >= measurements.WORTH * speed.median]
        if not better:
            return None  # it confirms the choice by rank
    when = f"{record.kind}, {record.date}"
    if not better:
        return EngineChoice(
            by_rank.config,
            f"engine {default.engine}, {default.precision}: nothing else measured on this "
            f"machine was faster within the budget ({when})",
        )
    best = max(better, key=lambda row: _speed(row).median)
    times = _speed(best).median / speed.median
    return EngineChoice(
        _with(config, record, {"engine": best.engine, "precision": best.precision}),
        f"engine {best.engine}, {best.precision}: measured {times:.1f}x as fast as "
        f"{default.engine} {default.precision} on this machine ({when}), agreement with fp32 "
        f"{_round_down(best.agreement or 0.0)}"
        + ("; --no-self-timing turns this off" if is_timing and not now else ""),
    )


def _round_down(share: float) -> str:
    """Format ``0.97``, ``0.995``. Rounds down, so that only full agreement is shown as 1."""
    return f"{int(share * 1000) / 1000:g}"


def _speed(row: MeasuredRow) -> Interval:
    return row.fps["inference"] or Interval(0.0, 0.0, 0.0)


def _is_better(row: MeasuredRow, default: Interval, budget: float) -> bool:
    right = row.agreement is not None and row.agreement >= budget
    return right and _speed(row).low > default.high


def _with(config: Config, record: Measurement, options: Mapping[str, Any]) -> Config:
    """Return the configuration with the options of a record; int8 with the calibration measured."""
    config = config.with_options(options)
    if options.get("precision") != "int8" or config.calibration.calibrate is not None:
        return config
    return replace(config, calibration=replace(config.calibration, **vars(record.calibration)))


# ---- A search of tune


def _find_search(
    kept: Sequence[Measurement], config: Config, kind: Callable[[], str | None]
) -> Measurement | None:
    """Return the newest search for this kind of source, unless a comparison is newer."""
    runtime = config.runtime
    if (runtime.engine, runtime.precision, runtime.batch) != ("auto", "auto", 1):
        return None
    asked = None
    for record in kept:
        if record.kind == "compare":
            return None
        asked = asked or kind()
        if record.input_kind == asked and _is_usable(record):
            return record
    return None


def _is_usable(search: Measurement) -> bool:
    return bool(search.rows) and measurements.can_run(search.rows[0], search)


def _options_of(search: Measurement, config: Config) -> dict[str, Any]:
    """Return the options that the user has not set; other versions' may be unknown."""
    plain = Config()
    encoded = any(config.value(name) != plain.value(name) for name in ENCODING)
    return {
        name: value
        for name, value in search.rows[0].options.items()
        if plain.has(name)
        and config.value(name) == plain.value(name)
        and not (encoded and name in ENCODING)
    }


def describe(search: Measurement) -> str:
    """Return ``tuned for 1280x720 h264 (2026-11-22), 1.8 times the defaults: --engine ort``."""
    speeds = [row.fps.get("end_to_end") for row in search.rows]
    times = ""
    if len(speeds) == 2 and speeds[0] is not None and speeds[1] is not None:
        times = f", {speeds[0].median / speeds[1].median:.1f}x as fast as the defaults"
    options = in_words(search.rows[0].options)
    return f"tuned for {search.input_kind} ({search.date}){times}: {options}"


def in_words(settings: Mapping[str, Any]) -> str:
    """Return options as they are typed: ``--engine openvino --precision int8``."""
    return " ".join(as_options(settings)) or "the defaults"


def as_options(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return words


# ---- What is in force, for doctor and for the questions of commands


def list_in_force(config: Config) -> list[dict[str, Any]]:
    """Return the records that change what ``auto`` chooses here, the newest of each model and, for
    searches, of each kind of source. ``undo``: how the user removes it."""
    # a comparison takes precedence over a timing
    kinds: list[Kind] = ["self-timing", "compare", "tune"]
    newest: dict[tuple[Any, ...], Measurement] = {}
    for record in sorted(measurements.read(config), key=lambda one: kinds.index(one.kind)):
        taken = record.kind != "tune" or _is_usable(record)
        if taken and measurements.counts(record, config):
            newest[record.model_sha256, record.model_input, record.input_kind] = record
    file = measurements.path(config)
    undo: dict[Kind, str] = {
        "self-timing": f"cached in {file}",
        "compare": f"delete {file} to undo it",
        "tune": f"to undo: {UNDO}",
    }
    return [
        {
            "model": record.model or "a model",
            "model_input": record.model_input or (0, 0),
            "reason": reason,
            "path": str(file),
            "undo": undo[record.kind],
        }
        for record in newest.values()
        if (reason := why_taken(record, config)) is not None
    ]


def why_taken(record: Measurement, config: Config) -> str | None:
    """Return the reason of a record that changes the choice by rank; None if it changes nothing."""
    if record.kind == "tune":
        return describe(record)
    free = config.with_options({"engine": "auto", "precision": "auto"})
    try:
        by_rank = _by_rank(free)
    except (EngineError, UsageError):
        return None
    choice = _judge(record, free, by_rank)
    changes = choice is not None and choice.config.runtime != by_rank.config.runtime
    return choice.reason if choice is not None and changes else None
