"""What was found, held to the labels: mapped alike, scored, and kept in the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.classmap import Bound, ClassMap, bind
from detector.config import Config
from detector.errors import SourceError
from detector.types import Detections, LabelledPicture

if TYPE_CHECKING:
    from detector.datasets.base import Dataset

Plots = Callable[[dict[str, Any]], dict[str, str]]  # figures -> file name and text of each plot


def refuse_unlabelled(dataset: Dataset, bound: Bound) -> None:
    """Without a box to find there is no figure: said before hours of inference."""
    targets = list(bound.label_ids)
    for one in dataset.pictures:
        looked_for = np.isin(one.class_ids, targets) & ~(one.ignored | one.crowd)
        if looked_for.any():
            return
    raise SourceError(
        f"{dataset.path}: no box of {', '.join(bound.targets)} in its {len(dataset.pictures)} pictures, so there is "
        "nothing to score; check labels and mapping"
    )


def score_file(
    path: str, config: Config, dataset: Dataset, mapping: ClassMap | None, plots: Plots | None
) -> dict[str, Any]:
    """Figures of detections that somebody else, or an earlier run, wrote."""
    from detector import datasets
    from detector.session.store import Session

    if dataset.format == "yolo":
        dataset.check_readable()  # its labels are relative to the pictures
    found = datasets.open_found(path, dataset, names=_given_names(config))
    bound = bind(mapping, found.names, dataset.classes)
    refuse_unlabelled(dataset, bound)
    target_of = {class_id: at for at, group in enumerate(bound.groups) for class_id in group}
    detections = [_translated(one, target_of, bound.targets) for one in found.detections]
    scored = figures(dataset, bound, range(len(dataset.pictures)), detections)
    notes = [*bound.notes, *found.notes]
    if bound.merges:
        notes.append(
            "classes were mapped after the NMS that made this file: run the model for what mapping first gives"
        )
    session = Session.create(config.output.run_dir, f"{Path(path).stem}-scored")
    row = {"detections": path, **scored, "notes": notes, "session": str(session.folder)}
    keep(session.folder, row, plots)
    return row


def _given_names(config: Config) -> tuple[str, ...] | None:
    """--names: a file, or a list that the package carries."""
    from detector.models.names import read_names
    from detector.models.packaged import folder

    if config.network.names is None:
        return None
    known = folder() / "names" / f"{config.network.names}.names"
    return read_names(known if known.is_file() else Path(config.network.names))


def _translated(one: Detections, target_of: dict[int, int], names: tuple[str, ...]) -> Detections:
    keep = np.array([class_id in target_of for class_id in one.class_ids.tolist()], bool)
    ids = np.array([target_of[class_id] for class_id in one.class_ids[keep].tolist()], np.int64)
    return Detections(one.boxes[keep], one.scores[keep], ids, names)


def figures(dataset: Dataset, bound: Bound, seen: Sequence[int], found: Sequence[Detections]) -> dict[str, Any]:
    from detector.analysis.accuracy import accuracy

    pictures = [mapped_picture(dataset.pictures[at], bound) for at in seen]
    return accuracy(pictures, found, bound.targets)


def mapped_picture(one: LabelledPicture, bound: Bound) -> LabelledPicture:
    """Labels in the classes that are scored; boxes of others are gone."""
    of_target = {**bound.label_ids, **bound.ignored_ids}
    looked_for = None
    if one.labelled is not None:
        looked_for = frozenset(bound.label_ids[class_id] for class_id in one.labelled if class_id in bound.label_ids)
        of_target = {label: target for label, target in of_target.items() if target in looked_for}
    keep = np.array([class_id in of_target for class_id in one.class_ids.tolist()], bool)
    ids = one.class_ids[keep].tolist()
    excused = np.array([class_id in bound.ignored_ids for class_id in ids], bool)
    return replace(
        one,
        boxes=one.boxes[keep],
        class_ids=np.array([of_target[class_id] for class_id in ids], np.int64),
        ignored=(one.ignored[keep] | excused) & ~one.crowd[keep],
        crowd=one.crowd[keep],
        areas=one.areas[keep],
        labelled=looked_for,
    )


def keep(folder: Path | None, row: dict[str, Any], plots: Plots | None) -> None:
    """evaluation.json and the plots, into the session."""
    if folder is None:
        return
    from detector.session.store import Session

    session = Session(folder)
    session.write_json("evaluation.json", row)
    row["plots"] = {}
    for name, text in plots(row).items() if plots else ():
        row["plots"][Path(name).stem] = str(session.write_text(name, text))
