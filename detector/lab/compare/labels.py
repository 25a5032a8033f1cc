"""Score a comparison by the labels of its source, as ``eval`` does. This is a separate pass, since
average precision needs the low scores that ``--conf`` removes from timed rounds."""

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
class ScoredLabels:
    """Labels for the rows of a comparison. ``classes``, ``pictures``, ``boxes``: scored so far."""

    dataset: Dataset
    mapping: ClassMap | None
    classes: tuple[str, ...] | None = None
    pictures: int = 0
    boxes: int = 0
    notes: list[str] = field(default_factory=list)

    def describe(self) -> ComparedLabels:
        return ComparedLabels(
            path=self.dataset.path,
            format=self.dataset.format,
            mapping=self.mapping.path if self.mapping is not None else None,
            classes=self.classes,
            pictures=self.pictures,
            boxes=self.boxes,
            conf=EVAL_DEFAULTS["conf"],
            iou=EVAL_DEFAULTS["iou"],
            max_det=int(EVAL_DEFAULTS["max_det"]),
            notes=tuple(self.notes),
        )


@dataclass(slots=True)
class Labels(ScoredLabels):
    """Labels of a comparison's source. ``bound``: their classes paired with the last model's."""

    bound: ClassPairs | None = None
    names: Sequence[str] = ()

    def bind(self, names: Sequence[str]) -> ClassPairs:
        """Pair a model's classes with the labels'. Raises an error if no box would be scored."""
        if self.bound is None or self.names != names:  # models may have different class names
            self.bound, self.names = bind(self.mapping, names, self.dataset.classes), names
            refuse_unlabelled(self.dataset, self.bound)
            self.classes = self.bound.targets
            self.notes = [*self.dataset.notes, *self.bound.notes]
        return self.bound

    def score(
        self, frames: Sequence[SeenFrame], detections: Sequence[Detections], whole: bool
    ) -> MeanAccuracy:
        """Return ``eval``'s figures. ``whole``: no frame was lost. Raises SourceError."""
        assert self.bound is not None
        dataset = self.dataset
        frame_of = self._match_frames(frames)
        missing = [one for at, one in enumerate(dataset.pictures) if at not in frame_of]
        if not frame_of or (missing and whole and dataset.video is not None):
            raise _foreign_labels_error(dataset, missing)
        at = sorted(frame_of)
        by_frame = {one.frame: found for one, found in zip(frames, detections, strict=True)}
        row = score(dataset, self.bound, at, [by_frame[frame_of[i].frame] for i in at])
        if not self.pictures:
            self.pictures = len(at)
            self.boxes = sum(one.boxes for one in row.per_class.values())
            mismatches = [
                find_size_mismatch(dataset.pictures[i], frame_of[i].width, frame_of[i].height)
                for i in at
            ]
            self.notes += note_size_mismatches([one for one in mismatches if one is not None])
            if missing and dataset.video is not None:
                self.notes.append(
                    f"{counted(len(missing), 'labelled frame')} could not be read and cannot be "
                    "scored"
                )
        # Curves and confusion matrix are long; only eval reports them.
        return MeanAccuracy(**{key.name: getattr(row, key.name) for key in fields(MeanAccuracy)})

    def _match_frames(self, frames: Sequence[SeenFrame]) -> dict[int, SeenFrame]:
        lookup = Lookup(self.dataset)
        frame_of = {}
        for one in frames:
            at = lookup.by_frame(one.frame) if one.path is None else lookup.by_name(one.path)
            if at is not None:
                frame_of[at] = one
        return frame_of


def open_labels_of(
    labels: str, mapping: str | None, source: str, opened: Source, config: Config
) -> Labels:
    """Open and check labels. ``opened``: the open ``source``, whose first frame has been read.
    Raises SourceError and UsageError."""
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
    """Raise SourceError if the labels belong to a longer clip. Count frames only if needed."""
    last = max(one.frame or 0 for one in dataset.pictures)
    declared = opened.info.frames_declared
    if declared is not None and last < declared:
        return
    end = 0  # the first frame, 0, has been read
    while end < last and (frame := opened.read()) is not None:
        end = frame.index
    if end < last and not opened.damaged:
        raise _foreign_labels_error(
            dataset, [one for one in dataset.pictures if (one.frame or 0) > end], end + 1
        )


def _refuse_other_pictures(dataset: Dataset, source: str, paths: Sequence[str]) -> None:
    if dataset.video is not None:
        video = os.path.basename(dataset.video)
        raise SourceError(
            f"{dataset.path}: its labels are for frames of {video}, but {source} consists of "
            "pictures; give labels for those pictures"
        )
    lookup = Lookup(dataset)
    if all(lookup.by_name(path) is None for path in paths):
        raise SourceError(
            f"{dataset.path}: has no labels for the {counted(len(paths), 'picture')} of {source} "
            f"that a round reads (the first is {paths[0]}); add labels, or raise --frames"
        )


def _foreign_labels_error(
    dataset: Dataset, missing: Sequence[LabelledPicture], frames: int | None = None
) -> SourceError:
    length = "" if frames is None else f", which has {counted(frames, 'frame')}"
    return SourceError(
        f"{dataset.path}: {len(missing)} of its frames (the first is {missing[0].name}) are not in "
        f"{dataset.video or 'the pictures'}{length}; do the labels belong to another clip?"
    )
