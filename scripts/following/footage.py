"""Labelled footage, and runs of the program on it.

The program runs in its own process, and we read its rows and its session, so that we measure what a
user gets.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from detector.core.types import Detections, LabelledPicture

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {"person": 0, "pedestrian": 0, "vehicle": 1}
CLASSES |= dict.fromkeys(("car", "truck", "bus", "motorcycle", "motorbike"), 1)
LEAST_VISIBLE = 0.25  # objects with a smaller visible share are ignored
ENGINE = ("--engine", "ort", "--precision", "fp32")


@dataclass(frozen=True, slots=True)
class Footage:
    """``source``: the program's argument; ``labels``: one element per frame, in order."""

    name: str
    source: str
    labels: list[LabelledPicture]


def rendered() -> Footage:
    """Return the clip of the repository: a street rendered in daylight, 250 frames at 25 fps."""
    clip = ROOT / "videos/street.mp4"
    return Footage("street.mp4", str(clip), read_labels(clip.with_suffix(".json")))


def sequences(shared: Path) -> list[Footage]:
    """Return the available sequences of MOT17."""
    folders = sorted((shared / "data/labelled/sequence").glob("MOT17-*"))
    return [
        Footage(folder.name, str(folder / "img1"), read_labels(folder / "gt.json"))
        for folder in folders
        if (folder / "gt.json").is_file()
    ]


def read_labels(path: Path) -> list[LabelledPicture]:
    """Read labels in COCO's format with ``track_id``. Barely visible objects are marked ignored."""
    document = json.loads(path.read_text(encoding="utf-8"))
    names = {one["id"]: one["name"] for one in document["categories"]}
    rows: dict[int, list[dict[str, Any]]] = {one["id"]: [] for one in document["images"]}
    for one in document["annotations"]:
        if names[one["category_id"]] in CLASSES:
            rows[one["image_id"]].append(one)
    return [_picture(one, names, rows[one["id"]]) for one in document["images"]]


def _picture(
    image: dict[str, Any], names: dict[int, str], rows: Sequence[dict[str, Any]]
) -> LabelledPicture:
    width, height = image["width"], image["height"]
    boxes = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    expected = [
        bool(row.get("considered", 1))
        and not row.get("ignore", 0)
        and row.get("visibility", 1.0) >= LEAST_VISIBLE
        for row in rows
    ]
    kinds = np.array([CLASSES[names[row["category_id"]]] for row in rows], np.int64)
    return LabelledPicture(
        id=image["id"],
        name=image["file_name"],
        width=width,
        height=height,
        boxes=boxes.clip(0, [width, height] * 2),
        class_ids=kinds,
        ignored=~np.array(expected, bool),
        crowd=np.array([bool(row.get("iscrowd", 0)) for row in rows], bool),
        areas=np.array([row["bbox"][2] * row["bbox"][3] for row in rows], np.float64),
        labelled=None if "street" in image["file_name"] else frozenset([0]),  # MOT17: people only
        track_ids=np.array([row["track_id"] for row in rows], np.int64),
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """The results of a run. ``rows``: the JSONL lines, one per frame. ``session``: session.json."""

    rows: list[dict[str, Any]]
    session: dict[str, Any]

    @property
    def found(self) -> list[Detections]:
        return [as_detections(row["detections"]) for row in self.rows]

    @property
    def cpu_ms(self) -> float:
        """CPU time of the process per frame."""
        return float(1e3 * self.session["cpu"]["process_s"] / self.session["frames"]["written"])

    @property
    def fps(self) -> float:
        return float(self.session["fps"]["end_to_end"])

    @property
    def inferred(self) -> float:
        frames = self.session["frames"]
        return float(1 - frames["coasted"] / frames["written"])


def run(source: str, *options: str) -> Ran:
    """Run the program. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "detector", source, *ENGINE, *options]
        command += ["--save", "jsonl", "-o", f"{folder}/", "--run-dir", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        (rows,) = Path(folder).glob("*.jsonl")
        return Ran(
            [json.loads(line) for line in rows.read_text().splitlines()],
            json.loads(Path(folder, "run/session.json").read_text()),
        )


def as_detections(rows: Sequence[dict[str, Any]]) -> Detections:
    """Convert the objects of a JSONL line to detections; drop those that are not in ``CLASSES``."""
    rows = [row for row in rows if row["class"] in CLASSES]
    ids = [-1 if row.get("track") is None else row["track"] for row in rows]
    return Detections(
        np.array([row["box"] for row in rows], np.float32).reshape(-1, 4),
        np.array([row["score"] for row in rows], np.float32),
        np.array([CLASSES[row["class"]] for row in rows], np.int64),
        track_ids=np.array(ids, np.int64),
    )


def in_our_classes(detections: Detections) -> Detections:
    """Convert class ids to those of ``CLASSES``, and drop objects of other classes."""
    ids = [CLASSES.get(detections.name(i), -1) for i in range(len(detections))]
    mapped = replace(detections, class_ids=np.array(ids, np.int64))
    return mapped.only(mapped.class_ids >= 0)
