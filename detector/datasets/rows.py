"""Our own JSONL and CSV, as detections; they hold no labels.

JSONL has one line for each frame. CSV has one row for each detection, so a picture without any has
no row.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from detector.datasets.base import (
    PICTURES,
    Collector,
    DetectionFormat,
    Lookup,
    StoredDetections,
    read_lines,
    translate_read_errors,
)
from detector.errors import SourceError


class JsonlDetections(DetectionFormat):
    name = "jsonl"

    def claims(self, path: Path) -> bool:
        return path.is_file() and path.suffix.lower() == ".jsonl"

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        collector = Collector(path, lookup, every_picture_listed=True)
        own: dict[str, int] = {}
        for line, text in read_lines(path):
            where = f"{path}:{line}"
            try:
                row = json.loads(text)
                source, frame, detections = str(row["source"]), int(row["frame"]), row["detections"]
                boxes = [
                    (list(map(float, one["box"])), float(one["score"]), str(one["class"]))
                    for one in detections
                ]
            except (ValueError, KeyError, TypeError) as error:
                raise SourceError(
                    f"{where}: not a line that detect-video wrote; is the file cut off?"
                ) from error
            at = collector.place(_find_picture(source, frame, lookup), f"{source} frame {frame}")
            if at is not None:
                for box, score, name in boxes:
                    collector.add(at, box, score, own.setdefault(name, len(own)), where)
        return collector.finish(tuple(own))


class CsvDetections(DetectionFormat):
    name = "csv"

    def claims(self, path: Path) -> bool:
        return path.is_file() and path.suffix.lower() == ".csv"

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        with translate_read_errors(path):
            text = path.read_bytes().decode("utf-8")
        table = csv.DictReader(io.StringIO(text, newline=""))
        collector = Collector(path, lookup, every_picture_listed=False)
        own: dict[str, int] = {}
        for row in table:
            where = f"{path}:{table.line_num}"
            try:
                source, frame, name = row["source"], int(row["frame"]), row["class"]
                box = [float(row[key]) for key in ("x1", "y1", "x2", "y2")]
                score = float(row["score"])
            except (ValueError, KeyError, TypeError) as error:
                raise SourceError(
                    f"{where}: not a row that detect-video wrote; is the file cut off?"
                ) from error
            at = collector.place(_find_picture(source, frame, lookup), f"{source} frame {frame}")
            if at is not None:
                collector.add(at, box, score, own.setdefault(name, len(own)), where)
        return collector.finish(tuple(own))


def _find_picture(source: str, frame: int, lookup: Lookup) -> int | None:
    """A picture's row names its own file; a frame's row names the video."""
    at = lookup.by_name(source)
    if at is not None or Path(source).suffix.lower() in PICTURES:
        return at
    return lookup.by_frame(frame)


FORMATS = (JsonlDetections(), CsvDetections())
