"""MOTChallenge. Labels are the folder of a sequence (gt/gt.txt, img1/ and seqinfo.ini), a folder
of such folders, or a gt.txt with a video.

A row is: frame, id, x, y, w, h, considered, class, visibility. Frames and pixels count from 1. A
row whose ``considered`` is 0 is an ignored box. A class counts as labelled in a sequence if any of
its rows is considered. Class numbers are MOTChallenge's. But if CVAT's ``labels.txt`` (one name a
line) is next to gt.txt, class numbers are line numbers of labels.txt, and pixels count from 0.
Boxes may extend beyond the picture. In a file of detections, the seventh column is the score, and
class numbers count the model's classes from 1 (-1 for a model with one class). A tracker's folder
has SEQUENCE.txt or, as for TrackEval, data/SEQUENCE.txt for each sequence.
"""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from detector.core.analysis.assignment import assign, overlaps
from detector.core.errors import SourceError
from detector.core.errors.text import counted
from detector.core.sources._contents import PICTURES
from detector.core.types import LabelledPicture
from detector.lab.datasets.base import (
    MAX_PIXELS,
    Dataset,
    DetectionFormat,
    LabelFormat,
    Lookup,
    RowCollector,
    StoredDetections,
    make_picture,
    parse_numbers,
    read_label_text,
    read_lines,
    read_picture_size,
    translate_read_errors,
)

CLASSES = (
    "pedestrian",
    "person on vehicle",
    "car",
    "bicycle",
    "motorbike",
    "non motorized vehicle",
    "static person",
    "distractor",
    "occluder",
    "occluder on the ground",
    "occluder full",
    "reflection",
    "crowd",
)

DISTRACTORS = ("person on vehicle", "static person", "distractor", "reflection")
NEVER_SCORED = CLASSES.index("distractor")
LEAST_IOU = 0.5 - float(np.finfo(float).eps)
TRACKS_ENDINGS = (".txt", ".mot.txt", "-detected.mot.txt")  # file name: SEQUENCE and one of these

MAX_FRAMES = 4_000_000  # frames of a sequence: nearly two days at 25 FPS
KEYS = ("seqlength", "imwidth", "imheight")  # keys of a seqinfo.ini whose values are whole numbers

Rows = dict[int, list[list[float]]]  # frame (from 0) -> its rows


class MotLabels(LabelFormat):
    name, suffixes = "mot", (".txt",)

    def claims(self, path: Path) -> bool:
        signs = ("gt/gt.txt", "*/gt/gt.txt", "seqinfo.ini", "*/seqinfo.ini")
        return super().claims(path) or any(any(path.glob(sign)) for sign in signs)

    def read(self, path: Path, images: Path | None, split: str) -> Dataset:
        single = path.is_file() or (path / "gt" / "gt.txt").is_file()
        folders = [path] if single else sorted(gt.parent.parent for gt in path.glob("*/gt/gt.txt"))
        if not folders:
            raise SourceError(
                f"{path}: no gt/gt.txt in it or in its folders; a MOT sequence needs one"
            )
        if images is not None and not single:
            raise SourceError(
                f"--images {images}: {path} has {len(folders)} sequences; use --images with "
                "one of them"
            )
        video = images if images is not None and images.is_file() else None
        if video is None and path.is_file() and path.parent.name != "gt" and images is None:
            raise SourceError(
                f"{path}: no pictures; give their folder, or the video, with --images"
            )
        pictures: list[LabelledPicture] = []
        names: tuple[str, ...] = ()
        for folder in folders:
            file = folder if folder.is_file() else folder / "gt" / "gt.txt"
            own = _read_names(file)
            if names and own != names:
                raise SourceError(
                    f"{file}: its labels.txt differs from that of the first sequence; "
                    "evaluate the sequences separately"
                )
            names = own
            root = folder if folder.is_dir() else file.parent.parent
            pictures += _read_sequence(file, root, images, names, len(pictures))
        known = {folder.name for folder in folders}
        absent = sorted({info.parent.name for info in path.glob("*/seqinfo.ini")} - known)
        notes = [f"skipped sequences without gt/gt.txt: {', '.join(absent)}"] if absent else []
        video_path = None if video is None else str(video)
        return Dataset(str(path), "mot", names, pictures, video_path, notes=notes)


def _read_names(file: Path) -> tuple[str, ...]:
    labels = file.with_name("labels.txt")
    return tuple(text for _, text in read_lines(labels)) if labels.is_file() else CLASSES


