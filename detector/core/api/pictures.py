"""Accept a picture from the caller: an array, a PIL picture, or the path of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from detector.core.errors import UsageError

if TYPE_CHECKING:
    from detector.core.sources.base import Choice
    from detector.core.types import Image

    Path = str | os.PathLike[str]


class PilPicture(Protocol):
    @property
    def mode(self) -> str: ...

    @property
    def size(self) -> tuple[int, int]: ...

    def convert(self, mode: str) -> Any: ...


if TYPE_CHECKING:
    Picture = Image | Path | PilPicture


def as_image(picture: Picture, choice: Choice | None = None) -> Image:
    """Convert to u8 BGR [h, w, 3]. Raises UsageError for other types, SourceError for bad files."""
    if isinstance(picture, (str, os.PathLike)):
        return _read_picture(os.fspath(picture), choice)
    if _is_pil(picture):
        return _from_pil(picture)
    image: Any = picture
    if (
        getattr(image, "ndim", 0) != 3
        or image.shape[2] != 3
        or image.dtype.name != "uint8"
        or not image.size
    ):
        raise UsageError(
            "a picture must be a uint8 BGR array [height, width, 3], a PIL image or a path, not "
            f"{kind_of(image)}"
        )
    return image  # type: ignore[no-any-return]


def kind_of(thing: object) -> str:
    """Describe a value for a message: ``uint8 (480, 640, 3)`` for an array, otherwise its type."""
    if hasattr(thing, "dtype"):
        return f"{thing.dtype} {getattr(thing, 'shape', '')}".strip()
    return type(thing).__name__


def _is_pil(picture: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "PIL" for kind in type(picture).__mro__)


def _from_pil(picture: Any) -> Image:
    """Return BGR, not rotated by EXIF. Raises UsageError for modes I and F (unknown range)."""
    import numpy as np

    if picture.mode.startswith(("I", "F")):
        raise UsageError(
            f"a PIL image of mode {picture.mode} does not have 8 bits; convert it to RGB first"
        )
    try:
        pixels = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError) as error:  # a damaged file, or a mode that PIL cannot convert
        raise UsageError(f"PIL cannot read the picture's pixels: {error}") from error
    if not pixels.size:
        raise UsageError("the PIL image has no pixels")
    return np.ascontiguousarray(pixels[:, :, ::-1])


def _read_picture(path: str, choice: Choice | None) -> Image:
    from detector.core import sources
    from detector.core.errors.addresses import Address
    from detector.core.sources._addresses import is_address

    shown = Address(path).shown  # an address may hold a password
    arrives = sources.find_claiming(path).arrives
    listed = None if arrives else sources.pictures_of(path)
    if listed is None or len(listed) != 1:
        what = "a video" if listed is None else f"{len(listed)} pictures"
        if is_address(path):  # the suffix of an address says little about its content
            what = "not a picture"
        raise UsageError(
            f"{shown}: is {'a camera' if arrives else what}; use stream({shown!r}) for it"
        )
    with sources.open(path, choice=choice) as source:
        frame = source.read()
    assert frame is not None  # a source without frames fails to open
    return frame.image.copy()
