"""Make records of measurements on this machine, and keep them in engines/measured.json.

For ``compare --use``, ``tune --use`` and the self-timing, ``make`` returns one record, and ``keep``
writes it. The newest record is last. measurements.py reads the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from detector.core.config.schema import PACKAGED, Config
from detector.core.engines._built import building, store
from detector.core.errors.writing import set_aside
from detector.core.run import measurements
from detector.core.session.codec import to_builtins, to_json
from detector.core.session.measured import (
    SCHEMA,
    Interval,
    Kind,
    MeasuredCalibration,
    MeasuredRow,
    Measurement,
    Metric,
)

KEPT = 200  # most records in the file


def make(
    config: Config,
    kind: Kind,
    rows: Iterable[MeasuredRow],
    *,
    calibration: MeasuredCalibration | None = None,
    comparable: bool | None = True,
    **more: Any,
) -> Measurement:
    """Return a record for this machine and these settings. ``more``: other fields of the record."""
    return Measurement(
        kind=kind,
        date=date.today().isoformat(),
        machine=measurements.this_machine(),
        settings=measurements.runtime_settings(config, kind),
        calibration=calibration or _calibration_settings(config),
        comparable=comparable,
        rows=tuple(rows),
        **more,
    )


def row(
    engine: str,
    precision: str,
    options: Mapping[str, Any],
    agreement: float | None,
    *,
    inference: Interval | None = None,
    end_to_end: Interval | None = None,
) -> MeasuredRow:
    fps: dict[Metric, Interval | None] = {"inference": inference, "end_to_end": end_to_end}
    return MeasuredRow(
        engine, precision, measurements.library_version(engine), dict(options), fps, agreement
    )


def keep(record: Measurement, config: Config) -> Path:
    folder = store.choose_folder(config.runtime.engines_dir)

    def add(before: dict[str, Any] | None) -> bytes:
        entries = measurements.parse_entries(before)
        if entries is None:
            set_aside(folder / measurements.FILE)
        return _to_document([*(entries or []), to_builtins(record)][-KEPT:])

    return building.rewrite(folder, measurements.FILE, add)


def forget(config: Config, kind: Kind) -> list[Measurement]:
    """Remove this machine's readable records of a kind, and return them. Raises OutputError."""
    machine = measurements.this_machine()

    def is_forgotten(record: Measurement | None) -> bool:
        return record is not None and record.kind == kind and record.machine == machine

    def remove(before: dict[str, Any] | None) -> bytes:
        entries = measurements.parse_entries(before) or ()
        return _to_document(
            [entry for entry in entries if not is_forgotten(measurements.parse_record(entry))]
        )

    forgotten = [record for record in measurements.read(config) if is_forgotten(record)]
    if forgotten:
        building.rewrite(store.choose_folder(config.runtime.engines_dir), measurements.FILE, remove)
    return forgotten


def _to_document(entries: list[Any]) -> bytes:
    return to_json({"schema": SCHEMA, "measurements": entries}).encode()


def _calibration_settings(config: Config) -> MeasuredCalibration:
    given = config.calibration
    calibrate = given.calibrate
    if calibrate not in (None, PACKAGED):
        calibrate = str(Path(str(calibrate)).resolve())
    return MeasuredCalibration(
        calibrate, given.calibrate_method, given.calibrate_frames, given.budget
    )
