"""Print the cause of each slow frame, and the slowest frame's parts next to their medians."""

from __future__ import annotations

from rich.text import Text

from detector.core.errors.text import counted
from detector.core.tables import Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.report.parts.why import (
    CAUSE_COLUMNS,
    PART_COLUMNS,
    cause_text,
    list_facts,
    list_parts_without_short_waits,
)
from detector.lab.session.why import Why


def print_why(console: SafeConsole, why: Why) -> None:
    several = len(why.frames) > 1
    frames = counted(why.recorded, "frame")
    median = f"median time from read to write over {frames}: {why.median_ms:.1f} ms"
    console.print(Text(f"{why.run}: {median}", style="bold"))
    pieces: list[Table | str] = []
    if several:
        pieces.append(Table("slowest", CAUSE_COLUMNS, why.frames))
    first, known = why.frames[0], list_facts(why.frames[0], why)
    parts = list_parts_without_short_waits(first)
    pieces.append(f"frame {first.frame}: {first.ms:.1f} ms; {cause_text(first, why)}")
    pieces.append(Table("parts", PART_COLUMNS, parts, caption=", ".join(known)))
    if several:
        pieces.append("use --frame N for another frame")
    by_cure: dict[str, list[str]] = {}
    for name, cure in why.absent.items():
        by_cure.setdefault(cure, []).append(name)
    pieces += [f"not known: {', '.join(names)}; {cure}" for cure, names in by_cure.items()]
    print_pieces(console, pieces)