def _read_sequence(
    file: Path, root: Path, images: Path | None, names: tuple[str, ...], start: int
) -> list[LabelledPicture]:
    rows = _read_rows(file, first_pixel=0 if file.with_name("labels.txt").is_file() else 1)
    info = _read_info(root / "seqinfo.ini")
    video = images is not None and images.is_file()
    paths = {} if video else _list_pictures(images or root / info.get("imdir", "img1"))
    length = int(info.get("seqlength", 0)) or max((*rows, *paths), default=-1) + 1
    if length > MAX_FRAMES:
        raise SourceError(
            f"{file}: has {length} frames, according to its rows, pictures or seqinfo.ini; a "
            f"sequence has at most {MAX_FRAMES}: correct the number, or split the sequence"
        )
    unknown = sorted(frame for frame in rows if frame >= length or (paths and frame not in paths))
    if unknown:
        raise SourceError(
            f"{file}: {counted(len(unknown), 'frame', 'has')} no picture (the first is frame "
            f"{unknown[0] + 1} of {length}); add the pictures, or give their folder with "
            "--images DIR"
        )
    size = _find_size(info, paths, images if video else None)
    labelled = frozenset(
        _parse_class(file, row, names)
        for frame_rows in rows.values()
        for row in frame_rows
        if row[6] > 0
    )
    pictures = []
    for frame in range(length):
        boxes = [
            (
                [row[2], row[3], row[2] + row[4], row[3] + row[5]],
                _parse_class(file, row, names),
                row[6] <= 0,
                False,
                None,
            )
            for row in rows.get(frame, [])
        ]
        path = (
            None
            if video
            else str(paths.get(frame, root / info.get("imdir", "img1") / f"{frame + 1:06d}.jpg"))
        )
        ids = [int(row[1]) for row in rows.get(frame, [])]
        more = {
            "path": path,
            "track_ids": np.array(ids, np.int64),
            "frame": frame,
            "subset": root.name if file.parent.name == "gt" else "",
        }
        name = f"{root.name}/{Path(path).name}" if path else f"{images and images.name}#{frame}"
        pictures.append(make_picture(start + frame, name, size, boxes, labelled=labelled, **more))
    return pictures


def _read_rows(file: Path, first_pixel: int) -> Rows:
    """Return rows of nine columns, pixels counted from 0. Missing columns are set to 1."""
    rows: Rows = {}
    for line, text in read_lines(file):
        values = parse_numbers(file, line, [part for part in re.split(r"[,\s]+", text) if part], 6)
        values += [1, 1, 1][len(values) - 6 :] if len(values) < 9 else []
        if values[0] < 1 or values[0] != int(values[0]) or values[4] < 0 or values[5] < 0:
            raise SourceError(
                f"{file}:{line}: not a row with frame >= 1 and sizes >= 0: {text[:80]!r}"
            )
        values[2:4] = values[2] - first_pixel, values[3] - first_pixel
        rows.setdefault(int(values[0]) - 1, []).append(values)
    return rows


def _parse_class(file: Path, row: list[float], names: tuple[str, ...]) -> int:
    number = 1 if row[7] == -1 else row[7]  # the first challenges use -1 for pedestrians
    if number not in range(1, len(names) + 1):
        raise SourceError(
            f"{file}: has class {number:g}, but the known classes are 1 to {len(names)}; name it "
            f"in {file.parent}/labels.txt"
        )
    return int(number) - 1


