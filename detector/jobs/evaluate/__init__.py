"""``eval``: a dataset through the same loop as ``detect``, and what was found held to the labels.

study.py    a dataset on its way through one engine
scoring.py  what was found, or read from a file, held to the labels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detector.analysis.accuracy.matching import MAX_DETECTIONS
from detector.config.schema import Config
from detector.datasets.classmap import ClassMap, read_mapping
from detector.errors import EXIT_DONE, EXIT_GATE, UsageError
from detector.jobs.evaluate.study import Plots, Study, run_study, score_file
from detector.run.detect import Live
from detector.run.detect import Result as RunResult
from detector.session.evaluation import (
    SCHEMA,
    EngineResult,
    EvaluatedData,
    Evaluation,
    Exit,
    FileResult,
    GivenDetections,
    InterruptedResult,
    Result,
    Settings,
    Thresholds,
)
from detector.types import LabelledPicture

if TYPE_CHECKING:
    from detector.datasets.base import Dataset


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


def evaluate(
    asked: Asked,
    configs: Sequence[Config],
    *,
    command: Sequence[str] = (),
    live: Callable[[], Live] | None = None,
    plots: Plots | None = None,
) -> Evaluation:
    """One row for each configuration, that is, for each engine; or the row of a detections file.

    ``plots`` draws a row: file name -> text. Raises DetectVideoError for what cannot be read, run
    or scored. A failed gate and an interruption are told in the document's ``exit``.
    """
    from detector.analysis.accuracy.average_precision import check_installed

    check_installed()
    dataset, mapping = _opened(asked, configs[0])
    runs: list[RunResult] = []
    results: list[Result] = []
    if asked.detections is not None:
        results.append(score_file(asked.detections, configs[0], dataset, mapping, plots))
    else:
        dataset.check_readable()
        _check_engines(configs)
        for config in configs:
            run, result = run_study(
                Study(dataset, mapping), config, command, live and live(), plots
            )
            runs.append(run)
            results.append(result)
            if isinstance(result, InterruptedResult):
                break
    return Evaluation(
        schema=SCHEMA,
        dataset=_describe_data(asked, dataset),
        settings=_settings(asked, configs[0]),
        mapping=mapping.path if mapping is not None else None,
        results=tuple(_add_differences(results)),
        notes=tuple(dataset.notes),
        exit=_exit(results, runs, asked.min_ap50),
    )


def _check_engines(configs: Sequence[Config]) -> None:
    """That the last engine is not installed is said before the first one runs. Raises EngineError and UsageError."""
    from detector import engines

    usable = engines.usable()
    for config in configs:
        name = config.runtime.engine
        if name != "auto" and usable.get(name, "unknown") is not None:
            engines.load(name)  # says why not, and how to install it


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


def _add_differences(results: Sequence[Result]) -> list[Result]:
    """Every row after the first with its distance from the first; none where one is unscored."""
    from detector.analysis.accuracy.average_precision import difference

    scored = [row for row in results if isinstance(row, EngineResult)]
    if not scored or len(scored) < len(results):
        return list(results)
    first = scored[0]
    return [first, *(replace(row, difference=difference(row, first)) for row in scored[1:])]


def _describe_data(asked: Asked, dataset: Dataset) -> EvaluatedData:
    return EvaluatedData(
        path=dataset.path,
        format=dataset.format,
        subset=asked.subset,
        video=dataset.video,
        pictures=len(dataset.pictures),
        boxes=sum(len(one.boxes) for one in dataset.pictures),
        classes=tuple(dataset.classes),
    )


def _settings(asked: Asked, config: Config) -> Settings:
    if asked.detections is not None:
        return GivenDetections(asked.detections)
    options = config.selection
    return Thresholds(options.conf, options.iou, options.agnostic, options.max_det, MAX_DETECTIONS)


def _exit(results: Sequence[Result], runs: Sequence[RunResult], least: float | None) -> Exit:
    """An interruption counts first, then a failed gate, then a damaged input."""
    for row in results:
        if isinstance(row, InterruptedResult):
            return Exit(row.exit.code, f"{row.exit.reason}; nothing is scored")
    for row in results:
        if isinstance(row, EngineResult | FileResult) and _is_below(row.ap50, least):
            who = row.engine if isinstance(row, EngineResult) else row.detections
            reached = "there is none" if row.ap50 is None else f"it is {row.ap50:.4f}"
            return Exit(
                EXIT_GATE,
                f"gate failed: --min-ap50 {least} needs AP50 of at least that; {reached} ({who})",
            )
    for run in runs:
        if run.exit_code != EXIT_DONE:
            return Exit(**run.summary["exit"])
    return Exit(EXIT_DONE, "done")


def _is_below(ap50: float | None, least: float | None) -> bool:
    return least is not None and (ap50 is None or ap50 < least)
