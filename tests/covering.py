"""Covering arrays: few rows of a product of parameters, in which any two values still meet.

A fault mostly needs one value, or two that meet, so these rows find it like the whole product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

Row = tuple[int, ...]


def covering(*lists: Iterable[Any], together: int = 2) -> list[tuple[Any, ...]]:
    """Return rows of the product of ``lists`` in which values of any ``together`` lists meet.

    Greedy: each row is the one with the most meetings that are still missing.
    """
    given = [list(one) for one in lists]
    rows = [*itertools.product(*(range(len(one)) for one in given))]
    meetings = {row: set(itertools.combinations(enumerate(row), together)) for row in rows}
    missing = set().union(*meetings.values())
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & meetings[row]))
        missing -= meetings[best]
        chosen.append(best)
    return [tuple(one[at] for one, at in zip(given, row, strict=True)) for row in chosen]
