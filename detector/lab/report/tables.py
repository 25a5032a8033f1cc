"""Facts of a session as CSV files, with the columns of the lab's tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from detector.core.errors.text import as_cell, printable
from detector.core.session.codec import to_builtins
from detector.lab.analysis.loop.activities import step_rows
from detector.lab.session.passes import EnergyFacts, LayersFacts
from detector.lab.session.read import SavedSession

STEPS = ("step", "total", "count", "avg", "std", "min", "max", "share", "p50", "p90", "p99")
LAYERS = ("layer", "type", "calls", "ms")
ENERGY = ("timestamp", "tag", "duration", "package", "core", "dram", "joules_per_frame")


def csv_files(session: SavedSession) -> dict[str, str]:
    """File name -> text. Times in milliseconds; energy in joules and seconds. A pass that did not
    run has no file."""
    found = {"steps_timer.csv": _text(STEPS, [asdict(row) for row in step_rows(session.spans)])}
    if (layers := session.facts(LayersFacts)) is not None:
        rows = [
            {"layer": row.name, "type": row.type, "calls": row.calls, "ms": row.ms}
            for row in layers.rows
        ]
        found["layer_timer.csv"] = _text(LAYERS, rows)
    if (energy := session.facts(EnergyFacts)) is not None:
        lines = [to_builtins(row) for row in (*energy.rows, *energy.samples)]
        found["energy.csv"] = _text(ENERGY, lines)
    return found


def _text(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([{name: _plain(row.get(name)) for name in columns} for row in rows])
    return out.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return as_cell(printable(value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
