"""List the pictures and videos of a spec (a folder, a pattern, files), or explain their absence."""

from __future__ import annotations

import difflib
import glob
import os
import re

from detector.core.errors import SourceError
from detector.core.errors.writing import is_output
from detector.core.sources._contents import PICTURES
from detector.core.sources._folders import Folder, list_folder, walk_files
from detector.core.sources._forms import NamedPictures, is_live
from detector.core.sources._left_out import describe_left_out
from detector.core.sources.base import check_file

LONGEST_NAME = 255  # bytes, on every file system of Linux
# ffmpeg's pattern of numbered files. %% stands for a percent sign.
_NUMBER = re.compile(r"%(?:0?(\d{1,2}))?d")


def list_pictures(spec: str) -> list[str]:
    """Return the pictures of a spec of ``PicturesSource``, in order. Raises SourceError."""
    if isinstance(spec, NamedPictures):
        return list(spec.paths)
    if is_numbered(spec):
        return _select_pictures(spec, Folder(list(_list_numbered(spec)), []))
    if (contents := list_contents(spec)) is not None:
        return _select_pictures(spec, contents)
    check_file(spec)
    return [spec]


def list_contents(spec: str) -> Folder | None:
    """List the files of a folder or a pattern; None for other specs. Raises SourceError."""
    if isinstance(spec, NamedPictures):
        return None
    if os.path.isdir(spec):
        return list_folder(spec)
    if os.path.lexists(spec) or not glob.has_magic(spec) or is_live(spec):
        return None
    return _list_matches(spec)


def is_numbered(spec: str) -> bool:
    """Return whether ``spec`` is ffmpeg's pattern of numbered pictures, and not a file's name."""
    name = os.path.basename(spec).replace("%%", "")
    return (
        len(_NUMBER.findall(name)) == 1
        and name.lower().endswith(PICTURES)
        and not is_live(spec)
        and not os.path.lexists(spec)
    )


def _list_numbered(spec: str) -> list[str]:
    """Return the files that a pattern such as ``frame_%04d.jpg`` matches; numbers may have gaps."""
    folder, name = os.path.split(spec)
    marked = name.replace("%%", "\0")
    number = _NUMBER.search(marked)
    assert number is not None
    ends = (marked[: number.start()], marked[number.end() :])
    before, after = (re.escape(end.replace("\0", "%")) for end in ends)
    digits = max(1, int(number.group(1) or 1))
    # Shorter numbers are padded with zeros; longer ones have no leading zero.
    pattern = re.compile(f"{before}(?:[0-9]{{{digits}}}|[1-9][0-9]{{{digits},}}){after}")
    try:
        files = list_folder(folder or os.curdir).files
    except SourceError:
        if os.path.isdir(folder or os.curdir):
            raise
        files = []  # the folder does not exist
    matches = (path for path in files if pattern.fullmatch(os.path.basename(path)))
    return [os.path.join(folder, os.path.basename(path)) for path in matches]


def _list_matches(pattern: str) -> Folder:
    folder, name = os.path.split(pattern)
    if name == "**" and not glob.has_magic(folder):
        return Folder(list(walk_files(folder or os.curdir)), [])
    files, folders, special = [], [], 0
    for path in glob.iglob(pattern, recursive=True):
        if os.path.isfile(path):
            files.append(path)
        elif os.path.isdir(path):
            folders.append(path)
        else:
            special += 1
    return Folder(files, [] if "**" in pattern.split(os.sep) else folders, special)


def _select_pictures(spec: str, contents: Folder) -> list[str]:
    if pictures := contents.pictures:
        return pictures
    what = "the folder" if os.path.isdir(spec) else "the pattern"
    if videos := contents.videos:
        if all(map(is_output, videos)):
            raise SourceError(f"{spec}: all {len(videos)} videos are earlier outputs; name one")
        by_name = os.path.join(os.path.dirname(videos[0]), f"*{os.path.splitext(videos[0])[1]}")
        several = len(videos) > 1
        what = f"{what} has {len(videos)} video{'s'[:several]}, but no picture"
        by_name = f"them by name, unquoted: {by_name}" if several else f"it by name: {videos[0]}"
        raise SourceError(f"{spec}: {what}; give {by_name}")
    left_out = describe_left_out(spec, contents) or "no files at all; check the path"
    raise SourceError(f"{spec}: {what} has no picture and no video (.jpg, .mp4...): {left_out}")


def explain_unclaimed(spec: str) -> SourceError:
    """Return the error for a spec that no source claims, with its cause and remedy."""
    if is_live(spec):  # the wing that reads cameras is not installed
        why = "is a camera, but this installation cannot read cameras; reinstall detect-video"
    elif os.path.islink(spec):
        why = f"a dead link (to {os.readlink(spec)}); name the file itself"
    else:
        why = _explain_missing(spec)
    return SourceError(f"{spec}: {why}")


def _explain_missing(spec: str) -> str:
    folder, name = os.path.split(spec)
    if len(os.fsencode(name)) > LONGEST_NAME:
        return f"the name is too long: it has more than {LONGEST_NAME} bytes"
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
