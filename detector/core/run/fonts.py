"""The font of the labels (--font), and notes on class names that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from detector.core.errors import UsageError
from detector.core.errors.guard import keep
from detector.core.errors.reading import check_regular, read_bytes

if TYPE_CHECKING:
    from detector.core.stages.font import Font

# The largest fonts have 130 MB: Noto and Source Han of all languages and weights in one TTC.
FONT_BYTES = 256 << 20
INSTALL = "pip install 'detect-video[font]'"
NAMED = 3  # class names listed in a note; the rest are counted


def open_font(path: str | None) -> Font | None:
    """Read the font that the user names. Raises UsageError if it is unusable or Pillow missing."""
    if path is None:
        return None
    keep("the font", path)
    check_regular(path, "a font file", UsageError)
    return _read_font(path, _state(path))


def _state(path: str) -> tuple[int, int, int] | None:
    """Return a value that changes with the file; None if it is absent, which reading reports."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


@lru_cache(maxsize=2)  # `compare` and the Python API open the same font again
def _read_font(path: str, state: tuple[int, int, int] | None) -> Font:
    data = read_bytes(path, "a font file", limit=FONT_BYTES, cure="give --font FILE")
    try:
        from detector.core.stages.font import Font
    except ImportError as error:
        raise UsageError(
            f"--font {path}: Pillow, which draws it, cannot be imported ({error}); {INSTALL}"
        ) from error
    try:
        return Font(data)
    # FreeType raises OSError for a font that it refuses; damaged tables raise any of the others.
    except (OSError, ValueError, ArithmeticError, MemoryError) as error:
        raise UsageError(
            f"{path}: not a usable font ({error}); give --font a TTF, OTF or TTC file"
        ) from error


def note_names(names: Sequence[str], found: Iterable[int], font: Font | None) -> list[str]:
    """Return notes on found classes whose labels are numbers (``labels.drawable``)."""
    from detector.core.stages.labels import reason_against

    behind: dict[str, list[str]] = {}
    for class_id in sorted(found):
        if class_id < len(names) and (reason := reason_against(names[class_id], font)):
            behind.setdefault(reason, []).append(f"{names[class_id]} (#{class_id})")
    cures = {
        "letters": f"give --font {'a file' if font is None else 'another file'} with these letters",
        "order": "joined or right-to-left letters need FriBidi: apt install libfribidi0",
    }
    return [
        f"labels show numbers, as they cannot draw the class names {_few(those)}: {cures[reason]}"
        for reason, those in behind.items()
    ]


def _few(names: list[str]) -> str:
    left = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {left} more" if left > 0 else "")
