"""What ``diff`` prints: two sessions side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from detector.core.terminal.console import SafeConsole
from detector.lab.analysis.diff import Change


def print_diff(console: SafeConsole, changes: Sequence[Change], differing: Sequence[str]) -> None:
    """Two sessions side by side; ``differing``: what else was not the same in both."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(("", "before ms", "after ms", "ratio", "95% interval", "")):
        table.add_column(name, justify="right" if 0 < number < 5 else "left")
    for one in changes:
        table.add_row(
            one.what,
            f"{one.before:.3f}",
            f"{one.after:.3f}",
            f"{one.ratio:.3f}",
            f"{one.low:.3f} .. {one.high:.3f}",
            one.verdict,
        )
    console.print(table)
    for line in differing:
        console.print(f"not the same: {line}", highlight=False)
