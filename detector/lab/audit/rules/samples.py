"""Too few samples, and statistics that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import COUNT, RATE, RATIO, SETTINGS, TIME
from detector.lab.audit.numbers import Number, exact, show
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.rules.rates import ENDS, NOT_LATENCY
from detector.lab.audit.tables import AuditColumn, AuditTable, find_precision, ms

SAMPLES = ("count", "calls", "samples", "n", "runs", "iterations", "frames", "iters")
PERCENTILE = re.compile(r"^p(\d{2})(?:\.\d+)?$|^(\d{2})(?:th|%)$")
NEEDED = {50: 5, 90: 20, 95: 40, 99: 200}  # percentile -> samples needed, as in our own reports
MOST_FIGURES = 300  # a limit, since all pairs are compared
MATERIAL = 0.1  # share; a smaller spread is normal


def _find_statistic(column: AuditColumn) -> str:
    """Return the statistic that the title names, such as ``mean`` or ``p90``, or ""."""
    for word in column.words:
        if match := PERCENTILE.search(word):
            return f"p{match[1] or match[2]}"
        if word in ("mean", "avg", "average"):
            return "mean"
        if word in ("min", "minimum"):
            return "min"
        if word in ("max", "maximum"):
            return "max"
        if word in ("best", "worst"):  # the best time is the lowest, the best rate the highest
            return "max" if (word == "best") == (column.quantity == RATE) else "min"
        if word == "median":
            return "p50"
        if word in ("std", "stdev", "stddev", "sd"):
            return "std"
    return ""


def _group_statistics(table: AuditTable) -> Iterator[dict[str, AuditColumn]]:
    groups: dict[tuple[str, frozenset[str]], dict[str, AuditColumn]] = {}
    for column in table.all(TIME, RATE, kinds.BYTES):
        if statistic := _find_statistic(column):
            rest = frozenset(
                word
                for word in column.words
                if not PERCENTILE.search(word) and word.isalpha() and word not in STATISTICS
            )
            groups.setdefault((column.quantity, rest - UNIT_WORDS), {})[statistic] = column
    yield from (group for group in groups.values() if len(group) > 1)


STATISTICS = frozenset(
    "mean avg average min minimum best max maximum worst median std stdev stddev sd latency "
    "time".split()
)
UNIT_WORDS = frozenset(("ms", "s", "us", "fps", "mb", "sec"))


@rule(
    "error",
    "mean, minimum and maximum are the same number: a total divided by a count",
    "time each call separately",
    bad="step,count,avg (s),min (s),max (s)\npreprocess,10,0.010174,0.010174,0.010174\n",
    clean="step,count,avg (s),min (s),max (s)\npreprocess,10,0.010174,0.009,0.013\n",
)
def not_a_sample(table: AuditTable) -> Iterator[Hit]:
    counts = table.numbers(COUNT)
    for family in _group_statistics(table):
        columns = [family.get(kind) for kind in ("min", "mean", "max")]
        for row in range(table.rows):
            numbers = [one.numbers[row] for one in columns if one and one.numbers[row]]
            values = {one.value for one in numbers if one}
            n = counts[row]
            if len(numbers) == 3 and len(values) == 1 and n and n.value > 1:
                yield Hit(
                    f"mean = min = max = {show(values.pop())} with a count of {show(n.value)}: a "
                    f"total divided by {show(n.value)}",
                    rows=(table.labels[row],),
                )


@rule(
    "error",
    "a mean or a percentile is outside the range of minimum and maximum",
    "take all statistics from the same samples",
    bad="step,mean (ms),min (ms),max (ms)\ninfer,9.5,10.0,14.0\n",
    clean="step,mean (ms),min (ms),max (ms)\ninfer,11.5,10.0,14.0\n",
)
def statistic_outside_range(table: AuditTable) -> Iterator[Hit]:
    for family in _group_statistics(table):
        for kind in ("mean", "p50", "p90", "p95", "p99"):
            for row in range(table.rows if kind in family else 0):
                number = family[kind].numbers[row]
                for end, sign in (("min", -1), ("max", 1)):
                    limit = family[end].numbers[row] if end in family else None
                    outside = (
                        number
                        and limit
                        and (number.high < limit.low if sign < 0 else number.low > limit.high)
                    )
                    if outside and number and limit:
                        yield Hit(
                            f"{kind} {show(number.value)} is {'below' if sign < 0 else 'above'} "
                            f"the {end} {show(limit.value)}",
                            rows=(table.labels[row],),
                        )


@rule(
    "error",
    "a higher percentile is below a lower one",
    "sort the samples, and take all percentiles from the same ones",
    bad="step,p50 (ms),p90 (ms)\ninfer,10.0,8.0\n",
    clean="step,p50 (ms),p90 (ms)\ninfer,10.0,12.0\n",
)
def percentiles_out_of_order(table: AuditTable) -> Iterator[Hit]:
    for family in _group_statistics(table):
        order = sorted((kind for kind in family if kind[0] == "p"), key=lambda one: int(one[1:]))
        slower = table.all(TIME) and family[order[0]].quantity == TIME if order else False
        for low, high in pairwise(order):
            for row in range(table.rows):
                one, two = family[low].numbers[row], family[high].numbers[row]
                if slower and one and two and two.high < one.low:
                    yield Hit(
                        f"{high} {family[high].texts[row]} is below {low} {family[low].texts[row]}",
                        rows=(table.labels[row],),
                    )


@rule(
    "warning",
    "too few samples for a percentile: one or two samples determine it",
    "take more samples: 20 for p90, 40 for p95, 200 for p99",
    bad="step,count,p50 (ms),p99 (ms)\ninfer,30,10.0,12.0\n",
    clean="step,count,p50 (ms),p99 (ms)\ninfer,300,10.0,12.0\n",
)
def percentile_of_too_few(table: AuditTable) -> Iterator[Hit]:
    counts = table.numbers(COUNT, *SAMPLES)
    for column in table.all(TIME):
        kind = _find_statistic(column)
        needed = NEEDED.get(int(kind[1:]), 0) if kind[:1] == "p" else 0
        for row in range(table.rows if needed else 0):
            n = counts[row]
            if n and column.numbers[row] and 0 < n.high < needed:
                yield Hit(
                    f"{kind} of {show(n.value)} samples; it needs {needed}",
                    rows=(table.labels[row],),
                )


@rule(
    "warning",
    "only one run, or one picture",
    "measure the variants several times, alternating; print the median and the range",
    bad="run,latency (ms),images,runs\nprofiler,18.3,1,1\nplain,17.5,1,1\n",
    clean="run,latency (ms),images,runs\nprofiler,18.3,100,5\nplain,17.5,100,5\n",
)
def one_sample(table: AuditTable) -> Iterator[Hit]:
    counts = [
        one for one in table.all(COUNT) if one.has("runs", "samples", "n", "rounds", "images")
    ]
    if not counts or not table.all(TIME, RATE) or table.find(kinds.NAME, "layer", "function"):
        return
    rows = [
        row
        for row in range(table.rows)
        if all(one.numbers[row] and one.texts[row] in ("1", "1.0") for one in counts)
    ]
    if rows:
        yield Hit(
            f"{' and '.join(repr(one.title) for one in counts)}: 1",
            rows=tuple(table.labels[row] for row in rows),
        )


@rule(
    "note",
    "one figure per cell: a difference cannot be separated from noise",
    "repeat each row five times, alternating, and print the lowest and the highest",
    bad="model,FPS\na,40\nb,44\n",
    clean="model,FPS\na,40 [38..41]\nb,44 [43..46]\n",
)
def no_spread(table: AuditTable) -> Iterator[Hit]:
    compared = [one for one in table.all(TIME, RATE) if len(one.known) > 1]
    if table.find(kinds.NAME, "layer", "name", "function"):
        return  # a profiler's table lists calls, not measured variants
    if not compared or not table.all(kinds.MODEL, kinds.ENGINE, kinds.PRECISION, kinds.BATCH):
        return
    has_spread = any(number.spread for one in compared for number in one.known)
    statistics = any(
        _find_statistic(one) in ("std", "min", "max", "p90", "p95", "p99") for one in compared
    )
    counts = [one for one in table.all(COUNT) if one.has(*SAMPLES, "rounds")]
    if not has_spread and not statistics and not counts:
        yield Hit(
            f"{', '.join(repr(one.title) for one in compared[:3])}: no ±, no range, no column "
            "of runs"
        )


@rule(
    "warning",
    "a speed-up is claimed, but its two rows overlap",
    "say that they cannot be separated, or measure more rounds",
    bad="engine,FPS,speed-up (x)\na,40.0 ± 4.0,1.00\nb,43.0 ± 3.0,1.08\n",
    clean="engine,FPS,speed-up (x)\na,40.0 ± 1.0,1.00\nb,60.0 ± 3.0,1.50\n",
)
def claim_within_spread(table: AuditTable) -> Iterator[Hit]:
    ratios = table.find(RATIO)
    if ratios is None:
        return
    base = next((r for r, one in enumerate(ratios.numbers) if one and one.meets(exact(1))), None)
    for column in table.all(TIME, RATE):
        reference = column.numbers[base] if base is not None else None
        for row, (stated, other) in enumerate(zip(ratios.numbers, column.numbers, strict=True)):
            if not (reference and stated and other and base is not None and row != base):
                continue
            claimed = abs(stated.value - 1) > 0.005 and not stated.spread
            ratio = reference / other if column.quantity == TIME else other / reference
            claimed = claimed and ratio.meets(stated, 0.05)
            if claimed and reference.spread and other.spread and reference.meets(other):
                yield Hit(
                    f"{column.title}: {column.texts[row]} and {column.texts[base]} overlap; the "
                    f"ratio {ratios.texts[row]} cannot be separated from 1",
                    rows=(table.labels[row], table.labels[base]),
                )


class _Latency(NamedTuple):
    table: str
    label: str
    setting: dict[str, str]
    number: Number


def _find_latencies(table: AuditTable) -> Iterator[_Latency]:
    """Yield each latency of a model. A column's title may state the model's precision."""
    if any(one.quantity in (kinds.CHANGES, kinds.NAME, kinds.STAGE) for one in table.columns):
        return
    for column in table.all(TIME):
        if column.has(*NOT_LATENCY, "cpu", "cuda", *ENDS) or _find_statistic(column):
            continue
        if not column.has("latency", "inference"):
            continue
        for row, number in enumerate(column.numbers):
            setting = table.setting(row)
            if number is None or kinds.MODEL not in setting:
                continue
            setting.setdefault(kinds.PRECISION, find_precision(column.title) or "")
            yield _Latency(table.name, f"{table.labels[row]}, {column.title}", setting, number)


def _may_be_equal(one: dict[str, str], other: dict[str, str]) -> bool:
    """Return whether two settings may be equal; batch defaults to 1, precision to fp32."""
    usual = {kinds.BATCH: "1", kinds.PRECISION: "fp32"}
    for name in SETTINGS:
        mine, theirs = one.get(name) or usual.get(name), other.get(name) or usual.get(name)
        if mine and theirs and mine != theirs:
            return False
    return True


def _group_repeats(case: Case) -> Iterator[list[_Latency]]:
    latencies = [one for table in case.tables for one in _find_latencies(table)]
    if len(case.tables) < 2 or len(latencies) > MOST_FIGURES:
        return
    done: set[int] = set()
    for at, first in enumerate(latencies):
        if at in done:
            continue
        group = [
            n
            for n, one in enumerate(latencies)
            if n == at or (one.table != first.table and _may_be_equal(first.setting, one.setting))
        ]
        if len(group) > 1:
            done |= set(group)
            yield [latencies[n] for n in group]


def _compare_equal_runs(table: AuditTable) -> Iterator[Hit]:
    groups: dict[str, list[int]] = {}
    for row in range(
        table.rows if table.rows <= MOST_FIGURES and table.find(kinds.NAME, "run") else 0
    ):
        setting = table.setting(row)
        if kinds.MODEL in setting and kinds.ENGINE in setting:
            groups.setdefault(repr(sorted(setting.items())), []).append(row)
    for rows in groups.values():
        for column in table.all(RATE):
            numbers = [one for row in rows if (one := column.numbers[row])]
            low, high = (
                min(numbers, key=_value, default=None),
                max(numbers, key=_value, default=None),
            )
            if low and high and high.low > low.high * (1 + MATERIAL):
                yield Hit(
                    f"{len(numbers)} runs with the same settings: {show(low.value)} to "
                    f"{show(high.value)} {column.title}, {high.value / low.value - 1:.0%} apart",
                    (table.name,),
                    tuple(table.labels[row] for row in rows),
                )


def _value(number: Number) -> float:
    return number.value


@rule(
    "warning",
    "the same model with the same settings has different times",
    "state what differed between the tables; otherwise, count the spread as noise",
    over="all",
    bad="| model | latency (ms) |\n|---|---|\n| net | 15.0 |\n| big | 41.2 |\n\n"
    "| model | batch | latency (ms) |\n|---|---|---|\n| net | 1 | 24.2 |\n| big | 1 | 42.0 |\n",
    clean="| model | latency (ms) |\n|---|---|\n| net | 15.0 |\n| big | 41.2 |\n\n"
    "| model | batch | latency (ms) |\n|---|---|---|\n| net | 1 | 15.3 |\n| big | 1 | 42.0 |\n",
)
def same_thing_differs(case: Case) -> Iterator[Hit]:
    for table in case.tables:
        yield from _compare_equal_runs(table)
    for group in _group_repeats(case):
        numbers = [one.number for one in group]
        least, most = min(n.high for n in numbers), max(n.low for n in numbers)
        if most > least * (1 + MATERIAL):
            yield Hit(
                f"{group[0].setting[kinds.MODEL]} with the same settings, as far as the tables "
                f"show: {', '.join(map(ms, numbers))}, a spread of {most / least - 1:.0%}",
                tuple({one.table: 0 for one in group}),
                tuple(one.label for one in group),
            )


@rule(
    "warning",
    "an effect is smaller than the spread of repeated measurements",
    "measure the variants in alternating rounds, and claim no difference if their ranges overlap",
    over="all",
    bad="| model | latency (ms) |\n|---|---|\n| net | 15.0 |\n\n"
    "| model | latency with FP16 (ms) | latency with FP32 (ms) |\n|---|---|---|\n"
    "| net | 18.6 | 19.9 |\n",
    clean="| model | latency (ms) |\n|---|---|\n| net | 15.0 |\n\n"
    "| model | latency with FP16 (ms) | latency with FP32 (ms) |\n|---|---|---|\n"
    "| net | 7.1 | 15.2 |\n",
)
def effect_below_spread(case: Case) -> Iterator[Hit]:
    spreads: dict[str, float] = {}
    for group in _group_repeats(case):
        numbers = [one.number.value for one in group]
        model = group[0].setting[kinds.MODEL]
        spreads[model] = max(spreads.get(model, 1.0), max(numbers) / min(numbers))
    for table in case.tables:
        by_model: dict[str, list[_Latency]] = {}
        for one in _find_latencies(table):
            by_model.setdefault(one.setting[kinds.MODEL], []).append(one)
        for model, rows in by_model.items():
            values = [one.number.value for one in rows]
            spread = spreads.get(model, 1.0)
            if len(rows) > 1 and spread > 1 + MATERIAL and max(values) / min(values) <= spread:
                yield Hit(
                    f"{model}: {', '.join(ms(one.number) for one in rows)} differ by "
                    f"{max(values) / min(values) - 1:.0%}; repeats of the same row differ by "
                    f"{spread - 1:.0%}",
                    (table.name,),
                    tuple(one.label for one in rows),
                )
