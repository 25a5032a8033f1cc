"""CSV: one row per detection, quoted as in RFC 4180. A frame without detections has no row."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from detector.sinks._rows import RowsSink, plain_values
from detector.types import Detections, Frame

COLUMNS = ("source", "frame", "pts", "time_s", "class", "class_id", "score", "x1", "y1", "x2", "y2")


class CsvSink(RowsSink):
    name = "csv"
    suffixes = (".csv",)
    options = ("remark",)

    def __init__(self, path: Path, *, remark: str = "") -> None:
        """``remark`` is the last column of every row. Without one there is no such column."""
        super().__init__(path)
        columns = (*COLUMNS, "remark") if remark else COLUMNS
        self.header = ",".join(columns) + "\r\n"  # RFC 4180's line end
        self._remark = (remark,) if remark else ()

    def rows(self, frame: Frame, detections: Detections) -> str:
        place = (frame.path or self._info.path, frame.index, frame.pts, round(frame.time_s, 6))
        lines = io.StringIO(newline="")
        csv.writer(lines).writerows(
            (*place, name, class_id, score, *box, *self._remark)
            for name, class_id, score, box in plain_values(detections)
        )
        return lines.getvalue()
