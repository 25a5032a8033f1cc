"""Mistakes in a profiler's output: nested rows, the profiler's own time, start-up, waits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import BYTES, COUNT, ENERGY, NAME, SHARE, STAGE, TIME
from detector.lab.audit.numbers import show
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.tables import AuditColumn, AuditTable, ms, percent

PROFILER = re.compile(r"profil|kineto|tracer|tracemalloc|_parse_|hook", re.IGNORECASE)
START_UP = re.compile(
    r"\bload|select device|warm.?up|start.?up|\bimport|initiali[sz]|cudaMalloc|cudaFree|"
    r"StreamCreate|CtxDetach|CtxCreate|ModuleUnload|ModuleLoad|MemGetInfo",
    re.IGNORECASE,
)
MOST_NAMES = 1000  # longer tables are not searched, since all pairs of names are compared
WRAPPER = 0.1  # share of all time; a row that contains all others may have this much self time


def _find_total(table: AuditTable) -> AuditColumn | None:
    return table.find(TIME, "total", "cumulative", but=("self", "cuda")) or table.find(
        TIME, "time", but=("self", "waiting")
    )


def _normalise_name(name: str) -> str:
    """Return ``convolution`` for ``aten::_convolution``, ``cudnn_convolution`` and ``conv2d``."""
    plain = re.sub(r"^(?:aten::)?_*(?:cudnn_|mkldnn_|miopen_|native_|mps_)?_*", "", name.lower())
    plain = re.sub(r"_(?:with_indices|overrideable|forward|impl|nhwc)$|_+$", "", plain)
    return {"conv2d": "convolution", "conv1d": "convolution"}.get(plain, plain)


@rule(
    "warning",
    "rows are ranked next to rows that they contain: time is counted twice",
    "rank by self time or without containers; list containers in a separate table",
    bad="name,CPU total (ms),calls\nconv2d,8.908,60\nconvolution,8.656,60\ncat,0.69,20\n",
    clean="name,CPU total (ms),calls\nconvolution,8.656,60\ncat,0.69,20\n",
)
def container_with_children(table: AuditTable) -> Iterator[Hit]:
    if table.find(kinds.CONTAINS):
        yield from _check_declared_children(table)
        return
    names = list(table.named_rows(NAME))
    calls, total = table.numbers(COUNT, "calls", "count"), _find_total(table)
    groups: dict[tuple[str, float], list[tuple[str, int]]] = {}
    for name, row in names if total else ():
        if number := calls[row]:
            groups.setdefault((_normalise_name(name), number.value), []).append((name, row))
    for (_, count), group in groups.items():
        if len(group) > 1 and len({name for name, _ in group}) > 1 and total:
            listed = ", ".join(f"{n} {ms(x)}" for n, r in group if (x := total.numbers[r]))
            yield Hit(
                f"{listed}: {show(count)} calls each, nested inside one another",
                rows=tuple(name for name, _ in group),
            )
    values = [one for one in table.all(TIME, SHARE) if one.known]
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
            f"{first[0]} contains {first[1]}, and both are ranked; such pairs: {len(inside)}",
            rows=tuple(dict.fromkeys(table.labels[row] for *_, row in inside))[:6],
        )


def _check_declared_children(table: AuditTable) -> Iterator[Hit]:
    names = dict(table.named_rows(NAME))
    lower = {name.lower(): row for name, row in names.items()}
    column = table.find(kinds.CONTAINS)
    time = _find_total(table) or table.find(TIME)
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
    seconds = {name: number.value for name, row in names.items() if (number := time.numbers[row])}
    leaves = sum(value for name, value in seconds.items() if name not in holders)
    listed = (f"{name} holds {' and '.join(parts)}" for name, parts in holders.items())
    yield Hit(
        f"all rows add up to {show(sum(seconds.values()))} s; rows without children add up to "
        f"{show(leaves)} s: {', '.join(listed)}",
        rows=tuple(holders),
    )


@rule(
    "error",
    "a row's own time is above its total",
    "check that the columns are not swapped, and whether one of them adds up several threads",
    bad="name,self CPU (ms),CPU total (ms),calls\nconv,9.0,8.0,60\n",
    clean="name,self CPU (ms),CPU total (ms),calls\nconv,7.0,8.0,60\n",
)
def self_above_total(table: AuditTable) -> Iterator[Hit]:
    for kind in (TIME, SHARE):
        own, whole = (
            table.find(kind, "self", but=("cuda",)),
            table.find(kind, "total", "cumulative", but=("self", "cuda")),
        )
        for row in range(table.rows if own and whole else 0):
            one, two = (column.numbers[row] if column else None for column in (own, whole))
            if one and two and one.low > two.high * 1.001:
                yield Hit(
                    f"{own.title if own else ''} {own.texts[row] if own else ''}, "
                    f"{whole.title if whole else ''} {whole.texts[row] if whole else ''}",
                    rows=(table.labels[row],),
                )


def _find_negative(quantity: str, table: AuditTable) -> Iterator[Hit]:
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
    yield from _find_negative(TIME, table)


@rule(
    "note",
    "negative memory is freed memory, not a leak",
    "print allocated and freed bytes separately",
    bad="name,self CPU mem (MB),calls\nmax_pool2d,-113.28,300\n",
    clean="name,self CPU mem (MB),calls\nmax_pool2d,113.28,300\n",
)
def negative_memory(table: AuditTable) -> Iterator[Hit]:
    yield from _find_negative(BYTES, table)


@rule(
    "warning",
    "the reported time includes the profiler's own work",
    "take times from an unprofiled run, and state the profiler's slowdown",
    bad="function,calls,self (s),cumulative (s)\nwhole run,10,15.5,15.5\n"
    "_parse_kineto_results,1,2.4,7.7\n",
    clean="function,calls,self (s),cumulative (s)\nwhole run,10,15.5,15.5\nconv2d,6000,7.7,7.7\n",
)
def profiler_inside(table: AuditTable) -> Iterator[Hit]:
    own, whole = table.find(TIME, "self", but=("cuda",)), _find_total(table)
    names = list(table.named_rows(NAME, STAGE))
    if not names or whole is None:
        return
    most = max((one.value for one in whole.known), default=0.0)
    profiler_rows = [
        (name, number)
        for name, row in names
        if PROFILER.search(name) and (number := whole.numbers[row]) and most
    ]
    share = sum(one.value for _, one in profiler_rows) / most if most else 0.0
    if share > 0.05:
        yield Hit(
            f"{', '.join(f'{name} {ms(one)}' for name, one in profiler_rows)}: {percent(share)} of "
            f"{ms(most)}",
            rows=tuple(name for name, _ in profiler_rows),
        )
    calls = table.numbers(COUNT, "calls")
    for name, row in names if own and _has_root(table) else ():
        one, total, n = own.numbers[row] if own else None, whole.numbers[row], calls[row]
        if not (one and total and n) or n.value != 1 or total.value < 0.95 * most:
            continue
        if WRAPPER * most < one.value < total.value:
            yield Hit(
                f"{name}: {ms(one)} of {ms(total)} ({percent(one.value / total.value)}) are self "
                "time: wrapper code, and the profiler's overhead for each nested call",
                rows=(name,),
            )


def _has_root(table: AuditTable) -> bool:
    share = table.find(SHARE, "total")
    return share is not None and any(one.value > 0.9 for one in share.known)


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
    if table.find(NAME) or table.find(STAGE):
        rows = [
            (row, number)
            for row in range(table.rows)
            if START_UP.search(" ".join(table.label_texts(row))) and (number := share.numbers[row])
        ]
        added = sum(one.value for _, one in rows)
        if added > 0.1 and len(rows) < table.rows:
            yield Hit(
                f"{percent(added)} in the column {share.title!r} is start-up and teardown",
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
    if not case.on_gpu:
        return
    busy = _find_gpu_busy(case)
    for table in case.tables:
        share = table.find(SHARE, but=("self", "util*"))
        if share is None or table.find(STAGE) is None:
            continue
        stages: dict[str, float] = {}
        for name, row in table.named_rows(STAGE):
            if number := share.numbers[row]:
                stages[name.lower()] = stages.get(name.lower(), 0.0) + number.value
        infer = sum(v for name, v in stages.items() if "infer" in name or "forward" in name)
        after = {name: v for name, v in stages.items() if GPU_COPY.search(name)}
        if infer and after and sum(after.values()) > 2 * infer:
            name = max(after, key=lambda one: after[one])
            gpu_note = f"; {busy[0]}" if busy else ""
            yield Hit(
                f"{name} {percent(after[name])}, inference {percent(infer)}{gpu_note}: the wait "
                "for the GPU is charged to the first copy",
                (table.name, *(busy[1:] if busy else ())),
                tuple(stages),
            )


def _find_gpu_busy(case: Case) -> tuple[str, str] | None:
    for table in case.tables:
        cpu, gpu = table.find(TIME, "cpu"), table.find(TIME, "cuda", "gpu")
        if cpu and gpu and not table.find(COUNT, "calls"):
            for one, two in zip(cpu.numbers, gpu.numbers, strict=True):
                if one and two and 0 < two.value < one.value:
                    share = percent(two.value / one.value)
                    return f"the GPU is busy for {ms(two)} of {ms(one)} ({share})", table.name
    return None


@rule(
    "note",
    'a call with "async" in its name waits',
    "use pinned memory: a copy from pageable memory waits",
    bad="name,critical path (s),waiting time (s)\ncudaMemcpyAsync,0.646,0.000053\n",
    clean="name,critical path (s),waiting time (s)\ncudaMemcpyAsync,0.646,0\n",
)
def wait_in_asynchronous_call(table: AuditTable) -> Iterator[Hit]:
    waits = table.numbers(TIME, "wait*", "waiting")
    for name, row in table.named_rows(NAME):
        if (number := waits[row]) and number.low > 0 and re.search(r"async", name, re.IGNORECASE):
            yield Hit(f"{name} waits {show(number.value * 1e6)} us", rows=(name,))


@rule(
    "error",
    "the number of a layer's calls is not a multiple of the number of pictures",
    "count the pictures that ran: check for a partial batch, warm-up, or another data set",
    over="all",
    machine={"pictures": 128.0},
    bad="function,calls,self (s)\nconv2d,6000,2.07\n",
    clean="function,calls,self (s)\nconv2d,7680,2.07\n",
)
def count_against_claim(case: Case) -> Iterator[Hit]:
    pictures = case.machine.number("pictures")
    for table in case.tables if pictures else ():
        calls = table.numbers(COUNT, "calls")
        odd = [
            (name, n.value)
            for name, row in table.named_rows(NAME)
            if (n := calls[row]) and _normalise_name(name) == "convolution"
            if pictures and n.value >= pictures and n.value % pictures
        ]
        if odd and pictures:
            name, n_calls = odd[0]
            yield Hit(
                f"{name}: {show(n_calls)} calls for {show(pictures)} pictures are "
                f"{show(n_calls / pictures)} per picture, not a whole number",
                (table.name,),
                tuple(name for name, _ in odd),
            )


@rule(
    "warning",
    "the energy includes the machine's idle power",
    "measure the idle power, subtract it, and print joules per picture, not 1/W",
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
        times = table.numbers(TIME, "duration", "time", "window")
        for row, joules in enumerate(table.numbers(ENERGY)):
            seconds = times[row]
            if joules:
                watts = (
                    f" in {show(seconds.value)} s are {show(joules.value / seconds.value)} W"
                    if seconds and seconds.value
                    else ""
                )
                yield Hit(
                    f"{show(joules.value)} J{watts}; no row or column measures the idle machine",
                    (table.name,),
                    (table.labels[row],),
                )
