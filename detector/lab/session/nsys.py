"""Read Nsight Systems' recording of a run as if it were a session.

    nsys profile -t nvtx,osrt,cuda -o run detect-video in.mp4
    nsys export --type sqlite run.nsys-rep

We read exports of nsys 2026.4 (schema 3.28), 2022.4.2, 2023.4.4 and 2024.2.3. An export lacks empty
tables, so every table is optional here. Times are nanoseconds from the recording's start. A
recording may contain several runs. Each run is inside a range named "run", and a mark states the
run's queue lengths. Ranges of a process outside its runs are returned last, as one more run.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import UsageError
from detector.core.errors.writing import temporary_folder
from detector.core.session.codec import from_builtins
from detector.core.session.document import LoopSizes
from detector.core.timeline.nvtx_ranges import DOMAIN
from detector.core.timeline.spans import INFER, KINDS, PREPROCESS, READ
from detector.lab.session.columns import LATEST_NS

PUSH_POP, START_END, DOMAIN_CREATE, CATEGORY, MARK = 59, 60, 75, 33, 34  # NVTX_EVENTS.eventType
KERNELS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"  # contains calls of the driver, too
MEMORY = {"CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
TABLES = (
    "NVTX_EVENTS",
    "StringIds",
    "OSRT_API",
    "PROCESSES",
    "ThreadNames",
    CALLS,
    *MEMORY,
    *KERNELS,
)
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # CUpti_ActivityMemcpyKind
VERSION = re.compile(r"_v\d{4,}$")  # as in cudaLaunchKernel_v7000
PROCESS = 0x1000000  # globalTid = process id * PROCESS + thread id
REPORT = ".nsys-rep"
RUN = "run"
CAMERA = "camera"
UNKNOWN_PROCESS = -1  # the process of GPU work whose row names no process
LOOP_THREADS = ("reader", "worker-")  # thread names that detector/core/loop sets
LOOP = re.compile(r"loop( \w{1,30}=\d{1,9}){1,20}")
SIZE = re.compile(r"(\w+)=(\d+)")
SIZES = LoopSizes.__annotations__.keys()
# An hour at 30 FPS has a million ranges, which SQLite reads in a second or two.
MAX_ROWS = 4_000_000
MAX_TEXT = 1 << 20  # bytes of one value
TIMEOUT_S = 120.0
IN_USE = "another program has it open; close that program first"


class CudaCall(NamedTuple):
    """A CUDA call on the host. ``correlation``: the id shared with its GPU work; 0 if unknown."""

    thread: int
    name: str
    start: int
    end: int
    correlation: int


class DeviceWork(NamedTuple):
    stream: int
    name: str
    start: int
    end: int
    correlation: int


@dataclass(frozen=True, slots=True)
class NsysRun:
    """One run. ``process``: its process id. ``columns``: like those of spans.npz. ``loop``: the
    loop's queue sizes, guessed if the recording lacks them (``loop_is_known`` is then False).
    ``blocked``: (thread, system call, start, end). ``kernels``: (start, end) on the GPU. ``cuda``,
    ``device``: the process's CUDA calls and GPU work from the end of its previous run to the start
    of its next. ``open``: number of ranges omitted because they had no end in the recording.
    ``outside``: True if this is no run, but a process's ranges outside runs, such as those of
    pictures given to the Python API."""

    process: int
    program: str | None
    start_ns: int
    end_ns: int
    columns: dict[str, NDArray[Any]]
    loop: LoopSizes
    loop_is_known: bool
    blocked: Sequence[tuple[str, str, int, int]] = field(default_factory=tuple)
    kernels: Sequence[tuple[int, int]] = field(default_factory=tuple)
    open: int = 0
    outside: bool = False
    cuda: Sequence[CudaCall] = ()
    device: Sequence[DeviceWork] = ()

    @property
    def frames(self) -> int:
        return _count_calls(self.columns, PREPROCESS)

    @property
    def ranges(self) -> int:
        return len(self.columns["stage"]) + self.open


def read_nsys(path: str | Path) -> list[NsysRun]:
    """Return the runs in order, then ranges outside runs. Raises UsageError if it finds none."""
    if not Path(path).is_file():
        raise UsageError(
            f"{path}: no such file; make it with: nsys export --type sqlite RUN.nsys-rep"
        )
    if Path(path).suffix.lower() == REPORT:
        with _export_report(Path(path)) as export:
            return _read_export(export, path)
    return _read_export(path, path)


@contextmanager
def _export_report(report: Path) -> Iterator[Path]:
    nsys = shutil.which("nsys")
    by_hand = f"nsys export --type sqlite {report}"
    if nsys is None:
        raise UsageError(
            f"{report}: needs nsys, which is not on the PATH; where it is installed, run "
            f"{by_hand} and give the .sqlite file"
        )
    with temporary_folder() as folder:
        export = folder / f"{report.stem}.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true"]
        run = subprocess.run(
            [*command, "--output", str(export), str(report)], capture_output=True, check=False
        )
        if run.returncode or not export.is_file():
            lines = (run.stderr + b"\n" + run.stdout).decode(errors="replace").split("\n")
            why = next((line.strip() for line in lines if line.strip()), f"exit {run.returncode}")
            raise UsageError(f"{report}: nsys failed to export it ({why}); try: {by_hand}")
        yield export


def _read_export(export: str | Path, path: str | Path) -> list[NsysRun]:
    place, deadline = Path(export).resolve(), time.monotonic() + TIMEOUT_S

    def is_late() -> bool:
        return time.monotonic() > deadline

    try:
        with place.open("rb") as file:
            # SQLite adds files beside a database in write-ahead mode, unless opened as "immutable".
            has_log = file.read(20)[18:] == b"\2\2"
        if has_log and Path(f"{place}-wal").exists():
            raise UsageError(f"{path}: {IN_USE}")
        mode = "immutable=1" if has_log else "mode=ro"
        with closing(
            sqlite3.connect(f"file:{quote(os.fsencode(place))}?{mode}", uri=True)
        ) as database:
            database.execute("pragma trusted_schema = off")
            database.execute("pragma cell_size_check = on")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
            database.set_progress_handler(is_late, 100_000)
            tables = _list_plain_tables(database)
            database.set_authorizer(_permit_plain_reading)
            return _read(database, tables, str(path))
    # sqlite3 raises UnicodeDecodeError if an error message contains a damaged name.
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        if is_late():
            raise UsageError(
                f"{path}: reading it takes more than {TIMEOUT_S:g} s; it is damaged, or the run "
                "is too long: record a shorter one"
            ) from error
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
            raise UsageError(f"{path}: {IN_USE}") from error
        raise UsageError(
            f"{path}: not an SQLite export of nsys ({' '.join(str(error).split())}); make it "
            "with: nsys export --type sqlite RUN.nsys-rep"
        ) from error


def _list_plain_tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Return plain tables and their columns. We omit views, virtual tables and tables with computed
    columns, since a malicious database could run code through these."""
    # A malicious database may call a view a "table", but a view has no "create table" statement.
    stated = {
        name
        for name, statement in database.execute("select name, sql from sqlite_master")
        if name in TABLES and re.match(r"create table\b", str(statement), re.IGNORECASE)
    }
    tables = {}
    for table in stated:
        columns = list(
            database.execute("select name, hidden from pragma_table_xinfo(?) limit 1000", (table,))
        )
        if not any(hidden for _, hidden in columns):
            tables[table] = {name for name, _ in columns}
    return tables


