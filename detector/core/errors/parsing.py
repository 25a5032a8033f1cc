"""Parse untrusted JSON or YAML with limits on depth, size and numbers.

A few hundred bytes of YAML can expand to a billion names (aliases of aliases). Many open brackets
exhaust Python's stack. A number of 6,000 digits cannot be printed. Errors are one line with file
and line number. Values are None, booleans, 64-bit integers, floats, text, lists, mappings.
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

MAX_DEPTH = 64  # levels of nested lists and mappings; COCO's files have 5
LARGEST = (1 << 63) - 1
TOO_DEEP = f"nested more than {MAX_DEPTH} lists deep"
# How many bytes CPython needs at least for a list, a mapping and a number.
LIST_BYTES, MAPPING_BYTES, ITEM_BYTES = 64, 192, 32
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_short = reprlib.Repr()
_short.maxlevel, _short.maxdict, _short.maxlist, _short.maxtuple = 2, 3, 3, 3
_short.maxstring, _short.maxlong, _short.maxother = 60, 40, 60


def quote(value: object) -> str:
    """Quote a value from a file for a message. Shorten a long value."""
    return _short.repr(value)


class _NotAllowedError(ValueError):
    """Raised for JSON that we refuse although Python's parser accepts it."""

    def __init__(self, reason: str, refused_text: str = "") -> None:
        super().__init__(reason)
        self.reason, self.refused_text = reason, refused_text


def parse_json(
    text: str | bytes,
    origin: object,
    error: type[DetectVideoError] = UsageError,
    *,
    cure: str = "",
    first_line: int = 1,
    surrogates: bool = False,
) -> Any:
    """Return the content of a JSON text.

    ``origin``: the file; ``first_line``: number of the text's first line in the file.
    ``surrogates``: allow lone surrogates, which our documents use for file names that are not
    UTF-8. Raises ``error`` with file and line. NaN and Infinity are refused, but a number too large
    for a double becomes infinite.
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
        content = json.loads(plain, parse_int=_parse_integer, parse_constant=_refuse_constant)
        _check_depth(content, texts=not surrogates and SURROGATE.search(plain) is not None)
    except json.JSONDecodeError as exc:
        line, reason = exc.lineno, exc.msg
    except RecursionError:
        line, reason = None, TOO_DEEP
    except _NotAllowedError as exc:
        line, reason = _find_line(plain, exc.refused_text), exc.reason
    else:
        return content
    if line is None and "\n" not in plain.strip():
        line = 1
    place = "" if line is None else f":{line + first_line - 1}"
    raise error(f"{origin}{place}: not valid JSON ({reason}){end}")


def _json_bytes(text: str) -> int:
    """Estimate the minimum memory of the content from the number of brackets and commas."""
    lists, mappings, items = (text.count(sign) for sign in "[{,")
    return lists * LIST_BYTES + mappings * MAPPING_BYTES + items * ITEM_BYTES


def _parse_integer(text: str) -> int:
    number = int(text) if len(text) <= len(str(-LARGEST)) else LARGEST + 1
    if not -LARGEST <= number <= LARGEST:
        raise _NotAllowedError(f"a whole number of {len(text)} digits is too large", text)
    return number


def _refuse_constant(text: str) -> float:
    raise _NotAllowedError(f"{text} is not a JSON number", text)


def _find_line(text: str, refused_text: str) -> int | None:
    at = text.find(refused_text) if refused_text else -1
    return None if at < 0 else text.count("\n", 0, at) + 1


def _check_depth(content: Any, texts: bool) -> None:
    """Refuse content that is nested too deep. With ``texts``, also refuse lone surrogates."""
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
    """Return whether UTF-8 can encode the text. It cannot encode lone surrogates, but JSON can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(where: object, what: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise UsageError for the first unknown name. ``what``: the kind of name, such as "key"."""
    for name in given:
        if name not in known:
            text = str(name)[:100]
            near = difflib.get_close_matches(text, known, 1, 0.65)
            hint = f"did you mean {near[0]}? " if near else ""
            names = ", ".join(known)
            raise UsageError(f"{where}: unknown {what} {quote(text)}; {hint}known: {names}")
