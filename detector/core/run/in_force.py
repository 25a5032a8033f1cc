"""Find the saved measurements in force: those that change what ``auto`` chooses."""

from __future__ import annotations

from typing import Any

from detector.core.config.schema import Config
from detector.core.errors import EngineError, UsageError
from detector.core.run import judging, measurements
from detector.core.run.choose import UNDO, choose_by_rank, judge
from detector.core.session.measured import Kind, Measurement


def list_in_force(config: Config) -> list[dict[str, Any]]:
    """Return the newest records that change what ``auto`` chooses: one for each model, and from
    ``tune`` one for each kind of source. ``undo``: how the user removes the record."""
    kinds: list[Kind] = ["self-timing", "compare", "tune"]  # later kinds take precedence
    newest: dict[tuple[Any, ...], Measurement] = {}
    for record in sorted(measurements.read(config), key=lambda record: kinds.index(record.kind)):
        is_usable = record.kind != "tune" or judging.is_usable(record)
        if is_usable and measurements.is_valid(record, config):
            newest[record.model_sha256, record.model_input, record.input_kind] = record
    file = measurements.path(config)
    undo: dict[Kind, str] = {
        "self-timing": f"cached in {file}",
        "compare": f"delete {file} to undo it",
        "tune": f"to undo: {UNDO}",
    }
    return [
        {
            "model": record.model or "a model",
            "model_input": record.model_input or (0, 0),
            "reason": reason,
            "path": str(file),
            "undo": undo[record.kind],
        }
        for record in newest.values()
        if (reason := why_taken(record, config)) is not None
    ]


def why_taken(record: Measurement, config: Config) -> str | None:
    """Return why ``auto`` follows a record; None if it would choose the same by rank."""
    if record.kind == "tune":
        return judging.describe(record)
    config = config.with_options({"engine": "auto", "precision": "auto"})
    try:
        by_rank = choose_by_rank(config)
    except (EngineError, UsageError):
        return None
    choice = judge(record, config, by_rank)
    changes = choice is not None and choice.config.runtime != by_rank.config.runtime
    return choice.reason if choice is not None and changes else None
