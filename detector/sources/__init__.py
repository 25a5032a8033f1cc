"""Where frames come from. One file here is one source; ``open`` asks each whether it claims a spec.

``base.Source`` says what such a file declares. Importing this package imports no library.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from detector.errors import UsageError

if TYPE_CHECKING:
    from detector.sources.base import Source


def names() -> list[str]:
    """The sources there are, sorted: the files of this folder."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if name != "base" and not name.startswith("_"))


def find(name: str) -> type[Source]:
    """The class of a source: ``VideoSource`` of ``video``."""
    module = importlib.import_module(f"{__name__}.{name}")
    source: type[Source] = getattr(module, f"{name.capitalize()}Source")
    return source


def find_claiming(spec: str) -> type[Source]:
    """The source that reads ``spec``. Raises SourceError, with the cure, where none does."""
    for source in sorted(map(find, names()), key=lambda source: source.order):
        if source.claims(spec):
            return source
    from detector.sources._unclaimed import refusal

    raise refusal(spec)


def decoders() -> list[str]:
    """What ``decoder`` may be, for a video."""
    from detector.sources import video

    return video.decoders()


def open(spec: str, *, decoder: str = "auto", stride: int = 1, frames: int | None = None) -> Source:
    """A video file, a picture, a folder of pictures or a (quoted) glob of pictures.

    Hands out every ``stride``-th frame, from the first, and at most ``frames`` of them. The first
    frame is decoded here, so that nothing is written for a source that has none. Raises
    SourceError, one line with the cure, and UsageError.
    """
    if decoder not in decoders():
        raise UsageError(f"decoder {decoder!r} is not known; choose one of {', '.join(decoders())}")
    if stride < 1:
        raise UsageError(f"stride is {stride}; it must be 1 (every frame) or more")
    if frames is not None and frames < 1:
        raise UsageError(f"frames is {frames}; it must be 1 or more")
    return find_claiming(spec).open(spec, decoder=decoder, stride=stride, frames=frames)


def pictures_of(spec: str) -> list[str] | None:
    """The pictures that ``spec`` names, in order; None when it is a video. Raises SourceError."""
    from detector.sources.pictures import PicturesSource, list_pictures

    return list_pictures(spec) if find_claiming(spec) is PicturesSource else None
