"""Mistakes in counts of operations and bytes: MACs and FLOPs, peaks, roofs, MB and MiB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from detector.core.errors.text import counted
from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import BYTES, PARAMS, SHARE, WORK, WORK_RATE
from detector.lab.audit.numbers import Number, exact, show
from detector.lab.audit.published import find_published
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.rules.rates import find_latency
from detector.lab.audit.tables import AuditTable, percent

MACS = ("mac", "macs", "gmacs", "gmac", "mmacs", "madds", "fma")
TWICE = (1.9, 2.1)
USED = ("util*", "mfu", "efficiency")


def is_twice(ratio: float) -> bool:
    return TWICE[0] <= ratio <= TWICE[1]


def _read_side(table: AuditTable, row: int) -> int | None:
    sides = re.findall(r"\d+", table.setting(row).get(kinds.SIZE, ""))
    return int(sides[0]) if sides and len(set(sides[:2])) == 1 else None


def _find_macs_called_flops(table: AuditTable) -> Iterator[tuple[int, Number, float]]:
    """Yield (row, count, published FLOPs) if a stated count of FLOPs is half the published one."""
    work, params = table.find(WORK, but=MACS), table.numbers(PARAMS)
    for row, count in enumerate(work.numbers if work else ()):
        own = params[row]
        known = find_published(table.texts(kinds.MODEL)[row], own.value if own else None)
        if count is None or known is None or not count.value:
            continue
        side = _read_side(table, row) or known.side
        flops = known.gflops * 1e9 * (side / known.side) ** 2
        if is_twice(flops / count.value):
            yield row, count, flops


@rule(
    "error",
    "MACs are called FLOPs or the reverse: a factor of two",
    "label MACs and FLOPs (2 x MACs) correctly, and divide by a peak in FLOPs",
    over="all",
    bad="model,params (M),GFLOPs\nyolov5n,1.87,2.23\nyolov5s,7.23,8.22\n",
    clean="model,params (M),GFLOPs\nyolov5n,1.87,4.5\nyolov5s,7.23,16.5\n",
)
def mac_or_flop(case: Case) -> Iterator[Hit]:
    for table in case.tables:
        mislabelled = list(_find_macs_called_flops(table))
        if mislabelled:
            row, count, flops = mislabelled[0]
            title = next(one.title for one in table.all(WORK))
            yield Hit(
                f"{title} {show(count.value / 1e9)} for {table.labels[row]}; the published value "
                f"is {show(flops / 1e9)} GFLOPs, {show(flops / count.value)} times as many: these "
                f"are MACs, in {len(mislabelled)} of {table.rows} rows",
                (table.name,),
                tuple(table.labels[one[0]] for one in mislabelled),
            )
        yield from _check_first_layer(table, case)
    yield from _compare_counts(case)


def _compare_counts(case: Case) -> Iterator[Hit]:
    counts: list[tuple[str, dict[str, float]]] = []
    for table in case.tables:
        work = table.find(WORK, but=MACS)
        models = table.texts(kinds.MODEL)
        if work:
            pairs = zip(models, work.numbers, strict=True)
            counts.append((table.name, {m: one.value for m, one in pairs if one and m}))
            continue
        rate, time = table.find(WORK_RATE), find_latency(table)
        if rate and time and models:
            figures = zip(models, rate.numbers, time.numbers, strict=True)
            counts.append(
                (table.name, {m: r.value * t.value for m, r, t in figures if m and r and t})
            )
    for at, (first, one) in enumerate(counts):
        for second, other in counts[at + 1 :]:
            ratios = {m: one[m] / other[m] for m in one if other.get(m)}
            high = {m: max(r, 1 / r) for m, r in ratios.items() if r > 0}
            if high and all(is_twice(ratio) for ratio in high.values()):
                model = next(iter(high))
                yield Hit(
                    f"{model}: {show(one[model] / 1e9)} G in one table, "
                    f"{show(other[model] / 1e9)} G in the other (x {show(high[model])}); for "
                    f"{counted(len(high), 'model')}, one table counts MACs and the other FLOPs",
                    (first, second),
                    tuple(high),
                )


def _check_first_layer(table: AuditTable, case: Case) -> Iterator[Hit]:
    """Compare the first layer's MACs with the count that its parameters and input size imply."""
    work, params = table.find(WORK, *MACS), table.find(PARAMS)
    types = table.find(kinds.NAME, "type")
    facts = (zip(*(c.texts for c in one.columns), strict=True) for one in case.tables if one.facts)
    sizes = [" ".join(cells[1:]) for cells in chain(*facts) if cells[0].lower() == "input"]
    input_size = re.search(r"(\d+)\s*[x×]\s*(\d+)", sizes[0]) if sizes else None
    if not (work and params and input_size and table.rows and types):
        return
    stated, size = work.numbers[0], params.numbers[0]
    if not stated or not size or not types.texts[0].lower().startswith("conv"):
        return
    pixels = int(input_size[1]) * int(input_size[2])
    filters = [
        (size.value / (3 * k * k + extra), k)
        for k in (1, 3, 5, 6, 7)
        for extra in (0, 1, 2)
        if size.value % (3 * k * k + extra) == 0 and size.value / (3 * k * k + extra) % 8 == 0
    ]
    counts = [(out, k, pixels * out * 3 * k * k / s) for out, k in filters for s in (1, 4)]
    if counts and not any(stated.low <= macs <= stated.high for *_, macs in counts):
        out, k, macs = min(counts, key=lambda one: abs(stated.value / one[2] - 2))
        if stated.low <= 2 * macs <= stated.high:
            yield Hit(
                f"the first layer: {input_size[1]} x {input_size[2]} x {out:.0f} x {3 * k * k} = "
                f"{show(macs / 1e9)} G MACs, printed {work.texts[0]} under {work.title!r}: these "
                "are FLOPs",
                (table.name,),
                (table.labels[0],),
            )


