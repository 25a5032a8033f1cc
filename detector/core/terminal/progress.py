"""Show a live line during a run: frames, ETA, end-to-end FPS and the bottleneck so far."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from detector.core.errors.text import counted, printable
from detector.core.terminal.console import SafeConsole

LONGEST_NAME, GAP = 32, "..."
WIDEST_BAR, NARROWEST_BAR = 24, 6  # columns
INTERVAL_S = 0.25  # time between updates; an update takes some 50 us


class Redrawn:
    """Redraws something on the terminal again and again, in its own thread."""

    def __init__(self, console: SafeConsole) -> None:
        self.console = console
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, name: str, interval_s: float, draw: Callable[[], RenderableType]) -> None:
        self._over.clear()
        self._thread = threading.Thread(
            target=self._redraw, args=(interval_s, draw), name=f"detect-video {name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop redrawing. May be called twice."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _redraw(self, interval_s: float, draw: Callable[[], RenderableType]) -> None:
        with RichLive(console=self.console, auto_refresh=False, transient=True) as live:
            while not self._over.wait(interval_s):
                live.update(draw(), refresh=True)


class LiveLine(Redrawn):
    """Shows the run's counters. Drawing has its own thread, so that it costs the loop no time."""

    def start(self, info: Any, progress: Any, timeline: Any, frames: int | None) -> None:
        declared, started = info.frames_declared, time.perf_counter()
        total = min(frames, declared) if frames and declared else frames or declared

        def draw() -> RenderableType:
            elapsed_s, width = time.perf_counter() - started, self.console.width - 1
            path, written = info.path, progress.written
            return progress_line(path, written, total, elapsed_s, timeline, width).draw()

        self.begin("live", INTERVAL_S, draw)


class ProgressLine(NamedTuple):
    """The live line: the source's name, a bar of ``bar`` columns (0: no bar), and figures."""

    name: str
    bar: int
    figures: str
    done: int
    total: int | None

    def draw(self) -> RenderableType:
        if not self.bar:
            return Text(f"{self.name}  {self.figures}".strip(), no_wrap=True)
        grid = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(self.total, self.done, self.bar)
        grid.add_row(Text(self.name, no_wrap=True), bar, Text(self.figures, no_wrap=True))
        return grid


def progress_line(
    path: str, written: int, total: int | None, elapsed_s: float, timeline: Any, width: int = 80
) -> ProgressLine:
    """Return ``in.mp4  ━━━━━━  120/400 frames  24.9 FPS  ETA 0:11  bottleneck: write``. If this is
    longer than ``width``, omit the last figures, the bar and a part of the name."""
    rate = written / elapsed_s if elapsed_s > 0 else 0.0
    known = total if total and total >= written else None
    figures = [
        f"{written}/{counted(known, 'frame')}" if known else counted(written, "frame"),
        f"{rate:.1f} FPS",
    ]
    if known and rate and known > written:
        left_s = int((known - written) / rate)
        figures.append(f"ETA {left_s // 60}:{left_s % 60:02d}")
    if slowest := _busiest(timeline):
        figures.append(f"bottleneck: {slowest}")
    name = printable(os.path.basename(path.rstrip("/")) or path)
    name_width = min(cell_len(name), LONGEST_NAME)
    while len(figures) > 1 and name_width + 2 + len("  ".join(figures)) > width:
        figures.pop()
    text = "  ".join(figures)
    name = shorten(name, max(0, min(LONGEST_NAME, width - 2 - len(text))))
    room = width - cell_len(name) - len(text) - 4
    bar = min(room, WIDEST_BAR) if known and room >= NARROWEST_BAR else 0
    return ProgressLine(name, bar, text[:width], written, known)


def shorten(name: str, width: int) -> str:
    """Shorten ``name`` to ``width`` columns: cut its middle out, as in ``a-very-lo...me.mp4``."""
    if cell_len(name) <= width:
        return name
    if width < len(GAP) + 2:
        return ""
    tail = (width - len(GAP)) // 2
    head = width - len(GAP) - tail
    end = name
    while cell_len(end) > tail:
        end = end[1:]
    return f"{set_cell_size(name, head)}{GAP}{end}"


def _busiest(timeline: Any) -> str | None:
    """Return the busiest stage of the thread that was busiest so far."""
    tracks = list(timeline.tracks.values())
    if not tracks:
        return None
    track = max(tracks, key=lambda track: track.busy_ns())
    stages = {
        stage: span.self_ns for (stage, kind), span in list(track.spans.items()) if kind == "work"
    }
    return max(stages, key=lambda stage: stages[stage]) if stages else None
