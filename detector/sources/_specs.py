"""Which pictures and videos a spec names: a folder, a pattern, files by name.

Opens none of them, and imports no library.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence

from detector.errors import SourceError
from detector.sources._unclaimed import is_live
from detector.sources.base import check_file

PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# What is taken for a video in a folder. By its own name, any file is tried.
VIDEOS = tuple(
    ".3gp .avi .flv .gif .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ts .webm .wmv".split()
)
# ffmpeg's pattern of numbered files. %% stands for a percent sign.
_NUMBER = re.compile(r"%(?:0?(\d{1,2}))?d")


class NamedPictures(str):
    """A spec for pictures that were named one by one, as a shell spreads ``shots/*.jpg``.

    Its text is the folder that they have in common.
    """

    paths: tuple[str, ...]

    def __new__(cls, paths: Sequence[str]) -> NamedPictures:
        folders = {os.path.dirname(path) for path in paths}
        if len(folders) == 1:
            common = folders.pop() or os.curdir
        else:
            common = os.path.commonpath([os.path.abspath(folder) for folder in folders])
        spec = super().__new__(cls, common)
        spec.paths = tuple(sorted(paths, key=_natural_key))
        return spec


def list_pictures(spec: str) -> list[str]:
    """The pictures of a spec that ``PicturesSource`` claims, in order. Raises SourceError."""
    if isinstance(spec, NamedPictures):
        return list(spec.paths)
    if os.path.isdir(spec):
        return _select_pictures(spec, _list_files(spec), "the folder")
    if os.path.exists(spec):
        check_file(spec)
        return [spec]
    if is_numbered(spec):
        return _select_pictures(spec, _list_numbered(spec), "the pattern")
    return _select_pictures(spec, _list_matches(spec), "the pattern")


def list_videos(spec: str) -> list[str]:
    """The videos in a folder, or among the files that a pattern matches; empty for other specs.

    Raises SourceError where the folder cannot be listed.
    """
    if isinstance(spec, NamedPictures):
        return []
    if os.path.isdir(spec):
        found = _list_files(spec)
    elif os.path.lexists(spec) or not glob.has_magic(spec) or is_live(spec):
        return []
    else:
        found = list(_list_matches(spec))
    return sorted((path for path in found if path.lower().endswith(VIDEOS)), key=_natural_key)


def is_numbered(spec: str) -> bool:
    """Whether ``spec`` is ffmpeg's pattern for numbered pictures, and no file's name."""
    name = os.path.basename(spec).replace("%%", "")
    return (
        len(_NUMBER.findall(name)) == 1
        and name.lower().endswith(PICTURES)
        and not is_live(spec)
        and not os.path.lexists(spec)
    )


def _list_numbered(spec: str) -> list[str]:
    """The files that ``frame_%04d.jpg`` names, whichever numbers there are."""
    folder, name = os.path.split(spec)
    marked = name.replace("%%", "\0")
    found = _NUMBER.search(marked)
    assert found is not None
    ends = (marked[: found.start()], marked[found.end() :])
    before, after = (re.escape(end.replace("\0", "%")) for end in ends)
    digits = max(1, int(found.group(1) or 1))
    # A number has at least so many digits, and more of them only where it is as large as that.
    wanted = re.compile(f"{before}(?:[0-9]{{{digits}}}|[1-9][0-9]{{{digits},}}){after}")
    try:
        files = _list_files(folder or os.curdir)
    except SourceError:
        if os.path.isdir(folder or os.curdir):
            raise
        files = []  # the folder is not there
    matches = (path for path in files if wanted.fullmatch(os.path.basename(path)))
    return [os.path.join(folder, os.path.basename(path)) for path in matches]


def _list_matches(pattern: str) -> Iterable[str]:
    return filter(os.path.isfile, glob.iglob(pattern, recursive=True))


def _list_files(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed ({error.strerror}); check its permissions: ls -ld"
        ) from error
    # DirEntry.is_file would raise for a link that leads to itself; isfile says that it is none.
    return [path for path in paths if os.path.isfile(path)]


def _select_pictures(spec: str, paths: Iterable[str], what: str) -> list[str]:
    found = list(paths)
    pictures = sorted((path for path in found if path.lower().endswith(PICTURES)), key=_natural_key)
    if pictures:
        return pictures
    videos = [path for path in found if path.lower().endswith(VIDEOS)]
    if videos:
        by_name = os.path.join(os.path.dirname(videos[0]), f"*{os.path.splitext(videos[0])[1]}")
        several = len(videos) > 1
        what = f"{what} has no picture but {len(videos)} video{'s'[:several]}"
        by_name = f"them by name, unquoted: {by_name}" if several else f"it by name: {videos[0]}"
        raise SourceError(f"{spec}: {what}; give {by_name}")
    others = f"{len(found)} other file{'s'[: len(found) > 1]}" if found else "nothing at all"
    raise SourceError(
        f"{spec}: {what} has no picture and no video ({others}; wanted {' '.join(PICTURES)}, or "
        f"{' '.join(VIDEOS)}); check the path"
    )


def _natural_key(path: str) -> list[tuple[bool, int, str]]:
    """Sorts img2 before img10: digits compare as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
