"""``eval``: a dataset through the same loop as ``detect``, and what was found held to the labels.

Everything a frame goes through is the run's own (``run.detect``): source, preprocess, engine, NMS, ledger, session. Two
things differ: the head hands out every class of a box, mapped (``stages/mapped.py``), and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.classmap import Bound, ClassMap, bind, read_mapping
from detector.config import Config
from detector.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_GATE, SourceError, UsageError
from detector.machine import Machine
from detector.run import Hooks, Live, Result, detect
from detector.types import Detections, Frame, LabelledPicture

if TYPE_CHECKING:
    from detector.datasets.base import Dataset
    from detector.sources.base import Source

SCHEMA = 1
WIDE = 2  # pixels by which a picture may differ from the size that the labels state


@dataclass(frozen=True, slots=True)
class Asked:
    """What is evaluated, and against what."""

    dataset: str
    format: str = "auto"
    images: str | None = None
    split: str = "val"
    subset: str | None = None
    mapping: str | None = None
    detections: str | None = None
    min_ap50: float | None = None


@dataclass(slots=True)
class Evaluation:
    """``document``: what ``--json`` prints; ``runs``: a summary for each engine, none for a file of detections."""

    document: dict[str, Any]
    runs: list[Result]

    @property
    def exit_code(self) -> int:
        return int(self.document["exit"]["code"])


def evaluate(
    asked: Asked,
    configs: Sequence[Config],
    *,
    command: Sequence[str] = (),
    live: Callable[[], Live] | None = None,
    plots: Callable[[dict[str, Any]], dict[str, str]] | None = None,
) -> Evaluation:
    """One configuration an engine. ``plots``: figures -> the text of each plot, by its file's name.

    Raises DetectVideoError for what cannot be read, run or scored. A failed gate is in ``document["exit"]``.
    """
    from detector.analysis.coco import check_installed

    check_installed()
    dataset, mapping = _opened(asked, configs[0])
    if asked.detections is not None:
        runs: list[Result] = []
        results = [_score_file(asked, configs[0], dataset, mapping, plots)]
    else:
        dataset.check_readable()
        studies = [_Study(dataset, mapping) for _ in configs]
        runs = []
        results = []
        for study, config in zip(studies, configs, strict=True):
            run, figures = _run(study, config, command, live and live(), plots)
            runs.append(run)
            results.append(figures)
            if "exit" in figures:  # interrupted: no next one
                break
    _compare(results)
    document = {
        "schema": SCHEMA,
        "dataset": _described(asked, dataset),
        "settings": _settings(configs[0]) if asked.detections is None else {"detections": asked.detections},
        "mapping": mapping and mapping.path,
        "results": results,
        "notes": dataset.notes,
        "exit": _exit(results, runs, asked.min_ap50),
    }
    return Evaluation(document, runs)


def for_engines(config: Config, engines: Sequence[str]) -> list[Config]:
    """The same for each engine; of several, each has its own session below --run-dir. Raises UsageError."""
    if not engines:
        return [config]
    if len(set(engines)) != len(engines):
        raise UsageError(f"--engine {','.join(engines)}: an engine stands there twice; name each once")
    folder = config.output.run_dir
    made = []
    for name in engines:
        below = str(Path(folder) / name) if folder and len(engines) > 1 else folder
        made.append(
            replace(config, runtime=replace(config.runtime, engine=name), output=replace(config.output, run_dir=below))
        )
    return made


def _opened(asked: Asked, config: Config) -> tuple[Dataset, ClassMap | None]:
    """Labels, cut to what is asked for; and the mapping. Raises before any model is loaded."""
    from detector import datasets
    from detector.models.packaged import folder

    mapping = None if asked.mapping is None else read_mapping(asked.mapping, folder() / "mappings")
    dataset = datasets.open(asked.dataset, format=asked.format, images=asked.images, split=asked.split)
    if asked.subset is not None:
        known = sorted({one.subset for one in dataset.pictures if one.subset})
        dataset.pictures = [one for one in dataset.pictures if one.subset == asked.subset]
        if not dataset.pictures:
            raise UsageError(f"--subset {asked.subset}: no picture is of it; {asked.dataset} has {known or 'no parts'}")
    stride, frames = config.input.stride, config.input.frames
    if dataset.video is None:
        dataset.pictures = dataset.pictures[::stride][:frames]
    else:
        last = None if frames is None else frames * stride
        dataset.pictures = [one for one in dataset.pictures if _reached(one, stride, last)]
        if not dataset.pictures:
            raise UsageError("--frames and --stride leave no labelled frame of the video; change them")
    return dataset, mapping


def _reached(one: LabelledPicture, stride: int, last: int | None) -> bool:
    return one.frame is not None and one.frame % stride == 0 and (last is None or one.frame < last)


class _Study:
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
        from detector.stages.mapped import mapped

        network = machine.network
        bound = self.bound = bind(self.mapping, network.names, self.dataset.classes)
        _refuse_unlabelled(self.dataset, bound)
        machine.network = replace(
            network,
            names=bound.targets,
            head=lambda outputs, conf: mapped(network.dense(outputs), conf, bound.groups),
        )

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
        one = self.dataset.pictures[at]
        height, width = frame.image.shape[:2]
        if one.width and (abs(one.width - width) > WIDE or abs(one.height - height) > WIDE):
            self.resized.append(f"{one.name} is {width}x{height}, the labels say {one.width}x{one.height}")
        self.found[at] = detections


def _refuse_unlabelled(dataset: Dataset, bound: Bound) -> None:
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


def _run(
    study: _Study, config: Config, command: Sequence[str], live: Live | None, plots: Any
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
    figures = _figures(dataset, study.bound, seen, [study.found[at] for at in seen])
    notes = [*study.bound.notes, *run.summary["notes"], *_resized(study), *_unread(study)]
    row = {
        **{key: run.summary[key] for key in ("engine", "model", "precision", "batch", "model_input", "fps", "frames")},
        **figures,
        "notes": notes,
        "session": run.summary.get("session"),
    }
    _keep(run.session, row, plots)
    return run, row


def _check_seen(study: _Study, run: Result) -> None:
    dataset = study.dataset
    if not study.found or (dataset.video is not None and run.exit_code == EXIT_DONE):
        missing = [one for at, one in enumerate(dataset.pictures) if at not in study.found]
        if missing:
            raise SourceError(
                f"{dataset.path}: {len(missing)} of its frames are not in {dataset.video or 'the pictures'}, first "
                f"{missing[0].name}; is it the right video? name it with --images"
            )


def _resized(study: _Study) -> list[str]:
    if not study.resized:
        return []
    return [f"{len(study.resized)} pictures have another size than the labels say, first: {study.resized[0]}"]


def _unread(study: _Study) -> list[str]:
    missing = len(study.dataset.pictures) - len(study.found)
    return [f"{missing} pictures could not be read and are not scored"] if missing else []


def _score_file(asked: Asked, config: Config, dataset: Dataset, mapping: ClassMap | None, plots: Any) -> dict[str, Any]:
    """Figures of detections that somebody else, or an earlier run, wrote."""
    from detector import datasets
    from detector.session.store import Session

    assert asked.detections is not None
    if dataset.format == "yolo":
        dataset.check_readable()  # its labels are relative to the pictures
    found = datasets.open_found(asked.detections, dataset, names=_given_names(config))
    bound = bind(mapping, found.names, dataset.classes)
    _refuse_unlabelled(dataset, bound)
    target_of = {class_id: at for at, group in enumerate(bound.groups) for class_id in group}
    detections = [_translated(one, target_of, bound.targets) for one in found.detections]
    figures = _figures(dataset, bound, range(len(dataset.pictures)), detections)
    notes = [*bound.notes, *found.notes]
    if bound.merges:
        notes.append(
            "classes were mapped after the NMS that made this file: run the model for what mapping first gives"
        )
    session = Session.create(config.output.run_dir, f"{Path(asked.detections).stem}-scored")
    row = {"detections": asked.detections, **figures, "notes": notes, "session": str(session.folder)}
    _keep(session.folder, row, plots)
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


def _figures(dataset: Dataset, bound: Bound, seen: Sequence[int], found: Sequence[Detections]) -> dict[str, Any]:
    from detector.analysis.accuracy import accuracy

    pictures = [mapped_picture(dataset.pictures[at], bound) for at in seen]
    return accuracy(pictures, found, bound.targets)


def mapped_picture(one: LabelledPicture, bound: Bound) -> LabelledPicture:
    """Labels in the classes that are scored; boxes of others are gone."""
    of_target = {**bound.label_ids, **bound.ignored_ids}
    keep = np.array([class_id in of_target for class_id in one.class_ids.tolist()], bool)
    ids = one.class_ids[keep].tolist()
    excused = np.array([class_id in bound.ignored_ids for class_id in ids], bool)
    looked_for = one.labelled
    return replace(
        one,
        boxes=one.boxes[keep],
        class_ids=np.array([of_target[class_id] for class_id in ids], np.int64),
        ignored=(one.ignored[keep] | excused) & ~one.crowd[keep],
        crowd=one.crowd[keep],
        areas=one.areas[keep],
        labelled=None
        if looked_for is None
        else frozenset(bound.label_ids[class_id] for class_id in looked_for if class_id in bound.label_ids),
    )


def _keep(folder: Path | None, row: dict[str, Any], plots: Callable[[dict[str, Any]], dict[str, str]] | None) -> None:
    """evaluation.json and the plots, into the session."""
    if folder is None:
        return
    from detector.session.store import Session

    session = Session(folder)
    session.write_json("evaluation.json", row)
    row["plots"] = {}
    for name, text in plots(row).items() if plots else ():
        row["plots"][Path(name).stem] = str(session.write_text(name, text))


def _compare(results: list[dict[str, Any]]) -> None:
    """What each engine differs from the first, in the first's own figures."""
    from detector.analysis.accuracy import difference

    if any("ap50" not in row for row in results):
        return  # interrupted
    for row in results[1:]:
        row["difference"] = difference(row, results[0])


