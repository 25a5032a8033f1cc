"""What ``--engine auto`` and ``--precision auto`` take, and why.

By rank: the first engine by ``Engine.auto`` that is installed and can run the precision on the device; fp32.

As measured: ``compare`` keeps what it measured on this machine in engines/measured.json, one entry per comparison, the
newest last. An entry counts only if model, input, machine, settings and library versions are those of now. A row of it
replaces the choice by rank only if its slowest round beat the fastest round of that choice, and if its detections
agree with those of fp32 within the budget.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from detector import engines
from detector.config.schema import Config
from detector.engines import store
from detector.engines.base import AutoChoice
from detector.errors import EngineError, UsageError
from detector.run.environment import environment
from detector.session.codec import from_builtins, from_json, to_json
from detector.session.comparison import (
    SCHEMA,
    Comparison,
    Interval,
    MeasuredCalibration,
    MeasuredMachine,
    MeasuredRow,
    Measurement,
    Measurements,
    Row,
)

FILE = "measured.json"
KEPT = 200  # comparisons
ENOUGH_ROUNDS = 3  # below it, intervals lie apart by chance


@dataclass(frozen=True, slots=True)
class Choice:
    """``config`` has engine and precision (and the calibration of a measured int8) filled in. ``reason``: a sentence
    for the user, None where both were named."""

    config: Config
    reason: str | None


def choose(config: Config, model_sha256: str, model_input: Sequence[int]) -> Choice:
    """Engine and precision for ``auto``: as measured, else the engine by rank, and fp32. Raises EngineError where no
    engine is installed at all."""
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    engine, why = (
        choose_by_rank(precision, runtime.device)
        if runtime.engine == "auto"
        else (runtime.engine, None)
    )
    if "auto" in (runtime.engine, runtime.precision):
        for entry in reversed(_read_fitting(config, model_sha256, model_input)):
            choice = _judge(entry, config, engine, precision)
            if choice is not None:
                return choice
    return Choice(_with(config, engine, precision), why)


# ---- by rank: what is installed


def rank_engines(precision: str = "fp32") -> list[str]:
    """Engines in the order in which ``--engine auto`` tries them, without those that it never takes."""
    ranks = {name: _auto(name, precision).rank for name in engines.names()}
    return sorted((name for name in ranks if ranks[name]), key=lambda name: -ranks[name])


def choose_by_rank(precision: str = "fp32", device: str = "auto") -> tuple[str, str]:
    """The first engine by rank that can run a precision on a device here, and a sentence that says why.

    Where none can, raises what ``engines.graph_wanted`` raises for the first one; EngineError where none is installed.
    """
    order, usable = rank_engines(precision), engines.usable()
    there = [name for name in order if usable[name] is None]
    if not there:
        cures = " or ".join(engines.find(name).install for name in order if _is_missing(name))
        raise EngineError(f"no engine is installed; install one: {cures}")
    name = next((name for name in there if _can_run(name, precision, device)), there[0])
    engines.graph_wanted(name, precision, device)
    better = order[: order.index(name)]
    missing = [str(engines.find(other).library) for other in better if _is_missing(other)]
    without = f" ({', '.join(missing)} not installed)" if missing else ""
    return name, f"engine {name}: {_auto(name, precision).reason}{without}"


def _auto(name: str, precision: str) -> AutoChoice:
    engine = engines.find(name)
    return engine.auto_in.get(precision, engine.auto)


def _can_run(name: str, precision: str, device: str) -> bool:
    try:
        engines.graph_wanted(name, precision, device)
    except EngineError:
        return False
    return True


def _is_missing(name: str) -> bool:
    """Whether installing the library would make the engine usable: it is not there, and nothing else is lacking."""
    engine = engines.find(name)
    return engine.library is not None and not engines.is_installed(name) and engine.absent() is None


# ---- as measured: the records of compare


def record(document: Comparison, config: Config) -> str:
    """Adds a comparison. Returns the file, or why nothing was kept. Raises OutputError."""
    if document.random_weights is not None:
        return "not kept: with random weights there is no agreement to judge by"
    rows = [
        _kept(row) for row in document.rows if row.error is None and row.engine in rank_engines()
    ]
    if not rows:
        return "not kept: no row has figures"
    entry = Measurement(
        date=date.today().isoformat(),
        model=document.model,
        model_sha256=document.model_sha256,
        model_input=document.model_input,
        rounds=document.rounds,
        frames=document.frames,
        source=document.source,
        comparable=document.comparable,
        machine=_machine(),
        settings=_settings(config),
        calibration=_calibration(config),
        rows=tuple(rows),
    )

    def add(before: bytes | None) -> bytes:
        entries = [*_entries(before), entry][-KEPT:]
        return to_json(Measurements(comparisons=tuple(entries))).encode()

    return str(store.change(_folder(config), FILE, add))


def _judge(entry: Measurement, config: Config, engine: str, precision: str) -> Choice | None:
    """What one comparison says; None where it does not hold the default, or no other row to hold against it."""
    runtime = config.runtime
    rows = [row for row in entry.rows if row.batch == runtime.batch and _as_now(row)]
    default = next(
        (row for row in rows if (row.engine, row.precision) == (engine, precision)), None
    )
    allowed = [
        row
        for row in rows
        if row is not default
        and runtime.engine in ("auto", row.engine)
        and runtime.precision in ("auto", row.precision)
    ]
    if default is None or not allowed:
        return None
    when, base = f"compare, {entry.date}", f"{engine} {precision}"
    speed = _speed(default)
    better = [row for row in allowed if _is_better(row, speed, config) and _can_be_had(row, entry)]
    if not better:
        return Choice(
            _with(config, engine, precision),
            f"engine {engine}, {precision}: nothing measured on this machine was faster within the budget ({when})",
        )
    best = max(better, key=lambda row: _speed(row).median)
    times = _speed(best).median / speed.median
    chosen = _with(config, best.engine, best.precision)
    if best.precision == "int8":
        chosen = replace(
            chosen, calibration=replace(chosen.calibration, **_unless_given(config, entry))
        )
    return Choice(
        chosen,
        f"engine {best.engine}, {best.precision}: measured {times:.1f}x of {base} on this machine ({when}), "
        f"agreement {_rounded(best.agreement or 0.0)}",
    )


def _rounded(share: float) -> str:
    """``0.97``, ``0.995``: never 1.00 of what is not all."""
    return f"{int(share * 1000) / 1000:g}"


def _speed(row: MeasuredRow) -> Interval:
    """Rows that were kept have figures; a row without one is as slow as can be."""
    return row.fps["inference"] or Interval(0.0, 0.0, 0.0)


def _is_better(row: MeasuredRow, default: Interval, config: Config) -> bool:
    right = row.agreement is not None and row.agreement >= config.calibration.budget
    return right and _speed(row).low > default.high


def _can_be_had(row: MeasuredRow, entry: Measurement) -> bool:
    """int8 is calibrated on a file that must still be there."""
    calibrate = entry.calibration.calibrate
    return bool(row.precision != "int8" or calibrate is None or Path(calibrate).exists())


def _unless_given(config: Config, entry: Measurement) -> dict[str, Any]:
    """The calibration that was measured, where the user names none."""
    return {} if config.calibration.calibrate is not None else vars(entry.calibration)


def _with(config: Config, engine: str, precision: str) -> Config:
    return replace(config, runtime=replace(config.runtime, engine=engine, precision=precision))


def _read_fitting(
    config: Config, model_sha256: str, model_input: Sequence[int]
) -> list[Measurement]:
    try:
        content: bytes | None = (_folder(config) / FILE).read_bytes()
    except OSError:
        return []
    entries = _entries(content)
    if not entries:
        return []
    wanted = {
        "model_sha256": model_sha256,
        "model_input": tuple(model_input),
        "machine": _machine(),
        "settings": _settings(config),
        "comparable": True,
    }
    return [
        entry
        for entry in entries
        if entry.rounds >= ENOUGH_ROUNDS
        and all(getattr(entry, key) == value for key, value in wanted.items())
    ]


def _entries(content: bytes | None) -> list[Measurement]:
    """An unreadable record is ignored, as if there were none: it is measured again, not mended."""
    try:
        document = from_json(content or b"{}", dict[str, Any], FILE)
    except UsageError:
        return []
    entries = document.get("comparisons")
    readable = isinstance(entries, list) and document.get("schema") == SCHEMA
    return [entry for each in entries or () if (entry := _entry(each))] if readable else []


def _entry(content: Any) -> Measurement | None:
    try:
        return from_builtins(content, Measurement, FILE)
    except UsageError:
        return None


def _kept(row: Row) -> MeasuredRow:
    return MeasuredRow(
        engine=row.engine,
        library=_library(row.engine),
        precision=row.precision,
        executed=row.precision_text,
        batch=row.batch,
        fps=row.fps,
        agreement=row.agreement.matched if row.agreement is not None else None,
    )


def _as_now(row: MeasuredRow) -> bool:
    """The engine is still there, in the version that was measured."""
    name = row.engine
    return (
        name in engines.names() and engines.usable()[name] is None and row.library == _library(name)
    )


def _library(engine: str) -> str | None:
    """Version of the engine's library: "onnxruntime 1.31.1"."""
    name = engines.find(engine).library
    for distribution in (name, f"{name}-gpu") if name else ():
        try:
            return f"{distribution} {importlib.metadata.version(distribution)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return name


def _machine() -> MeasuredMachine:
    found = environment()
    cpu = found["cpu"]
    flags = hashlib.sha256(" ".join(sorted(cpu["flags"])).encode()).hexdigest()[:12]
    return MeasuredMachine(cpu["model"], flags, cpu["cores"], found["gpu_driver"])


def _settings(config: Config) -> dict[str, Any]:
    """Of the runtime, what changes the speed of all rows alike."""
    runtime = config.runtime
    names = ("threads", "concurrency", "device", "device_memory")
    return {name: getattr(runtime, name) for name in names} | {
        "own": list(runtime.engine_options or ())
    }


def _calibration(config: Config) -> MeasuredCalibration:
    found = config.calibration
    calibrate = str(Path(found.calibrate).resolve()) if found.calibrate else None
    return MeasuredCalibration(
        calibrate, found.calibrate_method, found.calibrate_frames, found.budget
    )


def _folder(config: Config) -> Path:
    return (
        Path(config.runtime.engines_dir) if config.runtime.engines_dir else store.default_folder()
    )
