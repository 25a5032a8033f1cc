"""Deletes old recordings: by age, and by total size over all cameras of a run.

The age of recordings made during the run is measured by a monotonic clock. The age of files of
earlier runs comes from their names and file times. If even the newest of these is too old, the
machine's clock may be wrong. Then all files of earlier runs count as new.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from detector.live.recording.names import FOLDER, Recorded, is_regular, list_recordings, side_car
from detector.live.sources.base import NAME

DAY_S = 86_400
GB = 10**9
PAUSE_S = 30.0  # between sweeps
# If the clock jumps by more than this, somebody set the clock. After this long without a jump,
# the clock is trusted again.
JUMP_S = 3600.0
FIRST_S = 1_577_836_800.0  # the year 2020; a clock with an earlier time is wrong

Key = tuple[Path, float, int]


def uptime_s() -> float:
    """Return seconds on a monotonic clock that also runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class _StoredFile:
    recorded: Recorded
    bytes: int  # bytes of file and side-car
    changed_s: float

    @property
    def key(self) -> Key:
        return self.recorded.path.parent, self.recorded.start_s, self.recorded.number

    def age_s(self, utc_s: float) -> float | None:
        """Return the age. Of the time in the file's name and the time of the last change, the later
        plausible one counts. Return None if neither is plausible."""
        times = (self.recorded.start_s, self.changed_s)
        possible = [one for one in times if FIRST_S <= one <= utc_s + JUMP_S]
        return max(0.0, utc_s - max(possible)) if possible else None


class Retention:
    """Deletes the oldest finished recordings and side-cars. ``sweep_if_due`` is thread-safe."""

    def __init__(
        self,
        folder: Path,
        keep_days: float | None,
        keep_gb: float | None,
        *,
        utc: Callable[[], float] = time.time,
        clock: Callable[[], float] = uptime_s,
    ) -> None:
        self._folder, self._gb = folder, keep_gb
        self._longest_s = None if keep_days is None else keep_days * DAY_S
        self._utc, self._clock = utc, clock
        self._lock = threading.Lock()
        self._next_s = self._set_s = clock()
        self._offset_s = utc() - clock()
        self._ended: dict[Key, float] = {}  # when each recording was finished, by ``clock``
        # Files of earlier runs whose age is unknown; None before the first sweep.
        self._undated: set[Key] | None = None

    def sweep_if_due(self) -> None:
        """Sweep, but at most every 30 s, and not while another thread sweeps."""
        if self._longest_s is None and self._gb is None:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            now = self._clock()
            if now < self._next_s:
                return
            self._next_s = now + PAUSE_S
            self.sweep()
        finally:
            self._lock.release()

    def sweep(self) -> None:
        """Delete recordings over the limits, oldest first."""
        stored, now, utc_s = self._list(), self._clock(), self._utc()
        self._date_recordings(stored, now, utc_s)
        self._fix_file_times(stored, now, utc_s)
        total = sum(one.bytes for one in stored.values())
        for key, ended_s in sorted(self._ended.items(), key=lambda item: (item[1], item[0][1:])):
            too_old = self._longest_s is not None and now - ended_s > self._longest_s
            too_much = self._gb is not None and total > self._gb * GB
            if (too_old or too_much) and self._remove(stored[key]):
                total -= stored[key].bytes

    def _date_recordings(self, stored: Mapping[Key, _StoredFile], now: float, utc_s: float) -> None:
        """Set the end time of each recording. Files of earlier runs count as new until the clock
        gives one of them a plausible age."""
        if self._undated is None:
            self._undated = {key for key, one in stored.items() if not one.recorded.partial}
        self._undated &= stored.keys()
        self._ended = {
            key: now if one.recorded.partial else self._ended.get(key, now)
            for key, one in stored.items()
        }
        ages = {key: stored[key].age_s(utc_s) for key in self._undated}
        dated = {key: age_s for key, age_s in ages.items() if age_s is not None}
        if dated and (self._longest_s is None or min(dated.values()) <= self._longest_s):
            self._ended |= {key: now - age_s for key, age_s in dated.items()}
            self._undated -= dated.keys()

    def _fix_file_times(self, stored: Mapping[Key, _StoredFile], now: float, utc_s: float) -> None:
        """Correct file times that would give the next run a wrong age."""
        if abs(utc_s - now - self._offset_s) > JUMP_S:
            self._set_s = now
        self._offset_s = utc_s - now
        if now - self._set_s < JUMP_S or utc_s < FIRST_S:
            return
        longest_s = math.inf if self._longest_s is None else self._longest_s
        for key, one in stored.items():
            dated_s, age_s = one.age_s(utc_s), now - self._ended[key]
            if (dated_s is None or dated_s > longest_s >= age_s) and not one.recorded.partial:
                with suppress(OSError):
                    os.utime(one.recorded.path, (utc_s - age_s,) * 2)

    def _list(self) -> dict[Key, _StoredFile]:
        files = []
        with suppress(OSError), os.scandir(self._folder) as cameras:
            for camera in cameras:
                if re.fullmatch(NAME, camera.name) and camera.is_dir(follow_symlinks=False):
                    video = Path(camera.path) / FOLDER
                    if not video.is_symlink():
                        files += [*map(_stat, list_recordings(video))]
        return {one.key: one for one in files if one is not None}

    def _remove(self, one: _StoredFile) -> bool:
        if one.recorded.partial:
            return False
        with suppress(OSError):
            car = side_car(one.recorded.path)
            if is_regular(car):  # first, because a side-car is found by its recording
                car.unlink()
            one.recorded.path.unlink(missing_ok=True)
            del self._ended[one.key]  # the name may be reused if the clock was set back
            return True
        return False


def _stat(recorded: Recorded) -> _StoredFile | None:
    try:
        status = recorded.path.stat()
    except OSError:
        return None
    size, car = status.st_size, side_car(recorded.path)
    if is_regular(car):
        with suppress(OSError):
            size += car.stat().st_size
    return _StoredFile(recorded, size, status.st_mtime)
