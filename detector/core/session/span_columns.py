"""The spans of a run's timelines as the columns of spans.npz."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.timeline.rows import NOT_KNOWN, Column, Ring, SpanRows
from detector.core.timeline.spans import KINDS, OTHER, Span, ThreadTrack
from detector.core.timeline.timeline import OffTimeline, Timeline


def span_columns(
    timelines: list[Timeline | OffTimeline],
) -> tuple[Iterator[tuple[str, NDArray[Any]]], int, int]:
    """Return the named columns of spans.npz, the number of spans, and how many spans were kept.

    Each column is computed when it is read, so only one is in memory at a time. The columns
    ``thread``, ``stage`` and ``kind`` contain indexes into ``thread_names`` and so on. The time off
    a core, ``off_cpu_ns``, includes ``ready_ns``, the time spent waiting for a core. ``library_ns``
    is the CPU time that the engine's own threads spent on the span. These three times exclude
    nested spans, and are NOT_KNOWN if the system does not report them. A gap between top-level
    spans is a row of kind "other", so that all time is visible.
    """
    names: dict[str, list[str]] = {"thread": [], "stage": [], "kind": list(KINDS)}
    blocks: list[_SpanBlock] = []
    seen = kept = 0
    for source, timeline in enumerate(timelines):
        for track in [] if isinstance(timeline, OffTimeline) else timeline.tracks.values():
            thread = _encode_name(names["thread"], track.name)
            track_blocks = [
                _SpanBlock(
                    (thread, _encode_name(names["stage"], stage), KINDS.index(kind), source),
                    span.rows,
                    _list_missing(track, span),
                )
                for (stage, kind), span in track.spans.items()
            ]
            calls = sum(span.calls for span in track.spans.values())
            rows = sum(len(block.rows) for block in track_blocks)
            seen, kept = seen + calls, kept + rows
            gaps = _find_gaps(
                np.frombuffer(track.lives, np.int64).reshape(-1, 2), track_blocks, rows == calls
            )
            blocks += [
                *track_blocks,
                _SpanBlock((thread, -1, KINDS.index(OTHER), source), _Gaps(gaps)),
            ]
    named = ((f"{name}_names", np.array(values or [""])) for name, values in names.items())
    return chain(_merge_blocks(blocks), named), seen, kept


@dataclass(frozen=True, slots=True)
class _SpanBlock:
    """A thread's spans of a stage and kind, or its gaps. ``codes``: thread, stage, kind, source."""

    codes: tuple[int, int, int, int]
    rows: SpanRows | Ring | _Gaps
    missing: frozenset[Column] = frozenset()  # columns without data

    def column(self, name: Column) -> NDArray[np.int64]:
        if name in self.missing:
            return np.full(len(self.rows), NOT_KNOWN)
        return self.rows.column(name)


def _list_missing(track: ThreadTrack, span: Span) -> frozenset[Column]:
    columns: dict[Column, bool] = {
        "off_cpu": track.ready_ns is None,
        "ready": track.ready_ns is None,
        "library": not span.is_booked,
    }
    return frozenset(name for name, missing in columns.items() if missing)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The gaps in a thread's time. ``ends``: [G, 2] int64, start and end of each gap."""

    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def column(self, name: Column) -> NDArray[np.int64]:
        if name in ("start", "end"):
            return self.ends[:, int(name == "end")]
        return np.full(len(self), NOT_KNOWN)


def _merge_blocks(blocks: list[_SpanBlock]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns of all blocks, in the file's data types, with rows sorted by start."""
    sizes = [len(block.rows) for block in blocks]
    starts = _join_column(np.int64, sizes, _read_column(blocks, "start"))
    order = np.argsort(starts, kind="stable").astype(np.uint32)
    del starts
    for at, (name, dtype) in enumerate(_CODES):
        yield name, _join_column(dtype, sizes, [block.codes[at] for block in blocks])[order]
    for name, dtype, column in _STORED:
        yield name, _join_column(dtype, sizes, _read_column(blocks, column))[order]


_CODES: tuple[tuple[str, type], ...] = (
    ("thread", np.uint8),
    ("stage", np.int8),
    ("kind", np.uint8),
    ("source", np.int32),
)
_STORED: tuple[tuple[str, type, Column], ...] = (
    ("index", np.int32, "index"),
    ("start_ns", np.int64, "start"),
    ("end_ns", np.int64, "end"),
    ("off_cpu_ns", np.int64, "off_cpu"),
    ("ready_ns", np.int64, "ready"),
    ("library_ns", np.int64, "library"),
)


def _read_column(blocks: Sequence[_SpanBlock], name: Column) -> Iterator[NDArray[np.int64]]:
    return (block.column(name) for block in blocks)


def _join_column(dtype: type, sizes: Sequence[int], parts: Iterable[Any]) -> NDArray[Any]:
    """Concatenate the parts. A part is an array, or one number for all of its rows."""
    column: NDArray[Any] = np.empty(sum(sizes), dtype)
    at = 0
    for size, part in zip(sizes, parts, strict=True):
        column[at : at + size] = part
        at += size
    return column


def _encode_name(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def _find_gaps(
    lives: NDArray[np.int64], blocks: Sequence[_SpanBlock], complete: bool
) -> NDArray[np.int64]:
    """Return the gaps, [G, 2] int64 (start, end): parts of ``lives`` not covered by ``blocks``.
    Return no gaps unless ``complete``, because a span that was not kept would look like a gap."""
    if not len(lives) or not complete:
        return np.zeros((0, 2), np.int64)
    starts = np.concatenate([*_read_column(blocks, "start"), lives[-1:, 1]])
    ends = np.concatenate([*_read_column(blocks, "end"), lives[-1:, 1]])
    order = np.argsort(starts, kind="stable")
    after = starts[order]
    before = np.concatenate([lives[:1, 0], np.maximum.accumulate(ends[order])[:-1]])
    gaps: NDArray[np.int64] = np.stack([before, after], axis=1)[after > before]
    return gaps
