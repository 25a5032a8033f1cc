"""Labels of a comparison's source: read, mapped and scored as ``eval`` does, in a pass of its own,
since average precision needs the low scores that ``--conf`` keeps out of a timed round."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from detector.core.config.schema import EVAL_DEFAULTS, Config
from detector.core.errors import SourceError
from detector.core.errors.text import counted
from detector.core.types import Detections, LabelledPicture
from detector.lab.compare.worker import SeenFrame
from detector.lab.datasets.base import Dataset, Lookup
from detector.lab.datasets.classmap import ClassMap, ClassPairs, bind
from detector.lab.evaluate import EvalOptions, open_labels, refuse_window, select_frames
from detector.lab.evaluate.scoring import refuse_unlabelled, score
from detector.lab.evaluate.study import find_size_mismatch, note_size_mismatches
from detector.lab.session.comparison import ComparedLabels
from detector.lab.session.evaluation import MeanAccuracy

if TYPE_CHECKING:
    from detector.core.sources.base import Source


@dataclass(slots=True)
class Labels:
    """``bound``: the mapping, once the model's classes are known."""

    dataset: Dataset
    mapping: ClassMap | None
    bound: ClassPairs | None = None
    names: Sequence[str] = ()
    pictures: int = 0
    boxes: int = 0
    notes: list[str] = field(default_factory=list)

    def bind(self, names: Sequence[str]) -> ClassPairs:
        """Bind classes. Raises UsageError if none is shared, SourceError without any box."""
        if self.bound is None or self.names != names:  # another model may have other class names
            self.bound, self.names = bind(self.mapping, names, self.dataset.classes), names
            refuse_unlabelled(self.dataset, self.bound)
            self.notes = [*self.dataset.notes, *self.bound.notes]
        return self.bound

    def score(
        self, seen: Sequence[SeenFrame], found: Sequence[Detections], whole: bool
    ) -> MeanAccuracy:
        """``eval``'s figures; ``whole``: all of the source was readable. Raises SourceError."""
        assert self.bound is not None
        dataset = self.dataset
        place_of = self._match_frames(seen)
        missing = [one for at, one in enumerate(dataset.pictures) if at not in place_of]
        if not place_of or (missing and whole and dataset.video is not None):
            raise _foreign_labels(dataset, missing)
        at = sorted(place_of)
        by_frame = {one.frame: detections for one, detections in zip(seen, found, strict=True)}
        row = score(dataset, self.bound, at, [by_frame[place_of[i].frame] for i in at])
        if not self.pictures:
            self.pictures = len(at)
            self.boxes = sum(one.boxes for one in row.per_class.values())
            mismatches = [
                find_size_mismatch(dataset.pictures[i], place_of[i].width, place_of[i].height)
                for i in at
            ]
            self.notes += note_size_mismatches([one for one in mismatches if one is not None])
            if missing and dataset.video is not None:
                self.notes.append(
                    f"{counted(len(missing), 'labelled frame')} could not be read and cannot be "
                    "scored"
                )
        # Without curves and confusion matrix, which are long; eval gives them for one engine.
        return MeanAccuracy(**{key.name: getattr(row, key.name) for key in fields(MeanAccuracy)})

    def _match_frames(self, seen: Sequence[SeenFrame]) -> dict[int, SeenFrame]:
        lookup = Lookup(self.dataset)
        place_of = {}
        for one in seen:
            at = lookup.by_frame(one.frame) if one.path is None else lookup.by_name(one.path)
            if at is not None:
                place_of[at] = one
        return place_of

    def describe(self) -> ComparedLabels:
        return ComparedLabels(
            path=self.dataset.path,
            format=self.dataset.format,
            mapping=self.mapping.path if self.mapping is not None else None,
            classes=self.bound.targets if self.bound else None,
            pictures=self.pictures,
            boxes=self.boxes,
            conf=EVAL_DEFAULTS["conf"],
            iou=EVAL_DEFAULTS["iou"],
            max_det=int(EVAL_DEFAULTS["max_det"]),
            notes=tuple(self.notes),
        )


def open_labels_of(
    labels: str, mapping: str | None, source: str, opened: Source, config: Config
) -> Labels:
    """``opened``: of ``source``, its first frame read. Raises SourceError and UsageError."""
    from detector.core import sources
    from detector.lab.analysis.accuracy.average_precision import check_installed

    check_installed()
    paths = sources.pictures_of(source)
    images = (
        source
        if paths is None
        else os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    )
    dataset, class_map = open_labels(EvalOptions(labels, images=images, mapping=mapping))
    refuse_window(config)
    if paths is None:
        _refuse_beyond_the_end(dataset, opened)
        select_frames(dataset, config.input.stride, config.input.frames)
    else:
        _refuse_other_pictures(
            dataset, source, paths[:: config.input.stride][: config.input.frames]
        )
    return Labels(dataset, class_map)


def _refuse_beyond_the_end(dataset: Dataset, opened: Source) -> None:
    """Raise SourceError for labels of a longer clip; counts frames only if needed."""
    last = max(one.frame or 0 for one in dataset.pictures)
    declared = opened.info.frames_declared
    if declared is not None and last < declared:
        return
    end = 0  # the first frame has been read
    while end < last and (frame := opened.read()) is not None:
        end = frame.index
    if end < last and not opened.damaged:
        raise _foreign_labels(
            dataset, [one for one in dataset.pictures if (one.frame or 0) > end], end + 1
        )


def _refuse_other_pictures(dataset: Dataset, source: str, paths: Sequence[str]) -> None:
    if dataset.video is not None:
        video = os.path.basename(dataset.video)
        raise SourceError(
            f"{dataset.path}: labels frames of {video}, but {source} consists of pictures; "
            "give labels for those pictures"
        )
    lookup = Lookup(dataset)
    if all(lookup.by_name(path) is None for path in paths):
        raise SourceError(
            f"{dataset.path}: labels none of {counted(len(paths), 'picture')} of {source} "
            f"that a round reads, first {paths[0]}; give their labels, or raise --frames"
        )


def _foreign_labels(
    dataset: Dataset, missing: Sequence[LabelledPicture], frames: int | None = None
) -> SourceError:
    length = "" if frames is None else f", which has {frames}"
    return SourceError(
        f"{dataset.path}: {len(missing)} of its frames are not in "
        f"{dataset.video or 'the pictures'}{length}, first {missing[0].name}; do the labels "
        "belong to another clip?"
    )
