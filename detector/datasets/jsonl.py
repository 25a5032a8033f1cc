"""Our own JSONL, as detections: one line a frame. There are no labels in this format."""

from __future__ import annotations

import json
from pathlib import Path

from detector.datasets.base import PICTURES, Collector, Found, Lookup, read_lines
from detector.errors import SourceError


def written(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".jsonl"


def found(path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> Found:
    collector = Collector(path, lookup, every_picture_listed=True)
    own: dict[str, int] = {}
    for line, text in read_lines(path):
        try:
            row = json.loads(text)
            source, frame, detections = str(row["source"]), int(row["frame"]), row["detections"]
            parts = [
                (list(map(float, one["box"])), float(one["score"]), str(one["class"]))
                for one in detections
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{path}:{line}: not a line that detect-video wrote; is the file cut off?"
            ) from error
        at = collector.place(place(source, frame, lookup), f"{source} frame {frame}")
        for box, score, name in parts if at is not None else ():
            collector.add(at, box, score, own.setdefault(name, len(own)), f"{path}:{line}")  # type: ignore[arg-type]
    return collector.found(tuple(own))


def place(source: str, frame: int, lookup: Lookup) -> int | None:
    """A picture's row names its own file, a frame's row the video."""
    at = lookup.by_name(source)
    return (
        at if at is not None or Path(source).suffix.lower() in PICTURES else lookup.by_frame(frame)
    )
