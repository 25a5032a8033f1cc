"""Map the classes of detections, compare them with labels, and save the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType

from detector.core.config.schema import Config
from detector.core.errors import SourceError
from detector.core.errors.text import counted
from detector.core.run.detect import closing_session
from detector.core.session.codec import to_builtins
from detector.core.types import Detections, LabelledPicture
from detector.lab.datasets.classmap import ClassMap, ClassPairs, bind
from detector.lab.session.evaluation import Accuracy, DatasetTracks, EngineResult, FileResult

if TYPE_CHECKING:
    from detector.core.session.store import Session
    from detector.lab.datasets.base import Dataset

Scored = TypeVar("Scored", EngineResult, FileResult)

# A function that draws a row's plots and returns file name -> text.
Plots = Callable[[EngineResult | FileResult], dict[str, str]]


def score(
    dataset: Dataset, bound: ClassPairs, indices: Sequence[int], detections: Sequence[Detections]
) -> Accuracy:
    """Score detections of the pictures at ``indices``; class ids index ``bound.targets``."""
    from detector.lab.analysis.accuracy.average_precision import accuracy

    pictures = [map_labels(dataset.pictures[at], bound) for at in indices]
    return accuracy(pictures, detections, bound.targets)


def score_tracks(
    dataset: Dataset, bound: ClassPairs, indices: Sequence[int], detections: Sequence[Detections]
) -> DatasetTracks | UnsetType:
    from detector.lab.analysis.accuracy.tracking import track_accuracy

    pictures = [map_labels(dataset.pictures[at], bound) for at in indices]
    ids = [one.track_ids for one in pictures] + [one.track_ids for one in detections]
    if not pictures or any(one is None for one in ids):
        return UNSET
    return track_accuracy(pictures, detections)


def map_labels(one: LabelledPicture, bound: ClassPairs) -> LabelledPicture:
    target_of = {**bound.label_ids, **bound.ignored_ids}
    scored_ids = None
    if one.labelled is not None:
        scored_ids = frozenset(
            bound.label_ids[class_id] for class_id in one.labelled if class_id in bound.label_ids
        )
        target_of = {label: target for label, target in target_of.items() if target in scored_ids}
    keep = np.array([class_id in target_of for class_id in one.class_ids.tolist()], bool)
    ids = one.class_ids[keep].tolist()
    excused = np.array([class_id in bound.ignored_ids for class_id in ids], bool)
    return replace(
        one,
        boxes=one.boxes[keep],
        class_ids=np.array([target_of[class_id] for class_id in ids], np.int64),
        ignored=(one.ignored[keep] | excused) & ~one.crowd[keep],
        crowd=one.crowd[keep],
        areas=one.areas[keep],
        labelled=scored_ids,
        track_ids=None if one.track_ids is None else one.track_ids[keep],
    )


def refuse_unlabelled(dataset: Dataset, bound: ClassPairs) -> None:
    """Raise SourceError if no label would be scored. Call this before hours of inference."""
    targets = list(bound.label_ids)
    for one in dataset.pictures:
        scored = np.isin(one.class_ids, targets) & ~(one.ignored | one.crowd)
        if scored.any():
            return
    raise SourceError(
        f"{dataset.path}: no box of {', '.join(bound.targets)} in its "
        f"{counted(len(dataset.pictures), 'picture')}, so nothing can be scored; check the "
        "labels and the mapping"
    )


def score_file(
    path: str, config: Config, dataset: Dataset, mapping: ClassMap | None, plots: Plots | None
) -> FileResult:
    from detector.core.session.store import Session
    from detector.lab import datasets
    from detector.lab.datasets.mot import CLASSES, follow_benchmark

    if dataset.format == "yolo":
        dataset.check_readable()  # YOLO's boxes are relative to the sizes of the pictures
    stored = datasets.open_detections(path, dataset, names=_read_names(config))
    if mapping is None and stored.names == CLASSES[:1] and dataset.classes == CLASSES:
        dataset = follow_benchmark(dataset, stored)
    bound = bind(mapping, stored.names, dataset.classes)
    refuse_unlabelled(dataset, bound)
    target_of = {class_id: at for at, group in enumerate(bound.groups) for class_id in group}
    detections = [_map_detections(one, target_of, bound.targets) for one in stored.detections]
    indices = range(len(dataset.pictures))
    scored = score(dataset, bound, indices, detections)
    notes = [*bound.notes, *stored.notes]
    if bound.notes and stored.names_only_found:
        notes.append(
            f"{path} names only classes that have detections; add --names FILE (the model's names)"
        )
    if bound.merges:
        notes.append(
            "the classes of this file are mapped after NMS; run the model to map them before NMS"
        )
    tracking = score_tracks(dataset, bound, indices, detections)
    if not tracking and dataset.pictures[0].track_ids is not None:
        notes.append(f"{path}: no HOTA, IDF1 or MOTA, since track ids are missing or -1")
    name = f"{Path(path).stem}-scored"
    session = Session.create(config.output.run_dir, name, or_temporary=True)
    notes += session.notes
    with closing_session(session):
        session.begin()
        row = FileResult(
            detections=path,
            **vars(scored),
            notes=tuple(notes),
            session=str(session.folder),
            tracking=tracking,
        )
        results = list_coco_results(dataset, bound, indices, detections)
        return save_result(session, row, plots, results)


def list_coco_results(
    dataset: Dataset, bound: ClassPairs, indices: Sequence[int], detections: Sequence[Detections]
) -> tuple[str, tuple[str, ...]]:
    """Return (JSON, notes). The JSON is a COCO list of results with the category ids of the labels;
    "" if the labels are not COCO's. It omits merged classes, since they have no single id."""
    from detector.core.sinks.coco import encode, make_results

    if not dataset.category_ids:
        return "", ()
    labels = ((at, bound.label_of(at)) for at in range(len(bound.targets)))
    ids = {at: dataset.category_ids[label] for at, label in labels if label is not None}
    rows = [
        encode(row)
        for at, one in zip(indices, detections, strict=True)
        for row in make_results(dataset.pictures[at].id, one, ids, digits=6)  # decimals of a pixel
    ]
    merged = [name for at, name in enumerate(bound.targets) if at not in ids]
    note = f"coco-results.json lacks classes that stand for several categories: {', '.join(merged)}"
    return "[\n" + ",\n".join(rows) + "\n]\n", (note,) if merged else ()


