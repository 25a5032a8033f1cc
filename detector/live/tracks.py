"""The best pictures of tracks.

DIR/CAMERA/tracks/YYYY-MM-DD/000012-person.jpg
DIR/CAMERA/tracks/YYYY-MM-DD/tracks.jsonl

The day is that of arrival. All tracks end with it, because ids restart. A second run of the day
adds to its folder; an existing name gets a number.
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
from detector.live.base import day_text, utc_text
from detector.live.camera_folder import append_whole, enter, free_file, open_file
from detector.live.sources.base import Camera

ROOM = 64  # tracks queued to be written
CLOSE_S = 2.0


class CameraTracks:
    """``see`` and ``write`` never wait: another thread encodes and writes. Losses are counted."""

    def __init__(self, folder: Path, camera: Camera, notice: Callable[[str], None]) -> None:
        self.folder = folder / camera.name / "tracks"
        self._camera, self._notice = camera, notice
        self._best = BestPictures()
        self._day = ""
        self._shift_s = 0.0  # current offset from the pictures' clock to Unix time
        self._written = self._lost = 0
        self._failing = False
        self._waiting: queue.Queue[tuple[str, float, TrackRecord] | None] = queue.Queue(ROOM)
        self._thread = threading.Thread(target=self._run, name="detect-video tracks", daemon=True)
        self._thread.start()

    def see(self, image: Image, detections: Detections) -> None:
        self._best.see(image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        if frame.arrival is None:
            return
        now_s = frame.arrival.utc_s
        day = day_text(now_s)
        if day != self._day:
            self._hand_over(self._best.end())
            self._day = day
        self._shift_s = now_s - frame.time_s
        self._hand_over(self._best.add(frame, frame.time_s, detections))

    def _hand_over(self, tracks: list[TrackRecord]) -> None:
        for track in tracks:
            try:
                self._waiting.put_nowait((self._day, self._shift_s, track))
            except queue.Full:
                self._lose("too many tracks ended at once")

    def counts(self) -> Mapping[str, int]:
        return {"written": self._written, "lost": self._lost}

    def close(self) -> None:
        self._hand_over(self._best.end())
        try:
            self._waiting.put(None, timeout=CLOSE_S / 2)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            day, shift_s, track = item
            try:
                self._write(self.folder / day, shift_s, track)
                self._written += 1
                self._failing = False
            except Exception as error:  # a full disk stops pictures, not detection
                self._lose(str(error))

    def _write(self, folder: Path, shift_s: float, track: TrackRecord) -> None:
        suffix, data = track.encode()
        file = free_file(folder, track.stem, suffix)
        os.close(enter(folder, 3))  # CAMERA/tracks/DAY
        write_whole(folder / file, data, ours=True)
        row = {"camera": self._camera.name, **track.row(file)}
        for name in ("first", "last", "best"):  # for people
            row[f"{name}_utc"] = utc_text(row.pop(f"{name}_s") + shift_s)
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
