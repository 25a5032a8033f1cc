"""Writes files of N minutes that begin at key frames. Pauses while the disk is full. The monotonic
clock measures the minutes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import av

from detector.live.recording.mp4 import Mp4
from detector.live.recording.names import make_time_name
from detector.live.recording.samples import NS, VIDEO, Sample, Tracks
from detector.live.recording.side_cars import SideCars

RETRY_NS = 5 * NS  # between attempts to resume after the disk was full
TAIL_NS = NS * 3 // 10  # how long a file waits for late sound after the next file began
# Space reserved for rows and events: 64 MB, or 1% of a small disk.
RESERVE_BYTES = 64_000_000
RESERVE_SHARE = 0.01

Notice = Callable[[str], None]


class Segments:
    """Writes samples to the files of one folder, from one thread. Never raises a disk error."""

    def __init__(
        self,
        folder: Path,
        camera: str,
        minutes: float,
        notice: Notice,
        side_cars: SideCars | None = None,
    ) -> None:
        self._side_cars = side_cars
        self._folder, self._camera = folder, camera
        self._longest_ns = round(minutes * 60 * NS)
        self._notice = notice
        self._tracks: Tracks | None = None
        self._file: Mp4 | None = None
        self._previous: Mp4 | None = None  # the previous file, until its sound is complete
        self._began_ns = 0  # arrival of the current file's first sample
        self.paused_ns: int | None = None  # arrival of the sample that could not be written
        self._retry_ns = 0
        self._refused_codec = False
        self.files = self.bytes = 0  # finished files, and their size
        self.written = self.lost = 0  # video samples: in files, and lost to a full disk
        self.refused = 0  # samples that the muxer rejected

    @property
    def open(self) -> bool:
        return self._file is not None

    def begin(self, tracks: Tracks) -> None:
        """Start a new file of ``tracks`` at the next key frame."""
        self.finish()
        self._tracks = tracks
        self._refused_codec = False

    def wants_key(self, arrived_ns: int) -> bool:
        """Return whether a new file is due at ``arrived_ns``. It must begin with a key frame."""
        if self.paused_ns is not None and self._file is None:
            return arrived_ns >= self._retry_ns
        return self._file is None or arrived_ns - self._began_ns >= self._longest_ns

    def write(self, sample: Sample) -> None:
        if sample.track == VIDEO:
            self._write_video(sample)
        elif self._file is not None and self._file.start_ns is not None:
            early = sample.dts_ns < self._file.start_ns
            if early and self._previous is not None:
                self._put(self._previous, sample)
            elif not early:
                self._put(self._file, sample)

    def _write_video(self, sample: Sample) -> None:
        if self._previous is not None and sample.arrived_ns - self._began_ns > TAIL_NS:
            self._finish_previous()
        if sample.key and self.wants_key(sample.arrived_ns):
            self._begin_file(sample)
        if self._file is not None:
            self._put(self._file, sample)
        elif self.paused_ns is not None:
            self.lost += 1

    def _begin_file(self, sample: Sample) -> None:
        if self._tracks is None or self._refused_codec:
            return
        if not self._has_room():
            self._pause(sample.arrived_ns, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            return
        self._finish_previous()
        self._previous, self._file = self._file, None
        if len(self._tracks) == 1:
            self._finish_previous()  # no sound to wait for
        longest_s = self._longest_ns / NS
        try:
            name = make_time_name(sample.utc_s)
            self._file = Mp4(self._folder, name, self._tracks, longest_s=longest_s)
        except (ValueError, av.FFmpegError) as error:
            self._refused_codec = True
            self._notice(f"{self._camera}: cannot be recorded: {error}")
            return
        self._began_ns = sample.arrived_ns
        if self._side_cars is not None:
            self._side_cars.begin(self._file, self._tracks[VIDEO].size)

    def _put(self, file: Mp4, sample: Sample) -> None:
        try:
            shown_ns = file.write(sample)
        except OSError as error:
            self._pause(sample.arrived_ns, error)
            return
        self.written += sample.track == VIDEO
        if self._side_cars is not None and sample.track == VIDEO and shown_ns is not None:
            self._side_cars.add_picture(file, sample, shown_ns)
        if self.paused_ns is not None and file.path is not None and file is self._file:
            out_s = (sample.arrived_ns - self.paused_ns) / NS
            self.paused_ns = None
            self._notice(f"{self._camera}: recording resumed after a pause of {out_s:.0f} s")

    def _has_room(self) -> bool:
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return True  # writing will report the error
        reserve = min(RESERVE_BYTES, RESERVE_SHARE * disk.f_blocks * disk.f_frsize)
        # To resume, require twice the space, so that recording does not pause again immediately.
        factor = 2 if self.paused_ns is not None else 1
        return disk.f_bavail * disk.f_frsize >= reserve * factor

    def _pause(self, now_ns: int, error: OSError) -> None:
        """Finish the files, which keep their complete fragments. Print one notice per pause."""
        for file in (self._previous, self._file):
            if file is not None:
                self.lost += file.waiting
                self._count(file, file.give_up())
        self._previous = self._file = None
        self._retry_ns = now_ns + RETRY_NS
        if self.paused_ns is None:
            self.paused_ns = now_ns
            self._notice(f"{self._camera}: {_pause_message(error, self._folder)}")

    def check_disk(self, now_ns: int) -> None:
        if self._file is not None and not self._has_room():
            self._pause(now_ns, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def finish(self) -> None:
        self._finish_previous()
        file, self._file = self._file, None
        self._finish_file(file)

    def _finish_previous(self) -> None:
        file, self._previous = self._previous, None
        self._finish_file(file)

    def _finish_file(self, file: Mp4 | None) -> None:
        if file is None:
            return
        path = None
        try:
            path = file.finish()
        except OSError as error:
            path = file.path
            self._notice(f"{self._camera}: the end of a recording is lost: {error.strerror}")
        self._count(file, path)

    def _count(self, file: Mp4, path: Path | None) -> None:
        self.refused += file.refused
        if self._side_cars is not None:
            self._side_cars.end(file)
        if path is not None:
            self.files += 1
            self.bytes += file.bytes


def _pause_message(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full: recording in {folder} is paused until there is space, detection "
            "continues; free some space, or limit recordings with --keep-gb"
        )
    return (
        f"recording in {folder} is paused, detection continues: {error.strerror or error}; "
        f"retrying every {RETRY_NS // NS} s"
    )
