"""The tables that rules check: a column has one quantity in its base unit, a row has a label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from detector.core.errors.text import printable
from detector.lab.audit import columns as kinds
from detector.lab.audit.columns import LABELS, SETTINGS, TEXT, UNITS, Meaning, clean, recognise
from detector.lab.audit.numbers import DecimalMark, Number, is_absent, show

LONGEST_LABEL = 40
TOTAL_WORDS = re.compile(r"\b(?:total|whole|sum|overall|all|end.to.end)\b", re.IGNORECASE)


@dataclass(frozen=True)
class AuditColumn:
    """A column. ``texts``: cleaned cells. ``numbers``: their numbers in the base unit, or None."""

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
    def known(self) -> list[Number]:
        return [one for one in self.numbers if one is not None]

    def has(self, *words: str) -> bool:
        """Return whether the title has one of these words; ``optimis*`` matches any ending."""
        return any(
            word in self.words
            or (word[-1] == "*" and any(one.startswith(word[:-1]) for one in self.words))
            for word in words
        )


@dataclass(frozen=True)
class AuditTable:
    """A table. ``unread``: columns that are not read, and why. ``given``: titles in --columns.
    ``facts``: name -> quantity and number, if each row of the table is one quantity."""

    name: str
    columns: Sequence[AuditColumn]
    rows: int
    unread: Sequence[str] = ()
    facts: Mapping[str, tuple[str, Number]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    first_line: int = 0  # line of the first row in a Markdown file; 0: unknown

    def all(self, *quantities: str) -> list[AuditColumn]:
        return [column for column in self.columns if column.quantity in quantities]

    def find(self, quantity: str, *words: str, but: Sequence[str] = ()) -> AuditColumn | None:
        return next(
            (
                column
                for column in self.all(quantity)
                if (not words or column.has(*words)) and not (but and column.has(*but))
            ),
            None,
        )

    def numbers(self, quantity: str, *words: str) -> Sequence[Number | None]:
        column = self.find(quantity, *words)
        return column.numbers if column else [None] * self.rows

    @cached_property
    def labels(self) -> list[str]:
        named = [column for column in self.columns if column.quantity in LABELS]
        named = named or [column for column in self.columns if column.quantity == TEXT][:1]
        batch = [f"batch {text}" for text in self.texts(kinds.BATCH)]
        labels = []
        for row in range(self.rows):
            words = [
                batch[row] if column.quantity == kinds.BATCH else column.texts[row]
                for column in named[:4]
                if column.texts[row]
            ]
            text = printable(" ".join(words))[:LONGEST_LABEL] or f"row {row + 1}"
            labels.append(text)
        return labels

    @cached_property
    def labels_with_lines(self) -> dict[str, str]:
        """Map each unique label to the label with its line, if lines are known."""
        times = Counter(self.labels if self.first_line else ())
        lines = enumerate(self.labels, self.first_line)
        return {label: f"line {line}: {label}" for line, label in lines if times[label] == 1}

    def texts(self, quantity: str) -> Sequence[str]:
        column = self.find(quantity)
        return column.texts if column else [""] * self.rows

    def is_total(self, row: int) -> bool:
        """Return whether a row's label, such as "whole model", says that it sums other rows."""
        return TOTAL_WORDS.search(self.labels[row]) is not None

    def setting(self, row: int) -> dict[str, str]:
        settings = {}
        for column in self.all(*SETTINGS):
            if column.texts[row] and column.quantity not in settings:
                settings[column.quantity] = column.texts[row].lower()
        if kinds.PRECISION in settings:
            settings[kinds.PRECISION] = (
                find_precision(settings[kinds.PRECISION]) or settings[kinds.PRECISION]
            )
        elif precision := find_precision(" ".join(self.label_texts(row))):
            settings[kinds.PRECISION] = precision
        return settings

    def label_texts(self, row: int) -> list[str]:
        return [column.texts[row] for column in self.all(*LABELS, TEXT) if column.texts[row]]

    def named_rows(self, *quantities: str) -> Iterator[tuple[str, int]]:
        """Yield each (name, row) of the first column that has one of these quantities."""
        for quantity in quantities:
            if (column := self.find(quantity)) is not None:
                yield from ((text, row) for row, text in enumerate(column.texts) if text)
                return


def find_precision(text: str) -> str | None:
    names = {name.lower() for name in kinds.PRECISION_TEXT.findall(text)}
    return kinds.PRECISION_ALIASES.get(name := names.pop(), name) if len(names) == 1 else None


def make_table(name: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> AuditTable:
    """Make a table. ``rows``: raw cells; short rows are padded, long ones are cut."""
    cleaned = [[clean(cell) for cell in (*row, *[""] * len(titles))[: len(titles)]] for row in rows]
    mark = DecimalMark.of(cell for row in cleaned for cell in row)
    reasons: dict[str, list[str]] = {}
    columns = []
    for at, title in enumerate(titles):
        column, reason = _read_column(title, [row[at] for row in cleaned], mark)
        columns.append(column)
        if reason:
            reasons.setdefault(reason, []).append(
                clean(title)[:LONGEST_LABEL] or f"column {at + 1}"
            )
    table = AuditTable(name, columns, len(rows))
    if facts := _read_facts(table, mark):
        return replace(table, facts=facts)
    unread = [f"{', '.join(map(repr, titles))}: {reason}" for reason, titles in reasons.items()]
    return replace(table, unread=unread)


def _read_column(title: str, cells: list[str], mark: DecimalMark) -> tuple[AuditColumn, str]:
    """Return the column, and why some of its cells are not read, or ""."""
    present = ["" if is_absent(cell) else cell for cell in cells]
    meaning = recognise(title, [cell for cell in present if cell])
    if meaning.quantity in (TEXT, kinds.NAME, kinds.STAGE, kinds.MODEL, kinds.ENGINE, kinds.BOUND):
        return AuditColumn(clean(title), meaning, present, [None] * len(present)), meaning.why
    numbers: list[Number | None] = []
    reason = meaning.why
    for cell in present:
        number = mark.read(cell) if cell else None
        reason = reason or (mark.explain_unread(cell) or "" if cell else "")
        numbers.append(None if number is None else _to_base_unit(number, meaning))
    return AuditColumn(clean(title), meaning, present, numbers), reason


def _to_base_unit(number: Number, meaning: Meaning) -> Number:
    scale = meaning.scale
    if number.unit:
        unit = UNITS.get(number.unit)
        if unit is not None and unit[0] == meaning.quantity:
            scale = unit[1]
        elif meaning.quantity in (kinds.PARAMS, kinds.WORK):
            scale = kinds.POWERS.get(number.unit, scale)
    return number.scaled(scale)


def _read_facts(table: AuditTable, mark: DecimalMark) -> dict[str, tuple[str, Number]]:
    by_title = {one.title.lower(): one for one in table.columns}
    names = by_title.get("quantity") or by_title.get("metric") or by_title.get("what")
    if names is None or "value" not in by_title:
        return {}
    units = by_title["unit"].texts if "unit" in by_title else [""] * table.rows
    facts = {}
    for name, text, unit in zip(names.texts, by_title["value"].texts, units, strict=True):
        number = mark.read(text)
        quantity, scale = UNITS.get(unit.lower(), (unit.lower() or "number", 1.0))
        if number is not None:
            facts[name.lower()] = (quantity, number.scaled(scale))
    return facts


def ms(seconds: float | Number) -> str:
    return f"{show((seconds.value if isinstance(seconds, Number) else seconds) * 1e3)} ms"


def percent(share: float | Number) -> str:
    return f"{show((share.value if isinstance(share, Number) else share) * 100)}%"
