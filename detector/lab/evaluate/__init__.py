"""Run a dataset through the loop of ``detect`` and score the detections against its labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.analysis.matching import MAX_DETECTIONS
from detector.core.config.schema import Config
from detector.core.errors import EXIT_DONE, EXIT_GATE, UsageError
from detector.core.errors.guard import keep
from detector.core.run.detect import Live, RunResult
from detector.core.run.tiling import Tiling
from detector.core.session.document import Exit
from detector.lab.datasets.classmap import ClassMap, read_mapping
from detector.lab.evaluate.scoring import Plots, score_file
from detector.lab.evaluate.study import Study, run_study
from detector.lab.session.evaluation import (
    SCHEMA,
    EngineResult,
    EvaluatedData,
    Evaluation,
    FileResult,
    GivenDetections,
    InterruptedResult,
    Result,
    Settings,
    Thresholds,
)

if TYPE_CHECKING:
    from detector.lab.datasets.base import Dataset


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of ``eval``. ``images``: pictures or a video. ``detections``: files to score."""

    dataset: str
    format: str = "auto"
    images: str | None = None
    split: str = "val"
    subset: str | None = None
    mapping: str | None = None
    detections: tuple[str, ...] = ()
    min_ap50: float | None = None


def evaluate(
    options: EvalOptions,
    configs: Sequence[Config],
    *,
    command: Sequence[str] = (),
    live: Callable[[], Live] | None = None,
    plots: Plots | None = None,
) -> Evaluation:
    """Return the document: a row per engine and grid of tiles, or per file of detections."""
    from detector.lab.analysis.accuracy.average_precision import check_installed

    check_installed()
    dataset, mapping = _open_dataset(options, configs[0])
    runs: list[RunResult] = []
    results: list[Result] = []
    for number, path in enumerate(options.detections, 1):
        own, folder = configs[0], configs[0].output.run_dir
        if folder and len(options.detections) > 1:
            own = own.with_options({"run_dir": str(Path(folder, f"{number}-{Path(path).stem}"))})
        results.append(score_file(path, own, dataset, mapping, plots))
    if not options.detections:
        dataset.check_readable()
        tracked = configs[0].value("track", None) is not None
        if tracked and dataset.pictures[0].track_ids is None:
            raise UsageError(
                f"--track: {dataset.format} labels have no tracks; use MOTChallenge labels (mot)"
            )
        _check_engines(configs)
        for config in configs:
            run, result = run_study(
                Study(dataset, mapping, tracked), config, command, live and live(), plots
            )
            runs.append(run)
            results.append(result)
            if isinstance(result, InterruptedResult):
                break
    return Evaluation(
        schema=SCHEMA,
        dataset=_describe_data(options, dataset),
        settings=_settings(options, configs[0]),
        mapping=mapping.path if mapping is not None else None,
        results=tuple(_add_differences(results)),
        notes=(*dataset.notes, *_note_unequal_classes(results)),
        exit=_exit(results, runs, options.min_ap50),
    )


def _note_unequal_classes(results: Sequence[Result]) -> list[str]:
    scored = [row.per_class for row in results if isinstance(row, FileResult)]
    if len({frozenset(classes) for classes in scored}) < 2:
        return []
    numbers = ", ".join(str(len(classes)) for classes in scored)
    return [f"the rows are means over different sets of classes (classes per row: {numbers})"]


def _check_engines(configs: Sequence[Config]) -> None:
    from detector.core import engines

    usable = engines.why_unusable()
    for config in configs:
        name = config.runtime.engine
        if name != "auto" and usable.get(name, "unknown") is not None:
            engines.load_library(name)  # raises an error that says how to install it


def add_usual_engine(config: Config) -> list[Config]:
    from detector.core.engines import _ranking
    from detector.core.run.loading import choose_as_a_run

    requested = config.runtime
    if config.output.run_dir is not None or (requested.engine, requested.precision) != (
        "auto",
        "auto",
    ):
        return [config]
    usual = choose_as_a_run(config).config
    chosen = usual.runtime.engine, usual.runtime.precision
    if chosen == (_ranking.choose_by_rank("fp32", requested.device)[0], "fp32"):
        return [config]
    runtime = replace(requested, engine=chosen[0], precision=chosen[1])
    return [config, replace(config, runtime=runtime, calibration=usual.calibration)]


