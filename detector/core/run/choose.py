"""Choose engine, precision and options for ``auto``, and say why. ``choose`` uses the first of:

1. what ``compare --use`` or ``tune --use`` saved, whichever is newer. A row of a comparison
   replaces the choice by rank only if its slowest round beat the fastest round of that choice, and
   if its detections agree with fp32 within the budget. The options that a search found apply to the
   kind of source that it searched, if the user set neither engine, precision nor batch; other
   options that the user sets take precedence.
2. the model's timing at its first run on this machine (``self_timing``), judged like a comparison,
   if it makes inference at least 1.2 times as fast.
3. the first engine by rank that is usable here, and fp32.

``measurements`` decides which records are valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from detector.core import engines
from detector.core.config.schema import PACKAGED, Config, options
from detector.core.errors import EngineError, UsageError
from detector.core.run import measurements
from detector.core.run.canvas import own_canvas
from detector.core.run.measurements import Timing
from detector.core.run.prepare import ignore_progress
from detector.core.session.measured import Interval, Kind, MeasuredRow, Measurement
from detector.core.types import Background

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.models.base import Network
    from detector.core.run.reading import SourceReading

# If the user sets one of these options, a search sets none of them.
ENCODING = ("quality", "preset", "crf", "encoder")
UNDO = "detect-video tune --undo"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """A decision. ``config``: without ``auto``. ``tuned``: options that ``tune --use`` saved.
    ``reason``: a sentence; None if the user decided. ``timed_s``: duration of the timing."""

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
    """Choose engine and precision for ``auto``, and the options of a search.

    ``measured``: whether to use what ``--use`` saved (``eval`` does not). ``timed``: whether to use
    a timing, which is made if there is none yet and nothing else decides. ``ahead``: the sources of
    the run. ``kind``: function that returns the kind of source; None ignores searches.
    """
    notes = measurements.why_not_read(config) if measured or timed else []
    records = measurements.find(config, network, ("compare", "tune")) if measured else []
    search = _find_search(records, config, kind) if kind else None
    tuned: dict[str, Any] = {}
    if search is not None:
        tuned = _select_options(search, config)
        config = _apply(config, search, tuned)
        if "engine" in tuned:
            records = []  # otherwise a comparison may still choose the engine
    by_rank, runtime = _choose_by_rank(config), config.runtime
    may_hint = runtime.engine in ("auto", "openvino")
    hint = engines.suggest_library(runtime.device) if may_hint else None
    comparisons = [record for record in records if record.kind == "compare"]
    judged = (_judge(record, config, by_rank) for record in comparisons)
    choice, timed_s, just_timed = next(filter(None, judged), None), 0.0, False
    if choice is None and timed:
        start = time.perf_counter()
        timing = find_timing(network, config, ahead, progress)
        timed_s = time.perf_counter() - start
        if timing is not None:
            notes += filter(None, [timing.note])
            just_timed = timing.note is not None
            choice = _judge(timing.measurement, config, by_rank, just_timed)
    if hint:
        notes.append(hint if just_timed else Background(hint))
    choice = choice or by_rank
    reason = choice.reason if search is None else f"{describe(search)}; to undo: {UNDO}"
    return EngineChoice(choice.config, reason, tuned, tuple(notes), timed_s)


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


def _choose_by_rank(config: Config) -> EngineChoice:
    runtime = config.runtime
    engine, precision, why = runtime.engine, runtime.precision, None
    if precision == "auto":
        precision = "fp32"
    if engine == "auto":
        engine, why = engines.choose_by_rank(precision, runtime.device)
    return EngineChoice(config.with_options({"engine": engine, "precision": precision}), why)


# ---- A comparison or a timing


def _judge(
    record: Measurement, config: Config, by_rank: EngineChoice, just_timed: bool = False
) -> EngineChoice | None:
    """Return the choice that a record supports, if any. ``just_timed``: it is a new timing."""
    requested, runtime = config.runtime, by_rank.config.runtime
    rows = [
        row
        for row in record.rows
        if row.options.get("batch", 1) == requested.batch and measurements.can_run(row, record)
    ]
    default = next(
        (row for row in rows if (row.engine, row.precision) == (runtime.engine, runtime.precision)),
        None,
    )
    allowed = [
        row
        for row in rows
        if row is not default
        and requested.engine in ("auto", row.engine)
        and requested.precision in ("auto", row.precision)
    ]
    if default is None or not allowed:
        return None
    speed, is_timing = _read_speed(default), record.kind == "self-timing"
    budget = config.calibration.budget
    if is_timing and record.calibration.calibrate != PACKAGED:  # measured on only a few frames
        budget = max(budget, measurements.MIN_AGREEMENT)
    better = [row for row in allowed if _is_better(row, speed, budget)]
    if is_timing:
        better = [
            row
            for row in better
            if _read_speed(row).median >= measurements.MIN_SPEEDUP * speed.median
        ]
        if not better:
            return None  # the timing confirms the choice by rank
    when = f"{record.kind}, {record.date}"
    if not better:
        return EngineChoice(
            by_rank.config,
            f"engine {default.engine}, {default.precision}: nothing else measured on this "
            f"machine was faster within the budget ({when})",
        )
    best = max(better, key=lambda row: _read_speed(row).median)
    ratio = _read_speed(best).median / speed.median
    return EngineChoice(
        _apply(config, record, {"engine": best.engine, "precision": best.precision}),
        f"engine {best.engine}, {best.precision}: measured {ratio:.1f}x as fast as "
        f"{default.engine} {default.precision} on this machine ({when}), agreement with fp32 "
        f"{_round_down(best.agreement or 0.0)}"
        + ("; --no-self-timing turns this off" if is_timing and not just_timed else ""),
    )


def _round_down(share: float) -> str:
    """Format as ``0.995``, rounded down, so that only full agreement is shown as 1."""
    return f"{int(share * 1000) / 1000:g}"


def _read_speed(row: MeasuredRow) -> Interval:
    return row.fps["inference"] or Interval(0.0, 0.0, 0.0)


def _is_better(row: MeasuredRow, default: Interval, budget: float) -> bool:
    agrees = row.agreement is not None and row.agreement >= budget
    return agrees and _read_speed(row).low > default.high


def _apply(config: Config, record: Measurement, options: Mapping[str, Any]) -> Config:
    """Return the configuration with a record's options, and for int8 with its calibration."""
    config = config.with_options(options)
    if options.get("precision") != "int8" or config.calibration.calibrate is not None:
        return config
    return replace(config, calibration=replace(config.calibration, **vars(record.calibration)))


