"""JSON lines: one object per frame, frames without detections included."""

from __future__ import annotations

import json
from pathlib import Path

from detector.sinks._rows import RowsSink, plain_values
from detector.types import Detections, Frame, SourceInfo

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonlSink(RowsSink):
    name = "jsonl"
    suffixes = (".jsonl",)
    default_for = ("video", "pictures")
    options = ("remark",)

    def __init__(self, path: Path, *, remark: str = "") -> None:
        """``remark`` is in every line under that key. Without one there is no such key."""
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
                for name, class_id, score, box in plain_values(detections)
            ],
        }
        return _encode(line) + "\n"
