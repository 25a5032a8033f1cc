"""A span's rows are stored compactly and read back exactly. A ring keeps only the last rows."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from detector.core.timeline.rows import BLOCK, COLUMNS, NOT_KNOWN, ROW_BYTES, Ring, SpanRows, Spool
from detector.core.timeline.timeline import Timeline
from tests.covering import covering
from tests.memory import bytes_of


def pack(*calls, folder: Path | None = None) -> SpanRows:
    """Pack ``calls``, each (index, start, end), as a span does. Every third call
    spends half of its time off the CPU."""
    rows = SpanRows(len(calls), Spool(folder))
    off = 0
    for at, (index, start, end) in enumerate(calls):
        off += 0 if at % 3 else (end - start) // 2
        put(rows, at, index, start, end, off)
    return rows


def put(rows, at, index, start, end, off=0):
    """Record call number ``at`` and take its duration, as a span does."""
    block = rows.block
    block.write(
        block.written, at % block.size * ROW_BYTES, index, start, end, off, 0, 0, end - start
    )
    assert rows.take(at + 1).tolist() == [end - start]


def table(rows):
    return list(zip(*(rows.column(name).tolist() for name in COLUMNS[:3]), strict=True))


DAY = 86_400 * 10**9  # nanoseconds
RNG = np.random.default_rng(3)
STARTS = np.cumsum(RNG.integers(1, 10**7, 2 * BLOCK + 5)).tolist()
KINDS = {
    "every frame": [(i, start, start + 7) for i, start in enumerate(STARTS)],
    "batches of 8": [(8 * i, start, start + 2**31) for i, start in enumerate(STARTS)],
    "two requests take turns": [
        (2 * i + int(RNG.integers(0, 2)), start, start) for i, start in enumerate(STARTS)
    ],
    "a day between calls": [(i, i * DAY, i * DAY + 2**33) for i in range(BLOCK)],
    "decreasing indices": [(-i, start, start + i) for i, start in enumerate(STARTS)],
    "one clock tick": [(0, 5, 5)] * BLOCK,
}


@pytest.mark.parametrize(
    ("kind", "count", "on_disk"),
    covering(KINDS, [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5], [False, True]),
)
def test_rows_are_read_back_unchanged(kind, count, on_disk, tmp_path):
    calls = KINDS[kind][:count]
    rows = pack(*calls, folder=tmp_path if on_disk else None)
    assert table(rows) == calls
    assert len(rows) == len(calls)
    halves = [0 if at % 3 else (end - start) // 2 for at, (_, start, end) in enumerate(calls)]
    assert rows.column("off_cpu").tolist() == halves
    assert rows.column("ready").tolist() == [0] * len(calls)
    assert rows.column("library").tolist() == [NOT_KNOWN] * len(calls)


@pytest.mark.slow
@pytest.mark.parametrize(("on_disk", "most"), [(False, 10), (True, 1)])
def test_row_takes_few_bytes_in_memory_and_hardly_any_if_on_disk(tmp_path, on_disk, most):
    """Start and duration take four bytes each, and off-CPU time takes one. The block that is being
    written takes 56 bytes a row and is not counted."""
    calls, more = KINDS["every frame"][:BLOCK] * 4, {"folder": tmp_path} if on_disk else {}
    rows = pack(*calls, **more)
    held = bytes_of(lambda: pack(*calls, **more))[0] - rows.block.written.nbytes
    assert held / len(rows) < most
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
@pytest.mark.parametrize("short", [False, True])
def test_full_disk_keeps_rows_in_memory(monkeypatch, tmp_path, writes, short):
    pwrite, left = os.pwrite, iter(range(writes))

    def until_full(file, data, at):
        if next(left, None) is not None:
            return pwrite(file, data, at)
        if short:
            return pwrite(file, data[:10], at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", until_full)
    calls = KINDS["every frame"]
    assert table(pack(*calls, folder=tmp_path)) == calls


def test_missing_folder_keeps_rows_in_memory(tmp_path):
    calls = KINDS["every frame"]
    assert table(pack(*calls, folder=tmp_path / "gone")) == calls


def test_the_timeline_keeps_rows_in_its_folder(tmp_path):
    timeline = Timeline(clock=itertools.count().__next__, cpu_clock=int, folder=tmp_path)
    with timeline.track("main") as track:
        for index in range(2 * BLOCK):
            with track.span("read", index), track.span("infer", index):
                pass
    rows = [track.spans[stage, "work"].rows for stage in ("read", "infer")]
    starts = [each.column("start") for each in rows]
    assert (starts[1] > starts[0]).all()
    assert all(
        not isinstance(block.durations, np.ndarray) for each in rows for block in each._blocks
    )


@pytest.mark.parametrize("room", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_only_the_first_rows_are_kept_but_all_calls_are_counted(room):
    timeline = Timeline(clock=itertools.count().__next__, cpu_clock=int, nvtx=False, max_rows=room)
    with timeline.track("main") as track:
        for index in range(2 * BLOCK + 5):
            with track.span("read", index):
                pass
    span = track.spans["read", "work"]
    indices = list(range(min(room, 2 * BLOCK + 5)))
    assert span.rows.column("index").tolist() == indices
    assert len(span.rows) == len(indices)
    assert span.durations().count == span.calls == 2 * BLOCK + 5


def test_each_full_block_of_a_span_is_packed():
    timeline = Timeline(clock=itertools.count().__next__, cpu_clock=int, nvtx=False)
    with timeline.track("main") as track:
        for index in range(3 * BLOCK):
            with track.span("read", index):
                pass
            if index == BLOCK // 2:
                track.spans["read", "work"].durations()  # reading in between changes nothing
    rows = track.spans["read", "work"].rows
    assert len(rows._blocks) == 3
    assert rows.column("index").tolist() == list(range(3 * BLOCK))
    assert (np.diff(rows.column("start")) == 2).all()
    assert (rows.column("end") - rows.column("start") == 1).all()


@pytest.mark.parametrize("calls", [0, 1, 9, 10, 11, 20, 25])
def test_ring_is_read_in_order_however_full_it_is(calls):
    ring = Ring(10)
    for index in range(calls):
        put(ring, index, index, 2 * index, 2 * index + 1)
    indices = range(max(0, calls - 10), calls)
    assert table(ring) == [(index, 2 * index, 2 * index + 1) for index in indices]
    assert len(ring) == len(indices)


def test_a_ring_keeps_the_last_spans():
    timeline = Timeline(
        clock=itertools.count().__next__, cpu_clock=int, nvtx=False, max_rows=10, ring=True
    )
    with timeline.track("main") as track:
        for index in range(1000):
            with track.span("read", index):
                pass
    span = track.spans["read", "work"]
    indices, starts, ends = (span.rows.column(name).tolist() for name in COLUMNS[:3])
    assert set(span.rows.column("off_cpu").tolist()) == {NOT_KNOWN}
    assert indices == list(range(990, 1000))
    assert ends == sorted(ends)
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert (span.calls, span.durations().count) == (1000, 1000)
