"""One line of JSON per frame, frames without detections included."""

from __future__ import annotations

import json
from pathlib import Path

from detector.sinks.base import RowsSink, plain
from detector.types import Detections, Frame, SourceInfo

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonlSink(RowsSink):
    name = "jsonl"
    suffix = ".jsonl"

    def __init__(self, path: Path, *, remark: str = "") -> None:
        """``remark`` stands in every line under that key; none, and there is no such key."""
        super().__init__(path)
        self._remark = {"remark": remark} if remark else {}
        self._time_base = ""

    def open(self, info: SourceInfo) -> None:
        super().open(info)
        self._time_base = f"{info.time_base.numerator}/{info.time_base.denominator}"

    def rows(self, frame: Frame, detections: Detections) -> str:
        line = {
            "source": frame.path or self._info.path,
            "frame": frame.index,
            "pts": frame.pts,
            "time_base": self._time_base,
            "time_s": round(frame.time_s, 6),
            **self._remark,
            "detections": [
                {"class": name, "class_id": class_id, "score": score, "box": box}
                for name, class_id, score, box in plain(detections)
            ],
        }
        return _encode(line) + "\n"