@rule(
    "warning",
    "MiB are called MB",
    "divide by 10^6 for MB, or write MiB",
    bad="model,params (M),size (MB)\na,7.23,27.56\nb,86.71,330.75\n",
    clean="model,params (M),size (MB)\na,7.23,28.92\nb,86.71,346.84\n",
)
def mb_or_mib(table: AuditTable) -> Iterator[Hit]:
    params = table.find(PARAMS)
    size = table.find(BYTES, but=("memory", "vram", "ram", "peak", "mem", "mib"))
    if not params or not size or size.meaning.unit.lower() not in ("mb", "gb", "kb"):
        return
    for width in (4, 2, 1):
        pairs = [
            (r, p, s)
            for r, (p, s) in enumerate(zip(params.numbers, size.numbers, strict=True))
            if p and s
        ]
        factor = exact(width * 1e6 / 2**20)
        if pairs and all(
            (p * factor).meets(s, 0.005) and not (p * exact(width)).meets(s, 0.02)
            for _, p, s in pairs
        ):
            row, p, _ = pairs[-1]
            yield Hit(
                f"{show(p.value / 1e6)} M parameters x {width} bytes = "
                f"{show(p.value * width / 1e6)} MB = {show(p.value * width / 2**20)} MiB; "
                f"printed {size.texts[row]} under {size.title!r}",
                rows=tuple(table.labels[one[0]] for one in pairs),
            )
            return


def _list_peaks(case: Case) -> Iterator[tuple[float, str]]:
    if peak := case.machine.number("peak"):
        yield peak, "given"
        return
    for table in case.tables:
        for name, (kind, number) in table.facts.items():
            if kind == WORK_RATE and "peak" in name:
                yield number.value, table.name


@rule(
    "error",
    "more operations per second than the machine can do",
    "count FLOPs in the same way as in the peak, use the peak of the data type that ran, and "
    "check batch and time",
    over="all",
    machine={"peak": 4.1e11},
    bad="model,GFLOPs,latency (ms)\na,100,200\n",
    clean="model,GFLOPs,latency (ms)\na,50,200\n",
)
def above_the_peak(case: Case) -> Iterator[Hit]:
    for peak, origin in _list_peaks(case):
        for table in case.tables:
            yield from _rates_above(table, peak, origin)
            used = table.find(SHARE, *USED)
            hits = [
                (row, one, one.value * flops / count.value)
                for row, count, flops in _find_macs_called_flops(table)
                if used and (one := used.numbers[row])
            ]
            above = [hit for hit in hits if hit[2] > 1.01]
            if above:
                shares = ", ".join(
                    f"{table.labels[r]} {percent(n)} -> {percent(x)}" for r, n, x in above
                )
                yield Hit(
                    f"the counts are MACs; with FLOPs the shares of the peak are {shares}: count "
                    "and peak disagree on what a FLOP is",
                    (table.name,),
                    tuple(table.labels[one[0]] for one in above),
                )


