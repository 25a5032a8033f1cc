"""The command line's words in a message, as a Python caller writes them.

The checks are the command's own: ``--max-det: 0 is too small``. In Python it is ``max_det``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from detector.core.errors import DetectVideoError

# An option, and the value behind it: FILE, 640x384, or what a colon follows (``--conf 3: ...``).
OPTION = re.compile(
    r"(?<![\w-])--([a-z][a-z-]*)(?: ([A-Z]{2,}\b|[\d./][^\s;,:]*|[^\s;,:-]+(?=:)))?"
)


@contextmanager
def python_words(options: Collection[str]) -> Iterator[None]:
    """Errors from inside name the ``options`` as keywords; other options stay as they are."""
    try:
        yield
    except DetectVideoError as error:
        error.args = (translate(str(error), options),)
        raise


def translate(message: str, options: Collection[str]) -> str:
    """``give --names FILE`` becomes ``give names=FILE``."""

    def keyword(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), match[2]
        if name not in options:
            return match[0]
        return name if value is None else f"{name}={value}"

    return OPTION.sub(keyword, message)
