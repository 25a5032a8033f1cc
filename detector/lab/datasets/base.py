"""Base classes for formats of labels and of detections, and functions that readers share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from detector.core.errors import SourceError
from detector.core.errors.parsing import parse_json, quote
from detector.core.errors.reading import read_text
from detector.core.errors.text import counted
from detector.core.types import Detections, LabelledPicture

MAX_BYTES = 4 << 30  # size of a label file; COCO's largest is 0.45 GB
MAX_PIXELS = 1e9  # largest coordinate; no picture is so large
MAX_PARTS = 16  # a row may name a picture by the end of its path, with at most this many parts
MAX_PATH = 4096  # characters; the system rejects longer paths


@dataclass(slots=True)
class Dataset:
    """Labelled pictures, in the order of the labels. If there is a ``video``, they are its frames.
    ``category_ids``: class id -> its id in a COCO JSON; empty for other labels."""

    path: str
    format: str
    classes: tuple[str, ...]
    pictures: list[LabelledPicture]
    video: str | None = None
    notes: list[str] = field(default_factory=list)
    category_ids: dict[int, int] = field(default_factory=dict)

    def check_readable(self) -> None:
        """Raise SourceError if the video or a picture is missing. The error names the first."""
        if self.video is not None:
            if not os.path.isfile(self.video):
                raise SourceError(
                    f"{self.path}: its video {self.video} is missing; give it with --images VIDEO"
                )
            return
        missing = [
            picture
            for picture in self.pictures
            if picture.path is None or not os.path.isfile(picture.path)
        ]
        if missing:
            raise SourceError(
                f"{self.path}: {len(missing)} of its {counted(len(self.pictures), 'picture')} "
                f"{'is' if len(missing) == 1 else 'are'} missing (the first is "
                f"{missing[0].path or missing[0].name}); give their folder with --images DIR"
            )


@dataclass(slots=True)
class StoredDetections:
    """Detections from a file, one entry per picture of the dataset. ``names_only_found``:
    ``names`` lacks classes that the model never detected."""

    path: str
    names: tuple[str, ...]
    detections: list[Detections]
    notes: list[str] = field(default_factory=list)
    names_only_found: bool = False


class Format:
    name: str
    suffixes: tuple[str, ...] = ()

    def claims(self, path: Path) -> bool:
        """Return whether the path looks like this format. Lists a folder, but opens no file."""
        return path.is_file() and path.suffix.lower() in self.suffixes


class LabelFormat(Format):
    def read(self, path: Path, images: Path | None, split: str) -> Dataset:
        """Read labels. ``images``: the pictures' folder or video; None: where the labels say."""
        raise NotImplementedError


class DetectionFormat(Format):
    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        """Read detections of ``lookup``'s pictures. ``names``: class names, if not in the file."""
        raise NotImplementedError


def make_picture(
    number: int,
    name: str,
    size: tuple[int, int],
    rows: Sequence[tuple[Sequence[float], int, bool, bool, float | None]],
    **more: Any,
) -> LabelledPicture:
    """Make a labelled picture. ``size``: width, height in pixels. ``rows``: xyxy in pixels, class
    id, ignored, crowd, area in pixels (None: the box's area)."""
    boxes = np.array([row[0] for row in rows], np.float64).reshape(-1, 4)
    own = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    areas = np.array([np.nan if row[4] is None else row[4] for row in rows], np.float64)
    return LabelledPicture(
        id=number,
        name=name,
        width=size[0],
        height=size[1],
        boxes=boxes,
        class_ids=np.array([row[1] for row in rows], np.int64),
        ignored=np.array([row[2] for row in rows], bool),
        crowd=np.array([row[3] for row in rows], bool),
        areas=np.where(np.isnan(areas), own, areas),
        **more,
    )


class Lookup:
    """Finds the index of a picture in a dataset; None if the dataset does not contain it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        pictures = dataset.pictures
        self._ids = {picture.id: at for at, picture in enumerate(pictures)}
        self._frames: dict[int, int | None] = {}  # frame -> index; None if in several sequences
        for at, picture in enumerate(pictures):
            if picture.frame is not None:
                self._frames[picture.frame] = None if picture.frame in self._frames else at
        self._names = {picture.name: at for at, picture in enumerate(pictures)}
        self._paths = {
            real_path(picture.path): at for at, picture in enumerate(pictures) if picture.path
        }
        paths = [picture.path or picture.name for picture in pictures]
        self._ends = _index_ends(paths)
        self._stems = _index_ends([os.path.splitext(path)[0] for path in paths])

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    def by_id(self, number: int) -> int | None:
        return self._ids.get(number)

    def by_frame(self, frame: int) -> int | None:
        return self._frames.get(frame)

    def by_name(self, name: str) -> int | None:
        """Find a picture by its name in the labels, by its file, or by a unique end of its path."""
        at = self._names.get(name)
        if at is None:
            at = self._paths.get(real_path(name))
        for end in reversed(list(_ends(name))) if at is None else ():
            if end in self._ends:
                return self._ends[end]
        return at

    def by_file(self, path: str) -> int | None:
        return self._paths.get(real_path(path))

    def by_stem(self, stem: str) -> int | None:
        """Find a picture by a unique end of its path, without suffix."""
        return self._stems.get(stem)


def real_path(path: str) -> str:
    """Return the path with links followed; unchanged if it cannot be a file's path."""
    try:
        return os.path.realpath(path) if len(path) <= MAX_PATH else path
    except ValueError:  # a NUL byte
        return path


