"""Make untrusted text printable: names of files, classes and layers, metadata, messages.

Control characters steer a terminal, a bidi override disguises a name, and a spreadsheet reads text
that starts with ``=`` as a formula. JSON documents keep such text, with JSON's escapes. Secrets
are never shown (secrets.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from detector.core.errors.secrets import redact

# Control characters (C0, DEL, C1); separators of lines and paragraphs; characters that change the
# direction of writing; surrogates, which stand for bytes of a file name that is not UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_PAGE = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

VERBS = {"is": "are", "was": "were", "has": "have", "does": "do"}  # singular -> plural

# Beginnings of text that spreadsheets read as a formula. ``as_cell`` puts a quote before such text,
# even if quotes precede the ``=`` already, because ``from_cell`` removes exactly one quote.
_FORMULA = re.compile("'*[=+\\-@\t\r]")


def counted(count: int, noun: str, verb: str = "") -> str:
    """Return ``1 frame``, ``2 frames``, ``2 classes``; with a verb ``2 frames were``."""
    if count == 1:
        return f"1 {noun} {verb}".rstrip()
    return f"{count} {_plural(noun)} {VERBS.get(verb, verb)}".rstrip()


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeo":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"


# An item of a list: text in double quotes, or text up to the next comma. \" and \, are escapes.
_ITEM = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"\s*|((?:[^,\\]|\\.|\\$)*))(?:,|$)""", re.DOTALL)
_ESCAPED = re.compile(r'\\([,"])')


def split_list(text: str) -> list[str]:
    r"""Split ``person, "couch, sofa",bus`` or ``person,couch\, sofa,bus`` into three names."""
    items, at = [], 0
    while at < len(text):
        match = _ITEM.match(text, at)
        assert match is not None
        quoted, plain = match.groups()
        items.append(_ESCAPED.sub(r"\1", plain.strip() if quoted is None else quoted))
        at = match.end()
    return [item for item in items if item]


def split_paths(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of comma-separated lists. A text that is an existing path is not split."""
    lists = ([text] if os.path.exists(text) else split_list(text) for text in texts)
    return tuple(path for paths in lists for path in paths)


def join_list(items: Iterable[str]) -> str:
    return ",".join(map(_quote_item, items))


def _quote_item(item: str) -> str:
    escaped = item.replace('"', '\\"')
    return f'"{escaped}"' if "," in item or item.startswith('"') else item


def printable(text: str) -> str:
    r"""Return the text on one line, secrets hidden and control characters escaped (``\x1b``)."""
    return _UNSAFE.sub(_escape, redact(text))


def printable_page(text: str) -> str:
    """Return text as ``printable`` does, but keep its lines and tabs."""
    return _UNSAFE_IN_PAGE.sub(_escape, redact(text))


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def as_cell(text: str) -> str:
    """Return a CSV field that no spreadsheet reads as a formula. Do not call this for numbers."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(field: str) -> str:
    return field[1:] if field.startswith("'") and _FORMULA.match(field) else field
