"""Assign rows to columns, such as boxes to tracks, so that the sum of gains is largest.

Only pairs with a gain above 0 count. They form groups that share no track and no box, most of them
a single pair; each group is solved separately by shortest augmenting paths (Jonker and Volgenant
1987). The sum equals that of ``scipy.optimize.linear_sum_assignment`` over the whole matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]


def overlaps(first: Floats, second: Floats) -> Floats:
    """Return the IoU [T, N] of boxes xyxy [T, 4] and [N, 4]; 0 for empty boxes."""
    a, b = first.T[:, :, None], second.T[:, None, :]
    width = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    height = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    found: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)
    return found


def assign(gains: Floats) -> Pairs:
    """Return rows and columns of the pairs with the largest sum of ``gains`` [T, N], by row."""
    counts = gains > 0
    rows, columns = np.nonzero(counts)
    alone = (counts.sum(axis=1)[rows] == 1) & (counts.sum(axis=0)[columns] == 1)
    found = list(zip(rows[alone].tolist(), columns[alone].tolist(), strict=True))
    for group_rows, group_columns in _groups(rows[~alone].tolist(), columns[~alone].tolist()):
        part = gains[np.ix_(group_rows, group_columns)]
        solved = _solve(part) if len(group_rows) <= len(group_columns) else _turned(part)
        found += [(group_rows[i], group_columns[j]) for i, j in solved if part[i, j] > 0]
    found.sort()
    pairs = np.array(found, np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _groups(rows: list[int], columns: list[int]) -> list[tuple[list[int], list[int]]]:
    of_row: dict[int, list[int]] = {}
    of_column: dict[int, list[int]] = {}
    for row, column in zip(rows, columns, strict=True):
        of_row.setdefault(row, []).append(column)
        of_column.setdefault(column, []).append(row)
    groups, seen = [], set()
    for start in of_row:
        if start in seen:
            continue
        seen.add(start)
        group, reached, ways = [start], set(of_row[start]), list(of_row[start])
        while ways:
            for row in of_column[ways.pop()]:
                if row not in seen:
                    seen.add(row)
                    group.append(row)
                    new = [one for one in of_row[row] if one not in reached]
                    reached.update(new)
                    ways += new
        groups.append((sorted(group), sorted(reached)))
    return groups


def _turned(gains: Floats) -> list[tuple[int, int]]:
    return [(row, column) for column, row in _solve(gains.T)]


def _solve(gains: Floats) -> list[tuple[int, int]]:
    """Assign a column to each row of ``gains`` [n, m], n <= m. A missing gain counts as 0."""
    costs = gains.max() - np.maximum(gains, 0)
    n, m = costs.shape
    # Column m stands for a row without a column. ``owner``: the row of a column.
    by_row, by_column = np.zeros(n), np.zeros(m + 1)
    owner = np.full(m + 1, -1)
    for row in range(n):
        owner[m], column = row, m
        nearest = np.full(m, np.inf)
        before = np.full(m, m)
        done = np.zeros(m + 1, bool)
        while owner[column] >= 0:
            done[column] = True
            here = owner[column]
            reach = costs[here] - by_row[here] - by_column[:m]
            better = ~done[:m] & (reach < nearest)
            nearest[better], before[better] = reach[better], column
            left = np.where(done[:m], np.inf, nearest)
            following = int(left.argmin())
            least = left[following]
            by_row[owner[done]] += least
            by_column[done] -= least
            nearest[~done[:m]] -= least
            column = following
        while column != m:
            owner[column] = owner[before[column]]
            column = int(before[column])
    return [(int(owner[j]), j) for j in range(m) if owner[j] >= 0]
