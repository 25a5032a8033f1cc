"""What-if beside what really happens: rows of several runs, and what they come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

WITHIN = 0.1  # of the measured FPS: what a prediction may be off by

Row = dict[str, float]


def row_of(document: dict[str, Any]) -> Row:
    """The figures of one ``profile --only what_if --prove --json``.

    ``1x``: wall time of the replay of the run as it was, over that of the run, - 1. For each change
    that was tried: ``CHANGE predicted`` and ``CHANGE measured`` (gains), and ``CHANGE off``
    (predicted FPS over measured FPS, - 1).
    """
    row = {"fps": document["fps"]["end_to_end"], "1x": document["what_if_replay_error"]}
    for proof in document["what_if_proofs"]:
        change = proof["change"]
        row |= {f"{change} {name}": proof[key] for name, key in FIGURES.items()}
    return row


FIGURES = {"predicted": "predicted_gain", "measured": "measured_gain", "off": "off_by"}


def changes_of(rows: Sequence[Row]) -> list[str]:
    return [key.removesuffix(" off") for key in rows[0] if key.endswith(" off")]


def table(name: str, rows: Sequence[Row]) -> str:
    """Medians over the rounds with their range, a line for each change."""
    fps = _spread([row["fps"] for row in rows], ".1f")
    first = f"{name}: {fps} FPS; replay at 1x off by {_shares(rows, '1x')}"
    lines = [f"  {'change':16} {'predicted':22} {'measured':22} predicted FPS off by"]
    for change in changes_of(rows):
        figures = (f"{_shares(rows, f'{change} {figure}'):22}" for figure in FIGURES)
        lines.append(f"  {change:16} {' '.join(figures)}".rstrip())
    return "\n".join([first, *lines])


def verdict(found: dict[str, Sequence[Row]]) -> str:
    """How many predictions, by their median, are within what they may be off by."""
    errors = [
        statistics.median(row[f"{change} off"] for row in rows)
        for rows in found.values()
        for change in changes_of(rows)
    ]
    replays = [statistics.median(row["1x"] for row in rows) for rows in found.values()]
    kept = sum(abs(error) <= WITHIN for error in errors)
    return (
        f"{kept} of {len(errors)} predictions within {WITHIN:.0%} of what was measured, the worst "
        f"off by {max(errors, key=abs, default=0.0):+.1%}; replay at 1x within "
        f"{max(map(abs, replays), default=0.0):.1%}"
    )


def _shares(rows: Sequence[Row], key: str) -> str:
    return _spread([row[key] for row in rows], "+.0%")


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} [{min(values):{form}} .. {max(values):{form}}]"
