"""Count the detections in a session's detections.jsonl by frame and class.

Only the first part of a long file is read, since a day takes gigabytes. ``left_out`` then says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from detector.core.errors import UsageError
from detector.core.errors.reading import check_regular
from detector.core.session.store import ROWS

MAX_BYTES = 64 << 20  # about 100,000 frames of a busy street
MAX_ROWS = 200_000  # two hours of video
MAX_ROW_BYTES = 16 << 20  # bytes; enough for a frame with --max-det 100000


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """The number of detections of each class in a frame. ``time_s``: the frame's source time."""

    source: str
    time_s: float
    by_class: dict[str, int]


@dataclass(frozen=True, slots=True)
class SessionRows:
    """``frames`` are in the order of the file. ``left_out``: why frames are missing, or None."""

    frames: list[ClassCounts] = field(default_factory=list)
    left_out: str | None = None


class _DetectionClass(msgspec.Struct):
    name: str = msgspec.field(name="class")


class _CountedRow(msgspec.Struct):
    source: str
    time_s: float
    detections: list[_DetectionClass]


def read_rows(folder: Path) -> SessionRows:
    """Return the counts of all frames before any damage; no frames if the file is absent."""
    path, rows = folder / ROWS, SessionRows()
    decode = msgspec.json.Decoder(_CountedRow).decode
    try:
        check_regular(path, "rows of detections", UsageError)
        with path.open("rb") as file:
            read = 0
            while line := file.readline(MAX_ROW_BYTES):
                read += len(line)
                if read > MAX_BYTES or len(rows.frames) >= MAX_ROWS:
                    return SessionRows(rows.frames, f"{ROWS} is too large for the report")
                row = decode(line)
                counts = Counter(one.name for one in row.detections)
                rows.frames.append(ClassCounts(row.source, row.time_s, dict(counts)))
    except FileNotFoundError:
        return SessionRows(left_out=f"the session contains no {ROWS}")
    except OSError as error:
        return SessionRows(rows.frames, f"{ROWS} cannot be read: {error.strerror}")
    except (UsageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return SessionRows(rows.frames, f"{ROWS} is damaged in line {len(rows.frames) + 1}")
    return rows