def _permit_plain_reading(
    action: int, first: str | None, second: str | None, _: str | None, via: str | None
) -> int:
    """Permit only coalesce() and reading columns of tables. Refuse reading through a view."""
    function = action == sqlite3.SQLITE_FUNCTION and second == "coalesce"
    plain = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ) and via is None
    return sqlite3.SQLITE_OK if plain or function else sqlite3.SQLITE_DENY


def _read(database: sqlite3.Connection, tables: Mapping[str, set[str]], path: str) -> list[NsysRun]:
    if "NVTX_EVENTS" not in tables:
        raise UsageError(
            f"{path}: it has no NVTX ranges; record with: nsys profile -t nvtx,osrt ..."
        )
    export = _Export(database, tables, path)
    windows = list(export.windows())
    runs = _Runs(windows)
    ranges_by_run = _group_by_run(list(export.ranges()), windows, runs)
    if not ranges_by_run:
        raise UsageError(
            f"{path}: no ranges of the domain {DOMAIN}; record a detect-video run with nvtx: true"
        )
    loops = _group_by_process(export.stated_loops(), itemgetter(0), itemgetter(1), runs)
    programs = dict(export.programs())
    tids = {tid for _, ranges in ranges_by_run for tid, *_ in ranges}
    names = dict(export.thread_names(tids))
    calls = _group_by_process(
        export.blocked(tids), lambda call: call[0] // PROCESS, itemgetter(2), runs
    )
    kernel_work = list(export.device_work(KERNELS))
    kernels = _group_by_process(kernel_work, itemgetter(0), lambda one: one[1].start, runs)
    cuda = _group_by_process(
        export.calls(CALLS), lambda call: call.thread // PROCESS, attrgetter("start"), _Runs([])
    )
    work = [*kernel_work, *export.device_work(MEMORY)]
    device = _group_by_process(work, itemgetter(0), lambda one: one[1].start, _Runs([]))
    recorded: list[NsysRun] = []
    for window, ranges in ranges_by_run:
        own_kernels = [*kernels(window), *kernels(window._replace(process=UNKNOWN_PROCESS))]
        program = programs.get(window.process)
        run = _build_run(window, ranges, names, calls(window), own_kernels, program)
        if not window.outside:
            # A run's mark precedes its range "run", so take the last mark before that range.
            marks = loops(Window(window.process, 0, max(window.start_ns, ranges[0][4])))
            extended = _extend_to_neighbours(window, windows)
            gpu = extended._replace(process=UNKNOWN_PROCESS)
            run = replace(
                run,
                loop=marks[-1][2] if marks else run.loop,
                loop_is_known=bool(marks),
                cuda=cuda(extended),
                device=[work for _, work in (*device(extended), *device(gpu))],
            )
        recorded.append(run)
    return recorded


