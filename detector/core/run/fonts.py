"""Open the font of the labels (--font), and note class names that it cannot draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from detector.core.errors import UsageError
from detector.core.errors.guard import keep
from detector.core.errors.holding import fingerprint
from detector.core.errors.reading import check_regular, read_bytes

if TYPE_CHECKING:
    from detector.core.stages.font import Font

# The largest fonts are 130 MB: Noto and Source Han, with all languages and weights in one TTC.
FONT_BYTES = 256 << 20
INSTALL = "pip install 'detect-video[font]'"
NAMED = 3  # class names listed in a note; the rest are counted


def open_font(path: str | None) -> Font | None:
    """Read the user's font. Raises UsageError if it is unusable, or if Pillow is missing."""
    if path is None:
        return None
    keep("the font", path)
    check_regular(path, "a font file", UsageError)
    return _read_font(path, fingerprint(path))


@lru_cache(maxsize=2)  # `compare` and the Python API open the same font again
def _read_font(path: str, state: tuple[int, ...] | None) -> Font:
    data = read_bytes(path, "a font file", limit=FONT_BYTES, cure="give --font FILE")
    try:
        from detector.core.stages.font import Font
    except ImportError as error:
        raise UsageError(
            f"--font {path}: Pillow, which draws it, cannot be imported ({error}); {INSTALL}"
        ) from error
    try:
        return Font(data)
    # FreeType raises OSError if it rejects a font; damaged tables cause the other errors.
    except (OSError, ValueError, ArithmeticError, MemoryError) as error:
        raise UsageError(
            f"{path}: not a usable font ({error}); give --font a TTF, OTF or TTC file"
        ) from error


def note_names(names: Sequence[str], class_ids: Iterable[int], font: Font | None) -> list[str]:
    """Return notes on classes that are labelled with numbers (``labels.drawable``)."""
    from detector.core.stages.labels import reason_against

    by_reason: dict[str, list[str]] = {}
    for class_id in sorted(class_ids):
        if class_id < len(names) and (reason := reason_against(names[class_id], font)):
            by_reason.setdefault(reason, []).append(f"{names[class_id]} (#{class_id})")
    cures = {
        "letters": f"give --font {'a file' if font is None else 'another file'} with these letters",
        "order": "joined or right-to-left letters need FriBidi: apt install libfribidi0",
    }
    return [
        f"labels show numbers instead of class names that cannot be drawn, {_list_few(affected)}: "
        f"{cures[reason]}"
        for reason, affected in by_reason.items()
    ]


def _list_few(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
