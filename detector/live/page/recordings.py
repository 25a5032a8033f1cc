"""Lists the downloadable files of a live run: recordings, their boxes, and snapshots.

This includes the recording that is being written, up to its last whole fragment. We find a file by
listing ``FOLDER/CAMERA/KIND/``, and never build a path from a request, so that only existing names
are opened. Links are skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from detector.live.base import format_utc
from detector.live.page.documents import RecordingDocument, RecordingsDocument
from detector.live.recording.names import find_whole_length, read_name
from detector.live.sources.base import NAME

CAMERA = re.compile(NAME)
KINDS = ("video", "snapshots")
# Start time in UTC, then a part that distinguishes files of the same second.
FILE = re.compile(r"(\d{8}T\d{6})(?:[.,]?\d{1,6})?Z?[A-Za-z0-9_.-]{0,60}\.(mp4|mkv|jpg|ass)")
PARTIAL = ".partial."  # being written
PLAYABLE_PARTIAL = ".partial.mp4"  # being written, but playable
CHUNK = 1 << 18  # bytes per read
BOXES = ".ass"  # suffix of a file with boxes, whose stem is that of its recording
MEDIA = {
    "mp4": "video/mp4",
    "mkv": "video/x-matroska",
    "jpg": "image/jpeg",
    "ass": "text/x-ssa; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class RecordedFile:
    path: Path
    camera: str
    kind: str
    size: int

    @property
    def media_type(self) -> str:
        return MEDIA[self.path.suffix.removeprefix(".")]

    @property
    def finished(self) -> bool:
        return PARTIAL not in self.path.name

    def read_so_far(self) -> tuple[int, Iterator[bytes]]:
        """Return size and content of the part that can be played. Raises OSError."""
        file = self.path.open("rb")
        size = 0
        try:
            size = find_whole_length(file)
            file.seek(0)
        finally:
            if not size:
                file.close()
        return size, _read(file, size)

    def document(self, *, has_boxes: bool) -> RecordingDocument:
        address = f"/api/recordings/{self.camera}/{self.kind}/"
        return RecordingDocument(
            camera=self.camera,
            name=self.path.name,
            kind=self.kind,
            bytes=self.size,
            start_utc=format_utc(_start_s(self.path.name) or 0.0),
            url=address + quote(self.path.name),
            boxes_url=address + quote(self.path.stem + BOXES) if has_boxes else None,
            finished=self.finished,
        )


def list_recordings(
    folder: Path | None, camera: str | None = None, kind: str | None = None, limit: int = 100
) -> RecordingsDocument:
    """Return the newest ``limit`` files. ``camera`` and ``kind``, if given, restrict them."""

    entries = [*_list_entries(folder, camera, kind)]
    boxes = {entry.path for _, _, entry in entries if entry.name.endswith(BOXES)}
    newest = sorted(
        (one for one in entries if one[2].path not in boxes),
        key=lambda one: _sort_key(one[2].name),
        reverse=True,
    )
    documents: list[RecordingDocument] = []
    for one_camera, one_kind, entry in newest:
        if len(documents) == limit:
            return RecordingsDocument(1, documents, True)
        if (one := _to_recorded(one_camera, one_kind, entry)) is not None:
            documents.append(one.document(has_boxes=str(one.path.with_suffix(BOXES)) in boxes))
    return RecordingsDocument(1, documents, False)


def find_recording(folder: Path | None, camera: str, kind: str, name: str) -> RecordedFile | None:
    """Return the requested file, even if it was finished and renamed meanwhile."""
    names = (name, name.replace(PARTIAL, "."))
    entries = {
        entry.name: (one_camera, one_kind, entry)
        for one_camera, one_kind, entry in _list_entries(folder, camera, kind)
        if entry.name in names
    }
    return next((_to_recorded(*entries[one]) for one in names if one in entries), None)


def _list_entries(
    folder: Path | None, camera: str | None, kind: str | None
) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """Yield camera, kind and directory entry of all files named like recordings."""
    if folder is None:
        return
    for camera_folder in _folders(folder):
        if not CAMERA.fullmatch(camera_folder.name) or camera not in (None, camera_folder.name):
            continue
        for kind_folder in _folders(Path(camera_folder.path)):
            if kind_folder.name not in KINDS or kind not in (None, kind_folder.name):
                continue
            for entry in _entries(Path(kind_folder.path)):
                ready = PARTIAL not in entry.name or entry.name.endswith(PLAYABLE_PARTIAL)
                if FILE.fullmatch(entry.name) and ready:
                    yield camera_folder.name, kind_folder.name, entry


def _read(file: BinaryIO, size: int) -> Iterator[bytes]:
    with file:
        while size > 0 and (data := file.read(min(size, CHUNK))):
            size -= len(data)
            yield data


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # it does not exist
        return []


def _to_recorded(camera: str, kind: str, entry: os.DirEntry[str]) -> RecordedFile | None:
    try:
        if not entry.is_file(follow_symlinks=False) or _start_s(entry.name) is None:
            return None
        size = entry.stat(follow_symlinks=False).st_size
    except OSError:  # retention has just removed it
        return None
    return RecordedFile(Path(entry.path), camera, kind, size)


def _sort_key(name: str) -> tuple[str, int, str]:
    recorded = read_name(Path(name))
    return name[:15], 1 if recorded is None else recorded.number, name


def _start_s(name: str) -> float | None:
    try:
        return datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
