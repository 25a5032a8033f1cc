"""What ``compare --where`` prints: every stage, and the first that differs."""

from __future__ import annotations

from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.session.where import StageDifference, Where


def _says(one: StageDifference) -> str:
    if one.untold is not None:
        return "not compared"
    return "DIFFERS" if one.differs else "agrees"


STAGES = (
    Column("stage"),
    Column("what", "compared", longest=40, out=3),
    Column("says", "", value=_says, whole=True),
    Column("max", "largest", ".4g", out=2),
    Column("rms", form=".4g", out=4),
    Column("relative", "relative to A", ".2%", out=1),
    Column("beyond", "beyond rounding", ".1%", out=5),
    Column("kind", value=lambda one: one.kind or "", whole=True),
)


def print_where(console: SafeConsole, document: Where) -> None:
    title = f"A: {document.a}; B: {document.b}; each stage with the same input on both sides"
    rows = Table("where", STAGES, document.stages, title)
    lines = [f"note: {one.stage}: {one.untold}" for one in document.stages if one.untold]
    if document.probes:
        lines.append(f"checked {len(document.probes)} tensors inside the network")
    if document.picture is not None:
        lines.append(f"picture: {document.picture}")
    print_pieces(console, [rows, *lines, document.verdict])