def _described(asked: Asked, dataset: Dataset) -> dict[str, Any]:
    boxes = sum(len(one.boxes) for one in dataset.pictures)
    return {
        "path": dataset.path,
        "format": dataset.format,
        "subset": asked.subset,
        "video": dataset.video,
        "pictures": len(dataset.pictures),
        "boxes": boxes,
        "classes": list(dataset.classes),
    }


def _settings(config: Config) -> dict[str, Any]:
    selection = config.selection
    return {
        "conf": selection.conf,
        "iou": selection.iou,
        "agnostic": selection.agnostic,
        "max_det": selection.max_det,
        "max_det_class": 100,
    }


def _exit(results: list[dict[str, Any]], runs: list[Result], least: float | None) -> dict[str, Any]:
    """An interruption first, then a failed gate, then damage."""
    for row in results:
        if "exit" in row:
            return {**row["exit"], "reason": f"{row['exit']['reason']}; nothing is scored"}
    if least is not None:
        for row in results:
            if row["ap50"] is None or row["ap50"] < least:
                who = row.get("engine") or row["detections"]
                reached = "there is none" if row["ap50"] is None else f"it is {row['ap50']:.4f}"
                return {
                    "code": EXIT_GATE,
                    "reason": f"gate failed: AP50 of at least {least} is asked for, {reached} ({who})",
                }
    for run in runs:
        if run.exit_code != EXIT_DONE:
            return dict(run.summary["exit"])
    return {"code": EXIT_DONE, "reason": "done"}
