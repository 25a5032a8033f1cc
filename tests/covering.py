"""Covering arrays: a few rows of a product of parameters, in which every pair of values occurs.

Most faults depend on one value or on a pair of values, so these rows suffice to find them.
"""

import itertools
from collections.abc import Iterable
from typing import Any

Row = tuple[int, ...]


def covering(*lists: Iterable[Any], together: int = 2) -> list[tuple[Any, ...]]:
    """Return rows of the product of ``lists``. For any ``together`` of the lists, every combination
    of their values is in a row.

    The algorithm is greedy: it always adds a row that contains the most missing combinations.
    """
    values = [list(value_list) for value_list in lists]
    rows = [*itertools.product(*(range(len(value_list)) for value_list in values))]
    combinations = {row: set(itertools.combinations(enumerate(row), together)) for row in rows}
    missing = set().union(*combinations.values())
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & combinations[row]))
        missing -= combinations[best]
        chosen.append(best)
    return [
        tuple(value_list[at] for value_list, at in zip(values, row, strict=True)) for row in chosen
    ]
