"""Which pictures and videos a spec names: a folder, a pattern, files by name."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from detector.core.errors import SourceError
from detector.core.errors.writing import is_output
from detector.core.sources._contents import PICTURES, Contents, list_folder, natural_key, walk_files
from detector.core.sources._left_out import describe_left_out
from detector.core.sources._unclaimed import is_live
from detector.core.sources.base import check_file

# ffmpeg's pattern of numbered files. %% stands for a percent sign.
_NUMBER = re.compile(r"%(?:0?(\d{1,2}))?d")


class NamedPictures(str):
    """A spec for pictures named one by one, such as ``shots/*.jpg``; its text is their folder."""

    paths: tuple[str, ...]
    note = ""

    def __new__(cls, paths: Sequence[str]) -> NamedPictures:
        folders = {os.path.dirname(path) for path in paths}
        if len(folders) == 1:
            common = folders.pop() or os.curdir
        else:
            common = os.path.commonpath([os.path.abspath(folder) for folder in folders])
        spec = super().__new__(cls, common)
        spec.paths = tuple(sorted(paths, key=natural_key))
        return spec


class Gathered(str):
    """The spec of a folder or pattern, when all that it holds is taken care of; ``note``."""

    note: str

    def __new__(cls, spec: str, note: str) -> Gathered:
        made = super().__new__(cls, spec)
        made.note = note
        return made


def list_pictures(spec: str) -> list[str]:
    """The pictures of a spec that ``PicturesSource`` claims, in order. Raises SourceError."""
    if isinstance(spec, NamedPictures):
        return list(spec.paths)
    if is_numbered(spec):
        return _select_pictures(spec, Contents(list(_list_numbered(spec)), []))
    if (contents := look_into(spec)) is not None:
        return _select_pictures(spec, contents)
    check_file(spec)
    return [spec]


def look_into(spec: str) -> Contents | None:
    """What a folder or a pattern contains; None for other specs. Raises SourceError."""
    if isinstance(spec, NamedPictures):
        return None
    if os.path.isdir(spec):
        return list_folder(spec)
    if os.path.lexists(spec) or not glob.has_magic(spec) or is_live(spec):
        return None
    return _list_matches(spec)


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
        files = list_folder(folder or os.curdir).files
    except SourceError:
        if os.path.isdir(folder or os.curdir):
            raise
        files = []  # the folder is not there
    matches = (path for path in files if wanted.fullmatch(os.path.basename(path)))
    return [os.path.join(folder, os.path.basename(path)) for path in matches]


def _list_matches(pattern: str) -> Contents:
    folder, name = os.path.split(pattern)
    if name == "**" and not glob.has_magic(folder):
        return Contents(list(walk_files(folder or os.curdir)), [])
    files, folders, strange = [], [], 0
    for path in glob.iglob(pattern, recursive=True):
        if os.path.isfile(path):
            files.append(path)
        elif os.path.isdir(path):
            folders.append(path)
        else:
            strange += 1
    return Contents(files, [] if "**" in pattern.split(os.sep) else folders, strange)


def _select_pictures(spec: str, contents: Contents) -> list[str]:
    if pictures := contents.pictures:
        return pictures
    what = "the folder" if os.path.isdir(spec) else "the pattern"
    if videos := contents.videos:
        if all(map(is_output, videos)):
            raise SourceError(f"{spec}: all {len(videos)} videos are earlier outputs; name one")
        by_name = os.path.join(os.path.dirname(videos[0]), f"*{os.path.splitext(videos[0])[1]}")
        several = len(videos) > 1
        what = f"{what} has no picture but {len(videos)} video{'s'[:several]}"
        by_name = f"them by name, unquoted: {by_name}" if several else f"it by name: {videos[0]}"
        raise SourceError(f"{spec}: {what}; give {by_name}")
    said = describe_left_out(spec, contents) or "no files at all; check the path"
    raise SourceError(f"{spec}: {what} has no picture and no video (.jpg, .mp4...): {said}")
