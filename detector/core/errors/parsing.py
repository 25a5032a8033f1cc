"""Parse untrusted JSON or YAML with limits on depth, size and numbers.

A few hundred bytes of YAML can expand to a billion names (aliases of aliases), a row of brackets
exhausts Python's stack, and a number of 6,000 digits cannot be printed. Errors are one line with
file and line number. Values are None, booleans, 64-bit integers, floats, text, lists, mappings.
"""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from detector.core.errors import DetectVideoError, UsageError
from detector.core.errors.machine import too_much

MAX_DEPTH = 64  # nested lists; COCO has 5
LARGEST = (1 << 63) - 1
TOO_DEEP = f"nested more than {MAX_DEPTH} lists deep"
# Least bytes that CPython needs for a list, a mapping, a number.
LIST_BYTES, MAPPING_BYTES, ITEM_BYTES = 64, 192, 32
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_short = reprlib.Repr()
_short.maxlevel, _short.maxdict, _short.maxlist, _short.maxtuple = 2, 3, 3, 3
_short.maxstring, _short.maxlong, _short.maxother = 60, 40, 60


def quote(value: object) -> str:
    """Return a value of a file for a message, shortened if it is long."""
    return _short.repr(value)


class _NotAllowedError(ValueError):
    """JSON that we refuse although the format allows it. ``found``: the text in question."""

    def __init__(self, reason: str, found: str = "") -> None:
        super().__init__(reason)
        self.reason, self.found = reason, found


def parse_json(
    text: str | bytes,
    origin: object,
    error: type[DetectVideoError] = UsageError,
    *,
    cure: str = "",
    first_line: int = 1,
    halves: bool = False,
) -> Any:
    """Return the content of a JSON text.

    ``origin``: the file; ``first_line``: where in it. ``halves``: allow lone surrogates, as our own
    documents have for file names that are not UTF-8. Raises ``error`` with file and line. NaN and
    Infinity are refused; a float beyond the range of doubles is infinite, which callers check.
    """
    end = f"; {cure}" if cure else ""
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as exc:
        raise error(f"{origin}: not valid JSON: it is not text in UTF-8{end}") from exc
    plain = plain.removeprefix("\ufeff")
    if (size := too_much(_json_bytes(plain))) is not None:
        raise error(f"{origin}: its content would need {size}; split the file{end}")
    try:
        content = json.loads(plain, parse_int=_whole_number, parse_constant=_no_number)
        _check_depth(content, texts=not halves and SURROGATE.search(plain) is not None)
    except json.JSONDecodeError as exc:
        where, reason = exc.lineno, exc.msg
    except RecursionError:
        where, reason = None, TOO_DEEP
    except _NotAllowedError as exc:
        where, reason = _line_of(plain, exc.found), exc.reason
    else:
        return content
    if where is None and "\n" not in plain.strip():
        where = 1
    line = "" if where is None else f":{where + first_line - 1}"
    raise error(f"{origin}{line}: not valid JSON ({reason}){end}")


def _json_bytes(text: str) -> int:
    """Estimate the least memory of the content, from the number of brackets and commas."""
    lists, mappings, items = (text.count(sign) for sign in "[{,")
    return lists * LIST_BYTES + mappings * MAPPING_BYTES + items * ITEM_BYTES


def _whole_number(text: str) -> int:
    number = int(text) if len(text) <= len(str(-LARGEST)) else LARGEST + 1
    if not -LARGEST <= number <= LARGEST:
        raise _NotAllowedError(f"a whole number of {len(text)} digits is too large", text)
    return number


def _no_number(text: str) -> float:
    raise _NotAllowedError(f"{text} is not a JSON number", text)


def _line_of(text: str, found: str) -> int | None:
    at = text.find(found) if found else -1
    return None if at < 0 else text.count("\n", 0, at) + 1


def _check_depth(content: Any, texts: bool) -> None:
    """Refuse content nested too deep; with ``texts``, also lone surrogates."""
    level: list[Any] = [[content]]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for values in level:
            items = [*values, *values.values()] if isinstance(values, dict) else values
            inner += [item for item in items if type(item) is list or type(item) is dict]
            if texts and not all(is_text(item) for item in items if type(item) is str):
                raise _NotAllowedError("a text contains half a character (a lone surrogate)")
        if not inner:
            return
        level = inner
    raise _NotAllowedError(TOO_DEEP)


def is_text(text: str) -> bool:
    """Return whether the text can be encoded: JSON's escapes allow lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(where: object, what: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise UsageError for the first unknown name. ``what``: such as "key"."""
    for name in given:
        if name not in known:
            text = str(name)[:100]
            near = difflib.get_close_matches(text, known, 1, 0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            names = ", ".join(known)
            raise UsageError(f"{where}: unknown {what} {quote(text)}; {hint}known: {names}")
