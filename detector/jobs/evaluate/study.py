"""A dataset on its way through one engine.

Everything a frame goes through is the run's own (``run.detect``): source, preprocess, engine, NMS, ledger, session. Two
things differ: the head hands out every class of a box, mapped (``stages/mapped.py``), and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.config.schema import Config
from detector.datasets.classmap import Bound, ClassMap, bind
from detector.errors import EXIT_DAMAGED, EXIT_DONE, SourceError
from detector.run.detect import Hooks, Live, Result, detect
from detector.run.wire import LoadedModel
from detector.types import Detections, Frame, LabelledPicture

if TYPE_CHECKING:
    from detector.datasets.base import Dataset
    from detector.models.base import Network
    from detector.sources.base import Source


# ----------------------------------------------------------------------
# What was found, held to the labels: mapped alike, scored, and kept in the session.

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
    from detector.models.catalogue import folder
    from detector.models.names import read_names

    if config.network.names is None:
        return None
    known = folder() / "names" / f"{config.network.names}.names"
    return read_names(known if known.is_file() else Path(config.network.names))


def _translated(one: Detections, target_of: dict[int, int], names: tuple[str, ...]) -> Detections:
    keep = np.array([class_id in target_of for class_id in one.class_ids.tolist()], bool)
    ids = np.array([target_of[class_id] for class_id in one.class_ids[keep].tolist()], np.int64)
    return Detections(one.boxes[keep], one.scores[keep], ids, names)


def figures(
    dataset: Dataset, bound: Bound, seen: Sequence[int], found: Sequence[Detections]
) -> dict[str, Any]:
    from detector.analysis.accuracy.precision import accuracy

    pictures = [mapped_picture(dataset.pictures[at], bound) for at in seen]
    return accuracy(pictures, found, bound.targets)


def mapped_picture(one: LabelledPicture, bound: Bound) -> LabelledPicture:
    """Labels in the classes that are scored; boxes of others are gone."""
    of_target = {**bound.label_ids, **bound.ignored_ids}
    looked_for = None
    if one.labelled is not None:
        looked_for = frozenset(
            bound.label_ids[class_id] for class_id in one.labelled if class_id in bound.label_ids
        )
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

    def remap(self, machine: LoadedModel) -> None:
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
        return sources.open(
            self.dataset.video, decoder=options.decoder, stride=options.stride, frames=last
        )

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
    from detector.stages.nms import mapped

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
    notes = [
        *study.bound.notes,
        *run.summary["notes"],
        *other_sizes(study.resized),
        *_unread(study),
    ]
    row = {
        **{
            key: run.summary[key]
            for key in ("engine", "model", "precision", "batch", "model_input", "fps", "frames")
        },
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
    return (
        [f"{len(said)} pictures have another size than the labels say, first: {said[0]}"]
        if said
        else []
    )


def _unread(study: Study) -> list[str]:
    missing = len(study.dataset.pictures) - len(study.found)
    return [f"{missing} pictures could not be read and are not scored"] if missing else []
