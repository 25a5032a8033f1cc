"""YOLO: a .txt file per picture, with a row per box: class cx cy w h, relative to the picture.

Labels: a data.yaml, or a folder with images/, labels/ and classes.txt. A row of more than five
numbers is a polygon, and we use its bounding box. But if data.yaml has kpt_shape, such a row is a
box with keypoints. Detections: a folder with classes.txt and .txt files; a sixth number is a score.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.core.errors import SourceError
from detector.core.errors.parsing import quote
from detector.core.errors.reading import read_text
from detector.core.errors.text import counted
from detector.core.errors.yaml_parsing import parse_yaml
from detector.core.sources._contents import PICTURES
from detector.core.types import LabelledPicture
from detector.lab.datasets.base import (
    Dataset,
    DetectionFormat,
    LabelFormat,
    Lookup,
    RowCollector,
    StoredDetections,
    make_picture,
    parse_numbers,
    read_lines,
    read_picture_size,
    translate_read_errors,
)

SPLITS = {
    "val": ("val", "valid", "validation", "test"),
    "valid": ("valid", "val"),
}  # --split -> names in a data.yaml
NAMES = ("classes.txt", "obj.names", "labels/classes.txt")
SLACK = 0.01  # share of the picture's size; rounding may move boxes out of the picture by this much


Pairs = list[tuple[Path, Path]]  # pictures, and paths of their labels, which may not exist


@dataclass(slots=True)
class LabelRows:
    names: tuple[str, ...]
    keypoints: int = 0  # how many numbers follow each box
    polygons: set[int] = field(default_factory=set)  # lengths of the rows read as polygons

    def notes(self) -> list[str]:
        """Warn if all polygons have the same length, as rows of keypoints do."""
        return [
            f"all rows of more than 5 numbers have {count} numbers and were read as polygons; if "
            "these rows have keypoints, add kpt_shape to data.yaml"
            for count in self.polygons
            if len(self.polygons) == 1
        ]


class YoloLabels(LabelFormat):
    name, suffixes = "yolo", (".yaml", ".yml")

    def claims(self, path: Path) -> bool:
        has_labels = _find_yaml(path) is not None or (path / "labels").is_dir()
        return super().claims(path) or has_labels

    def read(self, path: Path, images: Path | None, split: str) -> Dataset:
        description = path if path.is_file() else _find_yaml(path)
        if description is not None:
            rows, pairs, folders = _read_yaml(description, split, images)
        else:
            rows, pairs, folders = _read_folder(path, images)
        if images is not None and images.is_file():
            pictures = _read_frames(folders, rows, images)
            return Dataset(str(path), "yolo", rows.names, pictures, str(images), rows.notes())
        _refuse_unpaired(pairs, folders)
        if pairs and not any(os.path.isfile(label) for _, label in pairs):
            raise SourceError(
                f"{path}: none of its {counted(len(pairs), 'picture')} has labels (the first needs "
                f"{pairs[0][1]}); check the paths"
            )
        pictures = []
        for at, (image, label) in enumerate(pairs):
            size = read_picture_size(str(image)) if os.path.isfile(image) else (0, 0)
            boxes = _read_boxes(label, size, rows)
            pictures.append(make_picture(at, image.name, size, boxes, path=str(image)))
        return Dataset(str(path), "yolo", rows.names, pictures, notes=rows.notes())


def _find_yaml(folder: Path) -> Path | None:
    paths = [folder / name for name in ("data.yaml", "data.yml", "dataset.yaml")]
    return next((path for path in paths if path.is_file()), None)


def _read_yaml(path: Path, split: str, images: Path | None) -> tuple[LabelRows, Pairs, list[Path]]:
    content = parse_yaml(read_text(path, "a YOLO data.yaml", error=SourceError), path, SourceError)
    if not isinstance(content, dict) or "names" not in content:
        raise SourceError(
            f"{path}: has no key 'names'; a YOLO data.yaml needs it, and 'train', 'val' or 'test'"
        )
    rows = LabelRows(_parse_names(path, content["names"]), _count_keypoints(path, content))
    root = path.parent / str(content.get("path") or "")
    key = next((key for key in SPLITS.get(split, (split,)) if content.get(key)), None)
    if key is None and images is None:
        known = ", ".join(name for name in ("train", "val", "test") if content.get(name)) or "none"
        raise SourceError(f"{path}: has no split {split!r}; it has {known}; choose with --split")
    if images is not None:
        return rows, *_pair_pictures([images], path)
    places = content[key] if isinstance(content[key], list) else [content[key]]
    return rows, *_pair_pictures([_locate(root, path.parent, str(place)) for place in places], path)


def _count_keypoints(path: Path, content: dict[str, Any]) -> int:
    """Return how many numbers follow each box, such as 51 for ``kpt_shape: [17, 3]``."""
    match content.get("kpt_shape", (0, 2)):
        case (int(points), 2 | 3 as values) if points >= 0:
            return points * int(values)
    raise SourceError(
        f"{path}: kpt_shape {quote(content['kpt_shape'])} is not a count of keypoints and a count "
        "of values for each (2 or 3), such as [17, 3]"
    )


def _parse_names(path: Path, names: Any) -> tuple[str, ...]:
    if isinstance(names, dict) and names.keys() == set(range(len(names))):
        names = [names[at] for at in range(len(names))]
    if not isinstance(names, list) or not names:
        raise SourceError(f"{path}: 'names' must be a list, or numbers from 0 with a name each")
    for name in names:
        if isinstance(name, (list, dict)):
            raise SourceError(f"{path}: names: {quote(name)} is not a name; write one per class")
    return tuple(map(str, names))


def _locate(root: Path, folder: Path, place: str) -> Path:
    """Find a path that the YAML states; exports often say ../valid/images for valid/images."""
    candidates = (root / place, folder / place, folder / place.removeprefix("../"))
    return next((path for path in candidates if os.path.exists(path)), candidates[0])


def _read_folder(path: Path, images: Path | None) -> tuple[LabelRows, Pairs, list[Path]]:
    files = [path / name for name in NAMES if (path / name).is_file()]
    if not files:
        raise SourceError(
            f"{path}: no class names; put a data.yaml, or a classes.txt with one name a line, "
            "into this folder"
        )
    rows = LabelRows(tuple(text for _, text in read_lines(files[0])))
    labels = path / "labels"
    if images is not None and images.is_file():
        return rows, [], [labels]
    folder = images or (path / "images" if (path / "images").is_dir() else path)
    pairs = [
        (image, labels / image.relative_to(folder).with_suffix(".txt"))
        for image in _list_files(folder, PICTURES)
    ]
    return rows, pairs, [labels]


def _list_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """List files with one of the suffixes, at any depth, sorted by path. Links to folders are not
    followed. Raises SourceError for an unreadable folder and for the root folder (``val: /``)."""
    if os.path.samefile(folder, "/"):
        raise SourceError(f"{folder} is the root of the file system; give the pictures' folder")

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    with translate_read_errors(folder):
        return sorted(
            Path(place, name)
            for place, _, names in os.walk(folder, onerror=refuse)
            for name in names
            if os.path.splitext(name)[1].lower() in suffixes
        )


def _pair_pictures(places: Iterable[Path], origin: Path) -> tuple[Pairs, list[Path]]:
    """Return pairs of a picture and its labels' path (images/ becomes labels/), and the folders of
    labels. ``places``: folders, lists of pictures, or a video."""
    pairs: Pairs = []
    folders: list[Path] = []
    for place in places:
        if os.path.isdir(place):
            pairs += [(image, _labels_path(image)) for image in _list_files(place, PICTURES)]
            folders.append(_labels_path(place / "x.jpg").parent)
        elif place.suffix == ".txt":
            listed = [Path(text) for _, text in read_lines(place)]
            images = [path if path.is_absolute() else place.parent / path for path in listed]
            pairs += [(image, _labels_path(image)) for image in images]
        elif os.path.isfile(place):
            folders.append(origin.parent / "labels")  # a video's labels
        else:
            raise SourceError(
                f"{origin}: {place} was not found; give the pictures' folder with --images DIR"
            )
    return pairs, folders


def _labels_path(image: Path) -> Path:
    parts = list(image.parts)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            parts[at] = "labels"
            break
    path = Path(*parts)
    return path.with_suffix(".txt") if path.name else path


def _refuse_unpaired(pairs: Pairs, folders: list[Path]) -> None:
    """Raise SourceError for labels without a picture, since the folder may be wrong."""
    labels = {label for _, label in pairs}
    paths = [
        path for folder in folders if folder.is_dir() for path in _list_files(folder, (".txt",))
    ]
    unpaired = [path for path in paths if path not in labels and path.name != "classes.txt"]
    if unpaired:
        raise SourceError(
            f"{counted(len(unpaired), 'label file', 'has')} no picture (the first is {unpaired[0]})"
            "; add a picture, remove the file, or give the picture folder with --images DIR"
        )


def _read_frames(folders: list[Path], rows: LabelRows, video: Path) -> list[LabelledPicture]:
    import cv2

    capture = cv2.VideoCapture(str(video))
    size = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    capture.release()
    if 0 in size:
        raise SourceError(
            f"{video}: cannot be opened as a video, but labels need its size; check --images"
        )
    files = [path for folder in folders for path in sorted(folder.glob("*.txt"))]
    pictures = []
    for at, path in enumerate(path for path in files if path.name != "classes.txt"):
        frame = frame_number(path.stem)
        if frame is None:
            raise SourceError(
                f"{path}: its name has no frame number (frame_000123.txt is frame 123)"
            )
        pictures.append(
            make_picture(
                at, f"{video.name}#{frame}", size, _read_boxes(path, size, rows), frame=frame
            )
        )
    return pictures


def frame_number(stem: str) -> int | None:
    digits = re.search(r"(\d+)$", stem)
    return int(digits[1]) if digits else None


def _read_boxes(
    path: Path, size: tuple[int, int], rows: LabelRows
) -> list[tuple[list[float], int, bool, bool, float | None]]:
    boxes: list[tuple[list[float], int, bool, bool, float | None]] = []
    for line, text in read_lines(path) if os.path.isfile(path) else ():
        values = parse_numbers(path, line, text.split(), 5)
        if len(values) == 6:
            raise SourceError(
                f"{path}:{line}: six numbers are a detection, not a label; give the file "
                "with --detections"
            )
        if rows.keypoints and len(values) not in (5, 5 + rows.keypoints):
            raise SourceError(
                f"{path}:{line}: {len(values)} numbers; by kpt_shape in data.yaml a row has "
                f"5 or {5 + rows.keypoints}"
            )
        if rows.keypoints:
            del values[5:]
        elif len(values) > 5:
            rows.polygons.add(len(values))
        class_id = _parse_class(path, line, values[0], rows.names)
        boxes.append((_to_xyxy(path, line, values[1:], size), class_id, False, False, None))
    return boxes


def _parse_class(path: Path, line: int, value: float, names: tuple[str, ...]) -> int:
    if value != int(value) or not 0 <= value < len(names):
        raise SourceError(
            f"{path}:{line}: class {value:g} has no name: classes count from 0, and "
            f"{counted(len(names), 'name', 'is')} known; add its name"
        )
    return int(value)


def _to_xyxy(path: Path, line: int, values: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Convert cx cy w h, or a polygon x1 y1 x2 y2 ..., to a box in pixels."""
    if min(values) < -SLACK or max(values) > 1 + SLACK:
        raise SourceError(
            f"{path}:{line}: {values[:4]} is not relative to the picture: YOLO's numbers are 0 to 1"
            + (" (keypoints need kpt_shape in data.yaml)" if len(values) > 4 else "")
        )
    if len(values) == 4:
        cx, cy, width, height = values
        box = [cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2]
    elif len(values) % 2 == 0 and len(values) >= 6:
        box = [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]
    else:
        raise SourceError(
            f"{path}:{line}: {len(values) + 1} numbers; a box has 5, a polygon an odd "
            "number from 7 on (keypoints need kpt_shape in data.yaml)"
        )
    return [box[0] * size[0], box[1] * size[1], box[2] * size[0], box[3] * size[1]]


