"""Writes the best pictures of tracks.

DIR/CAMERA/tracks/YYYY-MM-DD/000012-person.jpg
DIR/CAMERA/tracks/YYYY-MM-DD/tracks.jsonl

All tracks end at midnight, when ids restart. Another run on the same day writes into the same
folder. If a file name is taken, the new name gets a number.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from detector.core.errors.writing import utf8, write_whole
from detector.core.sinks._best import ROWS, BestPictures, TrackRecord
from detector.core.types import Detections, Frame, Image
from detector.live.base import format_day, format_utc
from detector.live.camera_folder import append_whole, find_free_name, open_file, open_folder
from detector.live.sources.base import Camera

ROOM = 64  # length of the queue of tracks to write
CLOSE_S = 2.0


class CameraTracks:
    """The tracks of one camera. Another thread writes, so ``see`` and ``write`` never wait."""

    def __init__(self, folder: Path, camera: Camera, notice: Callable[[str], None]) -> None:
        self.folder = folder / camera.name / "tracks"
        self._camera, self._notice = camera, notice
        self._best = BestPictures()
        self._day = ""
        self._shift_s = 0.0  # offset from the pictures' clock to Unix time
        self._written = self._lost = 0
        self._failing = False
        self._pending: queue.Queue[tuple[str, float, TrackRecord] | None] = queue.Queue(ROOM)
        self._thread = threading.Thread(target=self._run, name="detect-video tracks", daemon=True)
        self._thread.start()

    def see(self, image: Image, detections: Detections) -> None:
        self._best.see(image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        if frame.arrival is None:
            return
        now_s = frame.arrival.utc_s
        day = format_day(now_s)
        if day != self._day:
            self._queue(self._best.end())
            self._day = day
        self._shift_s = now_s - frame.time_s
        self._queue(self._best.add(frame, frame.time_s, detections))

    def _queue(self, tracks: list[TrackRecord]) -> None:
        for track in tracks:
            try:
                self._pending.put_nowait((self._day, self._shift_s, track))
            except queue.Full:
                self._lose("too many tracks ended at once")

    def counts(self) -> Mapping[str, int]:
        return {"written": self._written, "lost": self._lost}

    def close(self) -> None:
        self._queue(self._best.end())
        try:
            self._pending.put(None, timeout=CLOSE_S / 2)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (item := self._pending.get()) is not None:
            day, shift_s, track = item
            try:
                self._write(self.folder / day, shift_s, track)
                self._written += 1
                self._failing = False
            except Exception as error:  # a full disk stops pictures, not detection
                self._lose(str(error))

    def _write(self, folder: Path, shift_s: float, track: TrackRecord) -> None:
        suffix, data = track.encode()
        file = find_free_name(folder, track.stem, suffix)
        os.close(open_folder(folder, 3))  # CAMERA/tracks/DAY
        write_whole(folder / file, data, "free some space there", ours=True)
        row = {"camera": self._camera.name, **track.row(file)}
        for name in ("first", "last", "best"):
            row[f"{name}_utc"] = format_utc(row.pop(f"{name}_s") + shift_s)
        line = utf8(json.dumps(row, ensure_ascii=False) + "\n")
        descriptor = open_file(folder / ROWS, os.O_WRONLY | os.O_APPEND, 3)
        try:
            append_whole(descriptor, line)
        finally:
            os.close(descriptor)

    def _lose(self, why: str) -> None:
        self._lost += 1
        if not self._failing:
            self._failing = True
            self._notice(f"{self._camera.name}: pictures of tracks were lost: {why}")
