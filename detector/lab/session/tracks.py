"""Read the tracks that --save tracks stores in a session: the longest tracks of each source."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from detector.core.errors import UsageError
from detector.core.session.codec import decode, read_file
from detector.core.session.document import Count, Size

FOLDER = "tracks"
MAX_BYTES = 16 << 20  # the 120 small pictures of a source take about 2 MB


@dataclass(frozen=True, slots=True)
class TrackRow:
    """A track with a small picture. ``at_s``: seconds from the first written frame to the best
    picture; other times are positions in the source. ``jpeg``: the picture in base64."""

    track: Size
    first_s: float
    last_s: float
    frames: Size
    best_frame: Count
    best_s: float
    score: float
    file: Annotated[str, Meta(max_length=1000)]
    at_s: float
    jpeg: str
    name: Annotated[str, Meta(max_length=1000)] = ""

    @property
    def picture(self) -> bytes:
        try:
            data = base64.b64decode(self.jpeg, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        if not data.startswith(b"\xff\xd8"):
            raise UsageError(f"track {self.track}: damaged: its picture is not a JPEG")
        return data


def read_tracks(folder: Path, source: int) -> list[TrackRow]:
    path = folder / FOLDER / f"{source}.jsonl"
    if not path.exists():
        return []
    lines = read_file(path, MAX_BYTES).splitlines()
    return [decode(line, TrackRow, f"{path}, line {at}") for at, line in enumerate(lines, 1)]
