"""Mistakes in interpreting the results of ``compare``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from detector.core.session.measured import Metric
from detector.lab.audit.rule import Hit, rule
from detector.lab.session.comparison import METRICS, Comparison, Row

ENOUGH_ROUNDS = 3  # with fewer, intervals may be apart by chance
_rule = partial(rule, over="comparison")


@_rule(
    "warning",
    "the rows of a comparison cannot be compared",
    "compare again when the machine is idle",
)
def not_comparable(document: Comparison) -> Iterator[Hit]:
    for warning in document.warnings:
        yield Hit(warning)


@_rule("warning", "too few rounds to separate a difference from chance", "--rounds 5")
def few_rounds(document: Comparison) -> Iterator[Hit]:
    if document.rounds < ENOUGH_ROUNDS and len(document.rows) > 1:
        yield Hit(f"rounds per row: {document.rounds}; with so few, intervals can differ by chance")


@_rule(
    "note",
    "a ratio cannot be separated from 1",
    "claim no difference, or use more --rounds and --frames",
)
def difference_within_noise(document: Comparison) -> Iterator[Hit]:
    for metric in METRICS:
        unseparated = [row for row in document.rows if _is_unseparated(row, document, metric)]
        if unseparated:
            ratios = "; ".join(
                f"{row.name} {row.ratio[metric]:.2f}x "
                f"[{row.ratio_interval[metric][0]:.2f}..{row.ratio_interval[metric][1]:.2f}]"  # type: ignore[index]
                for row in unseparated[:4]
            )
            yield Hit(
                f"{metric.replace('_', '-')} FPS: {ratios}: not separable from {document.baseline}",
                rows=tuple(row.name for row in unseparated),
            )


def _is_unseparated(row: Row, document: Comparison, metric: Metric) -> bool:
    ratio, interval = row.ratio.get(metric), row.ratio_interval.get(metric)
    if row.name == document.baseline or ratio is None or interval is None:
        return False
    return interval[0] < 1 < interval[1] and abs(ratio - 1) > 0.02


@_rule(
    "warning",
    "a row and its reference find different objects; no labels show which are right",
    "score the row by labels (compare --labels, compare --dataset, eval) before calling it faster",
)
def detections_disagree(document: Comparison) -> Iterator[Hit]:
    for row in document.rows:
        share = row.agreement.matched if row.agreement else None
        if row.ap is None and share is not None and share < document.budget:
            yield Hit(
                f"{row.name}: {share:.3f} of the detections match "
                f"{row.reference or document.reference}, below the budget of {document.budget}",
                rows=(row.name,),
            )