class YoloDetections(DetectionFormat):
    name = "yolo"

    def claims(self, path: Path) -> bool:
        return path.is_dir() and _find_labels(path) is not None

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        """Read NAME.txt of picture NAME, and frame_000123.txt of a video's frame 123."""
        folder = _find_labels(path) or path
        if names is None:
            names = tuple(text for _, text in read_lines(folder / "classes.txt"))
        collector = RowCollector(path, lookup, every_picture_listed=True)
        for file in _list_files(folder, (".txt",)):
            if file.name == "classes.txt":
                continue
            stem = str(file.relative_to(folder).with_suffix(""))
            at = collector.register(_find_picture(stem, lookup), file.name)
            if at is None:
                continue
            one = lookup.dataset.pictures[at]
            if not one.width:
                raise SourceError(
                    f"{one.name}: its size is unknown, but rows of {file} are relative to "
                    "it; add the picture"
                )
            for line, text in read_lines(file):
                values = parse_numbers(file, line, text.split(), 5)
                if not 6 <= len(values) <= 7:  # Ultralytics may add a track's id
                    raise SourceError(
                        f"{file}:{line}: {len(values)} numbers; a detection has six, of which the "
                        "last is its score; write the file with --save yolo --save-conf"
                    )
                class_id = _parse_class(file, line, values[0], names)
                box = _to_xyxy(file, line, values[1:5], (one.width, one.height))
                collector.add(at, box, values[5], class_id, f"{file}:{line}")
        return collector.finish(names)


def _find_labels(path: Path) -> Path | None:
    places = (path, path / "labels")
    return next((place for place in places if (place / "classes.txt").is_file()), None)


def _find_picture(stem: str, lookup: Lookup) -> int | None:
    at = lookup.by_stem(stem)
    number = frame_number(stem)
    return at if at is not None or number is None else lookup.by_frame(number)


FORMATS = (YoloLabels(), YoloDetections())
