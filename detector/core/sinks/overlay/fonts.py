"""Choose the font attached to an overlay: that of ``--font``, or Lato if the package ``font-lato``
is installed (SIL Open Font License). Without one, players use their own sans-serif font."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detector.core.sinks.overlay.ass import FAMILY

if TYPE_CHECKING:
    from detector.core.stages.font import Font

LARGEST_FILE = 32 << 20  # bytes; a font with all languages and weights is 130 MB
PACKAGE, FILES = "font_lato", ("Lato-Regular.ttf", "OFL.txt")
TRUETYPE, OPENTYPE, TEXT = (
    "application/x-truetype-font",
    "application/vnd.ms-opentype",
    "text/plain",
)
LATO_SCALE = 1.17  # since Lato is narrower than DejaVu Sans
MISSING = (
    "no font is attached, so players choose their own for the labels; pip install "
    "'detect-video[overlay]', or give --font FILE"
)


class Attachment(NamedTuple):
    name: str
    mimetype: str
    data: bytes


class Typeface(NamedTuple):
    """A font. ``family``, ``style``: its names. ``scale``: enlarges a narrow font."""

    family: str
    files: tuple[Attachment, ...]
    note: str = ""
    style: str = ""
    scale: float = 1.0


def choose(font: Font | None) -> Typeface:
    if font is not None:
        if len(font.data) > LARGEST_FILE:
            note = f"the font is not attached: it has more than {LARGEST_FILE >> 20} MB"
            return Typeface(font.family, (), note, font.style)
        kind, suffix = (OPENTYPE, "otf") if font.data[:4] == b"OTTO" else (TRUETYPE, "ttf")
        if font.data[:4] == b"ttcf":
            suffix = "ttc"
        file = Attachment(f"labels.{suffix}", kind, font.data)
        return Typeface(font.family, (file,), style=font.style)
    with suppress(OSError, ImportError, ValueError):
        return _load_lato()
    return Typeface(FAMILY, (), MISSING)


def _load_lato() -> Typeface:
    """Load Lato. Raises ImportError or OSError if the package is missing or incomplete."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ImportError(PACKAGE)
    folder = Path(spec.origin).parent / "files"
    font, licence = ((folder / name).read_bytes() for name in FILES)
    files = Attachment(FILES[0], TRUETYPE, font), Attachment(FILES[1], TEXT, licence)
    return Typeface("Lato", files, scale=LATO_SCALE)
