"""What a source is tried with: one module for each source, NAME.py, or tests/WING/sample_NAME.py.

A module has ``sample``, a context manager: folder -> Sample. A source without one is tried with
what it claims of ``GALLERY``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2

from detector.core import sources, wings
from tests.sources.clips import picture, write_video

FRAMES = 6


@dataclass(frozen=True)
class Sample:
    """``spec``: a source of ``FRAMES`` frames or more. ``damaged``: specs that the source claims
    and that are partly damaged. ``around``: entered before each opening."""

    spec: str
    damaged: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def _write_pictures(folder: Path) -> Path:
    folder.mkdir()
    for number in range(FRAMES):
        cv2.imwrite(str(folder / f"{number}.png"), picture(number))
    return folder


# Things that a new source may read: name -> a function that writes one into a folder.
GALLERY: dict[str, Callable[[Path], Path]] = {
    "clip.mp4": lambda folder: write_video(folder / "clip.mp4", FRAMES),
    "clip.mkv": lambda folder: write_video(folder / "clip.mkv", FRAMES),
    "clip.ts": lambda folder: write_video(folder / "clip.ts", FRAMES),
    "clip.avi": lambda folder: write_video(folder / "clip.avi", FRAMES, "mpeg4"),
    "pictures": lambda folder: _write_pictures(folder / "pictures"),
}


def damage(file: Path) -> tuple[str, ...]:
    """Files beside one that have lost all bytes, half of them, or hold others."""
    data = file.read_bytes()
    made = {"empty": b"", "half": data[: len(data) // 2], "noise": bytes(range(256)) * 40}
    paths = [file.with_name(f"{how}-{file.name}") for how in made]
    for path, content in zip(paths, made.values(), strict=True):
        path.write_bytes(content)
    return tuple(map(str, paths))


@contextmanager
def sample_of(name: str, folder: Path) -> Iterator[Sample]:
    places = [f"{__name__}.{name}", *(f"tests.{wing}.sample_{name}" for wing in wings.names())]
    for place in places:
        if find_spec(place) is not None:
            with importlib.import_module(place).sample(folder) as sample:
                yield sample
            return
    for make in GALLERY.values():
        if sources.find(name).claims(str(made := make(folder))):
            yield Sample(str(made), damage(made) if made.is_file() else ())
            return
    raise AssertionError(
        f"source {name} claims nothing of {', '.join(GALLERY)}: write {places[0]} with what "
        "it reads"
    )