def _rates_above(table: AuditTable, peak: float, origin: str) -> Iterator[Hit]:
    rate, work, time = table.find(WORK_RATE), table.find(WORK), find_latency(table)
    fps = table.find(kinds.RATE)
    twice = exact(2 if work and work.has(*MACS) else 1)
    for row in range(table.rows):
        each = [column.numbers[row] if column else None for column in (rate, work, time, fps)]
        reached, count, seconds, frames = each
        if reached is None and count and seconds and seconds.value > 0:
            batch = table.find(kinds.BATCH)
            size = batch.numbers[row] if batch else None
            if size and size.value > 1:
                continue  # the latency may be that of a picture or of a batch
            reached = count * twice / seconds
        elif reached is None and count and frames:
            reached = count * twice * frames
        if reached and reached.low > peak * 1.01:
            yield Hit(
                f"{show(reached.value / 1e9)} GFLOP/s, but the peak ({origin}) is "
                f"{show(peak / 1e9)}: {percent(reached.value / peak)}",
                (table.name,),
                (table.labels[row],),
            )


@rule(
    "error",
    "more bytes per second than the memory can deliver",
    "count bytes from memory, not from caches, and check the unit",
    over="all",
    machine={"bandwidth": 28.1e9},
    bad="layer,bandwidth (GB/s)\nconv,41\nadd,12\n",
    clean="layer,bandwidth (GB/s)\nconv,21\nadd,12\n",
)
def above_the_bandwidth(case: Case) -> Iterator[Hit]:
    roof = case.machine.number("bandwidth")
    for table in case.tables if roof else ():
        rates, time = table.numbers(kinds.BANDWIDTH), find_latency(table)
        size = table.find(BYTES, but=("memory", "vram", "ram", "peak", "mem", "model", "size"))
        for row in range(table.rows):
            rate = rates[row]
            total = size.numbers[row] if size and size.has("moved", "bytes", "traffic") else None
            seconds = time.numbers[row] if time else None
            if rate is None and total and seconds:
                rate = total / seconds
            if rate and roof and rate.low > roof * 1.01:
                yield Hit(
                    f"{show(rate.value / 1e9)} GB/s, but the memory has {show(roof / 1e9)}",
                    (table.name,),
                    (table.labels[row],),
                )


@rule(
    "error",
    "the utilization was computed with a peak that is not this machine's",
    "use one peak, and state its value, data type and device",
    over="all",
    machine={"peak": 8.1e12},
    bad="layer,utilization (%),GFLOP/s\na,42.92,128.75\nb,40.83,122.5\n",
    clean="layer,utilization (%),GFLOP/s\na,42.92,3476\nb,40.83,3307\n",
)
def peak_differs(case: Case) -> Iterator[Hit]:
    for table in case.tables:
        used, rate = table.find(SHARE, *USED), table.find(WORK_RATE)
        if used is None or rate is None:
            continue
        pairs = [
            (row, two / one)
            for row, (one, two) in enumerate(zip(used.numbers, rate.numbers, strict=True))
            if one and two and one.value > 0.01
        ]
        if len(pairs) < 2:
            continue
        if not all(one.meets(pairs[0][1], 0.01) for _, one in pairs):
            yield from _find_two_peaks(table, pairs)
            continue
        implied = sum(one.value for _, one in pairs) / len(pairs)
        for peak, origin in _list_peaks(case):
            called_percent = abs(implied / peak / 100 - 1) < 0.1
            if not 0.97 < implied / peak < 1.03 and not called_percent:
                yield Hit(
                    f"{rate.title!r} divided by {used.title!r} is {show(implied / 1e9)} GFLOP/s in "
                    f"every row; the peak ({origin}) is {show(peak / 1e9)}",
                    (table.name,),
                    tuple(table.labels[row] for row, _ in pairs),
                )


