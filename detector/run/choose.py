"""What ``compare`` measured on this machine, kept beside the built files, and what ``auto`` makes of it.

engines/measured.json: one entry a comparison, newest last. An entry counts only where model, input, machine, settings
and library versions are the ones of now; a row is taken only where its slowest round beat the default's fastest and
its detections agree with fp32's within the budget.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from detector import engines
from detector.config.schema import Config
from detector.engines import store
from detector.run.environment import environment
from detector.session.codec import to_builtins
from detector.session.comparison import Comparison, Row

FILE = "measured.json"
SCHEMA = 1
KEPT = 200  # comparisons
ENOUGH_ROUNDS = 3  # below it, intervals lie apart by chance
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """``config`` has engine and precision (and the calibration of a measured int8) filled in. ``reason``: a sentence
    for the user, None where both were named."""

    config: Config
    reason: str | None


def record(document: Comparison, config: Config) -> str:
    """Adds a comparison. Returns the file, or why nothing was kept. Raises OutputError."""
    if document.random_weights is not None:
        return "not kept: with random weights there is no agreement to judge by"
    rows = [
        _kept(row) for row in document.rows if row.error is None and row.engine in engines.ranked()
    ]
    if not rows:
        return "not kept: no row has figures"
    entry = {
        "date": date.today().isoformat(),
        **{
            key: getattr(document, key)
            for key in ("model", "model_sha256", "model_input", "rounds", "frames", "source")
        },
        "comparable": document.comparable,
        "machine": _machine(),
        "settings": _settings(config),
        "calibration": _calibration(config),
        "rows": rows,
    }

    def add(before: bytes | None) -> bytes:
        entries = [*_entries(before), entry][-KEPT:]
        return (json.dumps({"schema": SCHEMA, "comparisons": entries}, indent=1) + "\n").encode()

    return str(store.change(_folder(config), FILE, add))


def choose(config: Config, model_sha256: str, model_input: Sequence[int]) -> Choice:
    """Engine and precision for ``auto``: as measured, else the engine by rank, and fp32. Raises EngineError where no
    engine is installed at all."""
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    engine, why = (
        engines.choose(precision, runtime.device)
        if runtime.engine == "auto"
        else (runtime.engine, None)
    )
    if "auto" in (runtime.engine, runtime.precision):
        for entry in reversed(_fitting(config, model_sha256, model_input)):
            found = _judged(entry, config, engine, precision)
            if found is not None:
                return found
    return Choice(_with(config, engine, precision), why)


def _judged(entry: Entry, config: Config, engine: str, precision: str) -> Choice | None:
    """What one comparison says; None where it does not hold the default, or no other row to hold against it."""
    runtime = config.runtime
    rows = [row for row in entry["rows"] if row["batch"] == runtime.batch and _as_now(row)]
    default = next(
        (row for row in rows if (row["engine"], row["precision"]) == (engine, precision)), None
    )
    allowed = [
        row
        for row in rows
        if row is not default
        and runtime.engine in ("auto", row["engine"])
        and runtime.precision in ("auto", row["precision"])
    ]
    if default is None or not allowed:
        return None
    when, base = f"compare, {entry['date']}", f"{engine} {precision}"
    better = [
        row for row in allowed if _is_better(row, default, config) and _can_be_had(row, entry)
    ]
    if not better:
        return Choice(
            _with(config, engine, precision),
            f"engine {engine}, {precision}: nothing measured on this machine was faster within the budget ({when})",
        )
    best = max(better, key=lambda row: float(row["fps"]["inference"]["median"]))
    times = best["fps"]["inference"]["median"] / default["fps"]["inference"]["median"]
    chosen = _with(config, best["engine"], best["precision"])
    if best["precision"] == "int8":
        chosen = replace(
            chosen, calibration=replace(chosen.calibration, **_unless_given(config, entry))
        )
    return Choice(
        chosen,
        f"engine {best['engine']}, {best['precision']}: measured {times:.1f}x of {base} on this machine ({when}), "
        f"agreement {_rounded(best['agreement'])}",
    )


def _rounded(share: float) -> str:
    """``0.97``, ``0.995``: never 1.00 of what is not all."""
    return f"{int(share * 1000) / 1000:g}"


def _is_better(row: Entry, default: Entry, config: Config) -> bool:
    agreement = row["agreement"]
    right = agreement is not None and agreement >= config.calibration.budget
    return bool(right and row["fps"]["inference"]["low"] > default["fps"]["inference"]["high"])


def _can_be_had(row: Entry, entry: Entry) -> bool:
    """int8 is calibrated on a file that must still be there."""
    calibrate = entry["calibration"]["calibrate"]
    return bool(row["precision"] != "int8" or calibrate is None or Path(calibrate).exists())


def _unless_given(config: Config, entry: Entry) -> dict[str, Any]:
    """The calibration that was measured, where the user names none."""
    return {} if config.calibration.calibrate is not None else dict(entry["calibration"])


def _with(config: Config, engine: str, precision: str) -> Config:
    return replace(config, runtime=replace(config.runtime, engine=engine, precision=precision))


def _fitting(config: Config, model_sha256: str, model_input: Sequence[int]) -> list[Entry]:
    try:
        content: bytes | None = (_folder(config) / FILE).read_bytes()
    except OSError:
        return []
    entries = _entries(content)
    if not entries:
        return []
    wanted = {
        "model_sha256": model_sha256,
        "model_input": list(model_input),
        "machine": _machine(),
        "settings": _settings(config),
        "comparable": True,
    }
    return [
        entry
        for entry in entries
        if entry["rounds"] >= ENOUGH_ROUNDS
        and all(entry[key] == value for key, value in wanted.items())
    ]


def _entries(content: bytes | None) -> list[Entry]:
    """Of a file of ours; what cannot be read is as good as absent: it is measured again, not mended."""
    try:
        document = json.loads(content or b"{}")
        entries = document["comparisons"] if document["schema"] == SCHEMA else []
        return [entry for entry in entries if _is_whole(entry)]
    except (ValueError, KeyError, TypeError):
        return []


def _is_whole(entry: Any) -> bool:
    keys = {
        "date",
        "model_sha256",
        "model_input",
        "rounds",
        "comparable",
        "machine",
        "settings",
        "calibration",
        "rows",
    }
    return isinstance(entry, dict) and keys <= set(entry)


def _kept(row: Row) -> dict[str, Any]:
    return {
        "engine": row.engine,
        "library": _library(row.engine),
        "precision": row.precision,
        "executed": row.precision_text,
        "batch": row.batch,
        "fps": to_builtins(row.fps),
        "agreement": row.agreement.matched if row.agreement is not None else None,
    }


def _as_now(row: Entry) -> bool:
    """The engine is still there, in the version that was measured."""
    name = row["engine"]
    return (
        name in engines.names()
        and engines.usable()[name] is None
        and row["library"] == _library(name)
    )


def _library(engine: str) -> str | None:
    """Version of the engine's library: "onnxruntime 1.31.1"."""
    name = engines.library(engine)
    for distribution in (name, f"{name}-gpu") if name else ():
        try:
            return f"{distribution} {importlib.metadata.version(distribution)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return name


def _machine() -> dict[str, Any]:
    found = environment()
    cpu = found["cpu"]
    flags = hashlib.sha256(" ".join(sorted(cpu["flags"])).encode()).hexdigest()[:12]
    return {
        "cpu": cpu["model"],
        "flags": flags,
        "cores": cpu["cores"],
        "gpu_driver": found["gpu_driver"],
    }


def _settings(config: Config) -> dict[str, Any]:
    """Of the runtime, what changes the speed of all rows alike."""
    runtime = config.runtime
    names = ("threads", "concurrency", "device", "device_memory")
    return {name: getattr(runtime, name) for name in names} | {
        "own": list(runtime.engine_options or ())
    }


def _calibration(config: Config) -> dict[str, Any]:
    found = config.calibration
    calibrate = str(Path(found.calibrate).resolve()) if found.calibrate else None
    return {
        "calibrate": calibrate,
        "calibrate_method": found.calibrate_method,
        "calibrate_frames": found.calibrate_frames,
        "budget": found.budget,
    }


def _folder(config: Config) -> Path:
    return (
        Path(config.runtime.engines_dir) if config.runtime.engines_dir else store.default_folder()
    )
