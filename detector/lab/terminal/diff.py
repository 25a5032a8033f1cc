"""Print what ``diff`` found between two sessions."""

from __future__ import annotations

from collections.abc import Sequence

from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.analysis.diff import INCOMPARABLE, RunChange
from detector.lab.analysis.load import CpuChange, OtherLoad

CHANGES = (
    Column("what", ""),
    Column("before", form=".3f", unit="ms", out=1),
    Column("after", form=".3f", unit="ms", out=2),
    Column("ratio", form=".3f"),
    Column("interval", "95% interval", value=lambda one: _interval(one)),
    Column("verdict", "", value=lambda one: _verdict(one)),
    Column("smallest", "detectable from", ".1%", out=3),
)

CPU = (Column("what", "CPU of"), *CHANGES[1:4])


def _interval(one: RunChange) -> str:
    return one.verdict if one.verdict == INCOMPARABLE else f"{one.low:.3f} .. {one.high:.3f}"


def _verdict(one: RunChange) -> str:
    if one.verdict in ("slower", "faster", INCOMPARABLE):
        return one.verdict
    return f"no difference larger than {one.largest:.1%}"


def print_diff(
    console: SafeConsole,
    changes: Sequence[RunChange],
    differing: Sequence[str],
    load: OtherLoad | None = None,
    cpu: Sequence[CpuChange] = (),
) -> None:
    lines = [f"not the same: {line}" for line in differing]
    if load is None or not load.differs:
        print_pieces(console, [Table("diff", CHANGES, changes), *lines])
        return
    cores = counted(load.cores, "core")
    hidden = "neither wall times nor CPU times show the effect of a change."
    if not load.crowded:
        hidden = "wall times do not show the effect of a change. Compare CPU times."
    warning = (
        f"Other programs used {load.after:.1f} of {cores} during the second run and "
        f"{load.before:.1f} during the first, so {hidden}"
    )
    times = Table(
        "diff", [one for one in CHANGES if one.key not in ("verdict", "smallest")], changes
    )
    print_pieces(console, [warning, Table("cpu", CPU, cpu), times, *lines])
