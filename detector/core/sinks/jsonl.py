"""JSON lines: one object per frame, including frames without detections."""

from __future__ import annotations

import json
from pathlib import Path

from detector.core.sinks._rows import RowsSink, plain_values
from detector.core.types import Detections, Frame, SourceInfo

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonlSink(RowsSink):
    name = "jsonl"
    suffixes = (".jsonl",)
    options = ("remark", "save_times")

    def __init__(self, path: Path, *, remark: str = "", save_times: bool = False) -> None:
        """Add to every line the ``remark`` (if not empty) and, with ``save_times``, the times."""
        super().__init__(path)
        self._remark = {"remark": remark} if remark else {}
        self._times = save_times
        self._time_base = ""

    def describe(self, info: SourceInfo) -> None:
        super().describe(info)
        self._time_base = f"{info.time_base.numerator}/{info.time_base.denominator}"

    def rows(self, frame: Frame, detections: Detections) -> str:
        source = frame.path or self._info.path
        more: dict[str, object] = {**self._remark, **(make_times(frame) if self._times else {})}
        return encode_row(row(source, frame, self._time_base, detections, **more))


def row(
    source: str, frame: Frame, time_base: str | None, detections: Detections, **more: object
) -> dict[str, object]:
    """Return a frame's line, with ``time_base`` ("1/90000") and ``more`` before the detections."""
    return {
        "source": source,
        "frame": frame.index,
        "pts": frame.pts,
        "time_base": time_base,
        "time_s": round(frame.time_s, 6),
        **({} if frame.taken is None else {"time": frame.taken}),
        **more,
        **({"reused": True} if frame.reused else {}),
        **({"inferred": False} if frame.coasting else {}),
        "detections": rows_of(detections),
    }


def make_times(frame: Frame) -> dict[str, object]:
    """``times_ms``: ms of each stage. ``batch``: how many frames were inferred together."""
    times = frame.times
    if times is None:
        return {}
    shared = {"batch": times.batch} if times.batch > 1 else {}
    return {"times_ms": {stage: round(ms, 3) for stage, ms in times.ms.items()}, **shared}


def rows_of(detections: Detections) -> list[dict[str, object]]:
    """Return a row per object. In a run with tracks, ``track`` is the object's track id or None."""
    rows: list[dict[str, object]] = [
        {"class": name, "class_id": class_id, "score": score, "box": box}
        for name, class_id, score, box in plain_values(detections)
    ]
    if detections.track_ids is not None:
        for row, track in zip(rows, detections.track_list(), strict=True):
            row["track"] = track
    return rows


def encode_row(values: dict[str, object]) -> str:
    return _encode(values) + "\n"