def _read_info(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    parser = configparser.ConfigParser()
    try:
        parser.read_string(read_label_text(path))
        info = dict(parser["Sequence"])
        if not all(0 <= int(info.get(key, 0)) <= MAX_PIXELS for key in KEYS):
            raise ValueError
    except (configparser.Error, KeyError, ValueError) as error:
        raise SourceError(
            f"{path}: needs [Sequence], with whole numbers for {', '.join(KEYS)}; fix or remove it"
        ) from error
    return info


def _list_pictures(folder: Path) -> dict[int, Path]:
    """Return the files by frame; 000001.jpg is frame 0."""
    if not os.path.isdir(folder):
        return {}  # stored tracks are scored without pictures; a run reports missing pictures
    with translate_read_errors(folder):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
    paths = {}
    for path in files:
        digits = re.search(r"(\d+)$", path.stem)
        if digits is None or int(digits[1]) < 1:
            raise SourceError(f"{path}: its name must end in a frame number from 1 on (000001.jpg)")
        paths[int(digits[1]) - 1] = path
    return paths


def _find_size(info: dict[str, str], paths: dict[int, Path], video: Path | None) -> tuple[int, int]:
    if "imwidth" in info and "imheight" in info:
        return int(info["imwidth"]), int(info["imheight"])
    if video is not None or not paths:
        return 0, 0
    return read_picture_size(str(paths[min(paths)]))


class MotDetections(DetectionFormat):
    name, suffixes = "mot", (".txt",)

    def claims(self, path: Path) -> bool:
        return super().claims(path) or _find_tracks(path) is not None

    def read(self, path: Path, lookup: Lookup, names: tuple[str, ...] | None) -> StoredDetections:
        """Read frame, id, x, y, w, h, score, class, ...; class 1 is the first of ``names``. If the
        labels are MOTChallenge's, ``names`` may be None; then all detections are pedestrians."""
        dataset = lookup.dataset
        if names is None and (dataset.format != "mot" or dataset.classes != CLASSES):
            raise SourceError(
                f"{path}: a MOT file has class numbers only; name the classes with --names FILE "
                "(one name a line), or by a known list: --names coco, --names person-vehicle"
            )
        if not lookup.has_frames:
            raise SourceError(
                f"{path}: has frame numbers, but {dataset.path} has pictures without "
                "them; use --save coco for such pictures"
            )
        sequences = dict.fromkeys(one.subset for one in dataset.pictures)
        if (folder := _find_tracks(path)) is None:
            if len(sequences) > 1:
                raise SourceError(
                    f"{path}: has the frames of one sequence, but {dataset.path} has "
                    f"{len(sequences)} sequences; choose one with --subset, or give a folder with "
                    f"NAME.txt for each: {', '.join(sequences)}"
                )
            return self._read_file(path, lookup, names or CLASSES[:1])
        parts = []
        for name in sequences:
            files = [folder / f"{name}{ending}" for ending in TRACKS_ENDINGS]
            file = next((file for file in files if file.is_file()), None)
            if file is None:
                raise SourceError(f"{files[0]}: no such file; each sequence needs one")
            own = replace(dataset, pictures=[one for one in dataset.pictures if one.subset == name])
            parts.append(self._read_file(file, Lookup(own), names or CLASSES[:1]))
        detections = [one for part in parts for one in part.detections]
        notes = [note for part in parts for note in part.notes]
        return StoredDetections(str(path), parts[0].names, detections, notes)

    def _read_file(self, path: Path, lookup: Lookup, names: tuple[str, ...]) -> StoredDetections:
        collector = RowCollector(path, lookup, every_picture_listed=False)
        for line, text in read_lines(path):
            row = parse_numbers(path, line, [part for part in re.split(r"[,\s]+", text) if part], 7)
            number = int(row[7]) if len(row) > 7 else 1
            if row[0] != int(row[0]) or (len(row) > 7 and row[7] != number):
                raise SourceError(f"{path}:{line}: frame and class must be whole numbers")
            if number == -1 and len(names) == 1:
                number = 1
            if not 1 <= number <= len(names):
                raise SourceError(
                    f"{path}:{line}: class {number} has no name: classes count from 1, and "
                    f"{counted(len(names), 'name', 'is')} known; give all names of the model with "
                    "--names; if the class is -1, give only the name of --classes"
                )
            at = collector.register(lookup.by_frame(int(row[0]) - 1), f"frame {int(row[0])}")
            if at is not None:
                x, y = row[2] - 1, row[3] - 1
                box = [x, y, x + row[4], y + row[5]]
                collector.add(at, box, row[6], number - 1, f"{path}:{line}", int(row[1]))
        return collector.finish(names)


def _find_tracks(path: Path) -> Path | None:
    """Return the folder with a file of tracks for each sequence; None if ``path`` has none."""
    folder = path / "data" if (path / "data").is_dir() else path
    has_tracks = any(folder.glob("*.txt")) and not (folder / "classes.txt").is_file()
    return folder if path.is_dir() and has_tracks else None


def follow_benchmark(dataset: Dataset, stored: StoredDetections) -> Dataset:
    """Apply MOTChallenge's rules, as TrackEval does: return labels in which only
    unignored pedestrians count, and drop from ``stored`` the detections that match distractors."""
    pictures = []
    for at, one in enumerate(dataset.pictures):
        found = stored.detections[at]
        overlap = overlaps(one.boxes, found.boxes)
        rows, columns = assign(np.where(overlap >= LEAST_IOU, overlap, 0))
        names = (*DISTRACTORS, *(["non motorized vehicle"] if "MOT20" in one.subset else []))
        distracting = np.isin(one.class_ids[rows], [CLASSES.index(name) for name in names])
        stored.detections[at] = found.only(~np.isin(np.arange(len(found)), columns[distracting]))
        class_ids = np.where(one.ignored, NEVER_SCORED, one.class_ids)
        pictures.append(replace(one, class_ids=class_ids))
    return replace(dataset, pictures=pictures, classes=CLASSES[:1])


FORMATS = (MotLabels(), MotDetections())
