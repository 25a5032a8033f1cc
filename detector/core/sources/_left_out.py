"""Describe the files of a folder or pattern that are not read, so that users know of them."""

from __future__ import annotations

import glob
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from detector.core.errors.text import counted
from detector.core.errors.writing import is_output
from detector.core.sources._contents import PICTURE, VIDEO, kind_of_name
from detector.core.sources._folders import Folder, is_picture, walk_files

MOST_SUFFIXES = 8  # suffixes listed in a message
LONGEST_SUFFIX = 16
MOST_COUNTED = 10_000  # files inspected in subfolders, in about 50 ms


def describe_left_out(spec: str, contents: Folder, *, videos: bool = False) -> str:
    """Describe the files that a run of ``spec`` omits, and how to read them. ``videos``: videos are
    omitted, too."""
    others = [
        path
        for path in contents.files
        if kind_of_name(path) is None or (videos and not is_picture(path))
    ]
    others = [path for path in others if not is_output(path)]
    parts = []
    if by_suffix := name_suffixes(Counter(map(suffix_of, others)), contents.special):
        parts.append(f"{by_suffix} (if one is a picture or a video, give its path)")
    if below := _describe_subfolders(spec, contents.folders):
        parts.append(below)
    return "; ".join(parts)


def find_earlier(specs: Sequence[str], skip: Callable[[str], bool]) -> set[str]:
    """Return specs that are outputs (``skip``) of other specs: in-detected.mp4 beside in.mp4."""
    outputs = {spec for spec in specs if skip(spec)}
    stems = (os.path.splitext(os.path.basename(spec))[0] for spec in {*specs} - outputs)
    prefixes = tuple(f"{stem}-" for stem in stems if stem)
    return {spec for spec in outputs if os.path.basename(spec).startswith(prefixes)}


def suffix_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()[:LONGEST_SUFFIX]


def name_suffixes(suffixes: Counter[str], special: int = 0) -> str:
    """Return ``3 skipped: 2 .txt, 1 .xyz`` or "". ``special``: number of dead links and pipes."""
    parts = [
        f"{count} {suffix or 'without a suffix'}"
        for suffix, count in sorted(suffixes.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    if len(parts) > MOST_SUFFIXES:
        rest = sorted(suffixes.values(), reverse=True)[MOST_SUFFIXES - 1 :]
        others = f"{sum(rest)} with {len(rest)} other suffixes"
        parts = [*parts[: MOST_SUFFIXES - 1], others]
    if special:
        parts.append(f"{special} neither file nor folder")
    return f"{suffixes.total() + special} skipped: {', '.join(parts)}" if parts else ""


def _describe_subfolders(spec: str, folders: Iterable[str]) -> str:
    nonempty, pictures, videos, inspected = [], 0, 0, 0
    entered = {os.path.realpath(spec)}  # links may form a loop
    for folder in sorted(folders):
        before = pictures + videos
        for path in walk_files(folder, entered) if not is_output(folder) else ():
            inspected += 1
            pictures += kind_of_name(path) == PICTURE
            videos += kind_of_name(path) == VIDEO and not is_output(path)
            if inspected >= MOST_COUNTED:
                break
        if pictures + videos > before:
            nonempty.append(folder)
        if inspected >= MOST_COUNTED:
            break
    if not nonempty:
        return ""
    counts = ((pictures, "picture"), (videos, "video"))
    what = " and ".join(counted(count, noun) for count, noun in counts if count)
    least = "at least " if inspected >= MOST_COUNTED else ""
    skipped = f"{counted(len(nonempty), 'subfolder')} ({least}{what}) not entered"
    if os.path.isdir(spec):
        return f"{skipped}; to include all: {shlex.quote(os.path.join(glob.escape(spec), '**'))}"
    return f"{skipped}; give a folder: {shlex.quote(nonempty[0])}"
