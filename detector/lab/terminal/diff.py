"""What ``diff`` prints: two sessions side by side."""

from __future__ import annotations

from collections.abc import Sequence

from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.analysis.diff import Change

CHANGES = (
    Column("what", ""),
    Column("before", form=".3f", unit="ms", out=1),
    Column("after", form=".3f", unit="ms", out=2),
    Column("ratio", form=".3f"),
    Column("interval", "95% interval", value=lambda one: f"{one.low:.3f} .. {one.high:.3f}"),
    Column("verdict", "", value=lambda one: _verdict(one)),
    Column("smallest", "sees from", ".1%", out=3),
)


def _verdict(one: Change) -> str:
    if one.verdict in ("slower", "faster"):
        return one.verdict
    return f"no difference larger than {one.largest:.1%}"


def print_diff(console: SafeConsole, changes: Sequence[Change], differing: Sequence[str]) -> None:
    """Two sessions side by side; ``differing``: what else was not the same in both."""
    lines = [f"not the same: {line}" for line in differing]
    print_pieces(console, [Table("diff", CHANGES, changes), *lines])
