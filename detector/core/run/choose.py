"""What ``--engine auto`` and ``--precision auto`` take, and why.

By rank: the first engine by ``Engine.auto`` that is installed and can run the precision on the
device; fp32.

As measured: ``compare --use`` keeps what it measured on this machine in engines/measured.json, one
entry per comparison, the newest last. An entry counts only if model, input, machine, settings and
library versions are those of now. A row of it replaces the choice by rank only if its slowest round
beat the fastest round of that choice, and if its detections agree with those of fp32 within the
budget.

As timed: where no comparison counts, the default model's own timing at its first run here
(``self_timing``) counts likewise, if it makes inference at least 1.2 times as fast.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detector.core import engines
from detector.core.config.schema import PACKAGED, Config
from detector.core.engines._built import store
from detector.core.engines.base import AutoChoice
from detector.core.errors import EngineError, UsageError
from detector.core.errors.writing import set_aside
from detector.core.run.environment import describe_cpu, gpu_driver
from detector.core.session.codec import from_builtins, from_json, to_json
from detector.core.session.measured import (
    SCHEMA,
    Interval,
    MeasuredCalibration,
    MeasuredMachine,
    MeasuredRow,
    Measurement,
    Measurements,
)

FILE = "measured.json"
KEPT = 200  # comparisons
ENOUGH_ROUNDS = 3  # below it, intervals lie apart by chance
TIMED = ("ort", "openvino")  # without torch, which is slower everywhere, and seconds to import
WORTH = 1.2  # times as fast: what a timing that nobody asked for must find to change anything


@dataclass(frozen=True, slots=True)
class Choice:
    """What a run takes.

    ``config``: with engine and precision filled in, and for a measured int8 with its calibration.
    ``reason``: a sentence for the user, None if the user named both.
    """

    config: Config
    reason: str | None


def choose(
    config: Config,
    model_sha256: str,
    model_input: Sequence[int],
    measured: bool = True,
    timing: Measurement | None = None,
) -> Choice:
    """Engine and precision for ``auto``: as measured, else as timed, else the engine by rank and
    fp32.

    ``measured``: False leaves the records of ``compare --use`` aside, as ``eval`` does. ``timing``:
    of this model on this machine; None where the command takes none.
    Raises EngineError if no engine is installed.
    """
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    engine, why = (
        choose_by_rank(precision, runtime.device)
        if runtime.engine == "auto"
        else (runtime.engine, None)
    )
    if measured and "auto" in (runtime.engine, runtime.precision):
        for entry in reversed(read_kept(config, model_sha256, model_input)):
            if entry.kind == "compare" and (choice := _judge(entry, config, engine, precision)):
                return choice
    if timing is not None and (choice := _judge(timing, config, engine, precision)) is not None:
        return choice
    return Choice(_with(config, engine, precision), why)


# ---- by rank: what is installed


def rank_engines(precision: str = "fp32") -> list[str]:
    """Engines in the order in which ``--engine auto`` tries them; without those of rank 0."""
    ranks = {name: _auto(name, precision).rank for name in engines.names()}
    return sorted((name for name in ranks if ranks[name]), key=lambda name: -ranks[name])


def choose_by_rank(precision: str = "fp32", device: str = "auto") -> tuple[str, str]:
    """The first engine that can run a precision on a device here, and a sentence that says why.

    If none can, raises what ``engines.graph_wanted`` raises for the first engine. Raises
    EngineError if none is installed.
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
    """Whether the library is all that the engine lacks, so that installing it would help."""
    engine = engines.find(name)
    return engine.library is not None and not engines.is_installed(name) and engine.absent() is None


# ---- as measured: the records of compare


def keep(entry: Measurement, config: Config) -> Path:
    """Adds an entry to the file, and returns its path. Raises OutputError."""
    folder = store.choose_folder(config.runtime.engines_dir)

    def add(before: bytes | None) -> bytes:
        if before is None or not _is_ours(before):
            set_aside(folder / FILE)
        entries = [*_entries(before), entry][-KEPT:]
        return to_json(Measurements(comparisons=tuple(entries))).encode()

    return store.rewrite(folder, FILE, add)


