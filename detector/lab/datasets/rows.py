"""Read detections from our own JSONL (a line per frame) and CSV (a row per detection)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from detector.core.errors import SourceError, UsageError
from detector.core.errors.parsing import parse_json
from detector.core.errors.text import from_cell
from detector.core.session.codec import from_builtins
from detector.core.sources._contents import PICTURES
from detector.lab.datasets.base import (
    DetectionFormat,
    Lookup,
    RowCollector,
    StoredDetections,
    read_label_text,
    to_box,
)

CUT_OFF = "is the file truncated?"


class DetectionRow(Struct, frozen=True):
    name: str = field(name="class")
    score: float
    box: tuple[float, float, float, float]  # xyxy, pixels
    track: int | None = None


class FrameRow(Struct, frozen=True):
    source: str
    frame: int
    detections: list[DetectionRow]


class JsonlDetections(DetectionFormat):
    name, suffixes = "jsonl", (".jsonl",)

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        collector = RowCollector(path, lookup, every_picture_listed=True)
        own = {name: number for number, name in enumerate(names or ())}
        lines = read_label_text(path).split("\n")  # splitlines() splits at other characters, too
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            content = parse_json(
                text, path, SourceError, cure=CUT_OFF, first_line=line, surrogates=True
            )
            where = f"{path}:{line}"
            try:
                row = from_builtins(content, FrameRow, where)
            except UsageError as error:
                raise SourceError(
                    f"{where}: not a line that detect-video wrote; {CUT_OFF}"
                ) from error
            at = collector.register(
                _find_picture(row.source, row.frame, lookup), f"{row.source} frame {row.frame}"
            )
            if at is not None:
                for one in row.detections:
                    number = own.setdefault(one.name, len(own))
                    collector.add(at, one.box, one.score, number, where, one.track)
        return collector.finish(tuple(own), only_found=names is None)


class CsvDetections(DetectionFormat):
    name, suffixes = "csv", (".csv",)

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        text = read_label_text(path)
        collector = RowCollector(path, lookup, every_picture_listed=False)
        own = {name: number for number, name in enumerate(names or ())}
        for line, row in _csv_rows(path, text):
            where = f"{path}:{line}"
            try:
                source, frame, name = row["source"], int(row["frame"]), row["class"]
                box = to_box(row[key] for key in ("x1", "y1", "x2", "y2"))
                score = float(row["score"])
                track = int(row["track"]) if row.get("track") else None
            except (ValueError, KeyError, TypeError) as error:
                raise SourceError(
                    f"{where}: not a row that detect-video wrote; {CUT_OFF}"
                ) from error
            at = collector.register(_find_picture(source, frame, lookup), f"{source} frame {frame}")
            if at is not None:
                number = own.setdefault(name, len(own))
                collector.add(at, box, score, number, where, track)
        return collector.finish(tuple(own), only_found=names is None)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    table = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in table:
            cells = {key: from_cell(cell) for key, cell in row.items() if isinstance(cell, str)}
            yield table.line_num, cells
    except csv.Error as error:  # such as a field of more than 131,072 characters
        raise SourceError(
            f"{path}:{table.line_num + 1}: not a row that detect-video wrote: {error}; {CUT_OFF}"
        ) from error


def _find_picture(source: str, frame: int, lookup: Lookup) -> int | None:
    at = lookup.by_name(source)
    if at is not None or Path(source).suffix.lower() in PICTURES:
        return at
    return lookup.by_frame(frame)


FORMATS = (JsonlDetections(), CsvDetections())
