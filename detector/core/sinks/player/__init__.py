"""An HTML page that plays the source's video and draws the detections over it. It works offline.
The rows come last, so even a killed run leaves a page, with all rows up to then."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from detector.core.sinks._rows import RowsSink
from detector.core.sinks.jsonl import encode_row, row
from detector.core.types import Detections, Frame, SourceInfo

TAIL = "</script>\n</body>\n</html>\n"


class PlayerSink(RowsSink):
    name = "player"
    suffixes = (".html",)
    ending = "-player"
    kinds = ("video",)
    order = 1
    # Even with --only-detections, all rows are written: rows without detections clear the boxes.
    options = ("remark", "only_detections")
    untouched = True

    def __init__(self, path: Path, *, remark: str = "", only_detections: bool = False) -> None:
        super().__init__(path)
        self._remark, self._time_base = remark, ""

    def describe(self, info: SourceInfo) -> None:
        super().describe(info)
        self._time_base = f"{info.time_base.numerator}/{info.time_base.denominator}"
        page = resources.files(__name__).joinpath("player.html").read_text(encoding="ascii")
        before, after = page.split("ABOUT", 1)
        self.header = before + _escape_script(json.dumps(self._describe_run(info))) + after

    def _describe_run(self, info: SourceInfo) -> dict[str, object]:
        from detector.core.stages.annotate import INKS, PALETTE

        return {
            "name": os.path.basename(info.path).encode(errors="replace").decode(),
            "video": _make_address(info.path, self.path),
            "width": info.width,
            "height": info.height,
            "remark": self._remark,
            "colors": [_format_color(color) for color in PALETTE],
            "inks": [_format_color(color) for color in INKS],
        }

    def rows(self, frame: Frame, detections: Detections) -> str:
        return _escape_script(encode_row(row(self._info.path, frame, self._time_base, detections)))

    def close(self) -> Path:
        if self._partial is not None:
            self._append(TAIL)
        return super().close()


def _escape_script(text: str) -> str:
    """Escape JSON for a script element, so that no name can end the element or open a comment."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _make_address(video: str, page: Path) -> str:
    """Return the video's URL relative to the page, so that both can be moved together."""
    try:
        path = os.path.relpath(os.path.realpath(video), os.path.dirname(os.path.realpath(page)))
    except ValueError:  # on another drive
        path = os.path.abspath(video)
    # We add "./", since a name with a colon would otherwise be read as a URL.
    return quote(os.fsencode(path if os.path.isabs(path) else f"./{path}"))


def _format_color(bgr: tuple[int, int, int]) -> str:
    return "#{2:02x}{1:02x}{0:02x}".format(*bgr)
