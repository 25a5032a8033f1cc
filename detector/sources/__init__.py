"""Where frames come from. Each file here without an underscore is one way to read; ``open`` picks
it.
"""

from __future__ import annotations

import builtins
import difflib
import glob
import os
import pkgutil
import re
import stat
from collections.abc import Iterable
from importlib import import_module

from detector.errors import SourceError, UsageError
from detector.sources.base import Source

__all__ = ["decoders", "names", "open", "pictures_of"]

VIDEOS = (
    ".avi",
    ".flv",
    ".m4v",
    ".mkv",
    ".mov",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".mts",
    ".ts",
    ".webm",
    ".wmv",
)  # for a hint
PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
LONGEST_NAME = 255  # bytes, on every file system of Linux
_LIVE = re.compile(r"\d+|/dev/video\d*|[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)


def names() -> list[str]:
    """The ways to read, sorted; each is a module of this folder."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name != "base" and not name.startswith("_"))


def decoders() -> list[str]:
    """What ``decoder`` may be, for a video."""
    return [name for name in names() if name != "images"]


def open(spec: str, *, decoder: str = "auto", stride: int = 1, frames: int | None = None) -> Source:
    """A video file, a picture, a folder of pictures or a (quoted) glob of pictures.

    Every ``stride``-th frame, from the first, and at most ``frames`` of them. The first frame is
    decoded here, so that nothing is written for a source that has none. Raises SourceError, one
    line, with the cure.
    """
    _check(decoder, stride, frames)
    pictures = pictures_of(spec)
    if pictures is not None:
        return _open("images", spec, pictures, stride, frames)
    return _open(decoder, spec, stride, frames)


def _open(name: str, *arguments: object) -> Source:
    source: Source = import_module(f"{__name__}.{name}").open(*arguments)
    return source


def _check(decoder: str, stride: int, frames: int | None) -> None:
    if decoder not in decoders():
        raise UsageError(f"decoder {decoder!r} is not known; choose one of {', '.join(decoders())}")
    if stride < 1:
        raise UsageError(f"stride is {stride}; it must be 1 (every frame) or more")
    if frames is not None and frames < 1:
        raise UsageError(f"frames is {frames}; it must be 1 or more")


def pictures_of(spec: str) -> list[str] | None:
    """The pictures that ``spec`` names, in order; None when it is a video file. Raises SourceError
    for neither.
    """
    if os.path.isdir(spec):
        return _only_pictures(spec, _listed(spec), "the folder")
    if os.path.exists(spec):
        _check_file(spec)
        return [spec] if spec.lower().endswith(PICTURES) else None
    if _LIVE.fullmatch(spec):
        raise SourceError(
            f"{spec}: cameras and network streams are not supported yet; save it to a file first"
        )
    if spec == "-":
        raise SourceError("-: standard input cannot be read; save it to a file first")
    if os.path.islink(spec):
        raise SourceError(
            f"{spec}: a link that leads nowhere (to {os.readlink(spec)}); name the file itself"
        )
    if glob.has_magic(spec):
        return _only_pictures(
            spec, filter(os.path.isfile, glob.iglob(spec, recursive=True)), "the pattern"
        )
    raise SourceError(f"{spec}: {_missing(spec)}")


def _listed(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed ({error.strerror}); check its permissions: ls -ld"
        ) from error
    return [
        path for path in paths if os.path.isfile(path)
    ]  # a link to itself is none, DirEntry.is_file would raise


def _only_pictures(spec: str, paths: Iterable[str], what: str) -> list[str]:
    found = list(paths)
    pictures = sorted((path for path in found if path.lower().endswith(PICTURES)), key=_natural)
    if pictures:
        return pictures
    videos = [path for path in found if path.lower().endswith(VIDEOS)]
    if videos:
        by_name = os.path.join(os.path.dirname(videos[0]), f"*{os.path.splitext(videos[0])[1]}")
        what = f"{what} has no picture but {len(videos)} videos"
        raise SourceError(f"{spec}: {what}; give them by name, unquoted: {by_name}")
    others = f"{len(found)} other files" if found else "nothing at all"
    raise SourceError(
        f"{spec}: {what} has no picture ({others}; wanted {' '.join(PICTURES)}); check the path"
    )


def _natural(path: str) -> list[tuple[bool, int, str]]:
    """img2 before img10: digits compare as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _check_file(spec: str) -> None:
    try:
        if not stat.S_ISREG(os.stat(spec).st_mode):
            raise SourceError(
                f"{spec}: not a regular file (a device or a pipe); save it to a file first"
            )
        with builtins.open(spec, "rb"):
            pass
    except OSError as error:
        raise SourceError(
            f"{spec}: cannot be read ({error.strerror}); check its permissions: ls -l"
        ) from error


def _missing(spec: str) -> str:
    folder, name = os.path.split(spec)
    if len(os.fsencode(name)) > LONGEST_NAME:
        return f"no file can have such a name: it has more than {LONGEST_NAME} bytes"
    if not name:
        return (
            "no such folder"
            if spec
            else "an empty name; give a video file, a picture or a folder of pictures"
        )
    if not os.path.isdir(folder or "."):
        return f"no such file: the folder {folder} does not exist either; check the path"
    close = difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
    hint = (
        f"did you mean {os.path.join(folder, close[0])}?"
        if close
        else f"check the path ({os.path.abspath(spec)})"
    )
    return f"no such file; {hint}"
