"""What ``compare --use`` keeps: a comparison as an entry of engines/measured.json."""

from __future__ import annotations

from datetime import date

from detector.core.config.schema import Config
from detector.core.run import choose
from detector.core.session.measured import MeasuredRow, Measurement
from detector.lab.session.comparison import Comparison, Row


def record(document: Comparison, config: Config) -> str:
    """Adds a comparison to the file. Returns the path, or why nothing was kept.

    Raises OutputError.
    """
    entry = _measurement(document, config)
    if isinstance(entry, str):
        return f"not kept: {entry}"

    return str(choose.keep(entry, config))


def preview(document: Comparison, config: Config) -> str | None:
    """What ``auto`` would take after ``record``; None where it would take what it takes anyway."""
    entry = _measurement(document, config)
    if isinstance(entry, str) or entry.rounds < choose.ENOUGH_ROUNDS or not entry.comparable:
        return None
    return choose.replacement(entry, config)


def _measurement(document: Comparison, config: Config) -> Measurement | str:
    """The entry of a comparison, or why it makes none."""
    if document.random_weights is not None:
        return "with random weights there is no agreement to judge by"
    rows = [
        _row_to_keep(row)
        for row in document.rows
        if row.error is None and row.engine in choose.rank_engines()
    ]
    if not rows:
        return "no row has figures"
    return Measurement(
        date=date.today().isoformat(),
        model=document.model,
        model_sha256=document.model_sha256,
        model_input=document.model_input,
        rounds=document.rounds,
        frames=document.frames,
        source=document.source,
        comparable=document.comparable,
        machine=choose.this_machine(),
        settings=choose.settings_of(config),
        calibration=choose.calibration_of(config),
        rows=tuple(rows),
    )


def _row_to_keep(row: Row) -> MeasuredRow:
    return MeasuredRow(
        engine=row.engine,
        library=choose.library_version(row.engine),
        precision=row.precision,
        executed=row.precision_text,
        batch=row.batch,
        fps=row.fps,
        agreement=row.agreement.matched if row.agreement is not None else None,
    )