# ---- A search of tune


def _find_search(
    records: Sequence[Measurement], config: Config, kind: Callable[[], str | None]
) -> Measurement | None:
    """Return the newest search for this kind of source, unless a comparison is newer."""
    runtime = config.runtime
    if (runtime.engine, runtime.precision, runtime.batch) != ("auto", "auto", 1):
        return None
    input_kind = None
    for record in records:
        if record.kind == "compare":
            return None
        input_kind = input_kind or kind()
        if record.input_kind == input_kind and _is_usable(record):
            return record
    return None


def _is_usable(search: Measurement) -> bool:
    return bool(search.rows) and measurements.can_run(search.rows[0], search)


def _select_options(search: Measurement, config: Config) -> dict[str, Any]:
    """Return the options that the user has not set, without those unknown to this version."""
    defaults, known = Config(), {leaf.name for _, leaf in options()}
    encoded = any(config.value(name) != defaults.value(name) for name in ENCODING)
    return {
        name: value
        for name, value in search.rows[0].options.items()
        if name in known
        and config.value(name) == defaults.value(name)
        and not (encoded and name in ENCODING)
    }


def describe(search: Measurement) -> str:
    """Return ``tuned for 1280x720 h264 (2026-11-22), 1.8x as fast as the defaults: ...``."""
    speeds = [row.fps.get("end_to_end") for row in search.rows]
    ratio = ""
    if len(speeds) == 2 and speeds[0] is not None and speeds[1] is not None:
        ratio = f", {speeds[0].median / speeds[1].median:.1f}x as fast as the defaults"
    options = format_options(search.rows[0].options)
    return f"tuned for {search.input_kind} ({search.date}){ratio}: {options}"


def format_options(settings: Mapping[str, Any]) -> str:
    """Return options as they are typed: ``--engine openvino --precision int8``."""
    return " ".join(as_options(settings)) or "the defaults"


def as_options(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return words


# ---- The records in force, for doctor and compare


def list_in_force(config: Config) -> list[dict[str, Any]]:
    """Return the records that change what ``auto`` chooses, the newest of each model and, for
    searches, of each kind of source. ``undo``: how the user removes the record."""
    kinds: list[Kind] = ["self-timing", "compare", "tune"]  # later kinds take precedence
    newest: dict[tuple[Any, ...], Measurement] = {}
    for record in sorted(measurements.read(config), key=lambda record: kinds.index(record.kind)):
        is_usable = record.kind != "tune" or _is_usable(record)
        if is_usable and measurements.is_valid(record, config):
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
    config = config.with_options({"engine": "auto", "precision": "auto"})
    try:
        by_rank = _choose_by_rank(config)
    except (EngineError, UsageError):
        return None
    choice = _judge(record, config, by_rank)
    changes = choice is not None and choice.config.runtime != by_rank.config.runtime
    return choice.reason if choice is not None and changes else None
