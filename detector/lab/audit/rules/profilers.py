"""Mistakes in what a profiler printed: rows inside rows, the profiler itself, start-up, waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import BYTES, COUNT, ENERGY, NAME, SHARE, STAGE, TIME
from detector.lab.audit.numbers import Number, shown
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.tables import AuditColumn, AuditTable, ms, percent

PROFILER = re.compile(r"profil|kineto|tracer|tracemalloc|_parse_|hook", re.IGNORECASE)
START_UP = re.compile(
    r"\bload|select device|warm.?up|start.?up|\bimport|initiali[sz]|cudaMalloc|cudaFree|"
    r"StreamCreate|CtxDetach|CtxCreate|ModuleUnload|ModuleLoad|MemGetInfo",
    re.IGNORECASE,
)
MOST_NAMES = 1000  # that are compared with each other
WRAPPER = 0.1  # own time of a row that holds everything


def _times(table: AuditTable, *words: str, but: Sequence[str] = ()) -> AuditColumn | None:
    return table.one(TIME, *words, but=but)


def _total(table: AuditTable) -> AuditColumn | None:
    return _times(table, "total", "cumulative", but=("self", "cuda")) or _times(
        table, "time", but=("self", "waiting")
    )


def _root(name: str) -> str:
    """``aten::_convolution``, ``cudnn_convolution`` -> ``convolution``; ``conv2d`` too."""
    plain = re.sub(r"^(?:aten::)?_*(?:cudnn_|mkldnn_|miopen_|native_|mps_)?_*", "", name.lower())
    plain = re.sub(r"_(?:with_indices|overrideable|forward|impl|nhwc)$|_+$", "", plain)
    return {"conv2d": "convolution", "conv1d": "convolution"}.get(plain, plain)


@rule(
    "warning",
    "rows are ranked next to rows that they contain: time is counted twice",
    "rank leaves or self time, and put containers in a separate table",
    bad="name,CPU total (ms),calls\nconv2d,8.908,60\nconvolution,8.656,60\ncat,0.69,20\n",
    clean="name,CPU total (ms),calls\nconvolution,8.656,60\ncat,0.69,20\n",
)
def container_with_children(table: AuditTable) -> Iterator[Hit]:
    if table.one(kinds.CONTAINS):
        yield from _declared(table)
        return
    names = list(table.named_rows(NAME))
    calls, total = table.one(COUNT, "calls", "count"), _total(table)
    groups: dict[tuple[str, float], list[tuple[str, int]]] = {}
    for name, row in names if calls and total else ():
        number = calls.numbers[row] if calls else None
        if number:
            groups.setdefault((_root(name), number.value), []).append((name, row))
    for (_, count), group in groups.items():
        if len(group) > 1 and len({name for name, _ in group}) > 1 and total:
            said = ", ".join(f"{n} {ms(x)}" for n, r in group if (x := total.numbers[r]))
            yield Hit(
                f"{said}: {shown(count)} calls each, nested in each other",
                rows=tuple(name for name, _ in group),
            )
    values = [one for one in table.all(TIME, SHARE) if one.told]
    models = table.texts(kinds.MODEL)
    inside = [
        (name, inner, row)
        for name, row in (names if len(names) <= MOST_NAMES else ())
        for inner, other in names
        if inner.startswith(f"{name}.") and models[row] == models[other]
    ]
    if inside and values:
        first = inside[0]
        yield Hit(
            f"{first[0]} contains {first[1]}, and both are ranked; {len(inside)} such pairs",
            rows=tuple(dict.fromkeys(table.labels[row] for *_, row in inside))[:6],
        )


def _declared(table: AuditTable) -> Iterator[Hit]:
    names = dict(table.named_rows(NAME))
    lower = {name.lower(): row for name, row in names.items()}
    column = table.one(kinds.CONTAINS)
    time = _total(table) or table.one(TIME)
    if column is None or time is None:
        return
    holders = {
        name: [
            part for part in re.split(r"\s*[;,+]\s*", column.texts[row]) if part.lower() in lower
        ]
        for name, row in names.items()
        if column.texts[row]
    }
    holders = {name: parts for name, parts in holders.items() if parts}
    if not holders:
        return
    each = {name: number.value for name, row in names.items() if (number := time.numbers[row])}
    leaves = sum(value for name, value in each.items() if name not in holders)
    said = (f"{name} holds {' and '.join(parts)}" for name, parts in holders.items())
    yield Hit(
        f"all rows add up to {shown(sum(each.values()))} s, rows that contain no other row to "
        f"{shown(leaves)} s: {', '.join(said)}",
        rows=tuple(holders),
    )


@rule(
    "error",
    "a row's own time is above its total",
    "check which column is which, and whether one of them sums threads",
    bad="name,self CPU (ms),CPU total (ms),calls\nconv,9.0,8.0,60\n",
    clean="name,self CPU (ms),CPU total (ms),calls\nconv,7.0,8.0,60\n",
)
def self_above_total(table: AuditTable) -> Iterator[Hit]:
    for kind in (TIME, SHARE):
        own, whole = (
            table.one(kind, "self", but=("cuda",)),
            table.one(kind, "total", "cumulative", but=("self", "cuda")),
        )
        for row in range(table.rows if own and whole else 0):
            one, two = (column.numbers[row] if column else None for column in (own, whole))
            if one and two and one.low > two.high * 1.001:
                yield Hit(
                    f"{own.title if own else ''} {own.texts[row] if own else ''}, "
                    f"{whole.title if whole else ''} {whole.texts[row] if whole else ''}",
                    rows=(table.labels[row],),
                )


def _negative(quantity: str, table: AuditTable) -> Iterator[Hit]:
    for column in table.all(quantity):
        if column.has("change", "diff*", "delta", "slope", "gain"):
            continue
        rows = [row for row, one in enumerate(column.numbers) if one and one.high < 0]
        if rows:
            yield Hit(
                f"{column.title}: {column.texts[rows[0]]}",
                rows=tuple(table.labels[row] for row in rows[:6]),
            )


@rule(
    "error",
    "a time below zero",
    "the profiler subtracted overlapping children; say so, or omit the row",
    bad="name,self CPU (ms),calls\nforward,-0.009,1\n",
    clean="name,self CPU (ms),calls\nforward,0.009,1\n",
)
def negative_time(table: AuditTable) -> Iterator[Hit]:
    yield from _negative(TIME, table)


@rule(
    "note",
    "negative memory is freed memory, not a leak",
    "print allocated and freed bytes separately",
    bad="name,self CPU mem (MB),calls\nmax_pool2d,-113.28,300\n",
    clean="name,self CPU mem (MB),calls\nmax_pool2d,113.28,300\n",
)
def negative_memory(table: AuditTable) -> Iterator[Hit]:
    yield from _negative(BYTES, table)


@rule(
    "warning",
    "the reported time includes the profiler's own work",
    "take times from an unprofiled run, and state the profiler's slowdown",
    bad="function,calls,self (s),cumulative (s)\nwhole run,10,15.5,15.5\n"
    "_parse_kineto_results,1,2.4,7.7\n",
    clean="function,calls,self (s),cumulative (s)\nwhole run,10,15.5,15.5\nconv2d,6000,7.7,7.7\n",
)
def profiler_inside(table: AuditTable) -> Iterator[Hit]:
    own, whole = _times(table, "self", but=("cuda",)), _total(table)
    names = list(table.named_rows(NAME, STAGE))
    if not names or whole is None:
        return
    most = max((one.value for one in whole.told), default=0.0)
    found = [
        (name, number)
        for name, row in names
        if PROFILER.search(name) and (number := whole.numbers[row]) and most
    ]
    share = sum(one.value for _, one in found) / most if most else 0.0
    if share > 0.05:
        yield Hit(
            f"{', '.join(f'{name} {ms(one)}' for name, one in found)}: {percent(share)} of "
            f"{ms(most)}",
            rows=tuple(name for name, _ in found),
        )
    calls = table.one(COUNT, "calls")
    for name, row in names if own and calls and _nested_in(table) else ():
        one, all_of_it = own.numbers[row] if own else None, whole.numbers[row]
        n = calls.numbers[row] if calls else None
        whole_run = all_of_it and n and n.value == 1 and all_of_it.value >= 0.95 * most
        if one and all_of_it and whole_run and WRAPPER * most < one.value < all_of_it.value:
            yield Hit(
                f"{name}: {ms(one)} of {ms(all_of_it)} are self time, "
                f"{percent(one.value / all_of_it.value)}: wrapper code, and the profiler's "
                "overhead for each nested call",
                rows=(name,),
            )


def _nested_in(table: AuditTable) -> bool:
    share = table.one(SHARE, "total")
    return share is not None and any(one.value > 0.9 for one in share.told)


@rule(
    "warning",
    "loading and start-up are in the same total as the work",
    "exclude start-up and teardown, and take shares of the steady state",
    bad="stage,percent of time\nload model,84.0\ninference,10.0\nnms,6.0\n",
    clean="stage,percent of time\nread,14.0\ninference,80.0\nnms,6.0\n",
)
def start_up_inside(table: AuditTable) -> Iterator[Hit]:
    share = next((one for one in table.all(SHARE) if not one.has("self", "util*")), None)
    if share is None:
        return
    if table.one(NAME) or table.one(STAGE):
        rows = [
            (row, number)
            for row in range(table.rows)
            if START_UP.search(" ".join(table.label_texts(row))) and (number := share.numbers[row])
        ]
        added = sum(one.value for _, one in rows)
        if added > 0.1 and len(rows) < table.rows:
            yield Hit(
                f"{percent(added)} of {share.title!r} is start-up and teardown",
                rows=tuple(table.labels[row] for row, _ in rows[:6]),
            )


GPU_COPY = re.compile(r"post|nms|copy|\.cpu|to_cpu|download", re.IGNORECASE)


@rule(
    "warning",
    "GPU work is charged to the stage that waits for it",
    "synchronize before reading the clock, or use device events",
    over="all",
    machine={"card": "T4"},
    bad="stage,percent of time\npre-processing,0.2\ninference,14.5\npost-processing,85.3\n",
    clean="stage,percent of time\npre-processing,0.2\ninference,84.5\npost-processing,15.3\n",
)
def asynchronous_without_wait(case: Case) -> Iterator[Hit]:
    """Behind an asynchronous inference stands a stage that seems to take the time."""
    if not case.on_gpu:
        return
    busy = _gpu_busy(case)
    for table in case.tables:
        share = table.one(SHARE, but=("self", "util*"))
        if share is None or table.one(STAGE) is None:
            continue
        stages: dict[str, float] = {}
        for name, row in table.named_rows(STAGE):
            if number := share.numbers[row]:
                stages[name.lower()] = stages.get(name.lower(), 0.0) + number.value
        infer = sum(v for name, v in stages.items() if "infer" in name or "forward" in name)
        after = {name: v for name, v in stages.items() if GPU_COPY.search(name)}
        if infer and after and sum(after.values()) > 2 * infer:
            name = max(after, key=lambda one: after[one])
            said = f"; {busy[0]}" if busy else ""
            yield Hit(
                f"{name} {percent(after[name])}, inference {percent(infer)}{said}: the wait for "
                "the GPU is charged to the first copy",
                (table.name, *(busy[1:] if busy else ())),
                tuple(stages),
            )


def _gpu_busy(case: Case) -> tuple[str, str] | None:
    for table in case.tables:
        cpu, gpu = _times(table, "cpu"), _times(table, "cuda", "gpu")
        if cpu and gpu and not table.one(COUNT, "calls"):
            for one, two in zip(cpu.numbers, gpu.numbers, strict=True):
                if one and two and 0 < two.value < one.value:
                    share = percent(two.value / one.value)
                    return f"the GPU is busy for {ms(two)} of {ms(one)} ({share})", table.name
    return None


@rule(
    "note",
    "a call named asynchronous waits",
    "use pinned memory: a copy from pageable memory waits",
    bad="name,critical path (s),waiting time (s)\ncudaMemcpyAsync,0.646,0.000053\n",
    clean="name,critical path (s),waiting time (s)\ncudaMemcpyAsync,0.646,0\n",
)
def wait_in_asynchronous_call(table: AuditTable) -> Iterator[Hit]:
    waits = _times(table, "wait*", "waiting")
    for name, row in table.named_rows(NAME) if waits else ():
        number = waits.numbers[row] if waits else None
        if number and number.low > 0 and re.search(r"async", name, re.IGNORECASE):
            yield Hit(f"{name} waits {shown(number.value * 1e6)} us", rows=(name,))


@rule(
    "error",
    "the calls of a layer are not a multiple of the pictures",
    "count the pictures that ran: check for a partial batch, warm-up, or another data set",
    over="all",
    machine={"pictures": 128.0},
    bad="function,calls,self (s)\nconv2d,6000,2.07\n",
    clean="function,calls,self (s)\nconv2d,7680,2.07\n",
)
def count_against_claim(case: Case) -> Iterator[Hit]:
    """Calls of a layer are a multiple of the pictures."""
    pictures = case.machine.number("pictures")
    for table in case.tables if pictures else ():
        calls = table.one(COUNT, "calls")
        odd = [
            (name, n.value)
            for name, row in (table.named_rows(NAME) if calls else ())
            if calls and (n := calls.numbers[row]) and _root(name) == "convolution"
            if pictures and n.value >= pictures and n.value % pictures
        ]
        if odd and pictures:
            name, n_calls = odd[0]
            yield Hit(
                f"{name}: {shown(n_calls)} calls are {shown(n_calls / pictures)} for each of "
                f"{shown(pictures)} pictures, which is not a whole number",
                (table.name,),
                tuple(name for name, _ in odd),
            )


@rule(
    "warning",
    "the energy includes the machine's idle power",
    "measure the idle power, subtract it, and print joules per picture (1/W is not a rate)",
    over="all",
    bad="tag,duration (s),package (J)\nrun,5.21,79.85\n",
    clean="tag,duration (s),package (J)\nidle,5.0,30.0\nrun,5.21,79.85\n",
)
def energy_without_idle(case: Case) -> Iterator[Hit]:
    words = " ".join(
        text.lower()
        for table in case.tables
        for one in table.columns
        for text in (one.title, *one.texts)
    )
    if "idle" in words or "baseline" in words:
        return
    for table in case.tables:
        energy, time = table.one(ENERGY), _times(table, "duration", "time", "window")
        for row in range(table.rows if energy else 0):
            joules: Number | None = energy.numbers[row] if energy else None
            seconds = time.numbers[row] if time else None
            if joules:
                watts = (
                    f" in {shown(seconds.value)} s are {shown(joules.value / seconds.value)} W"
                    if seconds and seconds.value
                    else ""
                )
                yield Hit(
                    (f"{shown(joules.value)} J{watts}; no row or column measures the idle machine"),
                    (table.name,),
                    (table.labels[row],),
                )
