"""With -v, print a line for each picture: the objects in it, and how long it took.

    picture, size, input: found; preprocess + infer + nms
    bus.jpg 810x1080 in 480x640: 4 persons, 1 bus; 1.2 + 24.9 + 0.5 ms

Frames of a video have no line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from detector.core.errors.text import counted, printable
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.progress import shorten
from detector.core.timeline.spans import INFER, NMS, PREPROCESS

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, FrameTimes

WIDTH = 80
SHORTEST_NAME = 12
TIMED = (PREPROCESS, INFER, NMS)
HEAD = f"picture, size, input: found; {' + '.join(TIMED)}"


class PictureLines:
    """Prints a line for each picture above the live line, or by ``say`` if ``console`` is None."""

    def __init__(self, console: SafeConsole | None, say: Callable[[str], None]) -> None:
        self._console, self._say, self._has_heading = console, say, False

    def __call__(self, frame: Frame, detections: Detections) -> None:
        if frame.path is None:
            return
        width = WIDTH if self._console is None else min(WIDTH, self._console.width)
        if not self._has_heading:
            self._print(HEAD)
        self._has_heading = True
        self._print(picture_line(frame, detections, width))

    def _print(self, line: str) -> None:
        if self._console is None:
            self._say(line)
        else:
            self._console.print(Text(line, no_wrap=True))


def picture_line(frame: Frame, detections: Detections, width: int = WIDTH) -> str:
    """Return a line of at most ``width`` columns. If necessary, count the rarest classes together,
    then shorten the name."""
    size, times = f" {frame.size[1]}x{frame.size[0]}", frame.times
    if times is not None:
        size += f" in {times.input[1]}x{times.input[0]}"
    ms = "" if times is None else f"; {_format_times(times)}"
    name = printable(frame.name or frame.path or "")
    least = min(cell_len(name), SHORTEST_NAME)
    objects = _count_objects(detections, max(0, width - least - cell_len(size) - len(ms) - 2))
    rest = f"{size}: {objects}{ms}"
    return shorten(name, max(least, width - cell_len(rest))) + rest


def _count_objects(detections: Detections, room: int) -> str:
    """Return ``4 persons, 1 bus``. If room is short, end with ``and 3 others`` for rare classes."""
    counts = Counter(detections.name(i) for i in range(len(detections))).most_common()
    if not counts:
        return "nothing"
    for shown in range(len(counts), -1, -1):
        text = ", ".join(counted(count, printable(name)) for name, count in counts[:shown])
        if hidden := sum(count for _, count in counts[shown:]):
            text += f" and {counted(hidden, 'other')}" if shown else counted(hidden, "object")
        if cell_len(text) <= room:
            break
    return text


def _format_times(times: FrameTimes) -> str:
    """Return ``1.2 + 24.9 + 0.5 ms``, or in a batch of four ``1.2 + 1/4 of 99.7 + 0.5 ms``."""
    each = {stage: f"{times.ms[stage]:.1f}" for stage in TIMED if stage in times.ms}
    if times.batch > 1 and INFER in each:
        each[INFER] = f"1/{times.batch} of {times.ms[INFER] * times.batch:.1f}"
    return f"{' + '.join(each.values())} ms"
