"""``compare``: run engines, precisions and batches on the same frames."""

from __future__ import annotations

import os
from dataclasses import replace

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.engines import _ranking
from detector.core.engines.base import PRECISIONS
from detector.core.errors import EXIT_DONE, DetectVideoError, OutputError, SourceError, UsageError
from detector.core.run import measurements, saving
from detector.core.run.canvas import refuse_rect
from detector.core.run.in_force import why_taken
from detector.core.run.inputs import refuse_cameras
from detector.core.run.loading import choose_as_a_run
from detector.core.run.reading import SourceReading
from detector.core.session.measured import Measurement
from detector.lab.compare.judging import open_dataset
from detector.lab.compare.labels import Labels, open_labels_of
from detector.lab.compare.rounds import Rounds, Watch, compare, with_frames
from detector.lab.session.comparison import ComparedVideo, Comparison

LARGEST_BATCH = 4096
MOST_ROUNDS = 1000


def compare_command(
    source: str,
    config: Config,
    engines: str | None,
    precisions: str | None,
    batches: str,
    *,
    rounds: int | None,
    watch: Watch,
    labels: str | None = None,
    mapping: str | None = None,
    models: str | None = None,
    dataset: str | None = None,
    seconds: float = 300.0,
) -> tuple[Comparison, int]:
    """Return the document, and the exit code: 0 if a row has figures, else the first error's code.

    ``labels``, ``mapping``: see ``eval``. ``dataset``: labelled pictures to score each row on.
    """
    refuse_cameras([source])
    refuse_rect(config)
    if mapping is not None and labels is None and dataset is None:
        raise UsageError(
            f"--mapping {mapping}: maps the classes of labels, but there are no labels; add "
            "--labels FILE or --dataset DATASET"
        )
    if labels is not None and dataset is not None:
        raise UsageError("--labels is for SOURCE's frames, --dataset for other pictures; omit one")
    plan = Rounds(
        source,
        config,
        _parse_engines(engines),
        _parse_precisions(precisions or "fp32"),
        _parse_batches(batches),
        rounds,
        models=parse_models(models),
        dataset=None if dataset is None else open_dataset(dataset, mapping),
        seconds=seconds,
    )
    video, opened = _inspect_source(plan, labels, None if labels is None else mapping)
    plan = replace(plan, labels=opened)
    if engines is None and precisions is None and not plan.models:
        plan = _add_usual_choice(plan)
    document, variants = compare(plan, watch)
    failed = [variant.exit_code for variant in variants if variant.error is not None]
    exit_code = failed[0] if len(failed) == len(variants) else EXIT_DONE
    return replace(document, video=video, budget=config.calibration.budget), exit_code


def _add_usual_choice(plan: Rounds) -> Rounds:
    """Add a row with the engine and precision that ``detect`` would choose, if it can choose."""
    try:
        choice = choose_as_a_run(
            plan.config, SourceReading.of(plan.config).picture_size([plan.source])
        )
    except DetectVideoError:
        return plan
    usual = choice.config
    taken = usual.runtime.engine, usual.runtime.precision
    config = replace(plan.config, calibration=usual.calibration)
    return replace(plan, usual=taken, why_usual=choice.reason, config=config)


def record_comparison(document: Comparison, config: Config) -> Comparison:
    """Store the result for ``auto``. The document names the file, or says why none was written."""
    record = _make_record(document, config)
    try:
        where = record if isinstance(record, str) else str(saving.keep(record, config))
    except OutputError as error:
        where = f"not kept: {error}"
    return replace(document, recorded=where)


def preview_choice(document: Comparison, config: Config) -> str | None:
    """Return what ``auto`` would choose with this result; None if the result changes nothing."""
    record = _make_record(document, config)
    if isinstance(record, str) or not measurements.is_valid(record, config):
        return None
    return why_taken(record, config)


def _make_record(document: Comparison, config: Config) -> Measurement | str:
    if document.models:
        return "not kept: --engine auto chooses for one model, but several were compared"
    if document.random_weights is not None:
        return "not kept: with random weights the agreement is meaningless"
    rows = [
        saving.row(
            row.engine,
            row.precision,
            {"engine": row.engine, "precision": row.precision, "batch": row.batch},
            row.agreement.matched if row.agreement is not None else None,
            inference=row.fps["inference"],
            end_to_end=row.fps["end_to_end"],
        )
        for row in document.rows
        if row.error is None and row.engine in engines.rank_engines()
    ]
    if not rows:
        return "not kept: no row has results"
    return saving.make(
        config,
        "compare",
        rows,
        model=document.model,
        model_sha256=document.model_sha256,
        model_input=document.model_input,
        source=document.source,
        frames=document.frames,
        rounds=document.rounds,
        comparable=document.comparable,
    )


def _inspect_source(
    plan: Rounds, labels: str | None, mapping: str | None
) -> tuple[ComparedVideo, Labels | None]:
    """Open source and labels, to report a wrong file before engines load, which takes a minute."""
    from detector.core import sources

    sources.refuse_pipe(plan.source, "each round reads the source again")
    reading = SourceReading.of(plan.config)
    with sources.open(plan.source, decoder=reading.decoder, choice=reading.choice) as opened:
        info = opened.info
        if opened.read() is None:
            raise SourceError(f"{plan.source}: no frame could be read")
        video = ComparedVideo(plan.source, info.width, info.height, float(info.fps))
        if labels is None:
            return video, None
        return video, open_labels_of(labels, mapping, plan.source, opened, with_frames(plan.config))


def _split(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} needs a value, or several separated by commas")
    return words


def parse_models(text: str | None) -> list[str]:
    if text is None or "," not in text or os.path.exists(text):
        return []
    words = _split(text, "--model")
    duplicate = next((word for word in words if words.count(word) > 1), None)
    if duplicate is not None:
        raise UsageError(f"--model {text}: {duplicate} is listed twice")
    return words if len(words) > 1 else []


def parse_rounds(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_ROUNDS:
        raise UsageError(f"--rounds {text[:40]}: give a number from 1 to {MOST_ROUNDS}, or auto")
    return int(text)


def _parse_engines(text: str | None) -> list[str]:

    if text is None:
        usable = [name for name, reason in engines.why_unusable().items() if reason is None]
        return [name for name in engines.rank_engines() if name in usable] or [
            _ranking.choose_by_rank()[0]
        ]
    names = _split(text, "--engine")
    for name in names:
        if name != "auto" and name not in engines.names():
            raise UsageError(engines.unknown(name))
    return [_ranking.choose_by_rank()[0] if name == "auto" else name for name in names]


def _parse_precisions(text: str) -> list[str]:
    names = _split(text, "--precision")
    for name in names:
        if name not in PRECISIONS:
            raise UsageError(f"unknown precision {name!r}; precisions are {', '.join(PRECISIONS)}")
    return names


def _parse_batches(text: str) -> list[int]:
    words = _split(text, "--batch")
    for word in words:
        if not word.isdecimal() or len(word) > 9 or not 1 <= int(word) <= LARGEST_BATCH:
            raise UsageError(
                f"--batch {word[:40]}: a batch size is a whole number from 1 to {LARGEST_BATCH}"
            )
    return [int(word) for word in words]
