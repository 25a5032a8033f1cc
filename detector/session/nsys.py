"""A recording of a run by Nsight Systems, read as if it were a session.

    nsys profile -t nvtx,osrt,cuda -o run detect-video in.mp4
    nsys export --type sqlite run.nsys-rep

The SQLite export holds our NVTX ranges. Its tables and columns are those of schema 3.28 (nsys
2026.4). A table that would be empty is absent from an export, so every table is optional here.
Times are nanoseconds from the start of the recording.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import UsageError
from detector.session.document import LoopSizes
from detector.timeline import KINDS
from detector.timeline.nvtx_ranges import DOMAIN
from detector.timeline.spans import INFER, PREPROCESS

PUSH_POP, DOMAIN_CREATE, CATEGORY, MARK = 59, 75, 33, 34  # NVTX_EVENTS.eventType
LOOP = re.compile(r"loop (?:\w+=\d+ ?)+")
SIZES = LoopSizes.__annotations__.keys()


@dataclass(frozen=True, slots=True)
class Recorded:
    """``columns``: as of spans.npz. ``loop``: the sizes that bound the loop, guessed where the
    recording does not hold them (``loop_is_known`` is then False). ``blocked``: (thread, name of
    the system call, start, end). ``kernels``: (start, end) on the GPU."""

    columns: dict[str, NDArray[Any]]
    loop: LoopSizes
    loop_is_known: bool
    blocked: Sequence[tuple[str, str, int, int]] = field(default_factory=tuple)
    kernels: Sequence[tuple[int, int]] = field(default_factory=tuple)


def read_nsys(path: str | Path) -> Recorded:
    """Raises UsageError where the file is no such export, or holds no ranges of this program."""
    if not Path(path).is_file():
        raise UsageError(
            f"{path}: no such file; make it with: nsys export --type sqlite RUN.nsys-rep"
        )
    try:
        with closing(
            sqlite3.connect(f"file:{Path(path).resolve().as_posix()}?mode=ro", uri=True)
        ) as database:
            return _read(database, str(path))
    except sqlite3.Error as error:
        raise UsageError(
            f"{path}: no SQLite export of nsys ({error}); make it with: "
            "nsys export --type sqlite RUN.nsys-rep"
        ) from error
    except (ValueError, TypeError, OverflowError) as error:  # SQLite keeps any value in any column
        raise UsageError(
            f"{path}: damaged: a column of NVTX_EVENTS holds something else ({error})"
        ) from error


def _read(database: sqlite3.Connection, path: str) -> Recorded:
    tables = {
        name
        for (name,) in database.execute(
            "select name from sqlite_master where type in ('table', 'view')"
        )
    }
    if "NVTX_EVENTS" not in tables:
        raise UsageError(
            f"{path}: it has no NVTX ranges; record with: nsys profile -t nvtx,osrt ..."
        )
    ranges = list(_ranges(database, tables))
    if not ranges:
        raise UsageError(
            f"{path}: no ranges of the domain {DOMAIN}; record a run of this program with nvtx on"
        )
    names = _thread_names(sorted({row[0] for row in ranges}), ranges)
    columns = _columns(ranges, names)
    stated = _stated_loop(database, tables)
    return Recorded(
        columns,
        stated or _guessed_loop(columns),
        stated is not None,
        list(_blocked(database, tables, names)),
        list(_kernels(database, tables)),
    )


Row = tuple[int, str, str, int, int, int]
"""globalTid, stage, kind, index, start, end."""


def _ranges(database: sqlite3.Connection, tables: set[str]) -> Iterator[Row]:
    """Our ranges by their start. A registered string stands in StringIds, any other in the row
    itself. The names of categories are events of their own."""
    text = "coalesce(n.text, s.value)" if "StringIds" in tables else "n.text"
    join = "left join StringIds s on s.id = n.textId" if "StringIds" in tables else ""
    process_of = "globalTid / 0x1000000"
    domain_events = _named(text, join, DOMAIN_CREATE)
    domains = set(
        database.execute(
            f"select domainId, {process_of} from ({domain_events}) where said = '{DOMAIN}'"
        )
    )
    category_events = _named(text, join, CATEGORY)
    kinds = {
        (domain, process, category): said
        for domain, process, category, said in database.execute(
            f"select domainId, {process_of}, category, said from ({category_events})"
        )
    }
    columns = (
        f"n.globalTid, n.{process_of}, n.domainId, n.category, {text}, n.int64Value, n.start, n.end"
    )
    picked = f"n.eventType = {PUSH_POP} and n.end is not null"
    query = f"select {columns} from NVTX_EVENTS n {join} where {picked} order by n.start"
    for tid, process, domain, category, stage, index, start, end in database.execute(query):
        if (domain, process) in domains:
            kind = kinds.get((domain, process, category), KINDS[0])
            yield tid, stage, kind, -1 if index is None else index, start, end


def _named(text: str, join: str, event: int) -> str:
    columns = f"n.domainId, n.globalTid, n.category, {text} as said"
    return f"select {columns} from NVTX_EVENTS n {join} where n.eventType = {event}"


def _thread_names(tids: Sequence[int], ranges: Sequence[Row]) -> dict[int, str]:
    """The name of each thread as a session has it, told by the stages that ran there."""
    doing: dict[int, set[str]] = {tid: set() for tid in tids}
    for tid, stage, *_ in ranges:
        doing[tid].add(stage)
    names, workers = {}, 0
    for tid in tids:
        stages = doing[tid]
        if INFER in stages and PREPROCESS not in stages:
            names[tid], workers = f"worker-{workers}", workers + 1
        elif INFER in stages:
            names[tid] = "main"
        else:
            names[tid] = "reader" if PREPROCESS in stages else "writer"
    return names


def _columns(ranges: Sequence[Row], names: dict[int, str]) -> dict[str, NDArray[Any]]:
    threads, stages = (
        list(dict.fromkeys(names.values())),
        list(dict.fromkeys(row[1] for row in ranges)),
    )
    code = {kind: number for number, kind in enumerate(KINDS)}
    rows = [
        (threads.index(names[tid]), stages.index(stage), code.get(kind, 0), index, start, end)
        for tid, stage, kind, index, start, end in ranges
    ]
    table = np.array(rows, np.int64).reshape(-1, 6)
    return {
        "thread": table[:, 0],
        "stage": table[:, 1],
        "kind": table[:, 2],
        "source": np.zeros(len(table), np.int64),
        "index": table[:, 3],
        "start_ns": table[:, 4],
        "end_ns": table[:, 5],
        "thread_names": np.array(threads),
        "stage_names": np.array(stages),
        "kind_names": np.array(KINDS),
    }


def _stated_loop(database: sqlite3.Connection, tables: set[str]) -> LoopSizes | None:
    """The sizes from the mark that a run leaves at its start; None where there is no mark."""
    text = "coalesce(n.text, s.value)" if "StringIds" in tables else "n.text"
    join = "left join StringIds s on s.id = n.textId" if "StringIds" in tables else ""
    for (said,) in database.execute(
        f"select {text} from NVTX_EVENTS n {join} where n.eventType = {MARK}"
    ):
        if said and LOOP.fullmatch(said):
            sizes = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", said)}
            if sizes.keys() >= SIZES:
                return {
                    "batch": sizes["batch"],
                    "concurrency": sizes["concurrency"],
                    "requests": sizes["requests"],
                    "images": sizes["images"],
                    "queue_batches": sizes["queue_batches"],
                    "results": sizes["results"],
                    "sync": bool(sizes["sync"]),
                }
    return None


def _count(columns: dict[str, NDArray[Any]], stage: str) -> int:
    stages = columns["stage_names"].tolist()
    return (
        int(np.sum((columns["stage"] == stages.index(stage)) & (columns["kind"] == 0)))
        if stage in stages
        else 0
    )


def _guessed_loop(columns: dict[str, NDArray[Any]]) -> LoopSizes:
    """The default sizes, with the batch and the number of workers that the ranges show."""
    threads = columns["thread_names"].tolist()
    batch = -(-_count(columns, PREPROCESS) // max(1, _count(columns, INFER))) or 1
    workers = max(1, sum(name.startswith("worker") for name in threads))
    requests = workers + 3
    return {
        "batch": batch,
        "concurrency": workers,
        "requests": requests,
        "images": batch * (requests + 1),
        "queue_batches": 2,
        "results": 2 + workers,
        "sync": "main" in threads,
    }


def _blocked(
    database: sqlite3.Connection, tables: set[str], names: dict[int, str]
) -> Iterator[tuple[str, str, int, int]]:
    if not {"OSRT_API", "StringIds"} <= tables:
        return
    query = (
        "select o.globalTid, s.value, o.start, o.end "
        "from OSRT_API o join StringIds s on s.id = o.nameId"
    )
    for tid, call, start, end in database.execute(query):
        if tid in names and end is not None:
            yield names[tid], call, start, end


def _kernels(database: sqlite3.Connection, tables: set[str]) -> Iterator[tuple[int, int]]:
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        if table in tables:
            yield from database.execute(f"select start, end from {table}")
