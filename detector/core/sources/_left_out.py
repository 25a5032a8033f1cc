"""Describe which files of a folder or pattern are not read: nothing is omitted silently."""

from __future__ import annotations

import glob
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from detector.core.errors.text import counted
from detector.core.errors.writing import is_output
from detector.core.sources._contents import (
    PICTURE,
    VIDEO,
    Folder,
    is_picture,
    kind_of_name,
    walk_files,
)

MOST_SUFFIXES = 8  # suffixes listed in a message
LONGEST_SUFFIX = 16
# Files inspected in subfolders: about 50 ms.
MOST_COUNTED = 10_000


def describe_left_out(spec: str, contents: Folder, *, videos: bool = False) -> str:
    """Describe what a run of ``spec`` omits, and what to type. ``videos``: include these."""
    others = [
        path
        for path in contents.files
        if kind_of_name(path) is None or (videos and not is_picture(path))
    ]
    others = [path for path in others if not is_output(path)]
    said = []
    if by_suffix := name_suffixes(Counter(map(suffix_of, others)), contents.strange):
        said.append(f"{by_suffix} (if one is a picture or a video, give its path)")
    if below := _describe_below(spec, contents.folders):
        said.append(below)
    return "; ".join(said)


def find_earlier(specs: Sequence[str], skip: Callable[[str], bool]) -> set[str]:
    """Return the outputs among the specs (``skip``) that are named after another spec."""
    written = {spec for spec in specs if skip(spec)}
    stems = (os.path.splitext(os.path.basename(spec))[0] for spec in {*specs} - written)
    begins = tuple(f"{stem}-" for stem in stems if stem)
    return {spec for spec in written if os.path.basename(spec).startswith(begins)}


def suffix_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()[:LONGEST_SUFFIX]


def name_suffixes(suffixes: Counter[str], strange: int = 0) -> str:
    """Return ``3 left out: 2 .txt, 1 .xyz`` or "". ``strange``: dead links, pipes and so on."""
    parts = [
        f"{count} {suffix or 'without a suffix'}"
        for suffix, count in sorted(suffixes.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    if len(parts) > MOST_SUFFIXES:
        rest = sorted(suffixes.values(), reverse=True)[MOST_SUFFIXES - 1 :]
        others = f"{sum(rest)} with {len(rest)} other suffixes"
        parts = [*parts[: MOST_SUFFIXES - 1], others]
    if strange:
        parts.append(f"{strange} neither file nor folder")
    return f"{suffixes.total() + strange} skipped: {', '.join(parts)}" if parts else ""


def _describe_below(spec: str, folders: Iterable[str]) -> str:
    holding, pictures, videos, seen = [], 0, 0, 0
    entered = {os.path.realpath(spec)}  # links may form a loop
    for folder in sorted(folders):
        before = pictures + videos
        for path in walk_files(folder, entered) if not is_output(folder) else ():
            seen += 1
            pictures += kind_of_name(path) == PICTURE
            videos += kind_of_name(path) == VIDEO and not is_output(path)
            if seen >= MOST_COUNTED:
                break
        if pictures + videos > before:
            holding.append(folder)
        if seen >= MOST_COUNTED:
            break
    if not holding:
        return ""
    counts = ((pictures, "picture"), (videos, "video"))
    what = " and ".join(counted(count, noun) for count, noun in counts if count)
    least = "at least " if seen >= MOST_COUNTED else ""
    left = f"{counted(len(holding), 'subfolder')} with {least}{what} not entered"
    if os.path.isdir(spec):
        return f"{left}; to include all: {shlex.quote(os.path.join(glob.escape(spec), '**'))}"
    return f"{left}; give a folder: {shlex.quote(holding[0])}"
