"""Numbers of a table as a person wrote them: with the interval that rounding leaves open.

``1,234`` is 1234 or 1.234. Other cells of the same table prove which; else it is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 60  # characters of a cell that may be a number
ABSENT = frozenset({"", "-", "--", "---", "—", "–", "n/a", "na", "nan", "?", "todo"})
DIGITS = r"\d+(?:[.,'’\u00a0\u202f]\d+)*"
PLAIN = rf"[-+]?(?:{DIGITS}|\.\d+)(?:[eE][-+]?\d+)?"
APART = r"(?:\.\.\.?|…|–|—|-|to)"
FORM = re.compile(
    rf"(?P<about>[~≈≥≤<>]?)\s*(?P<number>{PLAIN})\s*(?P<unit1>[^\W\d]+(?:/[^\W\d]+)?|%|×)?"
    rf"(?:\s*\(?\s*(?:±|\+/?-)\s*(?P<spread>{PLAIN})\s*\)?"
    rf"|\s*[\[(]?\s*(?P<least>{PLAIN})\s*{APART}\s*(?P<most>{PLAIN})\s*[\])]"
    rf"|\s*{APART}\s*(?P<to>{PLAIN}))?"
    r"\s*(?P<unit>[^\W\d]+(?:/[^\W\d]+)?|%|×)?",
    re.IGNORECASE,
)
COMMA_PROOF = re.compile(
    r"(?<![\d.,])(?:\d+,(?:\d{1,2}|\d{4,})|0,\d{3}|\d{1,3}(?:\.\d{3})+,\d+)(?![\d.,])"
)
POINT_PROOF = re.compile(
    r"(?<![\d.,])(?:\d+\.(?:\d{1,2}|\d{4,})|0\.\d{3}|\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,})(?![\d.,])"
)
UNSURE = re.compile(r"\d{1,3},\d{3}")


@dataclass(frozen=True, slots=True)
class Number:
    """``low`` to ``high``: the text's range by rounding, ± or range (then ``spread``)."""

    value: float
    low: float
    high: float
    spread: bool = False
    unit: str = ""

    def scaled(self, by: float) -> Number:
        return Number(self.value * by, self.low * by, self.high * by, self.spread, self.unit)

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value, self.low - other.high, self.high - other.low)

    def __mul__(self, other: Number) -> Number:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Number(self.value * other.value, min(ends), max(ends))

    def __truediv__(self, other: Number) -> Number:
        """Infinitely wide where the divisor may be zero."""
        if other.low <= 0 <= other.high:
            return Number(math.inf, -math.inf, math.inf)
        return self * Number(1 / other.value, 1 / other.high, 1 / other.low)

    def meets(self, other: Number, slack: float = 0.0) -> bool:
        """Return whether both can be the same number. ``slack``: share by which they may differ."""
        more = slack * max(abs(self.value), abs(other.value)) if slack else 0.0
        return self.low - more <= other.high and other.low - more <= self.high

    def __str__(self) -> str:
        return shown(self.value)


def exact(value: float) -> Number:
    return Number(value, value, value)


def total(numbers: Iterable[Number]) -> Number:
    return sum(numbers, exact(0.0))


def shown(value: float) -> str:
    size = abs(value)
    if not math.isfinite(value) or size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.3e}"
    return f"{value:.0f}" if size >= 1e4 or value == round(value) else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class DecimalMark:
    comma: bool  # a decimal comma is proved
    point: bool

    @classmethod
    def of(cls, cells: Iterable[str]) -> DecimalMark:
        comma = point = False
        for cell in cells:
            if len(cell) <= LONGEST and FORM.fullmatch(cell):  # "v1.25" proves nothing
                comma = comma or COMMA_PROOF.search(cell) is not None
                point = point or POINT_PROOF.search(cell) is not None
        return cls(comma, point)

    def why_unread(self, text: str) -> str | None:
        found = FORM.fullmatch(text)
        for part in found.group("number", "spread", "least", "most", "to") if found else ():
            digits = (part or "").lstrip("+-")
            if self.comma and self.point and ("," in digits) != ("." in digits):
                if UNSURE.fullmatch(digits) or re.fullmatch(r"\d{1,3}\.\d{3}", digits):
                    return f"{digits} is ambiguous: the column mixes decimal points and commas"
            elif (
                UNSURE.fullmatch(digits) and not self.point and not self.comma and digits[0] != "0"
            ):
                return f"{digits} is {digits.replace(',', '')} or {digits.replace(',', '.')}"
        return None

    def read(self, text: str) -> Number | None:
        if len(text) > LONGEST or (found := FORM.fullmatch(text)) is None or self.why_unread(text):
            return None
        value, half = self._plain(found["number"])
        if not math.isfinite(value) or abs(value) > 1e30:
            return None
        low, high, spread = value - half, value + half, False
        if found["about"]:
            low, high = value - max(half, abs(value) * 0.1), value + max(half, abs(value) * 0.1)
        if found["spread"]:
            off = self._plain(found["spread"])[0]
            low, high, spread = value - off, value + off, True
        elif found["least"]:
            low, high = sorted((self._plain(found["least"])[0], self._plain(found["most"])[0]))
            spread = True
        elif found["to"]:
            low, high = sorted((value, self._plain(found["to"])[0]))
            value, spread = (low + high) / 2, True
        return Number(value, low, high, spread, (found["unit1"] or found["unit"] or "").lower())

    def _plain(self, text: str) -> tuple[float, float]:
        """Return its value, and half a unit of its last digit."""
        plain = re.sub(r"['’\u00a0\u202f]", "", text)
        decimal = "," if self.comma and not (self.point and "." in plain) else "."
        if self.comma and self.point:
            decimal = "," if plain.rfind(",") > plain.rfind(".") else "."
            if plain.count(",") > 1:
                decimal = "."
        plain = plain.replace("." if decimal == "," else ",", "").replace(decimal, ".")
        try:
            value = float(plain)
        except ValueError:  # 1.2.3: a version
            return math.nan, 0.0
        digits, _, power = plain.lower().partition("e")
        decimals = len(digits.partition(".")[2])
        return value, 0.5 * 10.0 ** max(-300, min(300, int(power or 0) - decimals))


def is_absent(text: str) -> bool:
    return text.strip().strip("_*").lower() in ABSENT