def save_result(
    session: Session, row: Scored, plots: Plots | None, coco: tuple[str, tuple[str, ...]]
) -> Scored:
    """Write the files of a row to its session, and return the row with their paths."""
    row = replace(row, notes=(*row.notes, *coco[1]))
    session.write_json("evaluation.json", to_builtins(row))
    drawn = plots(row) if plots else {}
    saved = {Path(name).stem: str(session.write_text(name, svg)) for name, svg in drawn.items()}
    path = str(session.write_text("coco-results.json", coco[0])) if coco[0] else UNSET
    return replace(row, plots=saved, coco_results=path)


def _read_names(config: Config) -> tuple[str, ...] | None:
    from detector.core.models.catalogue import folder
    from detector.core.models.names import read_names

    if config.network.names is None:
        return None
    known = folder() / "names" / f"{config.network.names}.names"
    return read_names(known if known.is_file() else Path(config.network.names))


def _map_detections(
    one: Detections, target_of: dict[int, int], names: tuple[str, ...]
) -> Detections:
    keep = np.array([class_id in target_of for class_id in one.class_ids.tolist()], bool)
    one = one.only(keep)
    ids = np.array([target_of[class_id] for class_id in one.class_ids.tolist()], np.int64)
    return replace(one, class_ids=ids, names=names)
