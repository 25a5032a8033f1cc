"""Our own CSV, as detections: one row a detection. A picture without any has no row."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from detector.datasets.base import Collector, Found, Lookup, reading
from detector.datasets.jsonl import place
from detector.errors import SourceError


def written(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".csv"


def found(path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> Found:
    with reading(path):
        table = csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8"), newline=""))
    collector = Collector(path, lookup, every_picture_listed=False)
    own: dict[str, int] = {}
    for row in table:
        where = f"{path}:{table.line_num}"
        try:
            source, frame, name = row["source"], int(row["frame"]), row["class"]
            box, score = [float(row[key]) for key in ("x1", "y1", "x2", "y2")], float(row["score"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{where}: not a row that detect-video wrote; is the file cut off?"
            ) from error
        at = collector.place(place(source, frame, lookup), f"{source} frame {frame}")
        if at is not None:
            collector.add(at, box, score, own.setdefault(name, len(own)), where)
    return collector.found(tuple(own))
