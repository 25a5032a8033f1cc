"""An index of a video: the best picture of each track (``_best``) and a row in tracks.jsonl, both
written when the track ends. ``--save tracks`` turns tracking on."""

from __future__ import annotations

import base64
import heapq
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from detector.core import wings
from detector.core.errors import OutputError
from detector.core.errors.writing import utf8
from detector.core.sinks._best import ROWS, BestPictures, TrackRecord
from detector.core.sinks._folder import FolderSink
from detector.core.types import Detections, Frame, Image, SourceInfo

# How many pictures a session stores (of the longest tracks), and their longer side in pixels.
MOST_SHOWN, SHOWN_SIDE = 120, 200
STEP_S = 1 / 30  # assumed time between pictures of a folder, as in the trackers


class TracksSink(FolderSink):
    name = "tracks"
    suffixes = ("-tracks",)
    ending = ""
    pictures = "plain"
    order = 2
    manifest = ".detect-video-tracks"
    content = "pictures of tracks"
    implies: ClassVar = {"track": wings.default_tracker()}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._best = BestPictures()
        self._are_pictures = False
        self._began_s: float = math.nan  # time of the first frame
        self._count = 0
        self._longest: list[tuple[int, int, dict[str, Any]]] = []  # frames, number, row

    def open(self, info: SourceInfo) -> None:
        super().open(info)
        self._are_pictures = info.kind == "pictures"

    def see(self, image: Image, detections: Detections) -> None:
        self._best.see(image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        time_s = frame.index * STEP_S if self._are_pictures else frame.time_s
        if math.isnan(self._began_s):
            self._began_s = time_s
        for track in self._best.add(frame, time_s, detections):
            self._write_track(track)

    def _write_track(self, track: TrackRecord) -> None:
        suffix, data = track.encode()
        file = self.free_name(track.stem, suffix)
        self.add(file, data)
        row = track.row(file)
        self.append(ROWS, _line(row))
        self._count += 1
        if len(self._longest) == MOST_SHOWN and track.frames <= self._longest[0][0]:
            return
        _, small = track.encode(SHOWN_SIDE)
        shown = {
            **row,
            "name": track.name,
            "at_s": round(track.best_s - self._began_s, 3),
            "jpeg": base64.b64encode(small).decode(),
        }
        heapq.heappush(self._longest, (track.frames, self._count, shown))
        if len(self._longest) > MOST_SHOWN:
            heapq.heappop(self._longest)

    def close(self) -> Path | None:
        if self._partial is not None:
            for track in self._best.end():
                self._write_track(track)
            self.append(ROWS, b"")  # create the file even if nothing was tracked
            shown = sorted(self._longest, key=lambda entry: entry[1])
            self.for_session = b"".join(_line(row) for *_, row in shown)
        return super().close()

    def abort(self) -> Path | None:
        if self._partial is not None:
            with suppress(OutputError):  # pictures written before an error are complete
                for track in self._best.end():
                    self._write_track(track)
        return super().abort()


def _line(row: dict[str, Any]) -> bytes:
    return utf8(json.dumps(row, ensure_ascii=False) + "\n")