def _ends(path: str) -> Iterator[str]:
    parts = Path(path[-MAX_PATH:]).parts
    for count in range(1, min(len(parts), MAX_PARTS) + 1):
        yield "/".join(parts[-count:])


def _index_ends(paths: Sequence[str]) -> dict[str, int | None]:
    """Map each end of a path to the path's index; None if several paths share the end."""
    places: dict[str, int | None] = {}
    for at, path in enumerate(paths):
        for end in _ends(path):
            places[end] = at if end not in places else None
    return places


class RowCollector:
    def __init__(self, path: Path, lookup: Lookup, every_picture_listed: bool) -> None:
        """``every_picture_listed``: the format lists pictures without detections, too."""
        self._path, self._lookup, self._complete = path, lookup, every_picture_listed
        self._rows: dict[int, list[tuple[Sequence[float], float, int, int]]] = {}
        self._tracked: set[tuple[int, int]] = set()  # (picture, track) pairs
        self._unknown: set[Any] = set()
        self._listed: set[int] = set()

    def register(self, at: int | None, name: Any) -> int | None:
        """Record that the file lists picture number ``at`` (None: unknown), and return ``at``."""
        if at is None:
            self._unknown.add(name)
        else:
            self._listed.add(at)
        return at

    def add(
        self,
        at: int,
        box: Sequence[float],
        score: float,
        class_id: int,
        where: str,
        track: int | None = None,
    ) -> None:
        good = len(box) == 4 and all(abs(value) <= MAX_PIXELS for value in (*box, score))  # no NaN
        if not good or box[2] < box[0] or box[3] < box[1]:
            raise SourceError(
                f"{where}: not a box with a score: {quote(list(box))} {score}; sizes are 0 or "
                f"more, and no number is beyond {MAX_PIXELS:g}"
            )
        if track is None or track < 0:
            track = -1
        elif (at, track) in self._tracked:
            raise SourceError(f"{where}: track {track} has two boxes in one frame; keep one")
        else:
            self._tracked.add((at, track))
        self._rows.setdefault(at, []).append((box, score, class_id, track))

    def finish(self, names: tuple[str, ...], only_found: bool = False) -> StoredDetections:
        """Return all detections. Raises SourceError if none of the pictures is in the dataset."""
        dataset = self._lookup.dataset
        if self._unknown and not self._listed:
            first = sorted(map(str, self._unknown))[0]
            raise SourceError(
                f"{self._path}: none of its pictures (the first is {first}) is in {dataset.path}; "
                "does it belong to another dataset?"
            )
        notes = []
        if self._unknown:
            notes.append(
                f"{self._path}: {counted(len(self._unknown), 'picture', 'was')} skipped: not "
                f"in {dataset.path}"
            )
        absent = len(dataset.pictures) - len(self._listed)
        if self._complete and absent:
            notes.append(
                f"{self._path}: lacks {counted(absent, 'picture')} of {dataset.path}; a "
                "missing picture counts as one without detections"
            )
        detections = [
            _to_detections(self._rows.get(at, []), names, bool(self._tracked) or not self._rows)
            for at in range(len(dataset.pictures))
        ]
        return StoredDetections(str(self._path), names, detections, notes, only_found)


def _to_detections(
    rows: list[tuple[Sequence[float], float, int, int]], names: tuple[str, ...], is_tracked: bool
) -> Detections:
    rows = sorted(rows, key=lambda row: -row[1])
    return Detections(
        np.array([row[0] for row in rows], np.float32).reshape(-1, 4),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.int64),
        names,
        track_ids=np.array([row[3] for row in rows], np.int64) if is_tracked else None,
    )


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read: {error.strerror}; check the path and its permissions"
        ) from error


def read_label_text(path: Path) -> str:
    return read_text(
        path,
        "a file of labels",
        limit=MAX_BYTES,
        error=SourceError,
        cure="check the path and its permissions",
    )


def read_json(path: Path) -> Any:
    cure = "is the file truncated? download or write it again"
    return parse_json(read_label_text(path), path, SourceError, cure=cure)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return the number (from 1) and the text of each line that is not empty."""
    lines = read_label_text(path).splitlines()
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def parse_numbers(path: Path, line: int, parts: Sequence[str], least: int) -> list[float]:
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) < least or not all(abs(value) <= MAX_PIXELS for value in values):  # NaN fails
        raise SourceError(
            f"{path}:{line}: not a row of at least {least} numbers of {-MAX_PIXELS:g} "
            f"to {MAX_PIXELS:g}: {' '.join(parts[:20])[:80]!r}"
        )
    return values


def to_box(values: Any) -> list[float]:
    first, second, third, fourth = map(float, values)
    return [first, second, third, fourth]


def read_picture_size(path: str) -> tuple[int, int]:
    """Return the picture's width and height as shown. Raises SourceError."""
    from detector.core.sources._pictures import read_size

    if not os.path.isfile(path):  # opening a pipe would block
        raise SourceError(f"{path}: not a file, but labels need the picture's size; check the path")
    if (size := read_size(path)) is None:
        raise SourceError(
            f"{path}: not a readable picture, but its labels need its size; replace or remove it"
        )
    return size
