"""Samples of sources. The sample of source NAME is in NAME.py or tests/WING/sample_NAME.py.

Such a module has ``sample``, a context manager that takes a folder and gives a Sample. A source
without such a module is tested with the first file of ``GALLERY`` that it claims.
"""

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
    """``spec``: a source of at least ``FRAMES`` frames. ``damaged``: specs of damaged files that
    the source claims. ``around``: gives a context in which the source must be opened."""

    spec: str
    damaged: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def _write_pictures(folder: Path) -> Path:
    folder.mkdir()
    for number in range(FRAMES):
        cv2.imwrite(str(folder / f"{number}.png"), picture(number))
    return folder


# Files that a new source may read: name -> function that writes it into a folder.
GALLERY: dict[str, Callable[[Path], Path]] = {
    "clip.mp4": lambda folder: write_video(folder / "clip.mp4", FRAMES),
    "clip.mkv": lambda folder: write_video(folder / "clip.mkv", FRAMES),
    "clip.ts": lambda folder: write_video(folder / "clip.ts", FRAMES),
    "clip.avi": lambda folder: write_video(folder / "clip.avi", FRAMES, "mpeg4"),
    "pictures": lambda folder: _write_pictures(folder / "pictures"),
}


def damage(file: Path) -> tuple[str, ...]:
    """Next to ``file``, write an empty file, half of ``file`` and other bytes. Return the paths."""
    data = file.read_bytes()
    contents = {"empty": b"", "half": data[: len(data) // 2], "noise": bytes(range(256)) * 40}
    paths = [file.with_name(f"{how}-{file.name}") for how in contents]
    for path, content in zip(paths, contents.values(), strict=True):
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
        if sources.find(name).claims(str(path := make(folder))):
            yield Sample(str(path), damage(path) if path.is_file() else ())
            return
    raise AssertionError(
        f"source {name} claims none of {', '.join(GALLERY)}: write {places[0]} with a "
        "sample that it reads"
    )
