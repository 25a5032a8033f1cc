"""A test's settings of a recording: a stand-in for RecordConfig."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Wish:
    record: str = "copy"
    segment: float = 10.0
    clips: bool = False
    clip_before: float = 1.0
    clip_after: float = 1.0
    keep_days: float | None = None
    keep_gb: float | None = None
