"""What ``why`` prints: each frame's cause in a line, and its parts beside the median frame's."""

from __future__ import annotations

from rich.text import Text

from detector.core.errors.text import counted
from detector.core.tables import Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.report.parts.why import CAUSES, PIECES, cause_text, facts_of, shown_parts
from detector.lab.session.why import Why


def print_why(console: SafeConsole, told: Why) -> None:
    several = len(told.frames) > 1
    frames = counted(told.recorded, "frame")
    usual = f"median time from read to write over {frames}: {told.median_ms:.1f} ms"
    console.print(Text(f"{told.run}: {usual}", style="bold"))
    pieces: list[Table | str] = []
    if several:
        pieces.append(Table("slowest", CAUSES, told.frames))
    for one in told.frames[:1]:
        head = f"frame {one.frame}: {one.ms:.1f} ms; {cause_text(one)}"
        known = facts_of(one, told)
        pieces += [head, Table("parts", PIECES, shown_parts(one), caption=", ".join(known))]
    if several:
        pieces.append("use --frame N for another frame")
    by_cure: dict[str, list[str]] = {}
    for name, cure in told.absent.items():
        by_cure.setdefault(cure, []).append(name)
    pieces += [f"not known: {', '.join(names)}; {cure}" for cure, names in by_cure.items()]
    print_pieces(console, pieces)
