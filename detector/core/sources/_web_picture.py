"""Read one picture from a web server."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Unpack

from detector.core.errors import SourceError
from detector.core.errors.writing import temporary_folder
from detector.core.sources._contents import PICTURES
from detector.core.sources._web import WebPlace, open_web
from detector.core.sources.base import OpenOptions, Source
from detector.core.types import Frame, Image

MOST_BYTES = 1 << 30


class WebPicture(Source):
    """One picture, downloaded and read like a file."""

    decoder = "opencv"

    def __init__(self, place: WebPlace, codec: str, **how: Unpack[OpenOptions]) -> None:
        from detector.core.sources.pictures import PicturesSource

        self._shown = str(place)
        with ExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            self._path = _copy(place, str(folder), codec)
            try:
                inner = PicturesSource.open(self._path, **how)
            except SourceError as error:
                raise SourceError(self._with_address(str(error))) from error
            self._inner: Source = stack.enter_context(inner)
            self._cleanup = stack.pop_all()
        self.info = replace(inner.info, path=self._shown)
        self.counts, self._notes = inner.counts, list[str]()

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        self._notes += map(self._with_address, self._inner.notes)
        self._inner.notes.clear()
        return self._notes

    def _with_address(self, text: str) -> str:
        return text.replace(self._path, self._shown)

    def read(self, into: Image | None = None) -> Frame | None:
        frame = self._inner.read(into)
        return None if frame is None else replace(frame, path=self._shown)

    def close(self) -> None:
        self._cleanup.close()


def _copy(place: WebPlace, folder: str, codec: str) -> str:
    """Download a picture. Return the path of the copy, with the suffix of its format."""
    stored = open_web(place)
    try:
        if stored.size > MOST_BYTES:
            raise SourceError(f"{place}: the picture is too large ({stored.size} bytes); shrink it")
        data = stored.open().pread(stored.size, 0)
        stored.raise_error()
    finally:
        stored.close()
    stem, suffix = os.path.splitext(place.name)
    path = os.path.join(folder, f"{stem}{suffix if suffix.lower() in PICTURES else f'.{codec}'}")
    with open(path, "wb") as file:
        file.write(data)
    return path
