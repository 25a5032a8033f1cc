"""Assign rows to columns, such as boxes to tracks, so that the sum of gains is largest.

Only pairs with a gain above 0 are considered. We split them into groups that have no row or column
in common, and solve each group by shortest augmenting paths (Jonker and Volgenant 1987). The result
has the same sum as that of ``scipy.optimize.linear_sum_assignment`` for the whole matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Boxes = NDArray[np.float32] | Floats
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]


def overlaps(first: Boxes, second: Boxes, of_first: bool = False) -> Floats:
    """Return the IoU [T, N] of boxes xyxy [T, 4] and [N, 4]; 0 for empty boxes. ``of_first``:
    divide the intersection by the first box's area, not by the union (for crowds)."""
    a = np.asarray(first, np.float64).T[:, :, None]
    b = np.asarray(second, np.float64).T[:, None, :]
    width = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    height = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    area = (a[2] - a[0]) * (a[3] - a[1])
    whole = area if of_first else area + (b[2] - b[0]) * (b[3] - b[1]) - shared
    found: Floats = np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0)
    return found


def assign(gains: Floats) -> Pairs:
    """Return the pairs with the largest sum of ``gains`` [T, N] as (ascending rows, columns)."""
    positive = gains > 0
    rows, columns = np.nonzero(positive)
    alone = (positive.sum(axis=1)[rows] == 1) & (positive.sum(axis=0)[columns] == 1)
    matches = list(zip(rows[alone].tolist(), columns[alone].tolist(), strict=True))
    for group_rows, group_columns in _groups(rows[~alone].tolist(), columns[~alone].tolist()):
        part = gains[np.ix_(group_rows, group_columns)]
        solved = _solve(part) if len(group_rows) <= len(group_columns) else _solve_transposed(part)
        matches += [(group_rows[i], group_columns[j]) for i, j in solved if part[i, j] > 0]
    matches.sort()
    pairs = np.array(matches, np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _groups(rows: list[int], columns: list[int]) -> list[tuple[list[int], list[int]]]:
    columns_of_row: dict[int, list[int]] = {}
    rows_of_column: dict[int, list[int]] = {}
    for row, column in zip(rows, columns, strict=True):
        columns_of_row.setdefault(row, []).append(column)
        rows_of_column.setdefault(column, []).append(row)
    groups, visited = [], set()
    for start in columns_of_row:
        if start in visited:
            continue
        visited.add(start)
        group, reached, pending = [start], set(columns_of_row[start]), list(columns_of_row[start])
        while pending:
            for row in rows_of_column[pending.pop()]:
                if row not in visited:
                    visited.add(row)
                    group.append(row)
                    new = [column for column in columns_of_row[row] if column not in reached]
                    reached.update(new)
                    pending += new
        groups.append((sorted(group), sorted(reached)))
    return groups


def _solve_transposed(gains: Floats) -> list[tuple[int, int]]:
    return [(row, column) for column, row in _solve(gains.T)]


def _solve(gains: Floats) -> list[tuple[int, int]]:
    """Assign a column to each row of ``gains`` [n, m], n <= m. Negative gains count as 0."""
    costs = gains.max() - np.maximum(gains, 0)
    n, m = costs.shape
    # Column m is virtual: it holds the row to be assigned. ``owner``: row of each column, or -1.
    row_prices, column_prices = np.zeros(n), np.zeros(m + 1)
    owner = np.full(m + 1, -1)
    for row in range(n):
        owner[m], column = row, m
        nearest = np.full(m, np.inf)
        previous = np.full(m, m)
        done = np.zeros(m + 1, bool)
        while owner[column] >= 0:
            done[column] = True
            current_row = owner[column]
            distance = costs[current_row] - row_prices[current_row] - column_prices[:m]
            better = ~done[:m] & (distance < nearest)
            nearest[better], previous[better] = distance[better], column
            open_distances = np.where(done[:m], np.inf, nearest)
            next_column = int(open_distances.argmin())
            least = open_distances[next_column]
            row_prices[owner[done]] += least
            column_prices[done] -= least
            nearest[~done[:m]] -= least
            column = next_column
        while column != m:
            owner[column] = owner[previous[column]]
            column = int(previous[column])
    return [(int(owner[j]), j) for j in range(m) if owner[j] >= 0]
