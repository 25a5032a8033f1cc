"""Sums, shares and parts that do not add up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import COUNT, SHARE, TIME
from detector.lab.audit.numbers import Number, exact, show, total
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.tables import AuditColumn, AuditTable, ms, percent

# A column whose title has one of these words: its rows are not shares of one whole (NOT_PARTS), or
# must not be added up (NOT_SUMS).
NOT_PARTS = tuple(
    "util* cpu gpu busy memory sparsity error change gain match* interval cache hit saved "
    "reduction increase drop*".split()
)
NOT_SUMS = tuple("avg mean median min max std p50 p90 p95 p99 self cumulative".split())
OF_TIME = ("time", "share", "percent", "total", "critical", "part", "fraction")
OF_STAGES = ("load*", "read*", "preprocess*", "infer*", "postprocess*", "nms", "write", "decod*")


def _is_time_share(column: AuditColumn) -> bool:
    return column.quantity == SHARE and column.has(*OF_TIME) and not column.has(*NOT_PARTS)


def _nests_rows(table: AuditTable) -> bool:
    return bool(table.find(COUNT, "calls") or table.find(kinds.CONTAINS))


@rule(
    "warning",
    "percentages of one whole do not add up to 100",
    "say what the rest is and what the whole is",
    bad="stage,percent of time\nread,10.0\ninfer,70.0\nwrite,16.6\n",
    clean="stage,percent of time\nread,10.0\ninfer,70.0\nwrite,20.0\n",
)
def shares_do_not_sum(table: AuditTable) -> Iterator[Hit]:
    rows = [row for row in range(table.rows) if not table.is_total(row)]
    for column in table.all(SHARE):
        numbers = [one for row in rows if (one := column.numbers[row])]
        if (
            not _is_time_share(column)
            or len(numbers) < 3
            or _mixes_settings(table)
            or _nests_rows(table)
        ):
            continue
        added = total(numbers)
        if added.low > 1.001 or 0.9 <= added.high < 0.999:
            yield Hit(
                f"the {len(numbers)} rows of {column.title!r} add up to {percent(added)}",
                rows=tuple(table.labels[row] for row in rows[:6]),
            )
    stage_columns = [column for column in table.all(SHARE) if column.has(*OF_STAGES)]
    if len(stage_columns) < 3 or len(stage_columns) < len(table.all(SHARE)) or table.find(TIME):
        return
    for row in range(table.rows):
        numbers = [one for column in stage_columns if (one := column.numbers[row])]
        added = total(numbers)
        if len(numbers) == len(stage_columns) and (added.low > 1.001 or 0.9 <= added.high < 0.999):
            yield Hit(
                f"{' + '.join(column.texts[row] for column in stage_columns)} = {percent(added)}",
                rows=(table.labels[row],),
            )


def _mixes_settings(table: AuditTable) -> bool:
    return any(len(set(one.texts)) > 1 for one in table.all(*kinds.SETTINGS))


@rule(
    "error",
    "a share is above 100%",
    "find what is counted twice (a container and its children, or threads), or fix the peak",
    bad="layer,utilization (%)\na,121\nb,40\n",
    clean="layer,utilization (%)\na,97\nb,40\n",
)
def share_above_whole(table: AuditTable) -> Iterator[Hit]:
    for column in table.all(SHARE):
        if column.has("cpu", "load", "change", "gain", "increase", "speed*", "overhead", "diff*"):
            continue
        for row, number in enumerate(column.numbers):
            if number and number.low > 1.005:
                yield Hit(f"{column.title}: {percent(number)}", rows=(table.labels[row],))


@rule(
    "error",
    "a fraction is under a heading that says %",
    "multiply by 100, or remove the %",
    over="all",
    machine={"peak": 8.1e12},
    bad="model,GFLOP/s,utilization (%)\na,318.87,0.04\nb,1099.01,0.14\n",
    clean="model,GFLOP/s,utilization (%)\na,318.87,3.94\nb,1099.01,13.57\n",
)
def fraction_called_percent(case: Case) -> Iterator[Hit]:
    peak = case.machine.number("peak")
    for table in case.tables:
        used, rate = table.find(SHARE, "util*", "mfu", "efficiency"), table.find(kinds.WORK_RATE)
        if used and rate and peak:
            wrong = [
                row
                for row, (one, two) in enumerate(zip(used.numbers, rate.numbers, strict=True))
                if one and two and one.value and one.scaled(100).meets(two.scaled(1 / peak), 0.02)
            ]
            if wrong:
                row = wrong[0]
                reached = rate.numbers[row]
                assert reached is not None
                yield Hit(
                    f"{show(reached.value / 1e9)} of {show(peak / 1e9)} GFLOP/s is "
                    f"{percent(reached.value / peak)}, printed {used.texts[row]} under "
                    f"{used.title!r}; {len(wrong)} rows are too small by a factor of 100",
                    (table.name,),
                    tuple(table.labels[one] for one in wrong),
                )
        for column in table.all(SHARE):
            numbers = column.known
            is_whole = _is_time_share(column) and len(numbers) > 2 and not _mixes_settings(table)
            if is_whole and total(numbers).scaled(100).meets(exact(1), 0.005):
                yield Hit(
                    f"the rows of {column.title!r} add up to {show(100 * total(numbers).value)}, "
                    "as fractions would; percentages would add up to 100",
                    (table.name,),
                )


@rule(
    "warning",
    "two tables of the same stages show different shares",
    "measure both in one run, and say which time moved to another stage",
    over="all",
    bad="| stage | percent of time |\n|---|---|\n| load | 92.1 |\n| infer | 1.4 |\n"
    "| nms | 6.5 |\n\n"
    "| stage | percent of time |\n|---|---|\n| infer | 60.0 |\n| nms | 40.0 |\n",
    clean="| stage | percent of time |\n|---|---|\n| load | 90.0 |\n| infer | 6.0 |\n"
    "| nms | 4.0 |\n\n"
    "| stage | percent of time |\n|---|---|\n| infer | 60.0 |\n| nms | 40.0 |\n",
)
def shares_contradict(case: Case) -> Iterator[Hit]:
    tables = []
    for table in case.tables:
        column = next((one for one in table.all(SHARE) if _is_time_share(one)), None)
        if column and table.find(kinds.STAGE) and not _mixes_settings(table):
            tables.append((table, _sum_by_stage(table, column)))
    for at, (first, one) in enumerate(tables):
        for second, other in tables[at + 1 :]:
            both = [name for name in one if name in other]
            wholes = total(one[name] for name in both), total(other[name] for name in both)
            if len(both) < 2 or min(whole.value for whole in wholes) <= 0:
                continue
            shares = [
                (name, one[name] / exact(wholes[0].value), other[name] / exact(wholes[1].value))
                for name in both
            ]
            if any(abs(a.value - b.value) > 0.03 and not a.meets(b, 0.05) for _, a, b in shares):
                differences = ", ".join(f"{n} {percent(a)} and {percent(b)}" for n, a, b in shares)
                text = f"shares of the sum of the stages in both tables: {differences}"
                yield Hit(text, (first.name, second.name))


def _sum_by_stage(table: AuditTable, column: AuditColumn) -> dict[str, Number]:
    stages: dict[str, Number] = {}
    for name, row in table.named_rows(kinds.STAGE):
        if (number := column.numbers[row]) is not None:
            stages[name.lower()] = stages.get(name.lower(), exact(0)) + number
    return stages


@rule(
    "error",
    "the total row is not the sum of the others",
    "add a row for the missing part",
    bad="stage,latency (ms)\ncapture,40\ninference,280\ntracking,25\ntotal,400\n",
    clean="stage,latency (ms)\ncapture,40\ninference,280\ntracking,25\ntotal,345\n",
)
def total_row_differs(table: AuditTable) -> Iterator[Hit]:
    wholes = [row for row in range(table.rows) if table.is_total(row)]
    if len(wholes) != 1 or _nests_rows(table) or _mixes_settings(table):
        return
    parts = [row for row in range(table.rows) if row not in wholes]
    for column in table.all(TIME, kinds.WORK, kinds.PARAMS, kinds.BYTES, kinds.ENERGY):
        whole, values = column.numbers[wholes[0]], [column.numbers[row] for row in parts]
        numbers = [one for one in values if one]
        if column.has(*NOT_SUMS) or whole is None or len(numbers) < 2 or len(numbers) < len(values):
            continue
        added = total(numbers)
        if not added.meets(whole, 0.002) and added.value > 0.5 * whole.value:
            unit = column.meaning.scale
            yield Hit(
                f"{column.title}: the rows add up to {show(added.value / unit)}, "
                f"{table.labels[wholes[0]]!r} says {show(whole.value / unit)} "
                f"({(whole.value - added.value) / whole.value:+.1%})",
                rows=(table.labels[wholes[0]],),
            )


@rule(
    "note",
    "the stages do not fill the time window that they ran in",
    "add a row for the time between them",
    over="all",
    bad="| step | total (s) |\n|---|---|\n| read | 0.102 |\n| forward | 4.853 |\n\n"
    "| tag | duration (s) |\n|---|---|\n| run | 5.212 |\n",
    clean="| step | total (s) |\n|---|---|\n| read | 0.102 |\n| forward | 4.853 |\n\n"
    "| tag | duration (s) |\n|---|---|\n| run | 4.955 |\n",
)
def parts_do_not_sum(case: Case) -> Iterator[Hit]:
    windows = [
        (table, column, row, number)
        for table in case.tables
        for column in table.all(TIME)
        if column.has("duration", "window", "wall")
        for row, number in enumerate(column.numbers)
        if number
    ]
    for table in case.tables:
        column = table.find(TIME, "total", but=("cpu", "cuda"))
        if column is None or table.find(kinds.STAGE) is None or len(column.known) < 2:
            continue
        added = total(column.known)
        for other, window, row, number in windows:
            missing = (number.value - added.value) / number.value
            if other is not table and 0.005 < missing < 0.3 and not added.meets(number):
                yield Hit(
                    f"the rows of {table.name} add up to {show(added.value)} s, {window.title!r} "
                    f"of {other.labels[row]!r} is {show(number.value)} s: {missing:.1%} has no row",
                    (table.name, other.name),
                )


FORWARD = re.compile(r"\b(?:forward|inference|model_inference)\b")


@rule(
    "warning",
    "the same quantity has several totals",
    "say which interval each total covers, and compare only equal intervals",
    over="all",
    bad="| image | inference (ms) |\n|---|---|\n| a | 165.0 |\n| b | 121.4 |\n| c | 151.9 |\n\n"
    "| name | CPU total (ms) | calls |\n|---|---|---|\n| forward | 395.1 | 3 |\n",
    clean="| image | inference (ms) |\n|---|---|\n| a | 165.0 |\n| b | 121.4 |\n"
    "| c | 151.9 |\n\n"
    "| name | CPU total (ms) | calls |\n|---|---|---|\n| forward | 436.1 | 3 |\n",
)
def totals_contradict(case: Case) -> Iterator[Hit]:
    totals: list[tuple[str, str, Number]] = []
    for table in case.tables:
        column = table.find(TIME, "inference", "forward", but=(*NOT_SUMS, "speed", "latency"))
        if column and table.find(kinds.CLIP) and len(column.known) > 2:
            totals.append(
                (f"{len(column.known)} rows of {column.title!r}", table.name, total(column.known))
            )
        calls_total = table.find(TIME, "total", but=("cuda",))
        groups: dict[str, list[Number]] = {}
        for name, row in table.named_rows(kinds.NAME) if calls_total and _nests_rows(table) else ():
            if (
                FORWARD.search(name.lower())
                and calls_total
                and (number := calls_total.numbers[row])
            ):
                groups.setdefault(name, []).append(number)
        totals += [(f"rows {name!r}", table.name, total(each)) for name, each in groups.items()]
    if len(totals) < 2 or not any("rows of" in one[0] for one in totals):
        return
    least, most = min(totals, key=lambda o: o[2].value), max(totals, key=lambda o: o[2].value)
    if least[2].high * 1.03 < most[2].low < 2 * least[2].high:
        listed = ", ".join(f"{ms(number)} ({what})" for what, _, number in totals)
        yield Hit(
            f"{len(totals)} totals of inference: {listed}", tuple({one[1]: 0 for one in totals})
        )


@rule(
    "warning",
    "the printed inference time is far above the sum of the layers",
    "take the inference time from an unprofiled run",
    bad="quantity,value,unit\nsum of the layers,107.5,ms\nprinted as inference,2499.2,ms\n",
    clean="quantity,value,unit\nsum of the layers,107.5,ms\nprinted as inference,112.3,ms\n",
)
def inference_above_its_layers(table: AuditTable) -> Iterator[Hit]:
    sums = [one for one in table.facts.items() if one[1][0] == TIME and "sum" in one[0]]
    wholes = [one for one in table.facts.items() if one[1][0] == TIME and FORWARD.search(one[0])]
    runs = [number.value for name, (_, number) in table.facts.items() if "runs" in name]
    for name, (_, part) in sums:
        for other, (_, whole) in wholes:
            if whole.low > 1.5 * part.high:
                runs_note = (
                    f"; {show(runs[0])} runs of all layers would take {ms(part.value * runs[0])}"
                    if runs
                    else ""
                )
                yield Hit(
                    f"{other!r} ({ms(whole)}) is {show(whole.value / part.value)} times {name!r} "
                    f"({ms(part)}), so it includes a profiler or several runs{runs_note}"
                )


@rule(
    "error",
    "a total is not count times mean",
    "compute the table again from the samples",
    bad="step,total (s),count,avg (s)\nforward,4.85,10,0.585\n",
    clean="step,total (s),count,avg (s)\nforward,4.85,10,0.485\n",
)
def total_is_not_count_times_mean(table: AuditTable) -> Iterator[Hit]:
    totals, counts = table.numbers(TIME, "total"), table.numbers(COUNT)
    means = table.numbers(TIME, "avg", "mean", "average")
    for row, (whole, n, mean) in enumerate(zip(totals, counts, means, strict=True)):
        if whole and n and mean and not (exact(n.value) * mean).meets(whole, 0.01):
            yield Hit(
                f"{show(n.value)} x {ms(mean)} = {ms(n.value * mean.value)}, the total says "
                f"{ms(whole)}",
                rows=(table.labels[row],),
            )


@rule(
    "error",
    "a quotient of two figures is wrong by a power of ten",
    "compute it again",
    bad="quantity,value,unit\nmemory left,14000,MB\none image,4.7,MB\nsafe batch,297,images\n",
    clean="quantity,value,unit\nmemory left,14000,MB\none image,4.7,MB\nsafe batch,2978,images\n",
)
def decimal_place_lost(table: AuditTable) -> Iterator[Hit]:
    """Report a fact that differs from the quotient of two others by a power of ten."""
    facts = list(table.facts.items())
    if not 3 <= len(facts) <= 8:
        return
    for (name, (kind, a)), (other, (kind2, b)), (result, (kind3, c)) in permutations(facts, 3):
        if kind != kind2 or kind3 == kind or not b.value or not c.value or a.value <= b.value:
            continue
        for power in (-3, -2, -1, 1, 2, 3):
            # The table may round or truncate the quotient, hence the tolerance of 1.
            if abs(a.value / b.value / 10**power - c.value) <= 1 and c.value >= 20:
                yield Hit(
                    f"{name!r} / {other!r} is {show(a.value / b.value)}, {result!r} says "
                    f"{show(c.value)}"
                )
