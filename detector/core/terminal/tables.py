"""Draw tables on a terminal. If a table does not fit, omit columns one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from detector.core.errors.text import printable
from detector.core.tables import Column, Table
from detector.core.terminal.progress import shorten

BETWEEN = 3  # characters between two columns of a table


class _PrintedColumn(NamedTuple):
    """A column as text. ``least``, ``most``: widths of its longest word and longest cell."""

    column: Column
    cells: Sequence[str]
    least: int
    most: int


def print_pieces(console: Console, pieces: Iterable[Table | str]) -> None:
    drawn = (Text(one) if isinstance(one, str) else draw_table(console, one) for one in pieces)
    console.print(Group(*drawn))


def draw_table(console: Console, table: Table, one_line: bool = False) -> RenderableType:
    """Return the table with as many columns as fit. ``one_line``: omit more, but fold no cell."""
    shown = [_print_column(table, column) for column in table.columns]
    optional = [printed for printed in shown if printed.column.out]
    for printed in sorted(optional, key=lambda printed: printed.column.out):
        if fits(console, shown, one_line):
            break
        shown.remove(printed)
    above = [Text(table.title, style="bold")] if table.title else []
    below = [Text(table.caption, style="dim italic")] if table.caption else []
    return Group(*above, _draw(console, table, shown), *below)


def table_fits(console: Console, table: Table) -> bool:
    return fits(console, [_print_column(table, column) for column in table.columns])


def fits(console: Console, shown: Sequence[_PrintedColumn], one_line: bool = False) -> bool:
    widths = (printed.most if one_line else printed.least for printed in shown)
    return _room(console, shown) >= sum(widths)


def _room(console: Console, shown: Sequence[_PrintedColumn]) -> int:
    """Return the width left for cells. The table is one character away from each edge."""
    return console.width - BETWEEN * (len(shown) - 1) - 2


def _print_column(table: Table, column: Column) -> _PrintedColumn:
    cells = [printable(column.text(column.of(row))) for row in table.rows]
    if column.longest:
        cells = [shorten(cell, column.longest) for cell in cells]
    head = column.head(table.unit)
    most = max(map(cell_len, [head, *cells]))
    words = chain(head.split(), cells if column.whole else chain(*map(str.split, cells)))
    return _PrintedColumn(column, cells, max(map(cell_len, words), default=0), most)


def _choose_widths(room: int, shown: Sequence[_PrintedColumn]) -> list[int]:
    """Return widths that hold every word. Spare width goes to columns with folded cells,
    first to those that need the least. If words do not fit, the widest column breaks its words."""
    widths = [printed.least for printed in shown]
    over = sum(widths) - room
    if over > 0:
        widest = widths.index(max(widths))
        widths[widest] = max(1, widths[widest] - over)
    for at in sorted(range(len(shown)), key=lambda at: shown[at].most - shown[at].least):
        widths[at] += min(shown[at].most - widths[at], max(0, room - sum(widths)))
    return widths


def _draw(console: Console, table: Table, shown: Sequence[_PrintedColumn]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for printed, width in zip(shown, _choose_widths(_room(console, shown), shown), strict=True):
        drawn.add_column(
            Text(printed.column.head(table.unit)),
            justify="right" if table.aligned_right(printed.column) else "left",
            overflow="fold",
            width=width,
        )
    for at, cells in enumerate(zip(*(printed.cells for printed in shown), strict=True)):
        drawn.add_row(*map(Text, cells), style="dim" if at in table.dim else None)  # no markup
    return drawn
