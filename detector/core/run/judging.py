"""Judge the measurements of ``compare --use``, ``tune --use`` or a timing, and apply them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from detector.core.config.schema import PACKAGED, Config, options
from detector.core.run import measurements
from detector.core.session.measured import Interval, MeasuredRow, Measurement

# If the user sets one of these options, the result of ``tune`` does not set any of them.
ENCODING = ("quality", "preset", "crf", "encoder")


def judge(
    record: Measurement, config: Config, by_rank: Config, just_timed: bool = False
) -> tuple[Config, str] | None:
    """Return the configuration that a record supports, and the reason; None if it supports none.
    ``by_rank``: the choice without a record. ``just_timed``: the record is a new timing."""
    requested, runtime = config.runtime, by_rank.runtime
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
        return (
            by_rank,
            f"engine {default.engine}, {default.precision}: nothing else measured on this "
            f"machine was faster within the budget ({when})",
        )
    best = max(better, key=lambda row: _read_speed(row).median)
    ratio = _read_speed(best).median / speed.median
    return (
        apply(config, record, {"engine": best.engine, "precision": best.precision}),
        f"engine {best.engine}, {best.precision}: measured {ratio:.1f}x as fast as "
        f"{default.engine} {default.precision} on this machine ({when}), agreement with fp32: "
        # Round down, so that only full agreement is shown as 1.
        f"{int((best.agreement or 0.0) * 1000) / 1000:g}"
        + ("; --no-self-timing turns this off" if is_timing and not just_timed else ""),
    )


def _read_speed(row: MeasuredRow) -> Interval:
    return row.fps["inference"] or Interval(0.0, 0.0, 0.0)


def _is_better(row: MeasuredRow, default: Interval, budget: float) -> bool:
    agrees = row.agreement is not None and row.agreement >= budget
    return agrees and _read_speed(row).low > default.high


def apply(config: Config, record: Measurement, options: Mapping[str, Any]) -> Config:
    """Return the configuration with a record's options, and for int8 the record's calibration."""
    config = config.with_options(options)
    if options.get("precision") != "int8" or config.calibration.calibrate is not None:
        return config
    return replace(config, calibration=replace(config.calibration, **vars(record.calibration)))


def find_search(
    records: Sequence[Measurement], config: Config, kind: Callable[[], str | None]
) -> Measurement | None:
    """Return the newest record of ``tune`` for this kind of source, if no comparison is newer."""
    runtime = config.runtime
    if (runtime.engine, runtime.precision, runtime.batch) != ("auto", "auto", 1):
        return None
    input_kind = None
    for record in records:
        if record.kind == "compare":
            return None
        input_kind = input_kind or kind()
        if record.input_kind == input_kind and is_usable(record):
            return record
    return None


def is_usable(search: Measurement) -> bool:
    return bool(search.rows) and measurements.can_run(search.rows[0], search)


def select_options(search: Measurement, config: Config) -> dict[str, Any]:
    """Return the options of ``tune`` that this version knows and the user has not set."""
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
    """Return options as a user types them: ``--engine openvino --precision int8``."""
    return " ".join(as_options(settings)) or "the defaults"


def as_options(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return words
