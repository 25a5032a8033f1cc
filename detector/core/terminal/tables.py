"""Tables on a terminal. Columns that do not fit are omitted one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from detector.core.errors.text import printable
from detector.core.tables import Column, Table
from detector.core.terminal.progress import shorten

BETWEEN = 3  # columns of the terminal between two columns of a table


class _PrintedColumn(NamedTuple):
    """A printed column. ``least``: width of its longest word; ``most``: of its longest cell."""

    column: Column
    cells: Sequence[str]
    least: int
    most: int


def print_pieces(console: Console, pieces: Iterable[Table | str]) -> None:
    console.print(Group(*(draw_piece(console, one) for one in pieces)))


def draw_piece(console: Console, piece: Table | str) -> RenderableType:
    return Text(piece) if isinstance(piece, str) else draw_table(console, piece)


def draw_table(console: Console, table: Table, one_line: bool = False) -> RenderableType:
    """The table with as many columns as fit the console. ``one_line``: no cell is folded either."""
    shown = [_show(table, column) for column in table.columns]
    for one in sorted((one for one in shown if one.column.out), key=lambda one: one.column.out):
        if fits(console, shown, one_line):
            break
        shown.remove(one)
    above = [Text(table.title, style="bold")] if table.title else []
    below = [Text(table.caption, style="dim italic")] if table.caption else []
    return Group(*above, _draw(console, table, shown), *below)


def table_fits(console: Console, table: Table) -> bool:
    return fits(console, [_show(table, column) for column in table.columns])


def fits(console: Console, shown: Sequence[_PrintedColumn], one_line: bool = False) -> bool:
    return _room(console, shown) >= sum(one.most if one_line else one.least for one in shown)


def _room(console: Console, shown: Sequence[_PrintedColumn]) -> int:
    """For the cells, between one column at the left edge and one at the right."""
    return console.width - BETWEEN * (len(shown) - 1) - 2


def _show(table: Table, column: Column) -> _PrintedColumn:
    cells = [printable(column.text(column.of(row))) for row in table.rows]
    if column.longest:
        cells = [shorten(cell, column.longest) for cell in cells]
    head = column.head(table.unit)
    most = max(map(cell_len, [head, *cells]))
    words = chain(head.split(), cells if column.whole else chain(*(one.split() for one in cells)))
    return _PrintedColumn(column, cells, max(map(cell_len, words), default=0), most)


def _widths(room: int, shown: Sequence[_PrintedColumn]) -> list[int]:
    """Every word has its place; what is left goes to the columns that need least of it. Where not
    even the words have room, the widest column breaks its own."""
    widths = [one.least for one in shown]
    over = sum(widths) - room
    if over > 0:
        widest = widths.index(max(widths))
        widths[widest] = max(1, widths[widest] - over)
    for at in sorted(range(len(shown)), key=lambda at: shown[at].most - shown[at].least):
        more = min(shown[at].most - widths[at], max(0, room - sum(widths)))
        widths[at] += more
    return widths


def _draw(console: Console, table: Table, shown: Sequence[_PrintedColumn]) -> Drawn:
    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
    for one, width in zip(shown, _widths(_room(console, shown), shown), strict=True):
        drawn.add_column(
            Text(one.column.head(table.unit)),
            justify="right" if table.aligned_right(one.column) else "left",
            overflow="fold",
            width=width,
        )
    for at, cells in enumerate(zip(*(one.cells for one in shown), strict=True)):
        drawn.add_row(*map(Text, cells), style="dim" if at in table.dim else None)  # no markup
    return drawn
