"""The front ends: one module or folder for each kind of model file. This file reads the environment
variable that raises their limits, which protect against damaged and hostile files.

Each limit is at least ten times what the largest real file needs (docs/models.md has the table).
If a trusted file is larger, DETECT_VIDEO_MODEL_LIMITS=10 makes all limits ten times as high. The
variable does not change limits of the file format or of the machine's memory.
"""

from __future__ import annotations

import os

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote

VARIABLE = "DETECT_VIDEO_MODEL_LIMITS"
MAX_FACTOR = 1_000_000


def raised(limit: int) -> int:
    """Return the limit times the variable's factor. Raises UsageError for a wrong factor."""
    return limit * _factor()


def how_to_raise() -> str:
    return f"if you trust the file, set {VARIABLE}={10 * _factor()} in the environment"


def _factor() -> int:
    text = os.environ.get(VARIABLE)
    if not text:
        return 1
    if not (
        text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_FACTOR
    ):
        raise UsageError(f"{VARIABLE}={quote(text)}: must be a factor from 1 to {MAX_FACTOR:,}")
    return int(text)
