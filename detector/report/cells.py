"""Tables of a profile on a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table


def new_table(title: str, *columns: str) -> Table:
    """The first column stands at the left, the others, which are numbers mostly, at the right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    return table


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def counted(count: int, noun: str) -> str:
    """``1 frame``, ``2 frames``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
