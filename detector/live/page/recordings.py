"""Which files of a live run may be downloaded: recordings, boxes beside them, snapshots.

There are no others. The recording in the making is one of them, up to its last whole fragment. A
file is found by walking ``FOLDER/CAMERA/KIND/`` and never by joining what a request says: only a
name that was found is opened. Links are left out, wherever they point.
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

from detector.live.base import utc_text
from detector.live.page.documents import RecordingDocument, RecordingsDocument
from detector.live.recording.names import read_name, whole_length
from detector.live.sources.base import NAME

CAMERA = re.compile(NAME)
KINDS = ("video", "snapshots")
# The time in UTC that it begins, then what tells two of one second apart.
FILE = re.compile(r"(\d{8}T\d{6})(?:[.,]?\d{1,6})?Z?[A-Za-z0-9_.-]{0,60}\.(mp4|mkv|jpg|ass)")
PARTIAL = ".partial."  # it is being written
IN_THE_MAKING = ".partial.mp4"  # which plays
CHUNK = 1 << 18  # bytes that are read at once
BOXES = ".ass"  # beside a recording of the same name; it is none by itself
MEDIA = {
    "mp4": "video/mp4",
    "mkv": "video/x-matroska",
    "jpg": "image/jpeg",
    "ass": "text/x-ssa; charset=utf-8",
}
MOST = 500  # files of one answer


@dataclass(frozen=True, slots=True)
class Recording:
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
        """The bytes of an unfinished recording that play now, though it grows. Raises OSError."""
        file = self.path.open("rb")
        size = 0
        try:
            size = whole_length(file)
            file.seek(0)
        finally:
            if not size:
                file.close()
        return size, _read(file, size)

    @property
    def start_s(self) -> float:
        """Unix time that the file's name tells."""
        return _start_s(self.path.name) or 0.0

    def document(self, *, has_boxes: bool) -> RecordingDocument:
        place = f"/api/recordings/{self.camera}/{self.kind}/"
        return RecordingDocument(
            camera=self.camera,
            name=self.path.name,
            kind=self.kind,
            bytes=self.size,
            start_utc=utc_text(self.start_s),
            url=place + quote(self.path.name),
            boxes_url=place + quote(self.path.stem + BOXES) if has_boxes else None,
            finished=self.finished,
        )


def list_recordings(
    folder: Path | None, camera: str | None = None, kind: str | None = None, limit: int = 100
) -> RecordingsDocument:
    """The newest ``limit`` files: of all cameras or one, of all kinds or one."""
    limit = min(max(limit, 1), MOST)
    entries = [*_entries_of(folder, camera, kind)]
    boxes = {entry.path for _, _, entry in entries if entry.name.endswith(BOXES)}
    found = sorted(
        (one for one in entries if one[2].path not in boxes),
        key=lambda one: _order(one[2].name),
        reverse=True,
    )
    documents: list[RecordingDocument] = []
    for one_camera, one_kind, entry in found:
        if len(documents) == limit:
            return RecordingsDocument(1, documents, True)
        if (one := _recording(one_camera, one_kind, entry)) is not None:
            beside = str(one.path.with_suffix(BOXES))
            documents.append(one.document(has_boxes=beside in boxes))
    return RecordingsDocument(1, documents, False)


def find_recording(folder: Path | None, camera: str, kind: str, name: str) -> Recording | None:
    """The file that a request names, if listed; one listed as unfinished may be finished now."""
    names = (name, name.replace(PARTIAL, "."))
    found = {
        entry.name: (one_camera, one_kind, entry)
        for one_camera, one_kind, entry in _entries_of(folder, camera, kind)
        if entry.name in names
    }
    return next((_recording(*found[one]) for one in names if one in found), None)


def _entries_of(
    folder: Path | None, camera: str | None, kind: str | None
) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """Camera, kind and entry of whatever is named like a recording."""
    if folder is None:
        return
    for of_camera in _folders(folder):
        if not CAMERA.fullmatch(of_camera.name) or camera not in (None, of_camera.name):
            continue
        for of_kind in _folders(Path(of_camera.path)):
            if of_kind.name not in KINDS or kind not in (None, of_kind.name):
                continue
            for entry in _entries(Path(of_kind.path)):
                ready = PARTIAL not in entry.name or entry.name.endswith(IN_THE_MAKING)
                if FILE.fullmatch(entry.name) and ready:
                    yield of_camera.name, of_kind.name, entry


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
    except OSError:  # not there yet, or removed meanwhile
        return []


def _recording(camera: str, kind: str, entry: os.DirEntry[str]) -> Recording | None:
    try:
        if not entry.is_file(follow_symlinks=False) or _start_s(entry.name) is None:
            return None
        size = entry.stat(follow_symlinks=False).st_size
    except OSError:  # retention was quicker
        return None
    return Recording(Path(entry.path), camera, kind, size)


def _order(name: str) -> tuple[str, int, str]:
    """Of the files that began in one second, ``-2`` is the second one."""
    recorded = read_name(Path(name))
    return name[:15], 1 if recorded is None else recorded.number, name


def _start_s(name: str) -> float | None:
    try:
        return datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
