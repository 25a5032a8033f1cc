"""A dataset on its way through one engine.

Everything a frame goes through is the run's own (``run.detect``): source, preprocess, engine, NMS, ledger, session. Two
things differ: the head hands out every class of a box, mapped (``stages/mapped.py``), and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from detector.classmap import Bound, ClassMap, bind
from detector.config import Config
from detector.errors import EXIT_DAMAGED, EXIT_DONE, SourceError
from detector.evaluation.scoring import Plots, figures, keep, refuse_unlabelled
from detector.machine import Machine
from detector.run import Hooks, Live, Result, detect
from detector.types import Detections, Frame, LabelledPicture

if TYPE_CHECKING:
    from detector.datasets.base import Dataset
    from detector.models.base import Network
    from detector.sources.base import Source

WIDE = 2  # pixels by which a picture may differ from the size that the labels state


class Study:
    """A dataset on its way through one engine: hooks of the run, and what they saw."""

    def __init__(self, dataset: Dataset, mapping: ClassMap | None) -> None:
        self.dataset = dataset
        self.mapping = mapping
        self.bound: Bound | None = None
        self.found: dict[int, Detections] = {}  # by place in the dataset
        self.resized: list[str] = []
        self._places = {one.frame: at for at, one in enumerate(dataset.pictures)}

    def hooks(self, config: Config) -> Hooks:
        return Hooks(self.remap, partial(self.source, config), self.detected)

    def remap(self, machine: Machine) -> None:
        """Puts the mapped head on the network; from here on its classes are those that are scored."""
        bound = self.bound = bind(self.mapping, machine.network.names, self.dataset.classes)
        refuse_unlabelled(self.dataset, bound)
        machine.network = with_mapped_head(machine.network, bound)

    def source(self, config: Config, spec: str) -> Source:
        from detector import sources
        from detector.sources.images import PictureSource

        if self.dataset.video is None:
            return PictureSource(spec, [str(one.path) for one in self.dataset.pictures])
        options = config.input
        last = max(one.frame or 0 for one in self.dataset.pictures) // options.stride + 1
        return sources.open(self.dataset.video, decoder=options.decoder, stride=options.stride, frames=last)

    def detected(self, frame: Frame, detections: Detections) -> None:
        at = frame.index if self.dataset.video is None else self._places.get(frame.index)
        if at is None:
            return  # a frame without labels
        height, width = frame.image.shape[:2]
        if (other := another_size(self.dataset.pictures[at], width, height)) is not None:
            self.resized.append(other)
        self.found[at] = detections


def with_mapped_head(network: Network, bound: Bound) -> Network:
    """The network with every class of a box as a detection of its own, mapped to ``bound.targets``."""
    from detector.stages.mapped import mapped

    return replace(
        network,
        names=bound.targets,
        head=lambda outputs, conf: mapped(network.dense(outputs), conf, bound.groups),
        **_nms_after_all(network, bound),
    )


def another_size(one: LabelledPicture, width: int, height: int) -> str | None:
    """What a picture measures (pixels) and what its labels say, where these differ."""
    if one.width and (abs(one.width - width) > WIDE or abs(one.height - height) > WIDE):
        return f"{one.name} is {width}x{height}, the labels say {one.width}x{one.height}"
    return None


def _nms_after_all(network: Network, bound: Bound) -> dict[str, Any]:
    """A network that leaves one box an object leaves one a class: merged classes may hold an object twice."""
    final = not getattr(network, "needs_nms", True)
    return {"needs_nms": True} if final and bound.merges else {}


def run_study(
    study: Study, config: Config, command: Sequence[str], live: Live | None, plots: Plots | None
) -> tuple[Result, dict[str, Any]]:
    """One engine over the dataset, and its figures. Raises what ended the run early."""
    dataset = study.dataset
    config = replace(
        config,
        output=replace(config.output, save=(), output=None, no_video=False),
        selection=replace(config.selection, classes=None),
    )
    spec = dataset.path
    run = detect([spec], config, command=command, live=live, hooks=study.hooks(config))
    if run.errors:
        raise run.errors[0]
    if run.exit_code not in (EXIT_DONE, EXIT_DAMAGED):
        return run, {"engine": run.summary["engine"], "exit": run.summary["exit"]}
    _check_seen(study, run)
    assert study.bound is not None
    seen = sorted(study.found)
    scored = figures(dataset, study.bound, seen, [study.found[at] for at in seen])
    notes = [*study.bound.notes, *run.summary["notes"], *other_sizes(study.resized), *_unread(study)]
    row = {
        **{key: run.summary[key] for key in ("engine", "model", "precision", "batch", "model_input", "fps", "frames")},
        **scored,
        "notes": notes,
        "session": run.summary.get("session"),
    }
    keep(run.session, row, plots)
    return run, row


def _check_seen(study: Study, run: Result) -> None:
    dataset = study.dataset
    if not study.found or (dataset.video is not None and run.exit_code == EXIT_DONE):
        missing = [one for at, one in enumerate(dataset.pictures) if at not in study.found]
        if missing:
            raise SourceError(
                f"{dataset.path}: {len(missing)} of its frames are not in {dataset.video or 'the pictures'}, first "
                f"{missing[0].name}; is it the right video? name it with --images"
            )


def other_sizes(said: Sequence[str]) -> list[str]:
    """One note of what ``another_size`` found; none where it found nothing."""
    return [f"{len(said)} pictures have another size than the labels say, first: {said[0]}"] if said else []


def _unread(study: Study) -> list[str]:
    missing = len(study.dataset.pictures) - len(study.found)
    return [f"{missing} pictures could not be read and are not scored"] if missing else []