def _extend_to_neighbours(window: Window, windows: Sequence[Window]) -> Window:
    own = [one for one in windows if one.process == window.process and one != window]
    before = [one.end_ns for one in own if one.end_ns <= window.start_ns]
    after = [one.start_ns for one in own if one.start_ns >= window.end_ns]
    return Window(window.process, max(before, default=-LATEST_NS), min(after, default=LATEST_NS))


class Window(NamedTuple):
    """A period of a process, usually a run. ``outside``: leave out the runs within it."""

    process: int
    start_ns: int
    end_ns: int
    outside: bool = False


Closed = tuple[int, str, str, int, int, int]
Row = tuple[int, str, str, int, int, int | None]
"""globalTid, stage, kind, index, start, end."""


class _Runs:
    """The times of each process's runs, which may overlap; for UNKNOWN_PROCESS, of all runs."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)  # running maximum of the ends
        for window in sorted(windows, key=lambda one: one.start_ns):
            for process in (window.process, UNKNOWN_PROCESS):
                ends = self._ends[process]
                ends.append(max([window.end_ns, *ends[-1:]]))
                self._starts[process].append(window.start_ns)

    def __contains__(self, process: int) -> bool:
        return process in self._starts

    def is_running(self, process: int, when: int) -> bool:
        started = bisect_right(self._starts.get(process, []), when)
        return started > 0 and self._ends[process][started - 1] >= when

    def move_into_run(self, process: int, when: int) -> int:
        """Return ``when`` if it is in a run, else the next run's start, else the last run's end."""
        later = bisect_right(self._starts[process], when)
        if self.is_running(process, when):
            return when
        return (self._starts[process][later:] or self._ends[process][-1:])[0]


def _group_by_run(
    ranges: Sequence[Row], windows: Sequence[Window], runs: _Runs
) -> list[tuple[Window, list[Row]]]:
    """Return each run's ranges, then those outside runs. A process without runs counts as a run."""
    last = max((end or start for *_, start, end in ranges), default=0)
    first = min((start for *_, start, _ in ranges), default=0)
    processes = sorted({tid // PROCESS for tid, *_ in ranges})
    single_runs = [Window(process, first, last) for process in processes if process not in runs]
    others = {tid for tid, stage, *_ in ranges if stage != READ}

    def start(row: Row) -> int:
        """Return when a range starts. Threads that only read belong to cameras. Cameras may start
        before the run, so their ranges are moved into it."""
        tid, *_, began, _ = row
        process = tid // PROCESS
        return began if tid in others or process not in runs else runs.move_into_run(process, began)

    by_process = _group_by_process(ranges, lambda row: row[0] // PROCESS, start, runs)
    ordered = sorted([*windows, *single_runs], key=lambda one: (one.start_ns, one.process))
    ranges_of_runs = [(window, own) for window in ordered if (own := by_process(window))]
    for process in processes:
        if process in runs and (own := by_process(Window(process, first, last, outside=True))):
            until = max(end or start for *_, start, end in own)
            ranges_of_runs.append((Window(process, own[0][4], until, outside=True), own))
    return ranges_of_runs


Record = TypeVar("Record")


def _group_by_process(
    rows: Iterable[Record],
    process: Callable[[Record], int],
    start: Callable[[Record], int],
    runs: _Runs,
) -> Callable[[Window], list[Record]]:
    own: dict[int, list[Record]] = defaultdict(list)
    for row in rows:
        own[process(row)].append(row)
    for each in own.values():
        each.sort(key=start)

    def within(window: Window) -> list[Record]:
        each = own.get(window.process, [])
        first = bisect_left(each, window.start_ns, key=start)
        inside = each[first : bisect_right(each, window.end_ns, key=start)]
        if window.outside:
            inside = [row for row in inside if not runs.is_running(window.process, start(row))]
        return inside

    return within


def _build_run(
    window: Window,
    ranges: Sequence[Row],
    thread_names: Mapping[int, str],
    calls: Sequence[tuple[int, str, int, int]],
    kernels: Sequence[tuple[int, DeviceWork]],
    program: str | None,
) -> NsysRun:
    closed = [(*row[:5], row[5]) for row in ranges if row[5] is not None]
    names = _name_threads(closed, thread_names)
    # Camera threads have the stage "read", too, but they decode; the loop's "read" only waits.
    closed = [
        (row[0], CAMERA if names[row[0]].startswith(CAMERA) else row[1], *row[2:]) for row in closed
    ]
    columns = _build_columns(closed, names)
    return NsysRun(
        window.process % PROCESS,
        program,
        window.start_ns,
        min(window.end_ns, max((row[5] for row in closed), default=window.start_ns)),
        columns,
        _guess_loop(columns),
        False,
        [(names[tid], call, start, end) for tid, call, start, end in calls if tid in names],
        [(kernel.start, kernel.end) for _, kernel in kernels],
        open=len(ranges) - len(closed),
        outside=window.outside,
    )


class _Export:
    """The tables of an export. SQLite stores any type in any column, so each value is checked."""

    def __init__(
        self, database: sqlite3.Connection, tables: Mapping[str, set[str]], path: str
    ) -> None:
        self._database, self._tables, self._path = database, tables, path
        known = "StringIds" in tables
        # An event's text is in StringIds if it is registered, otherwise in the event's row.
        self._text_column = "coalesce(n.text, s.value)" if known else "n.text"
        self._text_join = "left join StringIds s on s.id = n.textId" if known else ""
        self._domains = {
            (domain, self._process_of(tid))
            for domain, tid, text in self._events("domainId, n.globalTid", DOMAIN_CREATE)
            if text == DOMAIN
        }

    def ranges(self) -> Iterator[Row]:
        """Yield our ranges in order of their starts. A range's kind is the name of its category."""
        kinds = {}
        for domain, tid, category, text in self._events(
            "domainId, n.globalTid, n.category", CATEGORY
        ):
            kinds[domain, self._process_of(tid), category] = text
        columns = "domainId, n.globalTid, n.category, n.int64Value, n.start, n.end"
        for domain, tid, category, index, start, end, stage in self._events(
            columns, PUSH_POP, "order by n.start"
        ):
            thread = self._check_number(tid, "globalTid")
            if (domain, thread // PROCESS) in self._domains:
                if not isinstance(stage, str):
                    raise self._damage_error("text", stage)
                kind = kinds.get((domain, thread // PROCESS, category), KINDS[0])
                number = -1 if index is None else self._check_number(index, "int64Value")
                if number < -1:
                    raise self._damage_error("int64Value", index)
                first, last = self._check_open_span("NVTX_EVENTS", start, end)
                yield thread, stage, kind, number, first, last

    def windows(self) -> Iterator[Window]:
        columns = "domainId, n.globalTid, n.start, n.end"
        for domain, tid, start, end, text in self._events(columns, START_END):
            process = self._process_of(tid)
            if text == RUN and (domain, process) in self._domains:
                first, last = self._check_open_span("NVTX_EVENTS", start, end)
                yield Window(process, first, LATEST_NS if last is None else last)

    def stated_loops(self) -> Iterator[tuple[int, int, LoopSizes]]:
        """Yield (process, time, sizes) from the mark that each run writes at its start."""
        columns = "domainId, n.globalTid, n.start"
        for domain, tid, start, text in self._events(columns, MARK, "order by n.start"):
            process = self._process_of(tid)
            if (
                (domain, process) in self._domains
                and isinstance(text, str)
                and LOOP.fullmatch(text)
            ):
                sizes = {name: int(value) for name, value in SIZE.findall(text)}
                if sizes.keys() >= SIZES:
                    when = self._check_number(start, "NVTX_EVENTS.start")
                    known: dict[str, Any] = {name: sizes[name] for name in SIZES}
                    known["sync"] = bool(known["sync"])
                    origin = f"{self._path}: the mark 'loop ...'"
                    yield process, when, from_builtins(known, LoopSizes, origin)

    def programs(self) -> Iterator[tuple[int, str]]:
        if {"globalPid", "name"} <= self._tables.get("PROCESSES", set()):
            for pid, name in self._rows("select globalPid, name from PROCESSES"):
                if isinstance(pid, int) and isinstance(name, str):
                    yield pid // PROCESS, name

    def thread_names(self, tids: Container[int]) -> Iterator[tuple[int, str]]:
        if {"nameId", "globalTid"} <= self._tables.get("ThreadNames", set()):
            query = (
                "select t.globalTid, s.value from ThreadNames t join StringIds s on s.id = t.nameId"
            )
            for tid, name in self._rows(query) if "StringIds" in self._tables else ():
                if tid in tids and isinstance(name, str):
                    yield tid, name

    def blocked(self, tids: Container[int]) -> Iterator[tuple[int, str, int, int]]:
        """Yield the system calls of these threads: globalTid, name, start, end."""
        return (call[:4] for call in self.calls("OSRT_API") if call.thread in tids)

    def calls(self, table: str) -> Iterator[CudaCall]:
        """Yield the calls in a table. ``correlation`` is 0 if the table has no such column."""
        columns = self._tables.get(table, set())
        if not {"globalTid", "nameId"} <= columns or "StringIds" not in self._tables:
            return
        query = (
            "select c.globalTid, s.value, c.start, c.end, "
            f"{'c.correlationId' if 'correlationId' in columns else '0'} "
            f"from {table} c join StringIds s on s.id = c.nameId where c.end is not null"
        )
        for tid, name, start, end, correlation in self._rows(query):
            if not isinstance(name, str):
                raise self._damage_error("StringIds.value", name)
            thread = self._check_number(tid, f"{table}.globalTid")
            number = self._check_number(correlation or 0, f"{table}.correlationId")
            yield CudaCall(
                thread, VERSION.sub("", name), *self._check_span(table, start, end), number
            )

    def device_work(self, tables: Iterable[str]) -> Iterator[tuple[int, DeviceWork]]:
        """Yield (process or UNKNOWN_PROCESS, work) for each kernel, copy and memset."""
        for table in tables:
            columns = self._tables.get(table, set())
            if not {"start", "end"} <= columns:
                continue
            named = "shortName" in columns and "StringIds" in self._tables
            texts = "s.value" if named else "w.copyKind" if "copyKind" in columns else "null"
            owner, stream, correlation = (
                f"w.{one}" if one in columns else "null"
                for one in ("globalPid", "streamId", "correlationId")
            )
            query = (
                f"select {owner}, {texts}, w.start, w.end, {stream}, {correlation} from {table} w "
                + ("left join StringIds s on s.id = w.shortName" if named else "")
            )
            for pid, text, start, end, line, number in self._rows(query):
                process = pid // PROCESS if isinstance(pid, int) else UNKNOWN_PROCESS
                span = self._check_span(table, start, end)
                ids = [self._check_number(one or 0, table) for one in (line, number)]
                yield process, DeviceWork(ids[0], _name_work(table, text), *span, ids[1])

    def _events(self, columns: str, event: int, more: str = "") -> Iterator[Any]:
        yield from self._rows(
            f"select n.{columns}, {self._text_column} from NVTX_EVENTS n {self._text_join} "
            f"where n.eventType = {event} {more}"
        )

    def _rows(self, query: str) -> Iterator[Any]:
        for number, row in enumerate(self._database.execute(query)):
            if number == MAX_ROWS:
                raise UsageError(
                    f"{self._path}: a table has more than {MAX_ROWS} rows; record a shorter run"
                )
            yield row

    def _check_number(self, value: object, column: str) -> int:
        if not isinstance(value, int) or not -LATEST_NS < value < LATEST_NS:
            raise self._damage_error(column, value)
        return value

    def _process_of(self, tid: object) -> int:
        return self._check_number(tid, "globalTid") // PROCESS

    def _check_open_span(self, table: str, start: object, end: object) -> tuple[int, int | None]:
        if end is None:
            return self._check_number(start, f"{table}.start"), None
        return self._check_span(table, start, end)

    def _check_span(self, table: str, start: object, end: object) -> tuple[int, int]:
        first, last = (
            self._check_number(start, f"{table}.start"),
            self._check_number(end, f"{table}.end"),
        )
        if last < first:
            raise UsageError(
                f"{self._path}: damaged: {table}.end ({last}) is before {table}.start ({first})"
            )
        return first, last

    def _damage_error(self, column: str, value: object) -> UsageError:
        return UsageError(
            f"{self._path}: damaged: {column} has an invalid value: {repr(value)[:40]}"
        )


def _name_work(table: str, text: object) -> str:
    if table in MEMORY:
        kind = COPIES.get(text, "") if isinstance(text, int) else ""
        return f"[{MEMORY[table]}{' ' if kind else ''}{kind}]"
    return text if isinstance(text, str) else "[graph]" if table == KERNELS[1] else "[kernel]"


def _name_threads(ranges: Sequence[Closed], by_system: Mapping[int, str]) -> dict[int, str]:
    """Name threads as in a session: by the name that the loop gave them, or by their stages."""
    doing: dict[int, set[str]] = defaultdict(set)
    for tid, stage, *_ in ranges:
        doing[tid].add(stage)
    names, workers, cameras = {}, 0, 0
    for tid, stages in sorted(doing.items()):
        if by_system.get(tid, "").startswith(LOOP_THREADS):
            names[tid] = by_system[tid]
        elif INFER in stages and PREPROCESS not in stages:
            names[tid], workers = f"worker-{workers}", workers + 1
        elif INFER in stages:
            names[tid] = "main"
        elif stages == {READ}:
            names[tid], cameras = f"{CAMERA}-{cameras}", cameras + 1
        else:
            names[tid] = "reader" if PREPROCESS in stages else "writer"
    return names


def _build_columns(ranges: Sequence[Closed], names: dict[int, str]) -> dict[str, NDArray[Any]]:
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
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _count_calls(columns: dict[str, NDArray[Any]], stage: str) -> int:
    stages = columns["stage_names"].tolist()
    return (
        int(np.sum((columns["stage"] == stages.index(stage)) & (columns["kind"] == 0)))
        if stage in stages
        else 0
    )


def _guess_loop(columns: dict[str, NDArray[Any]]) -> LoopSizes:
    threads = columns["thread_names"].tolist()
    batch = -(-_count_calls(columns, PREPROCESS) // max(1, _count_calls(columns, INFER))) or 1
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
