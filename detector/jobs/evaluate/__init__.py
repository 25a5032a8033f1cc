"""``eval``: a dataset through the same loop as ``detect``, and what was found held to the labels.

study.py    a dataset on its way through one engine
scoring.py  what was found, or read from a file, held to the labels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.config.schema import Config
from detector.datasets.classmap import ClassMap, read_mapping
from detector.errors import EXIT_DONE, EXIT_GATE, UsageError
from detector.jobs.evaluate.study import Plots, Study, run_study, score_file
from detector.run.detect import Live, Result
from detector.types import LabelledPicture

if TYPE_CHECKING:
    from detector.datasets.base import Dataset

SCHEMA = 1


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
    plots: Plots | None = None,
) -> Evaluation:
    """One configuration an engine. ``plots``: figures -> the text of each plot, by its file's name.

    Raises DetectVideoError for what cannot be read, run or scored. A failed gate is in ``document["exit"]``.
    """
    from detector.analysis.accuracy.precision import check_installed

    check_installed()
    dataset, mapping = _opened(asked, configs[0])
    runs: list[Result] = []
    if asked.detections is not None:
        results = [score_file(asked.detections, configs[0], dataset, mapping, plots)]
    else:
        dataset.check_readable()
        _check_engines(configs)
        results = []
        for config in configs:
            run, figures = run_study(
                Study(dataset, mapping), config, command, live and live(), plots
            )
            runs.append(run)
            results.append(figures)
            if "exit" in figures:  # interrupted: no next one
                break
    _compare(results)
    document = {
        "schema": SCHEMA,
        "dataset": _described(asked, dataset),
        "settings": _settings(configs[0])
        if asked.detections is None
        else {"detections": asked.detections},
        "mapping": mapping and mapping.path,
        "results": results,
        "notes": dataset.notes,
        "exit": _exit(results, runs, asked.min_ap50),
    }
    return Evaluation(document, runs)


def _check_engines(configs: Sequence[Config]) -> None:
    """That the last engine is not installed is said before the first one runs. Raises EngineError and UsageError."""
    from detector import engines

    usable = engines.usable()
    for config in configs:
        name = config.runtime.engine
        if name != "auto" and usable.get(name, "unknown") is not None:
            engines.load_library(name)  # says why not, and how to install it


def for_engines(config: Config, engines: Sequence[str]) -> list[Config]:
    """The same for each engine; of several, each has its own session below --run-dir. Raises UsageError."""
    if not engines:
        return [config]
    if len(set(engines)) != len(engines):
        raise UsageError(
            f"--engine {','.join(engines)}: an engine stands there twice; name each once"
        )
    folder = config.output.run_dir
    made = []
    for name in engines:
        below = str(Path(folder) / name) if folder and len(engines) > 1 else folder
        made.append(
            replace(
                config,
                runtime=replace(config.runtime, engine=name),
                output=replace(config.output, run_dir=below),
            )
        )
    return made


def _opened(asked: Asked, config: Config) -> tuple[Dataset, ClassMap | None]:
    """Labels, cut to what is asked for; and the mapping. Raises before any model is loaded."""
    dataset, mapping = open_labels(asked)
    stride, frames = config.input.stride, config.input.frames
    if dataset.video is None:
        dataset.pictures = dataset.pictures[::stride][:frames]
    else:
        keep_reached(dataset, stride, frames)
    return dataset, mapping


def open_labels(asked: Asked) -> tuple[Dataset, ClassMap | None]:
    """All labels of the part that is asked for, and the mapping. Raises SourceError and UsageError."""
    from detector import datasets
    from detector.models.catalogue import folder

    mapping = None if asked.mapping is None else read_mapping(asked.mapping, folder() / "mappings")
    dataset = datasets.open(
        asked.dataset, format=asked.format, images=asked.images, split=asked.split
    )
    if asked.subset is not None:
        known = sorted({one.subset for one in dataset.pictures if one.subset})
        dataset.pictures = [one for one in dataset.pictures if one.subset == asked.subset]
        if not dataset.pictures:
            raise UsageError(
                f"--subset {asked.subset}: no picture is of it; {asked.dataset} has {known or 'no parts'}"
            )
    return dataset, mapping


def keep_reached(dataset: Dataset, stride: int, frames: int | None) -> None:
    """Leaves the frames of its video that a run with these options comes to. Raises UsageError where none is left."""
    last = None if frames is None else frames * stride
    dataset.pictures = [one for one in dataset.pictures if _reached(one, stride, last)]
    if not dataset.pictures:
        raise UsageError("--frames and --stride leave no labelled frame of the video; change them")


def _reached(one: LabelledPicture, stride: int, last: int | None) -> bool:
    return one.frame is not None and one.frame % stride == 0 and (last is None or one.frame < last)


def _compare(results: list[dict[str, Any]]) -> None:
    """What each engine differs from the first, in the first's own figures."""
    from detector.analysis.accuracy.precision import difference

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
