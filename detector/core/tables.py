"""A table, described once: its columns, how their values look, and what a narrow place leaves out.

Whoever has facts says which table they make; renderers draw it: ``core/terminal/tables.py``, the
lab's page (``lab/report/html/drawings.py``), and below CSV, Markdown and LaTeX.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detector.core.errors.text import as_cell, printable


class Share(float):
    """A number that is shown as a percentage; None stays empty."""

    def __new__(cls, value: float | None) -> Share:
        return super().__new__(cls, float("nan") if value is None else value)


class Rounded(float):
    """A number with so many decimals, because more would be noise."""

    decimals: int

    def __new__(cls, value: float, decimals: int) -> Rounded:
        made = super().__new__(cls, value)
        made.decimals = decimals
        return made


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``key``: its name in CSV, and of the attribute, or key, of a row that it shows
    (``agreement.share``: of an attribute's), unless ``value`` takes something else from the row.
    ``title``: over it; the key where it has none. ``form``: how Python formats its numbers; empty:
    as ``plain`` does. ``unit``: of numbers.

    ``out``: a narrow place leaves columns out in this order, 1 first; a column with 0 stays.
    ``right``: None aligns texts left and numbers right. ``whole``: its cells are not folded;
    ``longest``: a longer cell loses its middle on a terminal; ``absent``: what stands there for
    None.
    """

    key: str
    title: str | None = None
    form: str = ""
    unit: str = ""
    value: Callable[[Any], Any] | None = None
    out: int = 0
    right: bool | None = None
    whole: bool = False
    longest: int = 0
    absent: str = "-"

    def of(self, row: Any) -> Any:
        """A text, a number, or None where there is none."""
        if self.value is not None:
            return self.value(row)
        if isinstance(row, Mapping):
            return row.get(self.key)
        for name in self.key.split("."):
            if row is None:
                return None
            row = getattr(row, name)
        return row

    def head(self, said: str = "") -> str:
        """``said``: a unit that need not be repeated."""
        title = self.key if self.title is None else self.title
        return f"{title} {self.unit}" if self.unit and self.unit != said else title

    def text(self, value: Any, absent: str | None = None) -> str:
        """A cell for people."""
        if value is None or (isinstance(value, float) and value != value):
            return self.absent if absent is None else absent
        if isinstance(value, str):
            return value
        if isinstance(value, Share):
            return f"{value:.1%}"
        if isinstance(value, Rounded):
            return f"{value:.{value.decimals}f}"
        return format(value, self.form) if self.form else plain(value)


@dataclass(frozen=True, slots=True)
class Table:
    """``name``: its anchor in a page. ``rows``: what the columns take their values from.

    ``title`` and ``caption`` stand around it on a terminal; ``unit``: what the title says of all
    numbers that have it. ``dim``: the places of rows that are no more than a hint. Of more than
    ``most`` rows a page folds the others away; ``rest``: what they are called.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    caption: str = ""
    unit: str = ""
    dim: Collection[int] = ()
    most: int | None = None
    rest: str = "rows"

    def pick(self, *keys: str) -> Table:
        """With these columns alone, in this order."""
        by_key = {column.key: column for column in self.columns}
        return replace(self, columns=[by_key[key] for key in keys])

    def without(self, *keys: str) -> Table:
        return self.pick(*(one.key for one in self.columns if one.key not in keys))

    def first(self, count: int) -> Table:
        return replace(self, rows=self.rows[:count])

    def aligned_right(self, column: Column) -> bool:
        if column.right is not None:
            return column.right
        values = (column.of(row) for row in self.rows)
        return not isinstance(next((one for one in values if one is not None), None), str)


# What a wing adds to the HTML report, which draws it.


@dataclass(frozen=True, slots=True)
class Rows:
    """A table. Of more than ``most`` rows the others are folded away; ``rest``: what they are."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    most: int | None = None
    rest: str = "rows"


@dataclass(frozen=True, slots=True)
class Curve:
    points: Sequence[tuple[float, float]]
    x_unit: str
    y_unit: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with paragraphs, tables and curves. ``how``: the entry on its numbers."""

    name: str
    title: str
    pieces: Sequence[str | Rows | Curve]
    how: str = ""


def plain(value: float) -> str:
    """Two decimals at most, and no more figures than a measurement has: 1234, 123.4, 12.34."""
    if isinstance(value, int):
        return str(value)
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    return f"{value:.{2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0}f}"


def csv_text(table: Table) -> str:
    """For programs: keys as heads, six figures of a number, no formula for a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([[_csv_cell(one.of(row)) for one in table.columns] for row in table.rows])
    return out.getvalue()


def markdown_text(table: Table) -> str:
    """As people read it, for a README or an issue: numbers stand right."""
    rights = [table.aligned_right(column) for column in table.columns]
    cells = [[column.text(column.of(row)) for column in table.columns] for row in table.rows]
    lines = [
        [column.head() for column in table.columns],
        ["---:" if right else "---" for right in rights],
        *cells,
    ]
    drawn = "\n".join(f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines)
    return f"{drawn}\n" + (f"\n{_markdown_cell(table.caption)}\n" if table.caption else "")


def _markdown_cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def latex_text(table: Table) -> str:
    """For a paper, with the lines of the package booktabs."""
    sides = "".join("r" if table.aligned_right(column) else "l" for column in table.columns)
    rows = [[column.text(column.of(row)) for column in table.columns] for row in table.rows]

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(map(_latex_cell, cells))} \\\\"

    return "\n".join(
        [
            f"\\begin{{tabular}}{{{sides}}}",
            "\\toprule",
            line([column.head() for column in table.columns]),
            "\\midrule",
            *map(line, rows),
            "\\bottomrule",
            "\\end{tabular}",
            *([f"% {printable(table.caption)}"] if table.caption else []),
            "",
        ]
    )


LATEX = str.maketrans(
    {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    }
)


def _latex_cell(text: str) -> str:
    return printable(text).translate(LATEX)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return as_cell(printable(value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
