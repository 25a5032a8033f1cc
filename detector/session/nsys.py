"""A recording of a run by Nsight Systems, read as if it were a session.

    nsys profile -t nvtx,osrt,cuda -o run detect-video in.mp4
    nsys export --type sqlite run.nsys-rep

The SQLite export holds our NVTX ranges. Its tables and columns are those of schema 3.28 (nsys
2026.4). A table that would be empty is absent from an export, so every table is optional here.
Times are nanoseconds from the start of the recording.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from detector.errors import UsageError
from detector.session.codec import from_builtins
from detector.session.columns import LATEST_NS
from detector.session.document import LoopSizes
from detector.timeline import KINDS
from detector.timeline.nvtx_ranges import DOMAIN
from detector.timeline.spans import INFER, PREPROCESS

PUSH_POP, DOMAIN_CREATE, CATEGORY, MARK = 59, 75, 33, 34  # NVTX_EVENTS.eventType
KERNELS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
TABLES = ("NVTX_EVENTS", "StringIds", "OSRT_API", *KERNELS)
PROCESS = 0x1000000  # a globalTid is the process's number times this, and the thread's
LOOP = re.compile(r"loop( \w{1,30}=\d{1,9}){1,20}")
SIZE = re.compile(r"(\w+)=(\d+)")
SIZES = LoopSizes.__annotations__.keys()
# A run of an hour at 30 FPS has a million ranges. SQLite reads a million rows in a second or two.
MOST_ROWS = 4_000_000
MOST_TEXT = 1 << 20  # bytes of one value
LONGEST_S = 120.0


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
    clock = _Clock(LONGEST_S)
    try:
        with closing(
            sqlite3.connect(f"file:{quote(os.fsencode(Path(path).resolve()))}?mode=ro", uri=True)
        ) as database:
            _bound(database, clock)
            tables = _plain_tables(database)
            database.set_authorizer(_permit_plain_reading)
            return _read(database, tables, str(path))
    # Where a name is damaged, sqlite3 cannot decode its own message.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if clock.is_over():
            raise UsageError(
                f"{path}: reading it takes more than {LONGEST_S:g} s; it is damaged, or of a run "
                "that is too long: record a shorter one"
            ) from error
        raise UsageError(
            f"{path}: no SQLite export of nsys ({' '.join(str(error).split())}); make it with: "
            "nsys export --type sqlite RUN.nsys-rep"
        ) from error


class _Clock:
    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._end


def _bound(database: sqlite3.Connection, clock: _Clock) -> None:
    database.execute("pragma trusted_schema = off")
    database.execute("pragma cell_size_check = on")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT)
    database.set_progress_handler(clock.is_over, 100_000)


def _plain_tables(database: sqlite3.Connection) -> set[str]:
    """The tables that are stored, with all of their columns. The file may come from anywhere, and a
    database holds programs: views, triggers, virtual tables, columns that are computed."""
    # A view can call itself a table in this list, but not in its own statement.
    stated = {
        name
        for name, statement in database.execute("select name, sql from sqlite_master")
        if name in TABLES and re.match(r"create table\b", str(statement), re.IGNORECASE)
    }
    computed = "select count(*) from pragma_table_xinfo(?) where hidden > 0"
    return {name for name in stated if database.execute(computed, (name,)).fetchone() == (0,)}


def _permit_plain_reading(
    action: int, first: str | None, second: str | None, _: str | None, via: str | None
) -> int:
    """What a statement may do from here on: read columns of tables, and not by way of a view."""
    function = action == sqlite3.SQLITE_FUNCTION and second == "coalesce"
    plain = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ) and via is None
    return sqlite3.SQLITE_OK if plain or function else sqlite3.SQLITE_DENY


def _read(database: sqlite3.Connection, tables: set[str], path: str) -> Recorded:
    if "NVTX_EVENTS" not in tables:
        raise UsageError(
            f"{path}: it has no NVTX ranges; record with: nsys profile -t nvtx,osrt ..."
        )
    export = _Export(database, tables, path)
    ranges = list(export.ranges())
    if not ranges:
        raise UsageError(
            f"{path}: no ranges of the domain {DOMAIN}; record a run of this program with nvtx on"
        )
    names = _thread_names(ranges)
    columns = _columns(ranges, names)
    stated = export.stated_loop()
    return Recorded(
        columns,
        stated or _guessed_loop(columns),
        stated is not None,
        list(export.blocked(names)),
        list(export.kernels()),
    )


Row = tuple[int, str, str, int, int, int]
"""globalTid, stage, kind, index, start, end."""


class _Export:
    """The tables of an export. SQLite keeps any value in any column, so each one is checked."""

    def __init__(self, database: sqlite3.Connection, tables: set[str], path: str) -> None:
        self._database, self._tables, self._path = database, tables, path
        known = "StringIds" in tables
        # A registered string stands in StringIds, any other in the row itself.
        self._text = "coalesce(n.text, s.value)" if known else "n.text"
        self._join = "left join StringIds s on s.id = n.textId" if known else ""

    def ranges(self) -> Iterator[Row]:
        """Our ranges by their start. The names of domains and categories are events as well."""
        domains, kinds = set(), {}
        for domain, tid, said in self._events("domainId, n.globalTid", DOMAIN_CREATE):
            if said == DOMAIN:
                domains.add((domain, self._number(tid, "globalTid") // PROCESS))
        for domain, tid, category, said in self._events(
            "domainId, n.globalTid, n.category", CATEGORY
        ):
            kinds[domain, self._number(tid, "globalTid") // PROCESS, category] = said
        columns = "domainId, n.globalTid, n.category, n.int64Value, n.start, n.end"
        for domain, tid, category, index, start, end, stage in self._events(
            columns, PUSH_POP, "and n.end is not null order by n.start"
        ):
            thread = self._number(tid, "globalTid")
            if (domain, thread // PROCESS) in domains:
                if not isinstance(stage, str):
                    raise self._damaged("text", stage)
                kind = kinds.get((domain, thread // PROCESS, category), KINDS[0])
                number = -1 if index is None else self._number(index, "int64Value")
                yield thread, stage, kind, number, *self._span("NVTX_EVENTS", start, end)

    def stated_loop(self) -> LoopSizes | None:
        """The sizes from the mark that a run leaves at its start; None where there is no mark."""
        for _, said in self._events("domainId", MARK):
            if isinstance(said, str) and LOOP.fullmatch(said):
                sizes = {name: int(value) for name, value in SIZE.findall(said)}
                if sizes.keys() >= SIZES:
                    return self._checked_loop(sizes)
        return None

    def _checked_loop(self, sizes: dict[str, int]) -> LoopSizes:
        known: dict[str, Any] = {name: sizes[name] for name in SIZES}
        known["sync"] = bool(known["sync"])
        return from_builtins(known, LoopSizes, f"{self._path}: the mark 'loop ...'")

    def blocked(self, names: dict[int, str]) -> Iterator[tuple[str, str, int, int]]:
        """System calls on the threads of the loop."""
        if not {"OSRT_API", "StringIds"} <= self._tables:
            return
        query = (
            "select o.globalTid, s.value, o.start, o.end "
            "from OSRT_API o join StringIds s on s.id = o.nameId where o.end is not null"
        )
        for tid, call, start, end in self._rows(query):
            if tid in names:
                if not isinstance(call, str):
                    raise self._damaged("StringIds.value", call)
                yield names[tid], call, *self._span("OSRT_API", start, end)

    def kernels(self) -> Iterator[tuple[int, int]]:
        for table in KERNELS:
            if table in self._tables:
                for start, end in self._rows(f"select start, end from {table}"):
                    yield self._span(table, start, end)

    def _events(self, columns: str, event: int, more: str = "") -> Iterator[Any]:
        """Rows of NVTX_EVENTS, each with its text behind the columns."""
        yield from self._rows(
            f"select n.{columns}, {self._text} from NVTX_EVENTS n {self._join} "
            f"where n.eventType = {event} {more}"
        )

    def _rows(self, query: str) -> Iterator[Any]:
        for number, row in enumerate(self._database.execute(query)):
            if number == MOST_ROWS:
                raise UsageError(
                    f"{self._path}: a table has more than {MOST_ROWS} rows; record a shorter run"
                )
            yield row

    def _number(self, value: object, column: str) -> int:
        if not isinstance(value, int) or not -LATEST_NS < value < LATEST_NS:
            raise self._damaged(column, value)
        return value

    def _span(self, table: str, start: object, end: object) -> tuple[int, int]:
        first, last = self._number(start, f"{table}.start"), self._number(end, f"{table}.end")
        if last < first:
            raise UsageError(
                f"{self._path}: damaged: {table}.end: {last} is before {first}, its start"
            )
        return first, last

    def _damaged(self, column: str, value: object) -> UsageError:
        return UsageError(
            f"{self._path}: damaged: {column} holds something else: {repr(value)[:40]}"
        )


def _thread_names(ranges: Sequence[Row]) -> dict[int, str]:
    """The name of each thread as a session has it, told by the stages that ran there."""
    doing: dict[int, set[str]] = defaultdict(set)
    for tid, stage, *_ in ranges:
        doing[tid].add(stage)
    names, workers = {}, 0
    for tid, stages in sorted(doing.items()):
        if INFER in stages and PREPROCESS not in stages:
            names[tid], workers = f"worker-{workers}", workers + 1
        elif INFER in stages:
            names[tid] = "main"
        else:
            names[tid] = "reader" if PREPROCESS in stages else "writer"
    return names


def _columns(ranges: Sequence[Row], names: dict[int, str]) -> dict[str, NDArray[Any]]:
    threads = _number_names(names.values())
    stages = _number_names(row[1] for row in ranges)
    kinds = _number_names(KINDS)
    rows = [
        (threads[names[tid]], stages[stage], kinds.get(kind, 0), index, start, end)
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
        "thread_names": np.array(list(threads)),
        "stage_names": np.array(list(stages)),
        "kind_names": np.array(KINDS),
    }


def _number_names(names: Iterable[str]) -> dict[str, int]:
    """Name -> its number among the different ones, in the order of their first."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


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