def _find_two_peaks(table: AuditTable, pairs: list[tuple[int, Number]]) -> Iterator[Hit]:
    """Report rows that imply two peaks, unless settings differ or the shares are of a roofline."""
    settings = [table.setting(row) for row, _ in pairs]
    for name in (kinds.PRECISION, kinds.DEVICE, kinds.THREADS):
        if len({one.get(name) for one in settings}) > 1:
            return
    pairs = sorted(pairs, key=lambda pair: pair[1].value)
    (first, low), (last, high) = pairs[0], pairs[-1]
    on_roofline = table.all(kinds.BOUND, kinds.BANDWIDTH, BYTES) or table.find(WORK, "intensity")
    if high.low > 1.1 * low.high and not on_roofline:
        peaks = f"{show(low.value / 1e9)} and {show(high.value / 1e9)} GFLOP/s"
        labels = table.labels[first], table.labels[last]
        yield Hit(f"two rows imply peaks of {peaks}", (table.name,), labels)


@rule(
    "warning",
    "the peak is below cores x clock x FLOPs per cycle",
    "measure the peak with a matrix product (as the command profile does), or use the boost clock",
    over="all",
    machine={"flops_per_cycle": 32.0},
    bad="quantity,value,unit\npeak,410,GFLOP/s\nclock,3.2,GHz\ncores,8,\n",
    clean="quantity,value,unit\npeak,819.2,GFLOP/s\nclock,3.2,GHz\ncores,8,\n",
)
def peak_too_low(case: Case) -> Iterator[Hit]:
    for table in case.tables:
        facts = table.facts.items()
        cores = next((v.value for n, (_, v) in facts if n == "cores"), None)
        cores = case.machine.number("cores") or cores
        per = next((v.value for n, (_, v) in facts if "per cycle" in n), None)
        flops = case.machine.number("flops_per_cycle") or per
        clocks = [v.value for _, (kind, v) in facts if kind == kinds.CLOCK]
        clock = case.machine.number("clock") or max(clocks, default=None)
        for name, (kind, peak) in facts:
            if kind != WORK_RATE or "peak" not in name or not (cores and clock and flops):
                continue
            best = cores * clock * flops
            if peak.high < 0.95 * best:
                yield Hit(
                    f"{name!r} is {show(peak.value / 1e9)} GFLOP/s; {show(cores)} cores x "
                    f"{show(clock / 1e9)} GHz x {show(flops)} FLOPs per cycle are "
                    f"{show(best / 1e9)}: the shares of the peak are {show(best / peak.value)} "
                    "times too large",
                    (table.name,),
                )


@rule(
    "warning",
    "a bottleneck is named that no figure supports",
    "measure the bytes moved and both peaks; a row below half of each is limited by neither",
    over="all",
    bad="model,utilization (%),bound type\na,16.96,compute\nb,30.5,compute\n",
    clean="model,utilization (%),bound type\na,76.96,compute\nb,80.5,compute\n",
)
def bound_without_test(case: Case) -> Iterator[Hit]:
    for table in case.tables:
        bound = table.find(kinds.BOUND)
        if bound is None:
            continue
        for word in sorted({text.lower() for text in bound.texts if text}):
            rows = [row for row, text in enumerate(bound.texts) if text.lower() == word]
            reason = _explain_untested(table, rows, word, case)
            if reason:
                yield Hit(reason, (table.name,), tuple(table.labels[row] for row in rows))


