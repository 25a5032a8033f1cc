"""Tables as rules see them: columns of one quantity, numbers in base units, rows with labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from detector.core.errors.text import printable
from detector.lab.audit import columns as kinds
from detector.lab.audit.columns import LABELS, SETTINGS, TEXT, UNITS, Meaning, clean, recognise
from detector.lab.audit.numbers import DecimalMark, Number, is_absent, shown

LONGEST_LABEL = 40
WHOLE = re.compile(r"\b(?:total|whole|sum|overall|all|end.to.end)\b", re.IGNORECASE)


@dataclass(frozen=True)
class AuditColumn:
    """``texts``: its cells, cleaned; ``numbers``: in the base unit, None for other cells."""

    title: str
    meaning: Meaning
    texts: Sequence[str]
    numbers: Sequence[Number | None]

    @property
    def quantity(self) -> str:
        return self.meaning.quantity

    @property
    def words(self) -> frozenset[str]:
        return self.meaning.words

    @property
    def told(self) -> list[Number]:
        return [one for one in self.numbers if one is not None]

    def has(self, *words: str) -> bool:
        """Whether its title has one of these words, or of their beginnings (``optimis*``)."""
        return any(
            word in self.words
            or (word[-1] == "*" and any(one.startswith(word[:-1]) for one in self.words))
            for word in words
        )


@dataclass(frozen=True)
class AuditTable:
    """``given``: its titles in --columns. ``facts``: name -> number. ``unread``: ambiguities."""

    name: str
    columns: Sequence[AuditColumn]
    rows: int
    unread: Sequence[str] = ()
    facts: Mapping[str, tuple[str, Number]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    said: Mapping[str, str] = field(default_factory=dict)  # the same as texts, with their units

    def all(self, *quantities: str) -> list[AuditColumn]:
        return [one for one in self.columns if one.quantity in quantities]

    def one(self, quantity: str, *words: str, but: Sequence[str] = ()) -> AuditColumn | None:
        return next(
            (
                one
                for one in self.all(quantity)
                if (not words or one.has(*words)) and not (but and one.has(*but))
            ),
            None,
        )

    @cached_property
    def labels(self) -> list[str]:
        named = [one for one in self.columns if one.quantity in LABELS]
        named = named or [one for one in self.columns if one.quantity == TEXT][:1]
        batch = [f"batch {text}" for text in self.texts(kinds.BATCH)]
        labels = []
        for row in range(self.rows):
            words = [
                batch[row] if one.quantity == kinds.BATCH else one.texts[row]
                for one in named[:4]
                if one.texts[row]
            ]
            text = printable(" ".join(words))[:LONGEST_LABEL] or f"row {row + 1}"
            labels.append(text)
        return labels

    def texts(self, quantity: str) -> Sequence[str]:
        found = self.one(quantity)
        return found.texts if found else [""] * self.rows

    def is_whole(self, row: int) -> bool:
        """Return whether a row is a sum of others: "total", "whole model"."""
        return WHOLE.search(self.labels[row]) is not None

    def setting(self, row: int) -> dict[str, str]:
        found = {}
        for one in self.all(*SETTINGS):
            if one.texts[row] and one.quantity not in found:
                found[one.quantity] = one.texts[row].lower()
        if kinds.PRECISION in found:
            found[kinds.PRECISION] = precision_of(found[kinds.PRECISION]) or found[kinds.PRECISION]
        elif precision := precision_of(" ".join(self.label_texts(row))):
            found[kinds.PRECISION] = precision
        return found

    def label_texts(self, row: int) -> list[str]:
        return [one.texts[row] for one in self.all(*LABELS, TEXT) if one.texts[row]]

    def named_rows(self, *quantities: str) -> Iterator[tuple[str, int]]:
        """(name, row) by the first column of these quantities."""
        for quantity in quantities:
            if (found := self.one(quantity)) is not None:
                yield from ((text, row) for row, text in enumerate(found.texts) if text)
                return


def precision_of(text: str) -> str | None:
    found = {one.lower() for one in kinds.PRECISION_TEXT.findall(text)}
    return kinds.PRECISIONS.get(one := found.pop(), one) if len(found) == 1 else None


def make_table(name: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> AuditTable:
    """Make a table. ``rows``: as written; short ones are filled up, long ones cut."""
    texts = [[clean(cell) for cell in (*row, *[""] * len(titles))[: len(titles)]] for row in rows]
    writing = DecimalMark.of(cell for row in texts for cell in row)
    reasons: dict[str, list[str]] = {}
    columns = []
    for at, title in enumerate(titles):
        cells = [row[at] for row in texts]
        column, said = _column(title, cells, writing)
        columns.append(column)
        if said:
            reasons.setdefault(said, []).append(clean(title)[:LONGEST_LABEL] or f"column {at + 1}")
    table = AuditTable(name, columns, len(rows))
    if facts := _facts(table, writing):
        return AuditTable(name, columns, len(rows), facts=facts, said=_said(table))
    unread = [f"{', '.join(map(repr, titles))}: {why}" for why, titles in reasons.items()]
    return replace(table, unread=unread)


def _said(table: AuditTable) -> dict[str, str]:
    return {
        cells[0].lower(): " ".join(cells[1:])
        for cells in zip(*(one.texts for one in table.columns), strict=True)
    }


def _column(title: str, cells: list[str], writing: DecimalMark) -> tuple[AuditColumn, str]:
    """Return the column and a remark: "" if all of it is read."""
    given = ["" if is_absent(cell) else cell for cell in cells]
    meaning = recognise(title, [cell for cell in given if cell])
    if meaning.quantity in (TEXT, kinds.NAME, kinds.STAGE, kinds.MODEL, kinds.ENGINE, kinds.BOUND):
        return AuditColumn(clean(title), meaning, given, [None] * len(given)), meaning.why
    numbers: list[Number | None] = []
    why = meaning.why
    for cell in given:
        number = writing.read(cell) if cell else None
        why = why or (writing.why_unread(cell) or "" if cell else "")
        numbers.append(None if number is None else _scaled(number, meaning))
    return AuditColumn(clean(title), meaning, given, numbers), why


def _scaled(number: Number, meaning: Meaning) -> Number:
    scale = meaning.scale
    if number.unit:
        own = UNITS.get(number.unit)
        if own is not None and own[0] == meaning.quantity:
            scale = own[1]
        elif meaning.quantity in (kinds.PARAMS, kinds.WORK):
            scale = kinds.POWERS.get(number.unit, scale)
    return number.scaled(scale)


def _facts(table: AuditTable, writing: DecimalMark) -> dict[str, tuple[str, Number]]:
    by_title = {one.title.lower(): one for one in table.columns}
    names = by_title.get("quantity") or by_title.get("metric") or by_title.get("what")
    if names is None or "value" not in by_title:
        return {}
    units = by_title["unit"].texts if "unit" in by_title else [""] * table.rows
    facts = {}
    for name, text, unit in zip(names.texts, by_title["value"].texts, units, strict=True):
        number = writing.read(text)
        quantity, scale = UNITS.get(unit.lower(), (unit.lower() or "number", 1.0))
        if number is not None:
            facts[name.lower()] = (quantity, number.scaled(scale))
    return facts


def ms(seconds: float | Number) -> str:
    return f"{shown((seconds.value if isinstance(seconds, Number) else seconds) * 1e3)} ms"


def percent(share: float | Number) -> str:
    return f"{shown((share.value if isinstance(share, Number) else share) * 100)}%"
