"""Read the numbers that people write in tables, each with the interval that its rounding allows.

``1,234`` may be 1234 or 1.234. It is read only if other cells show how the table uses commas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 60  # characters; longer cells are not numbers
ABSENT = frozenset({"", "-", "--", "---", "—", "–", "n/a", "na", "nan", "?", "todo"})
DIGITS = r"\d+(?:[.,'’\u00a0\u202f]\d+)*"
PLAIN = rf"[-+]?(?:{DIGITS}|\.\d+)(?:[eE][-+]?\d+)?"
RANGE_MARK = r"(?:\.\.\.?|…|–|—|-|to)"
PATTERN = re.compile(
    rf"(?P<about>[~≈≥≤<>]?)\s*(?P<number>{PLAIN})\s*(?P<unit1>[^\W\d]+(?:/[^\W\d]+)?|%|×)?"
    rf"(?:\s*\(?\s*(?:±|\+/?-)\s*(?P<spread>{PLAIN})\s*\)?"
    rf"|\s*[\[(]?\s*(?P<least>{PLAIN})\s*{RANGE_MARK}\s*(?P<most>{PLAIN})\s*[\])]"
    rf"|\s*{RANGE_MARK}\s*(?P<to>{PLAIN}))?"
    r"\s*(?P<unit>[^\W\d]+(?:/[^\W\d]+)?|%|×)?",
    re.IGNORECASE,
)
COMMA_PROOF = re.compile(
    r"(?<![\d.,])(?:\d+,(?:\d{1,2}|\d{4,})|0,\d{3}|\d{1,3}(?:\.\d{3})+,\d+)(?![\d.,])"
)
POINT_PROOF = re.compile(
    r"(?<![\d.,])(?:\d+\.(?:\d{1,2}|\d{4,})|0\.\d{3}|\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,})(?![\d.,])"
)
AMBIGUOUS = re.compile(r"\d{1,3},\d{3}")


@dataclass(frozen=True, slots=True)
class Number:
    """A number and its bounds, which come from rounding or, if ``spread``, from a ± or a range."""

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
        """Divide; the interval is infinite if the divisor may be zero."""
        if other.low <= 0 <= other.high:
            return Number(math.inf, -math.inf, math.inf)
        return self * Number(1 / other.value, 1 / other.high, 1 / other.low)

    def meets(self, other: Number, slack: float = 0.0) -> bool:
        """Return whether both numbers may be the same. ``slack``: tolerance as a share."""
        allowed = slack * max(abs(self.value), abs(other.value)) if slack else 0.0
        return self.low - allowed <= other.high and other.low - allowed <= self.high


def exact(value: float) -> Number:
    return Number(value, value, value)


def total(numbers: Iterable[Number]) -> Number:
    return sum(numbers, exact(0.0))


def show(value: float) -> str:
    size = abs(value)
    if not math.isfinite(value) or size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.3e}"
    return f"{value:.0f}" if size >= 1e4 or value == round(value) else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class DecimalMark:
    comma: bool  # a cell shows that the table uses decimal commas
    point: bool

    @classmethod
    def of(cls, cells: Iterable[str]) -> DecimalMark:
        comma = point = False
        for cell in cells:
            if len(cell) <= LONGEST and PATTERN.fullmatch(cell):  # "v1.25" does not match
                comma = comma or COMMA_PROOF.search(cell) is not None
                point = point or POINT_PROOF.search(cell) is not None
        return cls(comma, point)

    def explain_unread(self, text: str) -> str | None:
        match = PATTERN.fullmatch(text)
        for part in match.group("number", "spread", "least", "most", "to") if match else ():
            digits = (part or "").lstrip("+-")
            if self.comma and self.point and ("," in digits) != ("." in digits):
                if AMBIGUOUS.fullmatch(digits) or re.fullmatch(r"\d{1,3}\.\d{3}", digits):
                    return f"{digits} is ambiguous: the table mixes decimal points and commas"
            elif (
                AMBIGUOUS.fullmatch(digits)
                and not self.point
                and not self.comma
                and digits[0] != "0"
            ):
                return f"{digits} is {digits.replace(',', '')} or {digits.replace(',', '.')}"
        return None

    def read(self, text: str) -> Number | None:
        if (
            len(text) > LONGEST
            or (match := PATTERN.fullmatch(text)) is None
            or self.explain_unread(text)
        ):
            return None
        value, half = self._plain(match["number"])
        if not math.isfinite(value) or abs(value) > 1e30:
            return None
        low, high, spread = value - half, value + half, False
        if match["about"]:
            low, high = value - max(half, abs(value) * 0.1), value + max(half, abs(value) * 0.1)
        if match["spread"]:
            plus_minus = self._plain(match["spread"])[0]
            low, high, spread = value - plus_minus, value + plus_minus, True
        elif match["least"]:
            low, high = sorted((self._plain(match["least"])[0], self._plain(match["most"])[0]))
            spread = True
        elif match["to"]:
            low, high = sorted((value, self._plain(match["to"])[0]))
            value, spread = (low + high) / 2, True
        return Number(value, low, high, spread, (match["unit1"] or match["unit"] or "").lower())

    def _plain(self, text: str) -> tuple[float, float]:
        """Return the value, and its rounding error: half a unit of the last digit."""
        plain = re.sub(r"['’\u00a0\u202f]", "", text)
        decimal = "," if self.comma and not (self.point and "." in plain) else "."
        if self.comma and self.point:
            decimal = "," if plain.rfind(",") > plain.rfind(".") else "."
            if plain.count(",") > 1:
                decimal = "."
        plain = plain.replace("." if decimal == "," else ",", "").replace(decimal, ".")
        try:
            value = float(plain)
        except ValueError:  # such as 1.2.3, a version
            return math.nan, 0.0
        digits, _, power = plain.lower().partition("e")
        decimals = len(digits.partition(".")[2])
        return value, 0.5 * 10.0 ** max(-300, min(300, int(power or 0) - decimals))


def is_absent(text: str) -> bool:
    return text.strip().strip("_*").lower() in ABSENT
