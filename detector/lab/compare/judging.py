"""Score each row of a comparison on a dataset, as ``eval`` does. Each row has its own process, so
that a crash leaves only that row without average precision."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from detector.core.config.schema import EVAL_DEFAULTS, Config
from detector.core.errors import DetectVideoError, EngineError
from detector.core.errors.writing import temporary_folder
from detector.lab.analysis.compare import Variant
from detector.lab.compare.labels import ScoredLabels
from detector.lab.compare.worker import Command, DataSet, Process, VariantOpening, serve
from detector.lab.evaluate import EvalOptions, open_labels
from detector.lab.session.evaluation import EngineResult, MeanAccuracy


@dataclass(slots=True)
class JudgedData(ScoredLabels):
    """A dataset to score rows on. ``given``: the dataset as the user named it."""

    given: DataSet = field(kw_only=True)

    def judge(self, variant: Variant, config: Config, source: str) -> None:
        facts = variant.facts
        assert facts is not None
        scores, reason = _score_in_process(VariantOpening(config.as_dict(), source, ""), self.given)
        if scores is None:
            notes = (*facts.notes, f"no average precision: {reason}")
            variant.facts = replace(facts, notes=notes)
            return
        variant.ap = scores
        self.boxes = self.boxes or sum(one.boxes for one in scores.per_class.values())
        self.classes = self.classes or tuple(scores.per_class)


def open_dataset(dataset: str, mapping: str | None) -> JudgedData:
    opened, class_map = open_labels(EvalOptions(dataset, mapping=mapping))
    opened.check_readable()
    pictures, named = len(opened.pictures), DataSet(dataset, mapping)
    return JudgedData(opened, class_map, pictures=pictures, notes=opened.notes, given=named)


def _score_in_process(
    opening: VariantOpening, data: DataSet
) -> tuple[MeanAccuracy | None, str | None]:
    try:
        with temporary_folder("detect-video-judge-") as folder:
            # If the process dies, its temporary files are removed with the folder.
            environment = {**os.environ, "TMPDIR": str(folder)}
            process = Process(folder, folder, module=__name__, env=environment)
            try:
                opening = replace(opening, folder=str(folder))
                command = Command("judge_data", opening=opening, data=data)
                scores, reply = process.request(command, MeanAccuracy)
                with suppress(OSError):
                    process.close()
            finally:
                process.stop()
    except DetectVideoError as error:  # the folder could not be created
        return None, str(error)
    return scores, reply.error


def main(pipe: int) -> None:
    serve(pipe, judge_data)


def judge_data(command: Command) -> MeanAccuracy:
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
    named = command.data
    dataset, mapping = open_labels(EvalOptions(named.path, mapping=named.mapping))
    _, row = run_study(Study(dataset, mapping), config, [], None, None)
    if not isinstance(row, EngineResult):
        raise EngineError(f"engine {row.engine}: {row.exit.reason}")
    return MeanAccuracy(**{key.name: getattr(row, key.name) for key in fields(MeanAccuracy)})
