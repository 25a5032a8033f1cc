"""Writes the rows of a camera: one JSON object per picture, one file per day.

Each row is written with one system call, so that a kill damages at most one row. The next run
removes a damaged row, or adds the line end if only that is missing.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from detector.core.errors import OutputError
from detector.core.errors.text import counted
from detector.core.errors.writing import utf8
from detector.core.sinks.jsonl import encode_row, row
from detector.core.types import Detections, Frame
from detector.live.base import format_day, format_utc
from detector.live.camera_folder import (
    append_whole,
    find_last_line_end,
    is_same_file,
    list_names_of_day,
    lock_folder,
    open_file,
)
from detector.live.sources.base import Camera

NS = 1_000_000_000
CHECK_NS = NS  # between checks that the file still exists, and between retries (full disk)


class DayRows:
    """Appends lines to ``folder/NAME/STEM-YYYY-MM-DD.SUFFIX``, which begins with ``head``. Counts
    lost rows, and reports them with ``notice``. Not thread-safe."""

    stem: str
    suffix: ClassVar[str]
    head: bytes = b""

    def __init__(
        self,
        folder: Path,
        camera: Camera,
        notice: Callable[[str], None],
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._folder, self._camera = folder / camera.name, camera
        self._notice, self._clock = notice, clock
        self._written = self._bytes = self._lost = self._lost_now = 0
        self._fd, self._day = -1, ""
        self._path = self._folder
        self._next_check_ns = 0
        self.paused, self._lock = False, -1
        self._take_folder()

    def _take_folder(self) -> None:
        """Do nothing; ``CameraRows`` locks the camera's folder, for all its outputs."""

    def _append(self, line: bytes, day: str, now: int) -> None:
        if self.paused and now < self._next_check_ns:
            self._lose()
            return
        try:
            if now >= self._next_check_ns:
                self._next_check_ns = now + CHECK_NS
                if self._fd >= 0 and not is_same_file(self._path, self._fd):
                    self._close_file()
            if day != self._day or self._fd < 0:
                self._open(day)
            append_whole(self._fd, line)
        except OSError as error:
            self._pause(error)
            return
        self._written += 1
        self._bytes += len(line)
        if self.paused:
            self.paused = False
            self._notice(
                f"{self._camera.name}: rows resume in {self._path}; {self._lost_now} were lost"
            )
            self._lost_now = 0

    def _open(self, day: str) -> None:
        self._close_file()
        for name in list_names_of_day(self.stem, day, self.suffix):
            path = self._folder / name
            fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK, parent=self._lock)
            try:
                self._repair(fd, path)
                if self.head and not os.fstat(fd).st_size:
                    os.write(fd, self.head)
                fits = os.pread(fd, len(self.head), 0) == self.head
            except BaseException:
                os.close(fd)
                raise
            if fits:
                self._fd, self._day, self._path = fd, day, path
                return
            os.close(fd)
            self._notice(
                f"{path}: has the columns of another version of detect-video; rows go to a new "
                "file next to it"
            )
        raise OSError(f"{path}: all files of that day have columns of other versions; remove one")

    def _is_complete(self, rest: bytes) -> bool:
        """Return whether a last line is complete except for its line end."""
        return False

    def _repair(self, fd: int, path: Path) -> None:
        size = os.fstat(fd).st_size
        end = find_last_line_end(fd, size)
        if end == size:
            return
        rest = os.pread(fd, size - end, end)
        if self._is_complete(rest):
            os.write(fd, b"\n")
            return
        os.ftruncate(fd, end)
        self._notice(f"{path}: a kill cut the last row short; {counted(len(rest), 'byte')} removed")

    def _pause(self, error: OSError) -> None:
        self._close_file()
        if not self.paused:
            self.paused = True
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "disk full" if full else (error.strerror or str(error))
            self._notice(
                f"{self._camera.name}: {what}: writing rows to {self._folder} is paused, "
                "detection continues"
            )
        self._lose()

    def _lose(self) -> None:
        self._lost += 1
        self._lost_now += 1

    def _close_file(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd, self._day = -1, ""

    def counts(self) -> dict[str, int]:
        return {"written": self._written, "lost": self._lost, "bytes": self._bytes}

    def close(self) -> None:
        self._close_file()


class CameraRows(DayRows):
    stem, suffix = "detections", ".jsonl"

    def _take_folder(self) -> None:
        self.created_folder = not self._folder.exists()
        self._lock = lock_folder(self._folder)
        today = self._folder / f"{self.stem}-{format_day(time.time())}{self.suffix}"
        if today.is_symlink():
            self.close()
            raise OutputError(f"{today}: is a link, but rows need a file; remove it")

    def _open(self, day: str) -> None:
        if self._lock < 0 or not is_same_file(self._folder, self._lock):  # it was moved
            self.close()
            try:
                self._lock = lock_folder(self._folder)
            except OutputError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
        super()._open(day)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write a picture's row. ``age_ms``: time since its arrival."""
        arrival = frame.arrival
        if arrival is None:
            return
        now = self._clock()
        base = frame.source.time_base if frame.source is not None else None
        values = row(
            self._camera.address.shown,
            frame,
            f"{base.numerator}/{base.denominator}" if base is not None else None,
            detections,
            camera=self._camera.name,
            epoch=arrival.epoch,
            time_utc=format_utc(arrival.utc_s),
            age_ms=round((now - arrival.arrived_ns) / 1e6, 3),
        )
        self._append(utf8(encode_row(values)), format_day(arrival.utc_s), now)

    def _is_complete(self, rest: bytes) -> bool:
        try:
            return isinstance(json.loads(rest), dict)
        except ValueError:
            return False

    def close(self) -> None:
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
