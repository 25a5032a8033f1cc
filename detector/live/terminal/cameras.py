"""Draws the live table of cameras on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.core.errors.text import counted, printable
from detector.core.terminal.progress import Redrawn, shorten
from detector.live.base import LiveFigures, StreamFigures, ZoneFigures, count_drops

INTERVAL_S = 0.5
NAME_COLUMNS = 20
MARKS = {"live": "green", "stalled": "yellow", "waiting": "red", "connecting": "cyan"}


class CameraTable(Redrawn):
    def start(self, figures: Callable[[], LiveFigures]) -> None:
        def draw_now() -> RenderableType:
            return draw(figures(), self.console.width - 1, self.console.height - 2)

        self.begin("table", INTERVAL_S, draw_now)


def draw(figures: LiveFigures, width: int, height: int = 40) -> RenderableType:
    """Return the table, within ``width`` columns. Cameras beyond ``height`` are only counted."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    head = ("camera", "state", "FPS/sent", "age p50", "p99 ms", "dropped")
    table.add_row(*(Text(text, style="dim") for text in head))
    room = max(1, height - 3)
    shown = figures.streams[:room]
    for stream in shown:
        table.add_row(*_row(stream))
    lines: list[RenderableType] = [table]
    if (more := len(figures.streams) - len(shown)) > 0:
        lines.append(Text(f"and {counted(more, 'more camera')}", style="dim"))
    for stream in [one for one in shown if one.error and one.state != "live"][:3]:
        text = printable(f"{stream.name}: {stream.error}")
        lines.append(Text(_cut(text, width), style="red", no_wrap=True))
    zones = [(stream, zone) for stream in shown for zone in stream.zones]
    for stream, zone in zones[: max(0, room - len(shown))]:
        text = printable(f"{stream.name}: {_counts(zone)}")
        lines.append(Text(_cut(text, width), no_wrap=True))
    if figures.bottleneck:
        lines.append(Text(figures.bottleneck, style="bold"))
    return Group(*lines)


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(stream: StreamFigures) -> list[Text]:
    dropped, share = count_drops(stream.dropped, stream.received)
    return [
        Text(shorten(printable(stream.name), NAME_COLUMNS)),
        Text(_state(stream), style=MARKS.get(stream.state, "")),
        Text(f"{_format(stream.processed_fps, '.1f')}/{_format(stream.camera_fps, '.1f')}"),
        Text(_format(stream.age_ms.p50, ".0f")),
        Text(_format(stream.age_ms.p99, ".0f")),
        Text(f"{dropped} ({share:.0%})" if dropped else "0"),
    ]


def _counts(zone: ZoneFigures) -> str:
    """Format as ``door: in 3, out 2 today``."""
    come, gone = zone.today
    inside = "" if zone.inside is None else f", {zone.inside} inside"
    into, out = zone.shape.sides
    return f"{zone.shape.name}: {into} {come}, {out} {gone} today{inside}"


def _state(stream: StreamFigures) -> str:
    """Format as ``live``, ``frozen``, ``stalled 12 s`` or ``next try 5 s``."""
    if stream.state == "live":
        return "frozen" if stream.frozen else "live"
    if stream.next_try_s is not None:
        return f"next try {stream.next_try_s:.0f} s"
    return f"{stream.state} {stream.since_s:.0f} s"


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else shorten(text, width)