def find_timing(
    config: Config, model_sha256: str, model_input: Sequence[int]
) -> Measurement | None:
    """The newest timing of this model on this machine, with the engines and versions of now."""
    for entry in reversed(read_file(config)):
        if entry.kind == "self-timing" and _is_of(entry, model_sha256, model_input, config):
            return entry
    return None


def settings_of_timing(config: Config) -> dict[str, Any]:
    """The settings of a timing, and what it could choose from."""
    usable = engines.usable()
    libraries = [library_version(name) for name in TIMED if usable.get(name, "") is None]
    return {**settings_of(config), "libraries": libraries}


@dataclass(frozen=True, slots=True)
class InForce:
    """A record that changes what ``auto`` takes for one model and input.

    ``undo``: what the user does against it.
    """

    model: str
    model_input: tuple[int, int]  # height, width
    reason: str
    path: str
    undo: str


def list_in_force(config: Config) -> list[InForce]:
    """The records that count on this machine with these settings, the newest of each model."""
    path = store.choose_folder(config.runtime.engines_dir) / FILE
    newest: dict[tuple[str | None, tuple[int, int] | None], Measurement] = {}
    # A comparison goes before a timing.
    for entry in sorted(read_file(config), key=lambda entry: entry.kind == "compare"):
        if entry.kind != "tune" and counts(entry, config):
            newest[entry.model_sha256, entry.model_input] = entry
    return [
        InForce(
            entry.model or "a model",
            entry.model_input or (0, 0),
            reason,
            str(path),
            f"delete {path} to undo it" if entry.kind == "compare" else f"kept in {path}",
        )
        for entry in newest.values()
        if (reason := replacement(entry, config)) is not None
    ]


def replacement(entry: Measurement, config: Config) -> str | None:
    """The sentence of a record that changes the choice by rank; None where it changes nothing."""
    try:
        by_rank, _ = choose_by_rank("fp32", config.runtime.device)
    except (EngineError, UsageError):
        return None
    free = replace(config, runtime=replace(config.runtime, engine="auto", precision="auto"))
    choice = _judge(entry, free, by_rank, "fp32")
    if choice is None:
        return None
    runtime = choice.config.runtime
    return None if (runtime.engine, runtime.precision) == (by_rank, "fp32") else choice.reason


def _judge(entry: Measurement, config: Config, engine: str, precision: str) -> Choice | None:
    """What one comparison says; None if it lacks the default choice or any row to compare."""
    runtime = config.runtime
    rows = [row for row in entry.rows if row.batch == runtime.batch and is_as_now(row)]
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
    when, base = f"{entry.kind}, {entry.date}", f"{engine} {precision}"
    speed = _speed(default)
    better = [row for row in allowed if _is_better(row, speed, config) and can_be_had(row, entry)]
    if entry.kind == "self-timing":
        better = [row for row in better if _speed(row).median >= WORTH * speed.median]
        if not better:
            return None  # it says nothing that the rank does not
    if not better:
        return Choice(
            _with(config, engine, precision),
            f"engine {engine}, {precision}: nothing measured on this machine was faster within "
            f"the budget ({when})",
        )
    best = max(better, key=lambda row: _speed(row).median)
    times = _speed(best).median / speed.median
    chosen = _with(config, best.engine, best.precision)
    if best.precision == "int8":
        chosen = replace(
            chosen,
            calibration=replace(chosen.calibration, **calibration_unless_given(config, entry)),
        )
    return Choice(
        chosen,
        f"engine {best.engine}, {best.precision}: measured {times:.1f}x of {base} on this "
        f"machine ({when}), agreement {_round_down(best.agreement or 0.0)}"
        + ("; --no-self-timing undoes it" if entry.kind == "self-timing" else ""),
    )


def _round_down(share: float) -> str:
    """``0.97``, ``0.995``. Rounds down, so that only full agreement is shown as 1."""
    return f"{int(share * 1000) / 1000:g}"


def _speed(row: MeasuredRow) -> Interval:
    """Rows that were kept have figures; a row without one is as slow as can be."""
    return row.fps["inference"] or Interval(0.0, 0.0, 0.0)


def _is_better(row: MeasuredRow, default: Interval, config: Config) -> bool:
    right = row.agreement is not None and row.agreement >= config.calibration.budget
    return right and _speed(row).low > default.high


