"""Markdown tables of figures: models side by side, aims, flicker, calibration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from detector.core.analysis import matching
from detector.lab.analysis.accuracy import average_precision as ap
from model import calibration
from model.aims import Aim
from model.evaluation import NAMES, REPORTED, Results
from model.steadiness import Steadiness


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"


def figure(value: float, low: float, high: float, digits: int = 3) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.{digits}f} [{low:.2f}, {high:.2f}]"


def rows_of(results: Results) -> list[dict]:
    """Return all figures of each set and class."""

    def recall(rows: Sequence[matching.Matches]) -> float:
        return ap.recall(rows, REPORTED)

    return [
        {
            "set": group,
            "class": name,
            "pictures": len(rows),
            "boxes": sum(row.wanted for row in rows),
            "ap50": ap.average_precision(rows),
            "ap50_interval": ap.interval(rows, ap.average_precision),
            "recall_25": recall(rows),
            "recall_25_interval": ap.interval(rows, recall),
            "precision_25": ap.precision(rows, REPORTED),
            "unmatched_25": ap.unmatched(rows, REPORTED),
        }
        for (group, name), rows in results.items()
    ]


def side_by_side(tables: Mapping[str, list[dict]]) -> Iterator[str]:
    """Yield a table. ``tables``: model -> result of ``rows_of``. The set ``elevated`` gets no AP50,
    because its labels have gaps."""
    by_place = list(zip(*tables.values(), strict=True))
    figures = [("AP50", _ap50), ("recall at .25", _recall), ("precision at .25, unmatched", _right)]
    yield from markdown(
        ["set", "class", "boxes", "figure", *tables],
        (
            [rows[0]["set"], rows[0]["class"], rows[0]["boxes"], name, *map(cell, rows)]
            for name, cell in figures
            for rows in by_place
            if not (name == "AP50" and rows[0]["set"] == "elevated")
        ),
    )


def _ap50(row: dict) -> str:
    return figure(row["ap50"], *row["ap50_interval"])


def _recall(row: dict) -> str:
    return figure(row["recall_25"], *row["recall_25_interval"])


def _right(row: dict) -> str:
    return f"{row['precision_25']:.2f}, {row['unmatched_25']}"


def aims(of_models: Mapping[str, list[Aim]]) -> Iterator[str]:
    """Yield one row per aim. The text of the int8 aim ends with a set and a class in brackets.
    If they differ between models, the cells show them instead of the title."""
    first = next(iter(of_models.values()))
    yield from markdown(
        ["aim", *of_models],
        (
            [
                f"{shared_text([row.text for row in rows])} {'>=' if aim.at_least else '<='} "
                f"{aim.limit:g}",
                *(f"{figure(*row.estimate)} {row.verdict}{extra(row, rows)}" for row in rows),
            ]
            for aim, rows in zip(first, zip(*of_models.values(), strict=True), strict=True)
        ),
    )


def shared_text(texts: Sequence[str]) -> str:
    """Return the text of an aim. Omit the part in brackets if it differs between models."""
    return texts[0] if len(set(texts)) == 1 else texts[0].split(" (")[0]


def extra(row: Aim, rows: Sequence[Aim]) -> str:
    shared = shared_text([aim.text for aim in rows])
    return "" if row.text == shared else row.text[len(shared) :]


def plain(of_models: Mapping[str, list[Aim]]) -> dict[str, list[dict]]:
    return {
        name: [
            {**asdict(row), "estimate": list(row.estimate), "verdict": row.verdict} for row in rows
        ]
        for name, rows in of_models.items()
    }


def flicker(of_models: Mapping[str, Mapping[tuple[str, str], Steadiness]]) -> Iterator[str]:
    head = (
        "clip",
        "class",
        "model",
        "objects",
        "score",
        "recall",
        "flicker",
        "changes in 100 frames",
    )
    yield from markdown(
        head,
        (
            [
                clip,
                name,
                model,
                len(steadiness.spans),
                f"{steadiness.score:.3f}",
                f"{steadiness.recall:.3f}",
                f"{steadiness.flicker:.3f}",
                f"{100 * steadiness.change_rate:.1f}",
            ]
            for model, clips in of_models.items()
            for (clip, name), steadiness in clips.items()
        ),
    )


def reliability(
    before: Sequence[calibration.Bin], after: Sequence[calibration.Bin]
) -> Iterator[str]:
    """Yield a row per range of scores (0.0 to 0.1, ...), ``before`` and ``after`` calibration."""

    def cells(row: calibration.Bin) -> list[object]:
        mean = "-" if np.isnan(row.mean) else f"{row.mean:.2f}"
        return [row.boxes, mean, figure(row.right, *row.interval, digits=2)]

    parts = "boxes", "mean score", "right [95 %]"
    yield from markdown(
        ["scores", *(f"{part}, as stored" for part in parts), *(f"{p}, calibrated" for p in parts)],
        (
            [
                f"{at / calibration.BINS:.1f} to {(at + 1) / calibration.BINS:.1f}",
                *cells(a),
                *cells(b),
            ]
            for at, (a, b) in enumerate(zip(before, after, strict=True))
        ),
    )


def thresholds(
    of_models: Mapping[str, tuple[Results, float]], groups: Sequence[str]
) -> Iterator[str]:
    """Yield recall and precision. ``of_models``: model -> its results, and the score to use."""
    yield from markdown(
        ["set", "class", *(f"{name} at {score:.2f}" for name, (_, score) in of_models.items())],
        (
            [
                group,
                name,
                *(
                    f"recall {ap.recall(results[group, name], score):.2f}, "
                    f"precision {ap.precision(results[group, name], score):.2f}, "
                    f"unmatched {ap.unmatched(results[group, name], score)}"
                    for results, score in of_models.values()
                ),
            ]
            for group in groups
            for name in NAMES
            if all((group, name) in results for results, _ in of_models.values())
        ),
    )
