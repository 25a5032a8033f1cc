"""Parse the text of darknet's .cfg into sections with line numbers, without interpreting them.

[convolutional]      # a section, until the next one
filters = 32         # key=value; '#' and ';' begin a comment; white space is ignored
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from detector.core.errors import ModelError
from detector.core.errors.parsing import quote
from detector.core.errors.reading import read_bytes
from detector.core.models.formats import how_to_raise, raised

MAX_BYTES = 4 << 20  # the longest published cfg is 60 KB
MAX_SECTIONS = 5000  # cspx-p7-mish, the deepest published one, has 376
INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


@dataclass(slots=True)
class CfgSection:
    """One section ``[name]``. The getters raise ModelError with the file and the line."""

    path: str
    name: str
    line: int
    values: dict[str, tuple[str, int]] = field(default_factory=dict)  # key -> (text, line)

    def error(self, text: str, key: str | None = None) -> ModelError:
        line = self.values[key][1] if key in self.values else self.line
        return ModelError(f"{self.path}:{line}: {text}")

    def text(self, key: str, default: str = "") -> str:
        """Return the value without white space; ``default`` if it is missing or empty."""
        return self.values.get(key, ("", 0))[0] or default

    def integer(
        self, key: str, default: int | None = None, *, low: int = -(2**31), high: int = 2**31 - 1
    ) -> int:
        text = self.text(key)
        if not text:
            if default is None:
                raise self.error(f"[{self.name}] needs {key}=NUMBER", key)
            return default
        return self._parse_integer(key, text, low, high)

    def integers(self, key: str) -> list[int]:
        return [self._parse_integer(key, part, -(2**31), 2**31 - 1) for part in self._split(key)]

    def real(self, key: str, default: float) -> float:
        text = self.text(key)
        return self._parse_real(key, text) if text else default

    def reals(self, key: str) -> list[float]:
        return [self._parse_real(key, part) for part in self._split(key)]

    def flag(self, key: str, default: int = 0) -> bool:
        return self.integer(key, default) != 0

    def _split(self, key: str) -> list[str]:
        return [part for part in self.text(key).split(",") if part]

    def _parse_integer(self, key: str, text: str, low: int, high: int) -> int:
        if not INTEGER.fullmatch(text):
            raise self.error(f"{key}={quote(text)} is not a whole number", key)
        value = int(text)
        if not low <= value <= high:
            raise self.error(
                f"{key}={value} is out of range: [{self.name}] takes {low} to {high}", key
            )
        return value

    def _parse_real(self, key: str, text: str) -> float:
        value = float(text) if REAL.fullmatch(text) else math.nan
        if not math.isfinite(value):
            raise self.error(f"{key}={quote(text)} is not a number", key)
        return value


def read_cfg(path: Path) -> tuple[list[CfgSection], list[str]]:
    data = read_bytes(
        path, "a darknet cfg", limit=MAX_BYTES, error=ModelError, cure="give --model FILE.cfg"
    )
    return parse_cfg(data.decode("utf-8-sig", errors="replace"), str(path))


def parse_cfg(text: str, path: str) -> tuple[list[CfgSection], list[str]]:
    """Return sections and warnings. The first value of a repeated key counts, as in darknet."""
    sections: list[CfgSection] = []
    warnings: list[str] = []
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = re.sub(r"\s+", "", re.split("[#;]", raw, maxsplit=1)[0])
        if not line:
            continue
        if line.startswith("["):
            sections.append(_parse_section(path, number, line))
            if len(sections) > (most := raised(MAX_SECTIONS)):
                raise ModelError(f"{path}:{number}: more than {most} sections; {how_to_raise()}")
            continue
        warnings += _parse_key(path, number, line, sections)
    if not sections:
        raise ModelError(f"{path}:1: no [section] in this file, so it is not a darknet cfg")
    return sections, warnings


def _parse_section(path: str, number: int, line: str) -> CfgSection:
    match = re.fullmatch(r"\[(\w+)\]", line, re.ASCII)
    if not match:
        raise ModelError(
            f"{path}:{number}: {quote(line)} is not a section; write [name] on a line of its own"
        )
    return CfgSection(path, match[1], number)


def _parse_key(path: str, number: int, line: str, sections: list[CfgSection]) -> list[str]:
    key, equals, value = line.partition("=")
    if not equals or not re.fullmatch(r"\w+", key, re.ASCII):
        raise ModelError(
            f"{path}:{number}: {quote(line)} is neither [section] nor key=value nor a # comment"
        )
    if not sections:
        raise ModelError(
            f"{path}:{number}: {key}= comes before the first [section]; begin with [net]"
        )
    values = sections[-1].values
    if key not in values:
        values[key] = (value, number)
        return []
    first, where = values[key]
    if first == value:
        return []
    return [
        f"{path}:{number}: {key}={quote(value)} is ignored: line {where} already says "
        f"{key}={quote(first)}"
    ]
