"""A data set that judges each row of a comparison, as ``eval`` does: a process for each row, so
that a crash costs that row its average precision alone."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from detector.core.config.schema import EVAL_DEFAULTS, Config
from detector.core.errors import DetectVideoError, EngineError
from detector.core.errors.writing import temporary_folder
from detector.lab.analysis.compare import Variant
from detector.lab.compare.worker import Command, DataSet, Process, Scored, VariantOpening, serve
from detector.lab.datasets.base import Dataset
from detector.lab.datasets.classmap import ClassMap
from detector.lab.evaluate import EvalOptions, open_labels
from detector.lab.session.comparison import ComparedLabels
from detector.lab.session.evaluation import EngineResult, MeanAccuracy


@dataclass(slots=True)
class JudgedData:
    """``given``: as named. ``classes`` and ``boxes``: from the first row that was judged."""

    given: DataSet
    dataset: Dataset
    mapping: ClassMap | None
    classes: tuple[str, ...] | None = None
    boxes: int = 0

    def judge(self, variant: Variant, config: Config, source: str) -> None:
        facts = variant.facts
        assert facts is not None
        found, why = _ask(VariantOpening(config.as_dict(), source, ""), self.given)
        if found is None:
            notes = (*facts.notes, f"no average precision: {why}")
            variant.facts = replace(facts, notes=notes)
            return
        variant.ap = found.ap
        self.boxes = self.boxes or sum(one.boxes for one in found.ap.per_class.values())
        self.classes = self.classes or tuple(found.ap.per_class)

    def describe(self) -> ComparedLabels:
        return ComparedLabels(
            path=self.dataset.path,
            format=self.dataset.format,
            mapping=self.mapping.path if self.mapping is not None else None,
            classes=self.classes,
            pictures=len(self.dataset.pictures),
            boxes=self.boxes,
            conf=EVAL_DEFAULTS["conf"],
            iou=EVAL_DEFAULTS["iou"],
            max_det=int(EVAL_DEFAULTS["max_det"]),
            notes=tuple(self.dataset.notes),
        )


def open_dataset(dataset: str, mapping: str | None) -> JudgedData:
    opened, classes = open_labels(EvalOptions(dataset, mapping=mapping))
    opened.check_readable()
    return JudgedData(DataSet(dataset, mapping), opened, classes)


def _ask(opening: VariantOpening, data: DataSet) -> tuple[Scored | None, str | None]:
    try:
        with temporary_folder("detect-video-judge-") as place:
            # What it leaves of temporary files, where it dies, goes with the folder.
            environment = {**os.environ, "TMPDIR": str(place)}
            process = Process(place, place, module=__name__, env=environment)
            try:
                opening = replace(opening, folder=str(place))
                command = Command("judge_data", opening=opening, data=data)
                found, reply = process.ask(command, Scored)
                with suppress(OSError):
                    process.close()
            finally:
                process.stop()
    except DetectVideoError as error:  # no room for its folder
        return None, str(error)
    return found, reply.error


# The process's end.


def main(pipe: int) -> None:
    serve(pipe, judge_data)


def judge_data(command: Command) -> Scored:
    from detector.core.config.levels import merge_levels
    from detector.lab.evaluate.study import Study, run_study

    assert command.opening is not None
    assert command.data is not None
    config = merge_levels(("compare", command.opening.config))
    options: dict[str, Any] = {"classes": None, **EVAL_DEFAULTS}
    config = replace(
        config,
        selection=replace(config.selection, **options),
        output=replace(config.output, run_dir=f"{command.opening.folder}/run"),
        input=replace(config.input, frames=None, stride=1),
    )
    given = command.data
    dataset, mapping = open_labels(EvalOptions(given.path, mapping=given.mapping))
    _, row = run_study(Study(dataset, mapping), config, [], None, None)
    if not isinstance(row, EngineResult):
        raise EngineError(f"engine {row.engine}: {row.exit.reason}")
    return Scored(
        MeanAccuracy(**{key.name: getattr(row, key.name) for key in fields(MeanAccuracy)})
    )