def _explain_untested(table: AuditTable, rows: list[int], word: str, case: Case) -> str:
    used = table.find(SHARE, *USED)
    shares = [one.value for row in rows if used and (one := used.numbers[row])]
    if "comp" in word and shares and min(shares) < 0.5:
        return f"{word!r} at {percent(min(shares))} of the peak"
    moved = table.find(kinds.BANDWIDTH) or table.find(BYTES, "moved", "traffic", "bytes")
    if "mem" not in word or moved or table.find(WORK, "intensity"):
        return ""
    rate, work, size = table.find(WORK_RATE), table.find(WORK), table.find(BYTES)
    peak, roof = case.machine.number("peak"), case.machine.number("bandwidth")
    reasons = [f"{word!r} in {len(rows)} rows, but no column has the bytes moved"]
    if peak and roof:
        reasons.append(f"the ridge is {show(peak / roof)} FLOPs per byte")
        row = rows[0]
        each = [column.numbers[row] if column else None for column in (rate, work, size)]
        if all(each) and each[0] and each[1] and each[2]:
            moved_s = each[2].value * each[0].value / each[1].value
            reasons.append(
                f"{table.labels[row]} reaches {percent(each[0].value / peak)} of the peak, and its "
                f"weights need {percent(moved_s / roof)} of the bandwidth: far from both limits"
            )
    return "; ".join(reasons)


@rule(
    "error",
    "the best layer is below the mean of all layers",
    "divide each layer's FLOPs by its own time, not by the whole model's",
    over="all",
    bad="| model | layer | utilization (%) |\n|---|---|---|\n| a | model.6 | 1.89 |\n\n"
    "| model | utilization (%) |\n|---|---|\n| a | 16.96 |\n",
    clean="| model | layer | utilization (%) |\n|---|---|---|\n| a | model.6 | 31.89 |\n\n"
    "| model | utilization (%) |\n|---|---|\n| a | 16.96 |\n",
)
def maximum_below_mean(case: Case) -> Iterator[Hit]:
    whole: dict[str, tuple[str, float]] = {}
    for table in case.tables:
        used = table.find(SHARE, *USED)
        if used and table.find(kinds.NAME, "layer") is None:
            for model, one in zip(table.texts(kinds.MODEL), used.numbers, strict=True):
                if model and one and table.find(kinds.CHANGES) is None:
                    whole.setdefault(model, (table.name, one.low))
    for table in case.tables:
        used = table.find(SHARE, *USED)
        if used is None or table.find(kinds.NAME, "layer") is None:
            continue
        best: dict[str, Number] = {}
        for row, (model, one) in enumerate(
            zip(table.texts(kinds.MODEL), used.numbers, strict=True)
        ):
            if (
                one
                and not table.is_total(row)
                and (model not in best or one.value > best[model].value)
            ):
                best[model] = one
        below = [m for m, one in best.items() if m in whole and one.high < whole[m][1]]
        if below:
            model = below[0]
            yield Hit(
                f"{model}: the best layer has {percent(best[model])}, the whole model "
                f"{percent(whole[model][1])}; this is so in {len(below)} of {len(best)} models",
                (table.name, whole[model][0]),
                tuple(below),
            )


@rule(
    "warning",
    "the layers of one network are listed with the times of another",
    "count and time the same network; if layers are fused to run it, count the fused ones",
    over="all",
    bad="| layer | params |\n|---|---|\n| 0 | 928 |\n| 1 | 18560 |\n| 2 | 36992 |\n\n"
    "| quantity | value |\n|---|---|\n| parameters of the model | 55520 |\n",
    clean="| layer | params |\n|---|---|\n| 0 | 928 |\n| 1 | 18560 |\n| 2 | 36992 |\n\n"
    "| quantity | value |\n|---|---|\n| parameters of the model | 56480 |\n",
)
def two_models(case: Case) -> Iterator[Hit]:
    facts = [
        (table.name, name, number)
        for table in case.tables
        for name, (_, number) in table.facts.items()
        if "parameters" in name
    ]
    for table in case.tables:
        params = table.find(PARAMS)
        if params is None or table.find(kinds.NAME) is None or len(params.known) < 3:
            continue
        added = sum(one.value for one in params.known)
        for name, what, number in facts:
            if not 0.999 < added / number.value < 1.001 and 0.5 < added / number.value < 2:
                yield Hit(
                    f"the layers add up to {added:,.0f}, {what!r} is {number.value:,.0f} "
                    f"({added / number.value - 1:+.1%}): the counted and the timed network differ",
                    (table.name, name),
                )
