"""Labels beside the source of a comparison: checked before anything is loaded, then the average precision of a row.

Reading, mapping and scoring are ``eval``'s own (``detector.jobs.evaluate``). What is judged is a pass of its own, at
``eval``'s thresholds: average precision needs the boxes of low score that ``--conf`` of a timed round leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from detector.config.schema import EVAL_DEFAULTS, Config
from detector.datasets.base import Dataset, Lookup
from detector.datasets.classmap import Bound, ClassMap, bind
from detector.errors import SourceError
from detector.jobs.compare.worker import SeenFrame
from detector.jobs.evaluate import Asked, keep_reached, open_labels
from detector.jobs.evaluate.study import another_size, figures, other_sizes, refuse_unlabelled
from detector.session.comparison import ComparedLabels
from detector.session.evaluation import MeanAccuracy
from detector.types import Detections, LabelledPicture

if TYPE_CHECKING:
    from detector.sources.base import Source


@dataclass(slots=True)
class Labels:
    """``bound``: between labels and model, once a row has told the model's classes."""

    dataset: Dataset
    mapping: ClassMap | None
    bound: Bound | None = None
    pictures: int = 0
    boxes: int = 0
    notes: list[str] = field(default_factory=list)

    def bind(self, names: Sequence[str]) -> Bound:
        """Raises UsageError where model and labels share no class, SourceError where no box is left to find."""
        if self.bound is None:
            self.bound = bind(self.mapping, names, self.dataset.classes)
            refuse_unlabelled(self.dataset, self.bound)
            self.notes = [*self.dataset.notes, *self.bound.notes]
        return self.bound

    def score(
        self, seen: Sequence[SeenFrame], found: Sequence[Detections], whole: bool
    ) -> MeanAccuracy:
        """``eval``'s figures of the labelled ones among these frames. ``whole``: everything could be read.

        Raises SourceError where none of them is labelled, or labelled frames are not in a video that was read whole.
        """
        assert self.bound is not None
        dataset = self.dataset
        place_of = self._places(seen)
        missing = [one for at, one in enumerate(dataset.pictures) if at not in place_of]
        if not place_of or (missing and whole and dataset.video is not None):
            raise _strangers(dataset, missing)
        at = sorted(place_of)
        sizes = [
            another_size(dataset.pictures[i], place_of[i].width, place_of[i].height) for i in at
        ]
        by_frame = {one.frame: detections for one, detections in zip(seen, found, strict=True)}
        row = figures(dataset, self.bound, at, [by_frame[place_of[i].frame] for i in at])
        if not self.pictures:  # the same for every row: they are given the same frames
            self.pictures = len(at)
            self.boxes = sum(one.boxes for one in row.per_class.values())
            self.notes += other_sizes([said for said in sizes if said is not None])
            if missing and dataset.video is not None:
                self.notes.append(
                    f"{len(missing)} labelled frames could not be read and are not scored"
                )
        # Without curves and confusion matrix, which are long; eval gives them for one engine.
        return MeanAccuracy(**{key.name: getattr(row, key.name) for key in fields(MeanAccuracy)})

    def _places(self, seen: Sequence[SeenFrame]) -> dict[int, SeenFrame]:
        """Place in the dataset -> the frame that it labels."""
        lookup = Lookup(self.dataset)
        found = {}
        for one in seen:
            at = lookup.by_frame(one.frame) if one.path is None else lookup.by_name(one.path)
            if at is not None:
                found[at] = one
        return found

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


def open_beside(
    labels: str, mapping: str | None, source: str, opened: Source, config: Config
) -> Labels:
    """Labels of the frames of ``source``, of which ``opened`` has handed out the first.

    Raises SourceError where they cannot be read or are of other pictures, UsageError for a mapping that is none and
    where ``--frames`` and ``--stride`` come to no labelled frame. ``config``: with the frames of a round.
    """
    from detector import sources
    from detector.analysis.accuracy.average_precision import check_installed

    check_installed()
    paths = sources.pictures_of(source)
    images = (
        source
        if paths is None
        else os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    )
    dataset, found = open_labels(Asked(labels, images=images, mapping=mapping))
    if paths is None:
        _refuse_beyond_the_end(dataset, opened)
        keep_reached(dataset, config.input.stride, config.input.frames)
    else:
        _refuse_other_pictures(
            dataset, source, paths[:: config.input.stride][: config.input.frames]
        )
    return Labels(dataset, found)


def _refuse_beyond_the_end(dataset: Dataset, opened: Source) -> None:
    """Labels of a longer clip. Counts its frames only where its container does not promise enough of them."""
    last = max(one.frame or 0 for one in dataset.pictures)
    promised = opened.info.frames_declared
    if promised is not None and last < promised:
        return
    end = 0  # the first frame has been read
    while end < last and (frame := opened.read()) is not None:
        end = frame.index
    if end < last and not opened.damaged:
        raise _strangers(
            dataset, [one for one in dataset.pictures if (one.frame or 0) > end], end + 1
        )


def _refuse_other_pictures(dataset: Dataset, source: str, paths: Sequence[str]) -> None:
    if dataset.video is not None:
        video = os.path.basename(dataset.video)
        raise SourceError(
            f"{dataset.path}: labels frames of {video}, and {source} is made of pictures; give its own labels"
        )
    lookup = Lookup(dataset)
    if all(lookup.by_name(path) is None for path in paths):
        raise SourceError(
            f"{dataset.path}: labels none of the {len(paths)} pictures of {source} that a round looks at, first "
            f"{paths[0]}; give the labels of these pictures, or more --frames"
        )


def _strangers(
    dataset: Dataset, missing: Sequence[LabelledPicture], frames: int | None = None
) -> SourceError:
    length = "" if frames is None else f", which has {frames}"
    return SourceError(
        f"{dataset.path}: {len(missing)} of its frames are not in {dataset.video or 'the pictures'}{length}, first "
        f"{missing[0].name}; are these the labels of another clip?"
    )
