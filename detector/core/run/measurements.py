"""Read the measurements on this machine from engines/measured.json. (saving.py writes the file.)

A record counts only if its model, input, machine and settings are the current ones. A row of a
record counts only if its engine is installed in the measured version (``can_run``).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import engines
from detector.core.config.schema import CALIBRATIONS, PACKAGED, Config
from detector.core.engines import base
from detector.core.engines._built import store
from detector.core.errors import EngineError, UsageError
from detector.core.run.environment import describe_cpu, gpu_driver
from detector.core.session.codec import from_builtins

if TYPE_CHECKING:
    from detector.core.models.base import Network
    from detector.core.session.measured import Kind, MeasuredMachine, MeasuredRow, Measurement

FILE = "measured.json"
ENOUGH_ROUNDS = 3  # with fewer rounds, one row may beat another by chance
TIMED = ("ort", "openvino")  # not torch, which is always slower and takes seconds to import
ON_GPU = ("ort", "torch")  # not the engines that would take minutes to build a plan
SWITCH = "DETECT_VIDEO_SELF_TIMING"  # environment variable; 0 turns the self-timing off
# A self-timing changes a choice only if inference gets at least MIN_SPEEDUP times as fast. If
# agreement with fp32 was measured on the run's frames, it must be at least MIN_AGREEMENT.
MIN_AGREEMENT = 0.98
MIN_SPEEDUP = 1.2


@dataclass(frozen=True, slots=True)
class Timing:
    """A self-timing. ``note``: a line for the user about a new timing; None for a saved timing."""

    measurement: Measurement
    note: str | None = None


def path(config: Config) -> Path:
    return store.choose_folder(config.runtime.engines_dir) / FILE


def read(config: Config) -> list[Measurement]:
    entries = parse_entries(store.read_kept(path(config).parent, FILE)) or ()
    return [record for entry in entries if (record := parse_record(entry)) is not None]


def find(
    config: Config, network: Network, kinds: Collection[Kind], shape: tuple[int, int] | None = None
) -> list[Measurement]:
    """Return the records that count for a run, the newest first. ``shape``: height and width."""
    shape = shape or (network.input.height, network.input.width)
    return [
        record
        for record in reversed(read(config))
        if record.kind in kinds
        and (record.model_sha256, record.model_input) == (network.sha256, shape)
        and is_valid(record, config)
    ]


def is_valid(record: Measurement, config: Config) -> bool:
    """Return whether a record is comparable, has enough rounds, and was made on this machine with
    these settings."""
    return (
        record.comparable is True
        and record.rounds >= ENOUGH_ROUNDS
        and record.machine == this_machine()
        and record.settings == runtime_settings(config, record.kind)
    )


def may_time(config: Config, network: Network) -> bool:
    """Return whether these settings allow a self-timing that could speed up the run."""
    runtime = config.runtime
    if not runtime.self_timing or os.environ.get(SWITCH) == "0" or network.random_seed is not None:
        return False
    if "auto" not in (runtime.engine, runtime.precision) or runtime.batch != 1:
        return False
    if runtime.engine not in ("auto", *TIMED):
        return False
    if runtime.threads or runtime.concurrency or runtime.engine_options:
        return False
    if runtime.device not in ("auto", "cpu"):
        return False
    from detector.core.engines import _ranking

    timed = ON_GPU if base.NVIDIA_DRIVER.exists() else TIMED
    with suppress(EngineError, UsageError):
        return _ranking.choose_by_rank("fp32", runtime.device)[0] in timed
    return False


def can_run(row: MeasuredRow, record: Measurement) -> bool:
    """Return whether a row's engine is installed in the measured version. For int8, its calibration
    must exist too."""
    name, calibrate = row.engine, record.calibration.calibrate
    return (
        name in engines.names()
        and row.precision in engines.find(name).precisions
        and engines.why_unusable(name)[name] is None
        and row.library == library_version(name)
        and record.calibration.calibrate_method in CALIBRATIONS  # 0.2.0 had another method, too
        and (
            row.precision != "int8"
            or calibrate in (None, PACKAGED)
            or Path(str(calibrate)).exists()
        )
    )


def why_not_read(config: Config) -> list[str]:
    """Return a line if the file is ignored because another account or version wrote it."""
    file = path(config)
    reason = store.why_not_kept(file.parent, FILE)
    content = store.read_kept(file.parent, FILE)
    if reason is None and content is not None and parse_entries(content) is None:
        reason = f"{file}: ignored; written by another version of detect-video"
    return [] if reason is None else [f"{reason}; delete it, or run compare --use again"]


def parse_entries(content: dict[str, Any] | None) -> list[Any] | None:
    """Return the entries of the file; None if it is absent, or of another version."""
    if not content:
        return None
    from detector.core.session.measured import SCHEMA

    entries = content.get("measurements") if content.get("schema") == SCHEMA else None
    return entries if isinstance(entries, list) else None


def parse_record(entry: Any) -> Measurement | None:
    from detector.core.session.measured import Measurement

    try:
        return from_builtins(entry, Measurement, FILE)
    except UsageError:
        return None


def library_version(engine: str) -> str | None:
    name = engines.find(engine).library
    for distribution in (name, f"{name}-gpu", f"{name}-openvino") if name else ():
        try:
            return f"{distribution} {importlib.metadata.version(distribution)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return name


def this_machine() -> MeasuredMachine:
    from detector.core.session.measured import MeasuredMachine

    cpu = describe_cpu()
    flags = hashlib.sha256(" ".join(sorted(cpu["flags"])).encode()).hexdigest()[:12]
    return MeasuredMachine(cpu["model"], flags, cpu["cores"], gpu_driver())


def runtime_settings(config: Config, kind: Kind) -> dict[str, Any]:
    """Return the settings that change all speeds. For a self-timing, add the engines' versions."""
    runtime = config.runtime
    names = ("threads", "concurrency", "device", "device_memory")
    settings: dict[str, Any] = {name: getattr(runtime, name) for name in names}
    settings["own"] = list(runtime.engine_options or ())
    if kind == "self-timing":
        usable = [name for name, reason in engines.why_unusable(*TIMED).items() if reason is None]
        settings["libraries"] = [library_version(name) for name in TIMED if name in usable]
    return settings
