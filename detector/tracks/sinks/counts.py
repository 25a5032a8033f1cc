"""CSV of the counts at lines and zones (--zones): a row for each interval, shape and class."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import csv_lines
from detector.tracks.sinks.events import SceneSink, rounded

if TYPE_CHECKING:
    from detector.tracks.counting import ZoneCount

KINDS = ("in", "out", "entered", "left", "appeared", "ended")


def local_text(time_s: float) -> str:
    """Format Unix seconds in this machine's time zone: 2026-11-29T14:00:00+01:00."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(round(time_s, 3)))
    return f"{text[:-2]}:{text[-2:]}"


class CountsSink(SceneSink):
    name = "counts"
    suffixes = (".counts.csv",)
    columns = (
        *("from_s", "to_s", "from_local", "to_local", "source", "zone", "class", *KINDS),
        *("mean", "most", "in_name", "out_name", "frames"),
    )
    header = csv_lines([columns])

    @staticmethod
    def cells(
        source: str, row: ZoneCount, when: Callable[[float], object] = rounded
    ) -> tuple[object, ...]:
        """Return a row: one cell per column. ``when`` formats seconds of the source's clock."""
        span, start_s = (row.from_s, row.to_s), row.start_s
        return (
            *map(when, span),
            *("" if start_s is None else local_text(start_s + time_s) for time_s in span),
            *(as_cell(source), as_cell(row.zone), as_cell(row.class_name)),
            *(row.counts.get(kind, "") for kind in KINDS),
            *("" if row.mean is None else round(row.mean, 3), "" if row.most is None else row.most),
            *(map(as_cell, row.sides) if row.sides != KINDS[:2] else ("", "")),
            row.frames,
        )