def can_be_had(row: MeasuredRow, entry: Measurement) -> bool:
    """Whether the row can be run again: int8 needs the file that it was calibrated on."""
    calibrate = entry.calibration.calibrate
    there = calibrate in (None, PACKAGED) or Path(str(calibrate)).exists()
    return row.precision != "int8" or there


def calibration_unless_given(config: Config, entry: Measurement) -> dict[str, Any]:
    """The calibration that was measured, unless the user names one."""
    return {} if config.calibration.calibrate is not None else vars(entry.calibration)


def _with(config: Config, engine: str, precision: str) -> Config:
    return replace(config, runtime=replace(config.runtime, engine=engine, precision=precision))


def read_kept(config: Config, model_sha256: str, model_input: Sequence[int]) -> list[Measurement]:
    """What ``compare --use`` and ``tune --use`` kept and counts here, the newest last."""
    return [
        entry
        for entry in read_file(config)
        if entry.kind != "self-timing" and _is_of(entry, model_sha256, model_input, config)
    ]


def _is_of(
    entry: Measurement, model_sha256: str, model_input: Sequence[int], config: Config
) -> bool:
    same = (entry.model_sha256, entry.model_input) == (model_sha256, tuple(model_input))
    return same and counts(entry, config)


def read_file(config: Config) -> list[Measurement]:
    """All entries that this version can read, the newest last."""
    return _entries(store.read_kept(store.choose_folder(config.runtime.engines_dir), FILE))


def why_not_read(config: Config) -> list[str]:
    """A line where the file is there and was not written by this account's runs."""
    reason = store.why_not_kept(store.choose_folder(config.runtime.engines_dir), FILE)
    return [] if reason is None else [f"{reason}; compare, tune or time again, or delete it"]


def counts(entry: Measurement, config: Config) -> bool:
    """Whether it was measured well, on this machine, with the settings of now."""
    timed = entry.kind == "self-timing"
    return (
        entry.comparable is True
        and entry.rounds >= ENOUGH_ROUNDS
        and entry.machine == this_machine()
        and entry.settings == (settings_of_timing(config) if timed else settings_of(config))
    )


def _entries(content: bytes | None) -> list[Measurement]:
    """The entries of measured.json. An unreadable one is ignored, as if there were none."""
    try:
        document = from_json(content or b"{}", dict[str, Any], FILE)
    except UsageError:
        return []
    entries = document.get("comparisons")
    readable = isinstance(entries, list) and document.get("schema") == SCHEMA
    return [entry for each in entries or () if (entry := entry_of(each))] if readable else []


def _is_ours(content: bytes) -> bool:
    try:
        document = from_json(content, dict[str, Any], FILE)
    except UsageError:
        return False
    return document.get("schema") == SCHEMA and isinstance(document.get("comparisons"), list)


def entry_of(content: Any) -> Measurement | None:
    try:
        return from_builtins(content, Measurement, FILE)
    except UsageError:
        return None


def is_as_now(row: MeasuredRow) -> bool:
    """Whether the engine can still run this precision, in the version that was measured."""
    name = row.engine
    return (
        name in engines.names()
        and row.precision in engines.find(name).precisions
        and engines.usable()[name] is None
        and row.library == library_version(name)
    )


def library_version(engine: str) -> str | None:
    """Version of the engine's library: "onnxruntime 1.31.1"."""
    name = engines.find(engine).library
    for distribution in (name, f"{name}-gpu") if name else ():
        try:
            return f"{distribution} {importlib.metadata.version(distribution)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return name


def this_machine() -> MeasuredMachine:
    cpu = describe_cpu()
    flags = hashlib.sha256(" ".join(sorted(cpu["flags"])).encode()).hexdigest()[:12]
    return MeasuredMachine(cpu["model"], flags, cpu["cores"], gpu_driver())


def settings_of(config: Config) -> dict[str, Any]:
    """The settings that change the speed of all rows alike."""
    runtime = config.runtime
    names = ("threads", "concurrency", "device", "device_memory")
    return {name: getattr(runtime, name) for name in names} | {
        "own": list(runtime.engine_options or ())
    }


def calibration_of(config: Config) -> MeasuredCalibration:
    found = config.calibration
    calibrate = found.calibrate
    if calibrate not in (None, PACKAGED):
        calibrate = str(Path(str(calibrate)).resolve())
    return MeasuredCalibration(
        calibrate, found.calibrate_method, found.calibrate_frames, found.budget
    )
