"""Hide secrets: keys, passwords, and secrets in addresses (addresses.py).

A secret is registered where it enters the program. All text that leaves the program (messages,
logs, documents, pages) goes through ``redact``. It replaces every secret with ``***``, in each form
that the secret may take: percent-encoded, decoded, quoted, or as USER:PASSWORD in base64.

If a password is an ordinary word ("street"), that word is hidden everywhere.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterable
from urllib.parse import quote, unquote, unquote_plus

HIDDEN = "***"
# Lengths in characters. A secret below MIN_LENGTH is not hidden, since that would hide ordinary
# text. A secret below MIN_ANYWHERE is hidden only as a whole word ("main"), not in "domain".
MIN_LENGTH, MIN_ANYWHERE = 4, 8
_lock = threading.Lock()
_secrets: set[str] = set()
_pattern: re.Pattern[str] | None = None


def keep_secret(text: str) -> None:
    """Make ``redact`` hide this text from now on."""
    global _pattern
    with _lock:
        before = len(_secrets)
        _secrets.update(form for form in _forms(text) if len(form) >= MIN_LENGTH)
        if len(_secrets) > before:
            longest_first = sorted(_secrets, key=len, reverse=True)
            _pattern = re.compile("|".join(map(_alternative, longest_first)))


def _forms(text: str) -> Iterable[str]:
    plain = unquote(text)
    for form in {text, plain, unquote_plus(text), quote(plain, safe=""), quote(plain)}:
        yield form
        yield json.dumps(form)[1:-1]
        yield repr(form)[1:-1]
        yield shlex.quote(form)


def _alternative(secret: str) -> str:
    pattern = re.escape(secret)
    return pattern if len(secret) >= MIN_ANYWHERE else rf"(?<![0-9A-Za-z]){pattern}(?![0-9A-Za-z])"


def redact(text: str) -> str:
    """Return the text with all registered secrets hidden."""
    return text if _pattern is None else _pattern.sub(HIDDEN, text)


def has_secrets() -> bool:
    return _pattern is not None
