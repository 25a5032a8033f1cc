"""Refuse unknown names in a file, and list the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote


def refuse_unknown(where: object, what: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise UsageError for the first unknown name. ``what``: such as "key"."""
    for name in given:
        if name not in known:
            text = str(name)[:100]
            near = difflib.get_close_matches(text, known, 1, 0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            names = ", ".join(known)
            raise UsageError(f"{where}: unknown {what} {quote(text)}; {hint}known: {names}")
