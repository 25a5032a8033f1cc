"""A table: its columns, how their values are formatted, and which columns a narrow terminal omits.

The code that has the facts builds a table, and renderers draw it: ``core/terminal/tables.py``, the
lab's page (``lab/report/html/drawings.py``), and CSV, Markdown and LaTeX below.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detector.core.errors.text import as_cell, printable


class Share(float):
    """A fraction shown as a percentage; None becomes NaN, which is shown as a missing value."""

    def __new__(cls, value: float | None) -> Share:
        return super().__new__(cls, float("nan") if value is None else value)


class Rounded(float):
    """A number already rounded to the decimals that are significant."""

    decimals: int

    def __new__(cls, value: float, decimals: int) -> Rounded:
        made = super().__new__(cls, value)
        made.decimals = decimals
        return made


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``key``: the column's name in CSV, and the name of the row's attribute or key that it shows
    (``agreement.share``: an attribute of an attribute). ``value``: a function of a row that returns
    what to show; None: use ``key``. ``title``: its heading; None: the key. ``form``: a Python
    format for its numbers; if empty, ``plain`` formats them. ``unit``: the unit of its numbers.
    ``out``: narrow terminals omit columns in this order, 1 first; a column with 0 always stays.
    ``right``: alignment; None aligns text left and numbers right. ``whole``: cells are not wrapped.
    ``longest``: a terminal shortens cells to this length (0: never). ``absent``: the text for None.
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
        """Return the value in this row: text, a number, or None."""
        if self.value is not None:
            return self.value(row)
        if isinstance(row, Mapping):
            return row.get(self.key)
        for name in self.key.split("."):
            if row is None:
                return None
            row = getattr(row, name)
        return row

    def head(self, stated: str = "") -> str:
        """Return the heading, with its unit if that differs from the table's ``stated`` unit."""
        title = self.key if self.title is None else self.title
        return f"{title} {self.unit}" if self.unit and self.unit != stated else title

    def text(self, value: Any, absent: str | None = None) -> str:
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
    """A table. ``name``: its anchor in a page. ``rows``: the objects that columns read.

    A terminal prints ``title`` above it and ``caption`` below. ``unit``: the unit that the title
    states, so headings omit it. ``dim``: indexes of dimmed rows. ``most``: a page shows this many
    rows and folds away the others. ``rest``: a noun for the rows, such as "layers".
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
        """Return a copy with only these columns, in this order."""
        by_key = {column.key: column for column in self.columns}
        return replace(self, columns=[by_key[key] for key in keys])

    def without(self, *keys: str) -> Table:
        return self.pick(*(column.key for column in self.columns if column.key not in keys))

    def first(self, count: int) -> Table:
        return replace(self, rows=self.rows[:count])

    def aligned_right(self, column: Column) -> bool:
        if column.right is not None:
            return column.right
        values = (column.of(row) for row in self.rows)
        return not isinstance(next((one for one in values if one is not None), None), str)


# Parts that other packages, such as live, add to the HTML report


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of texts. ``most`` and ``rest`` are as in ``Table``."""

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
    """A heading with paragraphs, tables and curves. ``how``: an explanation of its numbers."""

    name: str
    title: str
    pieces: Sequence[str | TextTable | Curve]
    how: str = ""


def plain(value: float) -> str:
    """Format with two decimals, one from 100 on, none from 1000 on: 12.34, 123.4, 1234."""
    if isinstance(value, int):
        return str(value)
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    return f"{value:.{2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0}f}"


def csv_text(table: Table) -> str:
    """Return CSV with six significant digits. A text that looks like a formula gets a leading '."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    for row in table.rows:
        writer.writerow([_csv_cell(column.of(row)) for column in table.columns])
    return out.getvalue()


def markdown_text(table: Table) -> str:
    """Return Markdown for a README or an issue, with numbers aligned right."""
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
    """Return LaTeX with the rules of the package booktabs."""
    sides = "".join("r" if table.aligned_right(column) else "l" for column in table.columns)
    rows = [[column.text(column.of(row)) for column in table.columns] for row in table.rows]

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(map(_latex_cell, cells))} \\\\"

    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
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
