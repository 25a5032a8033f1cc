"""How long recordings are kept: so many days, so many GB of all cameras of a run together."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from detector.live.recording.names import FOLDER, Recorded, beside, is_regular, list_recordings
from detector.live.sources.base import NAME

DAY_S = 86_400
GB = 10**9
PAUSE_S = 30.0  # between two looks at the folders
# After a clock jump of more than this, remove none by age until it has run on for as long.
JUMP_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    recorded: Recorded
    bytes: int  # with its side-car
    changed_s: float


class Retention:
    """Remove the oldest finished recordings of a run's folder and their side-cars, regular files
    only. Safe to use from any thread."""

    def __init__(
        self,
        folder: Path,
        keep_days: float | None,
        keep_gb: float | None,
        *,
        utc: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._days, self._gb = folder, keep_days, keep_gb
        self._utc, self._clock = utc, clock
        self._lock = threading.Lock()
        self._next_s = clock()
        self._offset_s = utc() - clock()
        self._jumped_s: float | None = None  # clock() of the last jump
        # Which look saw a recording first: after a clock was set back, names do not tell.
        self._first_seen: dict[tuple[Path, float, int], int] = {}
        self._looks = 0
        self.removed = 0
        self.removed_bytes = 0

    def look(self) -> None:
        """Removes what is too much, at most every 30 s; returns at once in between."""
        if self._days is None and self._gb is None:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            now = self._clock()
            if now < self._next_s:
                return
            self._next_s = now + PAUSE_S
            self._sweep()
        finally:
            self._lock.release()

    def sweep(self) -> None:
        """Removes what is too much now."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        kept = self._list()
        if self._days is not None and self._clock_is_steady():
            before_s = self._utc() - self._days * DAY_S
            # A name may hold a wrong clock's time, so the file's own time has a say too.
            young = []
            for one in kept:
                if one.recorded.start_s < before_s and one.changed_s < before_s:
                    self._remove(one)
                else:
                    young.append(one)
            kept = young
        if self._gb is not None:
            total = sum(one.bytes for one in kept)
            for one in kept:
                if total <= self._gb * GB:
                    break
                if not one.recorded.partial:
                    self._remove(one)
                    total -= one.bytes

    def _clock_is_steady(self) -> bool:
        now, offset = self._clock(), self._utc() - self._clock()
        if abs(offset - self._offset_s) > JUMP_S:
            self._jumped_s = now
        self._offset_s = offset
        if self._jumped_s is not None and now - self._jumped_s < JUMP_S:
            return False
        self._jumped_s = None
        return True

    def _list(self) -> list[_Kept]:
        """All recordings of the folder, oldest first; those in the making count, and stay."""
        found = []
        with suppress(OSError), os.scandir(self._folder) as cameras:
            for camera in cameras:
                if re.fullmatch(NAME, camera.name) and camera.is_dir(follow_symlinks=False):
                    video = Path(camera.path) / FOLDER
                    if not video.is_symlink():
                        found += [*map(_about, list_recordings(video))]
        known = {_key(one.recorded): one for one in found if one is not None}
        self._looks += 1
        self._first_seen = {key: self._first_seen.get(key, self._looks) for key in known}
        return [
            known[key] for key in sorted(known, key=lambda key: (self._first_seen[key], key[1:]))
        ]

    def _remove(self, one: _Kept) -> None:
        if one.recorded.partial:
            return
        with suppress(OSError):
            car = beside(one.recorded.path)
            if is_regular(car):  # first: it is found by its recording
                car.unlink()
            one.recorded.path.unlink()
            self.removed += 1
            self.removed_bytes += one.bytes


def _key(recorded: Recorded) -> tuple[Path, float, int]:
    """The same for a file in the making and once it is finished."""
    return recorded.path.parent, recorded.start_s, recorded.number


def _about(recorded: Recorded) -> _Kept | None:
    try:
        about = recorded.path.stat()
    except OSError:
        return None
    size, car = about.st_size, beside(recorded.path)
    if is_regular(car):
        with suppress(OSError):
            size += car.stat().st_size
    return _Kept(recorded, size, about.st_mtime)
