"""Names of recordings, and the recovery of files from killed runs.

``20260131T235959Z.mp4`` is a finished file, named after the UTC arrival time of its first picture.
While it is written, its name is ``20260131T235959Z.partial.mp4``. Another file of the same second
gets ``-2``. A side-car, ``.ass``, holds the boxes of the recording with the same name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from detector.core.errors.writing import take_lock
from detector.live.camera_folder import find_last_line_end

FOLDER = "video"  # below a camera's folder
RECORDINGS = 2  # depth below the output folder: CAMERA/video
_NAME = re.compile(r"(\d{8}T\d{6})Z(?:-([2-9]|[1-9]\d{1,5}))?(\.partial)?\.mp4")
SIDE_CAR = ".ass"
NEWEST = 8  # this many of the newest recordings may have unfinished side-cars after a kill
_FORMAT = "%Y%m%dT%H%M%S"
_LAST_S = 253402300799  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording. ``start_s``: Unix time of its first picture, from the file's name."""

    path: Path
    start_s: float
    number: int  # 1, 2, ... among the recordings that began in the same second
    partial: bool


def make_time_name(utc_s: float) -> str:
    """Return ``20260131T235959Z`` for a Unix time, clamped to the years 1970 to 9999."""
    moment = datetime.fromtimestamp(int(min(max(utc_s, 0.0), _LAST_S)), UTC)
    return moment.strftime(_FORMAT) + "Z"


def read_name(path: Path) -> Recorded | None:
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    try:
        start = datetime.strptime(match[1], _FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Recorded(path, start.timestamp(), int(match[2] or 1), match[3] is not None)


def side_car(recording: Path) -> Path:
    return recording.with_suffix(SIDE_CAR)


def is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def list_recordings(folder: Path) -> list[Recorded]:
    """Return the recordings in a folder that are regular files, oldest first."""
    recordings = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            recorded = read_name(Path(entry.path))
            if recorded is not None and entry.is_file(follow_symlinks=False):
                recordings.append(recorded)
    return sorted(recordings, key=lambda one: (one.start_s, one.number))


def free_name(folder: Path, wanted: str) -> str:
    """Return ``wanted``, or ``wanted-2`` and so on if a recording or side-car has that name."""
    number = 1
    while True:
        name = wanted if number == 1 else f"{wanted}-{number}"
        taken = (folder / f"{name}{end}" for end in (".mp4", ".partial.mp4", SIDE_CAR))
        if not any(map(os.path.lexists, taken)):
            return name
        number += 1


def finish_leftovers(folder: Path) -> list[str]:
    """Cut off incomplete fragments of killed runs, and give the files their final names. Return a
    line about each file. The caller holds the folder's lock. Raises OSError."""
    lines = []
    for recorded in list_recordings(folder):
        if not recorded.partial:
            continue
        with recorded.path.open("rb+") as file:
            if not take_lock(file.fileno()):
                continue  # another run is writing it, although we hold the folder's lock
            length = find_whole_length(file)
            if length:
                file.truncate(length)
        car = side_car(recorded.path)
        if not length:
            if is_regular(car):
                car.unlink()
            recorded.path.unlink()
            lines.append(f"{recorded.path}: removed; a killed run left it without a single frame")
            continue
        # ``free_name`` would reject this name, because the partial file has it.
        final = recorded.path.with_name(recorded.path.name.replace(".partial", ""))
        if os.path.lexists(final):
            final = folder / f"{free_name(folder, make_time_name(recorded.start_s))}.mp4"
        os.rename(recorded.path, final)
        if is_regular(car):
            os.rename(car, side_car(final))
        lines.append(f"{final}: kept from a killed run; the last half second may be missing")
    _finish_side_cars(folder)
    return lines


def _finish_side_cars(folder: Path) -> None:
    """Give the newest side-cars their final names, and remove incomplete last lines."""
    for recorded in list_recordings(folder)[-NEWEST:]:
        final = side_car(recorded.path)
        partial = final.with_suffix(f".partial{SIDE_CAR}")
        if is_regular(partial) and not os.path.lexists(final):
            os.rename(partial, final)
        if is_regular(final):
            with final.open("rb+") as file:
                size = file.seek(0, os.SEEK_END)
                if (end := find_last_line_end(file.fileno(), size)) < size:
                    file.truncate(end)


def find_whole_length(file: BinaryIO) -> int:
    """Return where the last complete fragment ends or, without fragments, where the index ends."""
    length = 0
    indexed = fragmented = filled = False
    for kind, end in _boxes(file):
        if kind == b"moof":
            fragmented = True
        elif kind == b"moov":
            indexed = True
            if filled and not fragmented:
                length = end
        elif kind == b"mdat":
            filled = True
            if indexed and fragmented:
                length = end
    return length


def _boxes(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield type and end position of each complete top-level box."""
    size = file.seek(0, os.SEEK_END)
    position = 0
    while position + 8 <= size:
        file.seek(position)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8 or position + length > size:
            return
        position += length
        yield head[4:8], position
