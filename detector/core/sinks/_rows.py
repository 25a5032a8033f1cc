"""Base of sinks that write rows: a frame's lines go to the file without buffering."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from detector.core.errors.writing import utf8
from detector.core.sinks._partial import Partial, output_errors
from detector.core.sinks.base import Sink
from detector.core.types import Detections, Frame, SourceInfo


class RowsSink(Sink):
    """A text file to which each frame's lines are appended in one system call."""

    header: str = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._whole_bytes = 0  # size up to the end of the last complete line

    def describe(self, info: SourceInfo) -> None:
        """Store the facts about the source. Called before ``rows``."""
        self._info = info

    def open(self, info: SourceInfo) -> None:
        self.describe(info)
        self._partial = Partial(self.path, info.path)
        with output_errors(self.path):
            os.ftruncate(self._partial.fd, 0)
        self._append(self.header)

    def rows(self, frame: Frame, detections: Detections) -> str:
        """Return the lines of one frame, each with a line end; "" if it has none."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        self._append(self.rows(frame, detections))

    def _append(self, lines: str) -> None:
        assert self._partial is not None, "write before open"
        data = utf8(lines)
        end = self._whole_bytes + len(data)
        with output_errors(self.path):
            while data:  # a full disk first accepts a part, then refuses the rest
                data = data[os.write(self._partial.fd, data) :]
        self._whole_bytes = end

    def close(self) -> Path:
        if self._partial is not None:
            self._partial.commit()
            self._partial = None
        return self.path

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        if partial is None:
            return None
        if self._whole_bytes <= len(self.header):
            partial.discard()
            return None
        try:
            os.ftruncate(partial.fd, self._whole_bytes)
        except OSError:
            partial.discard()
            return None
        partial.release()
        return partial.path


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows(rows)
    return lines.getvalue()


def python_values(detections: Detections) -> Iterator[tuple[list[float], float, int, int | None]]:
    """Yield ([x1, y1, x2, y2], score, class id, track) of each detection as Python numbers."""
    boxes, scores, ids = detections.boxes, detections.scores, detections.class_ids
    tracks = detections.track_list()
    return zip(boxes.tolist(), scores.tolist(), ids.tolist(), tracks, strict=True)


def plain_values(detections: Detections) -> Iterator[tuple[str, int, float, list[float]]]:
    """Yield (class name, class id, score, [x1, y1, x2, y2]) of each detection, rounded."""
    for i, (box, score, class_id, _) in enumerate(python_values(detections)):
        rounded = [round(value, 2) + 0.0 for value in box]  # + 0.0 turns -0.0 into 0.0
        yield detections.name(i), class_id, round(score, 4), rounded
