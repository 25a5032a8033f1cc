"""CSV of events at lines and in zones (--zones): a row for each event, in order of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import csv_lines
from detector.tracks.sinks._scene import SceneSink, rounded

if TYPE_CHECKING:
    from detector.tracks.counting import ZoneEvent


class EventsSink(SceneSink):
    name = "events"
    suffixes = (".events.csv",)
    columns = (
        *("time_s", "source", "zone", "event", "direction", "class", "track", "x", "y"),
        *("since_s", "until_s", "side"),
    )
    header = csv_lines([columns])

    @staticmethod
    def cells(
        source: str, event: ZoneEvent, when: Callable[[float], object] = rounded
    ) -> tuple[object, ...]:
        """Return a row for ``columns``. ``when`` formats seconds of the source's clock."""
        times_s = (event.time_s, event.since_s, event.until_s)
        time, since, until = ("" if time_s is None else when(time_s) for time_s in times_s)
        return (
            *(time, as_cell(source), as_cell(event.zone), event.event, event.direction),
            *(as_cell(event.class_name), event.track, round(event.x, 2), round(event.y, 2)),
            *(since, until, as_cell(event.side)),
        )
