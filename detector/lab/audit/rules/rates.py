"""Mistakes between times, rates and their ratios."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import RATE, RATIO, TIME
from detector.lab.audit.numbers import Number, exact, shown
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.tables import AuditColumn, AuditTable, ms

MOST_ROWS = 100  # that are compared with each other
MOST_COLUMNS = 20  # that are compared with each other
SLACK = 0.05  # the mean of 1/t is not 1 over the mean of t
ENDS = ("end-to-end", "e2e", "end", "pipeline", "overall")
NOT_LATENCY = (
    "total",
    "std",
    "waiting",
    "wait",
    "min",
    "max",
    "p90",
    "p95",
    "p99",
    "build",
    "load",
    "nms",
    "duration",
    "self",
    "warmup",
    "training",
    "preprocess*",
    "postprocess*",
)


def latency_of(table: AuditTable) -> AuditColumn | None:
    return table.one(TIME, "latency", "inference", but=NOT_LATENCY) or table.one(
        TIME, "time", "forward", "speed", but=NOT_LATENCY
    )


def _pairs(table: AuditTable) -> Iterator[tuple[int, Number, Number, Number]]:
    """(row, latency in s, frames a second, batch) of the rows that tell both times of one thing."""
    latency, fps = latency_of(table), table.one(RATE)
    if latency is None or fps is None or table.one(kinds.STAGE) is not None:
        return
    if fps.has(*ENDS) and not latency.has(*ENDS):
        return
    batches = table.one(kinds.BATCH)
    for row in range(table.rows):
        time, rate = latency.numbers[row], fps.numbers[row]
        batch = batches.numbers[row] if batches else None
        if time and rate and time.value > 0 and rate.value > 0:
            yield row, time, rate, batch if batch and batch.value >= 1 else exact(1)


def _times_of_many(table: AuditTable) -> float | None:
    counts = [time * rate for _, time, rate, _ in _pairs(table)]
    if len(counts) < 2:
        return None
    low, high = max(one.low for one in counts), min(one.high for one in counts)
    middle = sum(one.value for one in counts) / len(counts)
    return middle if low <= high * 1.01 and middle > 3 else None


@rule(
    "note",
    "a time covers many pictures, and no column says how many",
    "print the time per picture, or the number of pictures",
    bad="engine,time (s),FPS\npytorch,13.06,38\ntensorrt,1.46,342\n",
    clean="engine,time (ms),FPS\npytorch,26.1,38.3\ntensorrt,2.92,342\n",
)
def time_of_many_pictures(table: AuditTable) -> Iterator[Hit]:
    count, batches = _times_of_many(table), table.one(kinds.BATCH)
    if count is not None and 900 < count < 1100:
        return  # units-contradict says so
    if count is not None and batches is None:
        _, time, rate, _ = next(_pairs(table))
        yield Hit(
            f"{shown(time.value)} s x {shown(rate.value)} FPS = {shown(time.value * rate.value)}, "
            f"and about {count:.0f} in every row: the time covers that many pictures",
            rows=tuple(table.labels[row] for row, *_ in _pairs(table)),
        )


@rule(
    "error",
    "FPS is lower than the latency in the same row allows",
    "say which interval each covers: put loading, reading and drawing in both or in neither",
    bad="model,latency (ms),fps\na,14.1,7.99\nb,15.0,9.39\n",
    clean="model,latency (ms),fps\na,14.1,70.9\nb,15.0,66.7\n",
)
def fps_against_latency(table: AuditTable) -> Iterator[Hit]:
    if _times_of_many(table) is not None:
        return
    found = []
    for row, time, rate, batch in _pairs(table):
        single, whole = exact(1) / time, batch / time
        if rate.high < single.low * (1 - SLACK) and not rate.meets(whole, SLACK):
            found.append((row, time.value, rate.value))
    if found:
        row, time_s, fps = found[0]
        rest = [1 / rate - time for _, time, rate in found]
        others = (
            f", {ms(min(rest))} to {ms(max(rest))} in {len(rest)} rows" if len(rest) > 1 else ""
        )
        yield Hit(
            f"{ms(time_s)} is {shown(1 / time_s)} FPS, the table says {shown(fps)} ({ms(1 / fps)} "
            f"per picture): {ms(rest[0])} per picture is unaccounted for{others}",
            rows=tuple(table.labels[row] for row, *_ in found),
        )


@rule(
    "warning",
    "FPS is higher than the latency in the same row allows",
    "state the batch and how many pictures are in flight",
    bad="model,latency (ms),fps\na,10.0,400\nb,20,150\n",
    clean="model,batch,streams,latency (ms),fps\na,4,1,10.0,400\nb,8,2,20,790\n",
)
def fps_above_latency(table: AuditTable) -> Iterator[Hit]:
    if _times_of_many(table) is not None:
        return
    flights = table.one(kinds.IN_FLIGHT)
    found = []
    for row, time, rate, batch in _pairs(table):
        flight = flights.numbers[row] if flights else None
        if rate.low > (batch * (flight or exact(1)) / time).high * (1 + SLACK):
            found.append((row, time, rate, batch))
    if found:
        _, time, rate, batch = found[0]
        best = batch.value / time.value
        many = f" for a batch of {shown(batch.value)}" if batch.value > 1 else ""
        yield Hit(
            f"{ms(time)}{many} is {shown(best)} FPS at most, the table says {shown(rate.value)}: "
            f"{shown(rate.value / best)} in flight, or two measurements",
            rows=tuple(table.labels[row] for row, *_ in found),
        )


@rule(
    "error",
    "two columns give the same quantity in two units and disagree",
    "correct the unit in the heading",
    bad="model,latency (s),fps\na,14.1,70.9\nb,20.0,50.0\n",
    clean="model,latency (ms),latency (s)\na,14.1,0.0141\nb,20.0,0.0200\n",
)
def units_contradict(table: AuditTable) -> Iterator[Hit]:
    count = _times_of_many(table)
    if count is not None and 900 < count < 1100:
        yield Hit(
            f"time x FPS is {shown(count)} in every row: the time is in ms under a heading of s, "
            "or in us under a heading of ms"
        )
    columns = table.all(TIME, kinds.BYTES)[:MOST_COLUMNS]
    for at, first in enumerate(columns):
        for second in columns[at + 1 :]:
            same = first.words - {first.meaning.unit.lower()} == second.words - {
                second.meaning.unit.lower()
            }
            if not same or first.quantity != second.quantity:
                continue
            if first.meaning.unit == second.meaning.unit:
                continue
            for row, (one, other) in enumerate(zip(first.numbers, second.numbers, strict=True)):
                if one and other and not one.meets(other, 0.001):
                    yield Hit(
                        f"{first.title} {first.texts[row]} is not {second.title} "
                        f"{second.texts[row]}: a factor of {shown(one.value / (other.value or 1))}",
                        rows=(table.labels[row],),
                    )


@rule(
    "note",
    "FPS is computed from the latency: it is not a second measurement",
    "measure throughput with frames in flight, or print one of the two",
    bad="model,latency (ms),FPS\na,10.0,100.0\nb,20.0,50.0\nc,25.0,40.0\n",
    clean="model,latency (ms),FPS\na,10.0,118\nb,20.0,61\nc,25.0,47\n",
)
def derived_column(table: AuditTable) -> Iterator[Hit]:
    pairs = list(_pairs(table))
    if len(pairs) < 3 or not all(rate.meets(exact(1) / time) for _, time, rate, _ in pairs):
        return
    yield Hit(
        f"FPS is 1000 / ms in all {len(pairs)} rows: one measurement printed twice",
        rows=tuple(table.labels[row] for row, *_ in pairs[:3]),
    )


@rule(
    "error",
    "end to end is faster than the inference inside it",
    "take both from one run, over the same frames",
    bad="model,inference FPS,end-to-end FPS\na,30.0,45.0\n",
    clean="model,inference FPS,end-to-end FPS\na,45.0,30.0\n",
)
def end_to_end_above_inference(table: AuditTable) -> Iterator[Hit]:
    inner, outer = _two_rates(table)
    if inner is None or outer is None:
        return
    for row, (fast, slow) in enumerate(zip(inner.numbers, outer.numbers, strict=True)):
        if fast and slow and slow.low > fast.high * (1 + SLACK):
            yield Hit(
                f"{shown(slow.value)} FPS end to end, {shown(fast.value)} FPS for inference alone",
                rows=(table.labels[row],),
            )


def _two_rates(table: AuditTable) -> tuple[AuditColumn | None, AuditColumn | None]:
    return table.one(RATE, "inference", "network", "model", but=ENDS), table.one(RATE, *ENDS)


@rule(
    "warning",
    "the time outside inference differs between rows that do the same work there",
    "measure the stages separately; compare inference alone, or make the rest equal",
    bad="engine,inference FPS,end-to-end FPS\npytorch,1.09,0.92\ntensorrt,10.45,4.99\n",
    clean="engine,inference FPS,end-to-end FPS\npytorch,1.09,0.92\ntensorrt,10.45,3.77\n",
)
def outside_time_differs(table: AuditTable) -> Iterator[Hit]:
    inner, outer = _two_rates(table)
    if inner is None or outer is None:
        return
    rest = [
        (row, exact(1) / fast, exact(1) / slow - exact(1) / fast)
        for row, (fast, slow) in enumerate(zip(inner.numbers, outer.numbers, strict=True))
        if fast and slow and fast.low > 0 and slow.low > 0 and slow.value <= fast.value
    ]
    if len(rest) < 2 or table.one(kinds.THREADS) or table.one(kinds.CLIP):
        return
    if len({table.setting(row).get(kinds.SIZE) for row, *_ in rest}) > 1:
        return
    most, least = max(rest, key=lambda one: one[2].value), min(rest, key=lambda one: one[2].value)
    if most[2].low <= least[2].high * 1.2 or least[2].value <= 0:
        return
    whole = [one[1].value + one[2].value for one in (most, least)]
    fair = (most[1].value + most[2].value) / (least[1].value + most[2].value)
    yield Hit(
        f"outside inference a frame takes {ms(most[2])} in one row and {ms(least[2])} in the "
        "other, though reading, drawing and writing are the same work; end to end is "
        f"{shown(whole[0] / whole[1])} times as fast; with equal time outside inference it would "
        f"be {shown(fair)}",
        rows=(table.labels[most[0]], table.labels[least[0]]),
    )


@rule(
    "error",
    "a speed-up is not the ratio of its rows",
    "compute it again, and name the baseline row",
    bad="engine,FPS,speed-up (x)\npytorch,40,1.00\ntensorrt,90,4.50\n",
    clean="engine,FPS,speed-up (x)\npytorch,40,1.00\ntensorrt,90,2.25\n",
)
def speed_up_is_no_ratio(table: AuditTable) -> Iterator[Hit]:
    """A speed-up that is the ratio of no two figures: of its row and another, or within its row."""
    ratios, values = table.one(RATIO, "speed*", "acceleration"), table.all(TIME, RATE)
    if ratios is None or not values or table.rows > MOST_ROWS:
        return
    bases = [row for row, one in enumerate(ratios.numbers) if one and one.meets(exact(1))]
    if len(bases) != 1:
        return
    for row, said in enumerate(ratios.numbers):
        ways = [
            way
            for column in values
            for other in range(table.rows)
            for way in _both_ways(column.numbers[row], column.numbers[other])
        ]
        ways += [
            way
            for at, one in enumerate(values)
            for other in values[at + 1 :]
            for way in _both_ways(one.numbers[row], other.numbers[row])
        ]
        if said is None or not ways or any(said.meets(way, 0.02) for way in ways):
            continue
        column = values[0]
        first, own = column.numbers[bases[0]], column.numbers[row]
        if first and own:
            right = first / own if column.quantity == TIME else own / first
            yield Hit(
                f"the table says {ratios.texts[row]}; {column.title} {column.texts[row]} against "
                f"{column.texts[bases[0]]} is {shown(right.value)}",
                rows=(table.labels[row], table.labels[bases[0]]),
            )


def _both_ways(one: Number | None, other: Number | None) -> Iterator[Number]:
    if one and other and one.low > 0 and other.low > 0:
        yield one / other
        yield other / one


FAMILY = re.compile(r"(.*?)[-_ ]?(n|s|m|l|x|nano|tiny|small|medium|large|xlarge|huge)$")
ORDER = ("n", "nano", "tiny", "s", "small", "m", "medium", "l", "large", "x", "xlarge", "huge")


def _sizes(table: AuditTable) -> list[float]:
    for quantity in (kinds.WORK, kinds.PARAMS):
        column = table.one(quantity)
        if column is not None and len(column.told) == table.rows:
            return [one.value for one in column.told]
    found = [FAMILY.fullmatch(text.lower()) for text in table.texts(kinds.MODEL)]
    if not found or not all(found) or len({one[1] for one in found if one}) > 1:
        return []
    return [float(ORDER.index(one[2])) for one in found if one]


@rule(
    "warning",
    "the first row is slower than a larger model after it: it includes a cold start",
    "warm up before each row, and repeat the rows in a different order",
    bad="model,fps\nnet-n,8.0\nnet-s,9.4\nnet-m,8.5\n",
    clean="model,fps\nnet-n,10.0\nnet-s,9.4\nnet-m,8.5\n",
)
def first_row_cold(table: AuditTable) -> Iterator[Hit]:
    sizes = _sizes(table)
    if len(sizes) < 3 or sizes != sorted(sizes) or len(set(sizes)) < len(sizes):
        return
    for column in table.all(RATE, TIME):
        told = [one for one in column.numbers if one and one.value > 0]
        if len(told) < len(sizes) or (column.quantity == TIME and column.has(*NOT_LATENCY)):
            continue
        speeds = [one.value if column.quantity == RATE else 1 / one.value for one in told]
        if speeds[0] < 0.97 * speeds[1] and speeds[1:] == sorted(speeds[1:], reverse=True):
            yield Hit(
                f"{column.title}: {shown(told[0].value)} in the first row, whose model is the "
                f"smallest, and {shown(told[1].value)} in the second",
                rows=(table.labels[0], table.labels[1]),
            )


def _by_batch(table: AuditTable, column: AuditColumn) -> Iterator[list[tuple[float, Number, int]]]:
    """(batch, number, row) of each model and setting that has several batches."""
    batches = table.one(kinds.BATCH)
    groups: dict[tuple[str, ...], list[tuple[float, Number, int]]] = {}
    for row in range(table.rows if batches else 0):
        batch, number = batches.numbers[row] if batches else None, column.numbers[row]
        if batch and number and batch.value >= 1 and number.value > 0:
            setting = table.setting(row)
            setting.pop(kinds.BATCH, None)
            groups.setdefault(tuple(setting.values()), []).append((batch.value, number, row))
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda one: one[0])


@rule(
    "warning",
    "a larger batch changes nothing on a GPU",
    "check that the network receives the whole batch and that the time excludes start-up",
    over="all",
    machine={"card": "T4"},
    bad="model,batch size,fps\na,1,7.18\na,32,7.26\na,100,7.34\n",
    clean="model,batch size,fps\na,1,70\na,32,310\na,100,340\n",
)
def batch_without_effect(case: Case) -> Iterator[Hit]:
    if not case.on_gpu:
        return  # a CPU may be full at batch 1
    for table in case.tables:
        for column in table.all(RATE):
            for group in _by_batch(table, column):
                fps = [number.value for _, number, _ in group]
                if group[-1][0] >= 8 * group[0][0] and max(fps) < 1.25 * min(fps):
                    yield Hit(
                        f"{shown(min(fps))} to {shown(max(fps))} FPS for batch "
                        f"{shown(group[0][0])} to {shown(group[-1][0])}",
                        (table.name,),
                        tuple(table.labels[row] for *_, row in group),
                    )


@rule(
    "warning",
    "the time of a batch divided by its size is called latency",
    "print the time of the whole batch as latency, and pictures per second as throughput",
    bad="model,batch,latency (ms)\na,1,8.96\na,16,7.75\na,100,8.12\n",
    clean="model,batch,latency (ms)\na,1,8.96\na,16,91\na,100,560\n",
)
def latency_of_a_batch(table: AuditTable) -> Iterator[Hit]:
    column = table.one(TIME, "latency", but=NOT_LATENCY)
    for group in _by_batch(table, column) if column else ():
        (least, first, _), (most, last, _) = group[0], group[-1]
        if most >= 4 * least and last.high < first.low * 1.2:
            yield Hit(
                f"batch {shown(least)}: {ms(first)}, batch {shown(most)}: {ms(last)}. If these "
                f"were times of a whole batch, that would be {shown(most / last.value)} FPS "
                f"against {shown(least / first.value)}; they are the batch time divided by the "
                f"batch size, and a picture waits for its whole batch: {ms(last.value * most)}",
                rows=tuple(table.labels[row] for *_, row in group),
            )
