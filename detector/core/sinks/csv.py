"""CSV: one row per detection, quoted as in RFC 4180. A frame without detections has no row."""

from __future__ import annotations

from pathlib import Path

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import RowsSink, csv_lines, plain_values
from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ
from detector.core.types import Detections, Frame

COLUMNS = ("source", "frame", "pts", "time_s", "class", "class_id", "score", "x1", "y1", "x2", "y2")
# WRITE is missing, since a row cannot include the time of its own writing.
TIMED = (READ, PREPROCESS, INFER, HEAD, NMS, ANNOTATE)


class CsvSink(RowsSink):
    name = "csv"
    suffixes = (".csv",)
    options = ("remark", "reuses", "tracks", "coasts", "save_times")

    def __init__(
        self,
        path: Path,
        *,
        remark: str = "",
        reuses: bool = False,
        tracks: bool = False,
        coasts: bool = False,
        save_times: bool = False,
    ) -> None:
        """Each option adds columns to the end of every row."""
        super().__init__(path)
        optional = {"remark": bool(remark), "reused": reuses, "track": tracks, "inferred": coasts}
        columns = [*COLUMNS, *(name for name, is_added in optional.items() if is_added)]
        columns += [*(f"{stage}_ms" for stage in TIMED), "batch"] if save_times else []
        self.header = ",".join(columns) + "\r\n"  # RFC 4180's line end
        self._remark = (as_cell(remark),) if remark else ()
        self._reuses, self._tracks, self._coasts = reuses, tracks, coasts
        self._times = save_times

    def rows(self, frame: Frame, detections: Detections) -> str:
        source = as_cell(frame.path or self._info.path)
        first = (source, frame.index, frame.pts, round(frame.time_s, 6))
        reused = (int(frame.reused),) if self._reuses else ()
        inferred = (int(not frame.coasting),) if self._coasts else ()
        tracks, times = detections.track_list(), self._format_times(frame)
        return csv_lines(
            (
                *(*first, as_cell(name), class_id, score, *box, *self._remark, *reused),
                *((tracks[i],) if self._tracks else ()),
                *inferred,
                *times,
            )
            for i, (name, class_id, score, box) in enumerate(plain_values(detections))
        )

    def _format_times(self, frame: Frame) -> tuple[float | None, ...]:
        """Return one cell for each stage (None if the frame skipped it), then the batch size."""
        if not self._times or frame.times is None:
            return ()
        cells = (frame.times.ms.get(stage) for stage in TIMED)
        return (*(None if ms is None else round(ms, 3) for ms in cells), frame.times.batch)
