"""The types of engines/measured.json, written by ``compare --use``, ``tune --use`` and self-timing.

They are separate from the other types of ``compare``, because every run imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 2
Kind = Literal["self-timing", "compare", "tune"]
Metric = Literal["inference", "end_to_end"]


@dataclass(frozen=True)
class Interval:
    """The median, lowest and highest value of a figure over all rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Interval:
        from statistics import median  # slow to import, and every run imports this file

        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class MeasuredRow:
    """The figures of one set of options. ``library``: name and version of the engine's library.
    ``options``: name -> value. ``agreement``: with the detections of fp32, from 0 to 1."""

    engine: str
    precision: str
    library: str | None
    options: dict[str, Any]
    fps: dict[Metric, Interval | None]
    agreement: float | None


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine of a measurement. ``flags``: digest of the CPU's flags."""

    cpu: str | None
    flags: str
    cores: int
    gpu_driver: str | None


@dataclass(frozen=True)
class MeasuredCalibration:
    """How int8 was calibrated. ``budget``: the lowest agreement with fp32 to accept."""

    calibrate: str | None
    calibrate_method: str
    calibrate_frames: int
    budget: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One comparison, one search of ``tune``, or the timing at a model's first run.

    ``settings``: runtime settings that affect speed; all rows share them. A search has two rows: a
    run with the options that it found, and a run with the defaults. ``input_kind``: the kind of
    source for which a search found options; None for other measurements.
    """

    kind: Kind
    date: str
    model: str | None = None
    model_sha256: str | None
    model_input: tuple[int, int] | None
    input_kind: str | None = None
    source: str | None = None
    frames: int | None = None
    rounds: int
    comparable: bool | None
    machine: MeasuredMachine
    settings: dict[str, Any]
    calibration: MeasuredCalibration
    rows: tuple[MeasuredRow, ...]


@dataclass(frozen=True)
class Measurements:
    """engines/measured.json, newest last."""

    schema: int = SCHEMA
    measurements: tuple[Measurement, ...] = field(default=())
