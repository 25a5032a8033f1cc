"""Run a dataset through one engine.

A frame takes the same path as in every run (``run.detect``), with two differences. Nothing is
drawn. For each scored class that a box's classes map to, the head returns a detection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import Config
from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, SourceError
from detector.core.errors.text import counted
from detector.core.run.detect import Hooks, Live, RunResult, detect
from detector.core.run.loading import LoadedModel
from detector.core.run.reading import SourceReading
from detector.core.run.tiling import Tiling
from detector.core.session.store import Session
from detector.core.types import Candidates, Detections, Frame, LabelledPicture
from detector.lab.datasets.classmap import ClassMap, ClassPairs, bind
from detector.lab.evaluate.scoring import (
    Plots,
    list_coco_results,
    refuse_unlabelled,
    save_result,
    score,
    score_tracks,
)
from detector.lab.session.evaluation import EngineResult, InterruptedResult

if TYPE_CHECKING:
    from detector.core.models.base import Network
    from detector.core.sources.base import Source
    from detector.core.stages.heads import Floats
    from detector.lab.datasets.base import Dataset

SURE = 0.25  # results with at least this score are checked, as in a run with the default --conf
TOLERANCE = 2  # pixels by which a picture's size may differ from the labelled size


def run_study(
    study: Study, config: Config, command: Sequence[str], live: Live | None, plots: Plots | None
) -> tuple[RunResult, EngineResult | InterruptedResult]:
    dataset = study.dataset
    config = replace(
        config,
        output=replace(config.output, save=(), output=None, no_video=False),
        selection=replace(config.selection, classes=None),
    )
    run = detect([*study.sources], config, command=command, live=live, hooks=study.hooks(config))
    if run.errors:
        raise run.errors[0]
    summary = run.summary
    if run.exit_code not in (EXIT_DONE, EXIT_DAMAGED):
        return run, InterruptedResult(summary.engine, summary.exit)
    study.check_seen(complete=run.exit_code == EXIT_DONE)
    assert study.bound is not None
    indices = sorted(study.detections)
    detections = [study.detections[at] for at in indices]
    scored = score(dataset, study.bound, indices, detections)
    row = EngineResult(
        engine=summary.engine,
        model=summary.model,
        precision=summary.precision,
        batch=summary.batch,
        model_input=summary.model_input,
        tiles=Tiling.parse(config.input.tiles).text,
        fps=summary.fps,
        frames=summary.frames,
        **vars(scored),
        notes=(*study.bound.notes, *summary.notes, *study.notes()),
        session=summary.session or None,
        tracking=score_tracks(dataset, study.bound, indices, detections),
    )
    if run.session is not None:
        results = list_coco_results(dataset, study.bound, indices, detections)
        with Session.reopened(run.session) as session:
            row = save_result(session, row, plots, results)
    return run, row


class Study:
    def __init__(self, dataset: Dataset, mapping: ClassMap | None, tracked: bool = False) -> None:
        """``tracked``: open each sequence as its own source, so no track spans two sequences."""
        self.dataset = dataset
        self.mapping = mapping
        self.bound: ClassPairs | None = None
        self.detections: dict[int, Detections] = {}  # index in the dataset -> detections
        self._mismatches: list[str] = []
        self.sources: dict[str, dict[int | None, int]] = {}  # path -> frame -> index
        several = tracked and len({one.subset for one in dataset.pictures}) > 1
        for at, one in enumerate(dataset.pictures):
            path = str(Path(dataset.path, one.subset)) if several else dataset.path
            self._frames = self.sources.setdefault(path, {})
            self._frames[len(self._frames) if dataset.video is None else one.frame] = at

    def hooks(self, config: Config) -> Hooks:
        return Hooks(self.remap, partial(self.open_source, config), self.collect, measured=False)

    def remap(self, machine: LoadedModel) -> None:
        """Give the network a head that returns the scored classes."""
        bound = self.bound = bind(self.mapping, machine.network.names, self.dataset.classes)
        refuse_unlabelled(self.dataset, bound)
        machine.change_network(partial(map_head, bound=bound))

    def open_source(self, config: Config, spec: str) -> Source:
        from detector.core import sources
        from detector.core.sources._pictures import OpenPictures

        choice, self._frames = SourceReading.of(config).choice, self.sources[spec]
        if self.dataset.video is None:
            paths = [str(self.dataset.pictures[at].path) for at in self._frames.values()]
            return OpenPictures(spec, paths, choice=choice)
        options = config.input
        return sources.open(
            self.dataset.video,
            decoder=options.decoder,
            stride=options.stride,
            frames=max(one.frame or 0 for one in self.dataset.pictures) // options.stride + 1,
            choice=choice,
            pixels="yuv420p",  # as in a run: its saved detections then get the same figures
        )

    def collect(self, frame: Frame, detections: Detections) -> None:
        if (at := self._frames.get(frame.index)) is None:
            return
        height, width = frame.size
        mismatch = find_size_mismatch(self.dataset.pictures[at], width, height)
        if mismatch is not None:
            self._mismatches.append(mismatch)
        self.detections[at] = detections

    def check_seen(self, complete: bool) -> None:
        """Raise SourceError if a ``complete`` video lacks a labelled frame, or if none was seen."""
        dataset = self.dataset
        if not self.detections or (dataset.video is not None and complete):
            missing = [one for at, one in enumerate(dataset.pictures) if at not in self.detections]
            if missing:
                raise SourceError(
                    f"{dataset.path}: {len(missing)} of its frames (the first is "
                    f"{missing[0].name}) are not in {dataset.video or 'the pictures'}; if it is "
                    "the wrong video, give the right one with --images"
                )

    def notes(self) -> list[str]:
        notes = note_size_mismatches(self._mismatches)
        if unread := len(self.dataset.pictures) - len(self.detections):
            notes.append(f"{counted(unread, 'picture')} could not be read and cannot be scored")
        return notes


def map_head(network: Network, bound: ClassPairs) -> Network:
    """Make the head return a detection for each of ``bound.targets`` that a box belongs to."""
    from detector.core.stages.doubt import check_results
    from detector.core.stages.nms import map_classes

    guard = None
    if network.watched:
        guard = check_results(network.head, network.name, len(network.names), network.watched)

    def mapped(outputs: list[Floats], conf: float) -> Candidates:
        if guard is not None:
            guard(outputs, SURE)
        return map_classes(network.dense(outputs), conf, bound.groups)

    # An NMS-free network may return an object once per class. Merged classes then need NMS.
    final = not getattr(network, "needs_nms", True)
    more: dict[str, Any] = {"needs_nms": True} if final and bound.merges else {}
    return replace(network, names=bound.targets, head=mapped, watched="", **more)


def find_size_mismatch(one: LabelledPicture, width: int, height: int) -> str | None:
    far = abs(one.width - width) > TOLERANCE or abs(one.height - height) > TOLERANCE
    if one.width and far:
        return f"{one.name} is {width}x{height}, but the labels say {one.width}x{one.height}"
    return None


def note_size_mismatches(mismatches: Sequence[str]) -> list[str]:
    if not mismatches:
        return []
    return [
        f"{counted(len(mismatches), 'picture', 'has')} a different size from the labels, "
        f"first: {mismatches[0]}"
    ]
