"""Footage whose objects are labelled, and runs of the program over it.

A run is the program in its own process; its rows and session are read back, so that we measure what
a user gets.
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
VISIBLE = 0.25  # visible share of an object, below which it need not be found
ENGINE = ("--engine", "ort", "--precision", "fp32")


@dataclass(frozen=True, slots=True)
class Footage:
    """``source``: for the program; ``labels``: of each frame in order."""

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
        Footage(one.name, str(one / "img1"), read_labels(one / "gt.json"))
        for one in folders
        if (one / "gt.json").is_file()
    ]


def read_labels(path: Path) -> list[LabelledPicture]:
    """Read COCO's JSON with a ``track_id``. Objects that need not be found are ignored."""
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
    boxes = np.array([one["bbox"] for one in rows], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    expected = [
        bool(one.get("considered", 1))
        and not one.get("ignore", 0)
        and one.get("visibility", 1.0) >= VISIBLE
        for one in rows
    ]
    kinds = np.array([CLASSES[names[one["category_id"]]] for one in rows], np.int64)
    return LabelledPicture(
        id=image["id"],
        name=image["file_name"],
        width=width,
        height=height,
        boxes=boxes.clip(0, [width, height] * 2),
        class_ids=kinds,
        ignored=~np.array(expected, bool),
        crowd=np.array([bool(one.get("iscrowd", 0)) for one in rows], bool),
        areas=np.array([one["bbox"][2] * one["bbox"][3] for one in rows], np.float64),
        labelled=None if "street" in image["file_name"] else frozenset([0]),  # MOT17: people only
        track_ids=np.array([one["track_id"] for one in rows], np.int64),
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """The results of a run. ``rows``: of each frame; ``session``: session.json."""

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
    """Convert a line of JSONL to detections in ``CLASSES``; other classes are dropped."""
    rows = [one for one in rows if one["class"] in CLASSES]
    ids = [-1 if one.get("track") is None else one["track"] for one in rows]
    return Detections(
        np.array([one["box"] for one in rows], np.float32).reshape(-1, 4),
        np.array([one["score"] for one in rows], np.float32),
        np.array([CLASSES[one["class"]] for one in rows], np.int64),
        track_ids=np.array(ids, np.int64),
    )


def in_our_classes(detections: Detections) -> Detections:
    """Drop objects of other classes."""
    ids = [CLASSES.get(detections.name(i), -1) for i in range(len(detections))]
    mapped = replace(detections, class_ids=np.array(ids, np.int64))
    return mapped.only(mapped.class_ids >= 0)
