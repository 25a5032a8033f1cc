"""Rewrite the command line's option names in messages as Python keywords.

We use the command's checks, so ``--max-det: 0 is too small`` must become ``max_det: 0 is ...``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from detector.core.errors import DetectVideoError

# An option, and the value after it: FILE, 640x384, or any word before a colon (``--conf 3: ...``).
OPTION = re.compile(
    r"(?<![\w-])--([a-z][a-z-]*)(?: ([A-Z]{2,}\b|[\d./][^\s;,:]*|[^\s;,:-]+(?=:)))?"
)


@contextmanager
def python_words(options: Collection[str]) -> Iterator[None]:
    """Write the ``options`` as keywords in the messages of errors raised in the block."""
    try:
        yield
    except DetectVideoError as error:
        error.args = (translate(str(error), options),)
        raise


def translate(message: str, options: Collection[str]) -> str:
    """Turn ``give --names FILE`` into ``give names=FILE``."""

    def keyword(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), match[2]
        if name not in options:
            return match[0]
        return name if value is None else f"{name}={value}"

    return OPTION.sub(keyword, message)
