"""Recording settings with defaults for tests."""

from dataclasses import dataclass

from detector.live.config import RecordConfig


@dataclass(frozen=True)
class RecordSettings(RecordConfig):
    record: str = "copy"
    clip_before: float = 1.0
    clip_after: float = 1.0
