"""Tracking options of a run, parsed once: how often the network runs."""

from __future__ import annotations

from dataclasses import dataclass

from detector.core.config.schema import Config
from detector.core.errors import UsageError

AUTO = "auto"
MOST = 1000  # frames from one inference to the next, at most


def parse_every(text: str | None) -> int | None:
    """Parse --infer-every, in frames; None for auto; 1 by default. Raises UsageError."""
    if text is None:
        return 1
    if text.strip() == AUTO:
        return None
    if not (text.strip().isdecimal() and text.isascii() and 1 <= int(text) <= MOST):
        raise UsageError(f"--infer-every {text}: must be a whole number from 1 to {MOST}, or auto")
    return int(text)


@dataclass(frozen=True, slots=True)
class Following:
    """Tracking options. ``every``: --infer-every (``text``), parsed by ``parse_every``."""

    text: str | None
    every: int | None

    @classmethod
    def of(cls, config: Config) -> Following:
        """Parse the options. Raises UsageError, also for combinations that no run supports."""
        every = parse_every(config.tracking.infer_every)
        if every != 1 and config.drawing.blur:
            raise UsageError(
                "--blur and --infer-every contradict each other: in a frame that is not inferred, "
                "a box may miss what it should hide; omit one"
            )
        if every is None and config.runtime.batch > 1:
            raise UsageError(
                "--infer-every auto decides frame by frame; use --batch 1, or a number: "
                "--infer-every 3"
            )
        return cls(config.tracking.infer_every, every)
