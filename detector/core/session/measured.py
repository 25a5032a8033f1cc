"""engines/measured.json: what ``compare --use``, ``tune --use`` and the self-timing keep.

A file of its own, because every run reads these types and only ``compare`` the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1
Metric = Literal["inference", "end_to_end"]


@dataclass(frozen=True)
class Interval:
    """Over the rounds of a variant: the median, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Interval:
        from statistics import median  # takes longer to import than this file, which runs read

        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class MeasuredRow:
    """``library``: name and version. ``executed``: precisions, as text. ``agreement``: matched."""

    engine: str
    library: str | None
    precision: str
    executed: str
    batch: int
    fps: dict[Metric, Interval | None]
    agreement: float | None


@dataclass(frozen=True)
class MeasuredMachine:
    """``flags``: a digest of the CPU's."""

    cpu: str | None
    flags: str
    cores: int
    gpu_driver: str | None


@dataclass(frozen=True)
class MeasuredCalibration:
    """The settings under which int8 was calibrated, and the least agreement that was accepted."""

    calibrate: str | None
    calibrate_method: str
    calibrate_frames: int
    budget: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One comparison, one search of ``tune``, or the timing at the first run of the default model.

    ``settings``: of the runtime, those that change the speed of all rows. Of a search alone:
    ``tuned``, the options that it found, and ``input_kind``, what they were found for; its rows are
    the run with them and the run with the defaults.
    """

    date: str
    kind: Literal["compare", "tune", "self-timing"] = "compare"
    model: str | None = None
    model_sha256: str | None
    model_input: tuple[int, int] | None
    rounds: int
    frames: int | None = None
    source: str | None = None
    comparable: bool | None
    machine: MeasuredMachine
    settings: dict[str, Any]
    calibration: MeasuredCalibration
    rows: tuple[MeasuredRow, ...]
    tuned: dict[str, Any] = field(default_factory=dict)
    input_kind: str | None = None


@dataclass(frozen=True)
class Measurements:
    """engines/measured.json, newest last."""

    schema: int = SCHEMA
    comparisons: tuple[Measurement, ...] = field(default=())
