"""Recognize a spec by its form alone, before any source is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

STANDARD_INPUT = "-"
_LIVE = re.compile(r"\d{1,3}|/dev/video\d+|[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)


def is_live(spec: str) -> bool:
    """Return whether ``spec`` is a webcam's number or device (not ``./0``), or an address."""
    return _LIVE.fullmatch(spec) is not None


def is_web(text: str) -> bool:
    return text[:8].lower().startswith(("http://", "https://"))


class NamedPictures(str):
    """Several pictures named one by one, as when a shell expands ``*.jpg``. The text of this str is
    the folder that contains them."""

    paths: tuple[str, ...]
    note = ""

    def __new__(cls, paths: Sequence[str]) -> NamedPictures:
        from detector.core.sources._folders import natural_key

        folders = {os.path.dirname(path) for path in paths}
        if len(folders) == 1:
            common = folders.pop() or os.curdir
        else:
            common = os.path.commonpath([os.path.abspath(folder) for folder in folders])
        spec = super().__new__(cls, common)
        spec.paths = tuple(sorted(paths, key=natural_key))
        return spec


class Gathered(str):
    """The first spec from a folder or pattern; ``note`` describes the files that were omitted."""

    note: str

    def __new__(cls, spec: str, note: str) -> Gathered:
        gathered = super().__new__(cls, spec)
        gathered.note = note
        return gathered
