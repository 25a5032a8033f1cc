"""Limits against damaged and hostile model files, and the variable that raises them all.

Each is at least ten times what the largest real file needs (docs/models.md has the table).
DETECT_VIDEO_MODEL_LIMITS=10 makes all of them ten times as high, for a larger file that the user
trusts. Limits of the format itself, or of the machine's memory, remain.
"""

from __future__ import annotations

import os

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote

VARIABLE = "DETECT_VIDEO_MODEL_LIMITS"
MOST = 1_000_000


def raised(limit: int) -> int:
    """Return the limit in force. Raises UsageError if the variable is not a factor."""
    return limit * _factor()


def how_to_raise() -> str:
    return f"if you trust the file, set {VARIABLE}={10 * _factor()} in the environment"


def _factor() -> int:
    text = os.environ.get(VARIABLE)
    if not text:
        return 1
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST):
        raise UsageError(f"{VARIABLE}={quote(text)}: must be a factor from 1 to {MOST:,}")
    return int(text)
