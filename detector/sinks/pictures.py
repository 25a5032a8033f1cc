"""Annotated pictures in a folder, under the names of their sources.

Three cases at ``close``, so that nothing is ever deleted that this sink did not write:
- no such folder yet, or an empty one: ``NAME.partial`` becomes it in one rename;
- a folder that holds only what an earlier run listed in its ``.detect-video-pictures``: it steps aside, the new one
  takes its name, the old one is removed, listed file by listed file;
- any other folder (somebody's own files are in it, it is the current one, or a mount point): each picture moves in
  by itself, replacing only its namesake.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import cv2

from detector.errors import OutputError
from detector.sinks.base import Partial, Sink, fsync_folder, output_errors
from detector.types import Detections, Frame, Image, SourceInfo

MANIFEST = ".detect-video-pictures"  # the names that we wrote, one a line
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".ppm", ".pnm")
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_WEBP_QUALITY, 95]


class PicturesSink(Sink):
    name = "pictures"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._written: list[str] = []
        self._taken: set[str] = set()

    def open(self, info: SourceInfo) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"cannot write pictures into {self.path}: it is not a folder; give a folder with -o")
        partial = Partial(self.path, info.path, folder=True)
        try:
            with output_errors(self.path):
                _clear_stale(partial.path)
                self._manifest = os.open(partial.path / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except BaseException:
            partial.release()
            raise
        self._partial = partial

    def write(self, frame: Frame, detections: Detections) -> None:
        assert self._partial is not None, "write before open"
        if frame.path is not None and Path(os.path.realpath(frame.path)).parent == self._partial.target:
            raise OutputError(f"cannot write pictures into {self.path}: {frame.path} is there; choose another -o")
        wanted = Path(frame.path).name if frame.path is not None else f"frame_{frame.index:06d}.jpg"
        suffix, data = _encode(frame.image, Path(wanted).suffix)
        name = self._free_name(Path(wanted).stem, suffix)
        with output_errors(self.path):
            os.write(self._manifest, os.fsencode(name) + b"\n")  # first: what exists is always listed
            with open(self._partial.path / name, "wb") as file:
                file.write(data)
        self._written.append(name)

    def _free_name(self, stem: str, suffix: str) -> str:
        """Two folders may hold pictures of one name: the second becomes ``NAME-2``."""
        name, n = stem + suffix, 1
        while name in self._taken:
            n += 1
            name = f"{stem}-{n}{suffix}"
        self._taken.add(name)
        return name

    def close(self) -> Path:
        if self._partial is not None:
            partial = self._partial
            with output_errors(self.path):
                for name in [*self._written, MANIFEST]:
                    _fsync(partial.path / name)
                if not _swap(partial):
                    self.notes.append(
                        f"{self.path} was there and could not be replaced as a whole: pictures went in one by one"
                    )
                    _move_into(partial.path, partial.target, self._written)
                fsync_folder(partial.target.parent)
            self._forget()
        return self.path

    def abort(self) -> Path | None:
        partial = self._partial
        if partial is None:
            return None
        self._forget()
        with suppress(OSError):
            if self._written:
                return partial.path
            _unlink_listed(partial.path)
            partial.path.rmdir()
        return None

    def _forget(self) -> None:
        assert self._partial is not None
        os.close(self._manifest)
        self._partial.release()
        self._partial = None


def _encode(image: Image, suffix: str) -> tuple[str, bytes]:
    """The file's content in the source's own format where OpenCV writes it, else as PNG; suffix and bytes."""
    for choice in (suffix, ".png"):
        if choice.lower() in SUFFIXES:
            with suppress(cv2.error):  # e.g. WebP ends at 16383 pixels
                done, data = cv2.imencode(choice, image, QUALITY if choice.lower() in SUFFIXES[:5] else [])
                if done:
                    return choice, data.tobytes()
    raise OutputError(f"OpenCV cannot encode a picture of {image.shape[1]}x{image.shape[0]} pixels; use --save video")


def _listed(folder: Path) -> set[str]:
    """What the manifest lists; empty without one."""
    try:
        lines = (folder / MANIFEST).read_bytes().split(b"\n")
    except OSError:
        return set()
    return {os.fsdecode(line) for line in lines if line and b"/" not in line} | {MANIFEST}


def _only_ours(folder: Path) -> bool:
    return set(os.listdir(folder)) <= _listed(folder)


def _unlink_listed(folder: Path) -> None:
    """The list goes last: what is still there is still listed."""
    for name in [*sorted(_listed(folder) - {MANIFEST}), MANIFEST]:
        (folder / name).unlink(missing_ok=True)


def _clear_stale(partial: Path) -> None:
    """Empties what a killed run left under the temporary name."""
    if not _only_ours(partial):
        raise OutputError(f"{partial} holds files that detect-video did not write; move them, or choose another -o")
    _unlink_listed(partial)


def _swap(partial: Partial) -> bool:
    """The whole new folder takes the final name, if nobody else's files are under it. False: they are."""
    target = partial.target
    if not target.exists():
        os.rename(partial.path, target)
        return True
    if not _only_ours(target) or target.samefile(os.curdir):  # nobody likes to lose the folder he stands in
        return False
    old = target.with_name(f"{target.name}.old")
    try:
        os.rename(target, old)  # refused where something is in the way, or the folder is a mount point
    except OSError:
        return False
    try:
        os.rename(partial.path, target)
    except OSError:
        os.rename(old, target)
        raise
    _unlink_listed(old)
    old.rmdir()  # refuses, should anything else have come in
    return True


def _move_into(partial: Path, target: Path, names: list[str]) -> None:
    for name in names:
        os.replace(partial / name, target / name)
    fsync_folder(target)
    (partial / MANIFEST).unlink()
    partial.rmdir()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