def list_configs(config: Config, engines: Sequence[str], tiles: Sequence[str] = ()) -> list[Config]:
    """Return a config for each pair of an engine and a grid of tiles. Several configs have separate
    session folders. Raises UsageError."""
    for flag, names in (("--engine", engines), ("--tiles", tiles)):
        if len(set(names)) != len(names):
            raise UsageError(f"{flag} {','.join(names)}: has a duplicate; list each once")
    for text in tiles:
        Tiling.parse(text)
    folder, configs = config.output.run_dir, []
    rows = [(name, text) for name in engines or [""] for text in tiles or [""]]
    for row in rows:
        name, text = row
        given = {"engine": name} if name else {}
        given |= {"tiles": text} if text else {}
        if folder and len(rows) > 1:
            given["run_dir"] = str(Path(folder, *filter(None, row)))
        configs.append(config.with_options(given))
    return configs


def _open_dataset(options: EvalOptions, config: Config) -> tuple[Dataset, ClassMap | None]:
    dataset, mapping = open_labels(options)
    refuse_window(config)
    stride, frames = config.input.stride, config.input.frames
    if dataset.video is None:
        dataset.pictures = dataset.pictures[::stride][:frames]
    else:
        select_frames(dataset, stride, frames)
    return dataset, mapping


def open_labels(options: EvalOptions) -> tuple[Dataset, ClassMap | None]:
    from detector.core.models.catalogue import folder
    from detector.lab import datasets

    keep("the labels", options.dataset)
    keep("the mapping of classes", options.mapping)
    keep("the file of detections", *options.detections)
    mapping = (
        None if options.mapping is None else read_mapping(options.mapping, folder() / "mappings")
    )
    dataset = datasets.open(
        options.dataset, format=options.format, images=options.images, split=options.split
    )
    keep("the video of the labels", dataset.video)
    keep("a picture of the labels", *(one.path for one in dataset.pictures))
    if options.subset is not None:
        known = sorted({one.subset for one in dataset.pictures if one.subset})
        dataset.pictures = [one for one in dataset.pictures if one.subset == options.subset]
        if not dataset.pictures:
            raise UsageError(
                f"--subset {options.subset} contains no picture; the subsets of "
                f"{options.dataset} are: {', '.join(known) or 'none'}"
            )
    return dataset, mapping


def refuse_window(config: Config) -> None:
    """Raise UsageError for --start and --duration, since omitted frames would count as missed."""
    if config.input.start is not None or config.input.duration is not None:
        raise UsageError("--start and --duration do not work with labels; use --frames, --stride")


def select_frames(dataset: Dataset, stride: int, frames: int | None) -> None:
    end = math.inf if frames is None else frames * stride
    dataset.pictures = [
        one
        for one in dataset.pictures
        if one.frame is not None and one.frame % stride == 0 and one.frame < end
    ]
    if not dataset.pictures:
        raise UsageError("--frames and --stride select no labelled frame of the video; change them")


def _add_differences(results: Sequence[Result]) -> list[Result]:
    from detector.lab.analysis.accuracy.average_precision import difference

    scored = [row for row in results if isinstance(row, EngineResult)]
    if not scored or len(scored) < len(results):
        return list(results)
    first = scored[0]
    return [first, *(replace(row, difference=difference(row, first)) for row in scored[1:])]


def _describe_data(options: EvalOptions, dataset: Dataset) -> EvaluatedData:
    return EvaluatedData(
        path=dataset.path,
        format=dataset.format,
        subset=options.subset,
        video=dataset.video,
        pictures=len(dataset.pictures),
        boxes=sum(len(one.boxes) for one in dataset.pictures),
        classes=tuple(dataset.classes),
    )


def _settings(options: EvalOptions, config: Config) -> Settings:
    if options.detections:
        return GivenDetections(",".join(options.detections))
    own = config.selection
    return Thresholds(own.conf, own.iou, own.agnostic, own.max_det, MAX_DETECTIONS)


def _exit(results: Sequence[Result], runs: Sequence[RunResult], least: float | None) -> Exit:
    for row in results:
        if isinstance(row, InterruptedResult):
            return replace(row.exit, reason=f"{row.exit.reason}; nothing was scored")
    for row in results:
        if not isinstance(row, EngineResult | FileResult) or least is None:
            continue
        if row.ap50 is None or row.ap50 < least:
            who = row.engine if isinstance(row, EngineResult) else row.detections
            reached = "there is no AP50" if row.ap50 is None else f"AP50 is {row.ap50:.4f}"
            return Exit(
                code=EXIT_GATE,
                reason=f"gate failed: AP50 must be at least {least}, but {reached} ({who})",
            )
    for run in runs:
        if run.exit_code != EXIT_DONE:
            return run.summary.exit
    return Exit(code=EXIT_DONE, reason="done")
