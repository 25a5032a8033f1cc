"""The spans of a run's timelines as the columns of spans.npz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.timeline import KINDS, OTHER, OffTimeline, Timeline


def span_columns(
    timelines: list[Timeline | OffTimeline],
) -> tuple[dict[str, NDArray[Any]], int, int]:
    """The columns of spans.npz, the number of spans that there were, and of those that are kept.

    thread, stage and kind are codes into the columns of their names; then source, index, start_ns
    and end_ns. Gaps between top-level spans are rows of kind "other", so that time that no stage
    claimed can be seen.
    """
    names: dict[str, list[str]] = {"thread": [], "stage": [], "kind": list(KINDS)}
    blocks: list[_Block] = []
    seen = kept = 0
    for source, timeline in enumerate(timelines):
        for track in [] if isinstance(timeline, OffTimeline) else timeline.tracks.values():
            thread = _code(names["thread"], track.name)
            own = [
                _Block(
                    (thread, _code(names["stage"], stage), KINDS.index(kind), source),
                    *(np.frombuffer(column, np.int64) for column in span.rows()),
                )
                for (stage, kind), span in track.spans.items()
            ]
            calls = sum(span.calls for span in track.spans.values())
            rows = sum(len(block.starts) for block in own)
            seen, kept = seen + calls, kept + rows
            gaps = _gaps(np.frombuffer(track.lives, np.int64).reshape(-1, 2), own, rows == calls)
            other = thread, -1, KINDS.index(OTHER), source
            blocks += [*own, _Block(other, np.array(-1), gaps[:, 0], gaps[:, 1])]
    return _merged(blocks) | _texts(names), seen, kept


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows of one span, or of the gaps of one track. ``codes``: thread, stage, kind and source of
    all of them; ``indices``: of each, or one for all."""

    codes: tuple[int, int, int, int]
    indices: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def _merged(blocks: list[_Block]) -> dict[str, NDArray[Any]]:
    """All rows as columns, by their start.

    One column is made at a time, in the type that it is stored in: a run of hours has millions of
    rows, and as one table of 64-bit numbers they took 4 kB a frame.
    """
    sizes = [len(block.starts) for block in blocks]
    order = np.argsort(_column(np.int64, sizes, [block.starts for block in blocks]), kind="stable")
    kinds = zip(("thread", "stage", "kind", "source"), _TYPES, strict=True)
    columns: dict[str, NDArray[Any]] = {
        name: _column(dtype, sizes, [block.codes[at] for block in blocks])[order]
        for at, (name, dtype) in enumerate(kinds)
    }
    for name, dtype, parts in (
        ("index", np.int32, [block.indices for block in blocks]),
        ("start_ns", np.int64, [block.starts for block in blocks]),
        ("end_ns", np.int64, [block.ends for block in blocks]),
    ):
        columns[name] = _column(dtype, sizes, parts)[order]
    return columns


_TYPES = np.uint8, np.int8, np.uint8, np.int32


def _column(dtype: type, sizes: Sequence[int], parts: Sequence[Any]) -> NDArray[Any]:
    """Each part, an array or a number for all of its rows, behind the one before."""
    column: NDArray[Any] = np.empty(sum(sizes), dtype)
    at = 0
    for size, part in zip(sizes, parts, strict=True):
        column[at : at + size] = part
        at += size
    return column


def _texts(names: dict[str, list[str]]) -> dict[str, NDArray[Any]]:
    return {f"{name}_names": np.array(values or [""]) for name, values in names.items()}


def _code(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def _gaps(lives: NDArray[np.int64], blocks: Sequence[_Block], whole: bool) -> NDArray[np.int64]:
    """[G, 2] int64: start and end of each gap in ``lives`` that no row of ``blocks`` covers.

    Where spans were dropped (not ``whole``), the time after the first dropped one is unknown and
    not "other", so no gap is returned.
    """
    if not len(lives) or not whole:
        return np.zeros((0, 2), np.int64)
    starts = np.concatenate([*(block.starts for block in blocks), lives[-1:, 1]])
    ends = np.concatenate([*(block.ends for block in blocks), lives[-1:, 1]])
    order = np.argsort(starts, kind="stable")
    after = starts[order]
    before = np.concatenate([lives[:1, 0], np.maximum.accumulate(ends[order])[:-1]])
    gaps: NDArray[np.int64] = np.stack([before, after], axis=1)[after > before]
    return gaps
