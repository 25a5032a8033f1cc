"""Times, rates and ratios that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import RATE, RATIO, TIME
from detector.lab.audit.numbers import Number, exact, show
from detector.lab.audit.rule import Hit, rule
from detector.lab.audit.tables import AuditColumn, AuditTable, ms

MOST_ROWS, MOST_COLUMNS = 100, 20  # limits, since all pairs are compared
SLACK = 0.05  # relative tolerance, needed because the mean of 1/t is not 1 / (mean of t)
ENDS = ("end-to-end", "e2e", "end", "pipeline", "overall")
NOT_LATENCY = tuple(
    "total std waiting wait min max p90 p95 p99 build load nms duration self warmup "
    "training preprocess* postprocess*".split()
)


def find_latency(table: AuditTable) -> AuditColumn | None:
    return table.find(TIME, "latency", "inference", but=NOT_LATENCY) or table.find(
        TIME, "time", "forward", "speed", but=NOT_LATENCY
    )


def _read_latency_and_fps(table: AuditTable) -> Iterator[tuple[int, Number, Number, Number]]:
    """Yield (row, latency in s, FPS, batch) for the rows that state latency and FPS."""
    latency, fps = find_latency(table), table.find(RATE)
    if latency is None or fps is None or table.find(kinds.STAGE) is not None:
        return
    if fps.has(*ENDS) and not latency.has(*ENDS):
        return
    batches = table.numbers(kinds.BATCH)
    for row, (time, rate) in enumerate(zip(latency.numbers, fps.numbers, strict=True)):
        batch = batches[row]
        if time and rate and time.value > 0 and rate.value > 0:
            yield row, time, rate, batch if batch and batch.value >= 1 else exact(1)


def _count_pictures(table: AuditTable) -> float | None:
    """Return how many pictures each latency covers; None if at most 3, or if the rows differ."""
    counts = [time * rate for _, time, rate, _ in _read_latency_and_fps(table)]
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
    count, batches = _count_pictures(table), table.find(kinds.BATCH)
    if count is not None and 900 < count < 1100:
        return  # a factor of 1000 is a unit error, which the rule units-contradict reports
    if count is not None and batches is None:
        _, time, rate, _ = next(_read_latency_and_fps(table))
        yield Hit(
            f"{show(time.value)} s x {show(rate.value)} FPS = {show(time.value * rate.value)}, "
            f"and about {count:.0f} in every row: the time covers that many pictures",
            rows=tuple(table.labels[row] for row, *_ in _read_latency_and_fps(table)),
        )


@rule(
    "error",
    "FPS is lower than the latency in the same row implies",
    "say what each column includes: put loading, reading and drawing in both or in neither",
    bad="model,latency (ms),fps\na,14.1,7.99\nb,15.0,9.39\n",
    clean="model,latency (ms),fps\na,14.1,70.9\nb,15.0,66.7\n",
)
def fps_against_latency(table: AuditTable) -> Iterator[Hit]:
    if _count_pictures(table) is not None:
        return
    rows = []
    for row, time, rate, batch in _read_latency_and_fps(table):
        single, whole = exact(1) / time, batch / time
        if rate.high < single.low * (1 - SLACK) and not rate.meets(whole, SLACK):
            rows.append((row, time.value, rate.value))
    if rows:
        row, time_s, fps = rows[0]
        rest = [1 / rate - time for _, time, rate in rows]
        others = (
            f", {ms(min(rest))} to {ms(max(rest))} in {len(rest)} rows" if len(rest) > 1 else ""
        )
        yield Hit(
            f"{ms(time_s)} is {show(1 / time_s)} FPS, the table says {show(fps)} ({ms(1 / fps)} "
            f"per picture): {ms(rest[0])} per picture is unaccounted for{others}",
            rows=tuple(table.labels[row] for row, *_ in rows),
        )


@rule(
    "warning",
    "FPS is higher than the latency in the same row allows",
    "state the batch and how many pictures are in flight",
    bad="model,latency (ms),fps\na,10.0,400\nb,20,150\n",
    clean="model,batch,streams,latency (ms),fps\na,4,1,10.0,400\nb,8,2,20,790\n",
)
def fps_above_latency(table: AuditTable) -> Iterator[Hit]:
    if _count_pictures(table) is not None:
        return
    flights = table.numbers(kinds.IN_FLIGHT)
    rows, inverse = [], 0
    for row, time, rate, batch in _read_latency_and_fps(table):
        if rate.low > (batch * (flights[row] or exact(1)) / time).high * (1 + SLACK):
            rows.append((row, time, rate, batch))
        inverse += rate.meets(exact(1) / time)
    if rows:
        is_slip = inverse > max(1, table.rows // 2)
        _, time, rate, batch = rows[0]
        best = batch.value / time.value
        batch_note = f" for a batch of {show(batch.value)}" if batch.value > 1 else ""
        yield Hit(
            f"{ms(time)}{batch_note} is {show(best)} FPS at most. The table's {show(rate.value)} "
            f"FPS mean {show(rate.value / best)} inferences in flight, or columns of separate runs"
            + (f"; in {inverse} other rows FPS is 1000 / ms" if is_slip else ""),
            rows=tuple(table.labels[row] for row, *_ in rows),
            severity="error" if is_slip else None,
        )


@rule(
    "error",
    "two columns give the same quantity in two units and disagree",
    "correct the unit in the heading",
    bad="model,latency (s),fps\na,14.1,70.9\nb,20.0,50.0\n",
    clean="model,latency (ms),latency (s)\na,14.1,0.0141\nb,20.0,0.0200\n",
)
def units_contradict(table: AuditTable) -> Iterator[Hit]:
    count = _count_pictures(table)
    if count is not None and 900 < count < 1100:
        yield Hit(
            f"time x FPS is {show(count)} in every row: the time is in ms under a heading of s, "
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
                        f"{second.texts[row]}: a factor of {show(one.value / (other.value or 1))}",
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
    pairs = list(_read_latency_and_fps(table))
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
    inner, outer = _find_rates(table)
    if inner is None or outer is None:
        return
    for row, (fast, slow) in enumerate(zip(inner.numbers, outer.numbers, strict=True)):
        if fast and slow and slow.low > fast.high * (1 + SLACK):
            yield Hit(
                f"{show(slow.value)} FPS end to end, {show(fast.value)} FPS for inference alone",
                rows=(table.labels[row],),
            )


def _find_rates(table: AuditTable) -> tuple[AuditColumn | None, AuditColumn | None]:
    return table.find(RATE, "inference", "network", "model", but=ENDS), table.find(RATE, *ENDS)


@rule(
    "warning",
    "rows do the same work outside inference, but take different times for it",
    "measure the stages separately; compare inference alone, or make the rest equal",
    bad="engine,inference FPS,end-to-end FPS\npytorch,1.09,0.92\ntensorrt,10.45,4.99\n",
    clean="engine,inference FPS,end-to-end FPS\npytorch,1.09,0.92\ntensorrt,10.45,3.77\n",
)
def outside_time_differs(table: AuditTable) -> Iterator[Hit]:
    inner, outer = _find_rates(table)
    if inner is None or outer is None:
        return
    outside = [
        (row, exact(1) / fast, exact(1) / slow - exact(1) / fast)
        for row, (fast, slow) in enumerate(zip(inner.numbers, outer.numbers, strict=True))
        if fast and slow and fast.low > 0 and slow.low > 0 and slow.value <= fast.value
    ]
    if len(outside) < 2 or table.find(kinds.THREADS) or table.find(kinds.CLIP):
        return
    if len({table.setting(row).get(kinds.SIZE) for row, *_ in outside}) > 1:
        return
    most = max(outside, key=lambda one: one[2].value)
    least = min(outside, key=lambda one: one[2].value)
    if most[2].low <= least[2].high * 1.2 or least[2].value <= 0:
        return
    whole = [one[1].value + one[2].value for one in (most, least)]
    fair = (most[1].value + most[2].value) / (least[1].value + most[2].value)
    yield Hit(
        f"outside inference a frame takes {ms(most[2])} in one row and {ms(least[2])} in the "
        "other, though reading, drawing and writing are the same work; end to end, the "
        f"other row is {show(whole[0] / whole[1])} times as fast; with equal time outside "
        f"inference, it would be {show(fair)} times as fast",
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
    ratios, values = table.find(RATIO, "speed*", "acceleration"), table.all(TIME, RATE)
    if ratios is None or not values or table.rows > MOST_ROWS:
        return
    bases = [row for row, one in enumerate(ratios.numbers) if one and one.meets(exact(1))]
    if len(bases) != 1:
        return
    for row, stated in enumerate(ratios.numbers):
        possible = [
            ratio
            for column in values
            for other in range(table.rows)
            for ratio in _both_ratios(column.numbers[row], column.numbers[other])
        ]
        possible += [
            ratio
            for at, one in enumerate(values)
            for other in values[at + 1 :]
            for ratio in _both_ratios(one.numbers[row], other.numbers[row])
        ]
        if stated is None or not possible or any(stated.meets(ratio, 0.02) for ratio in possible):
            continue
        column = values[0]
        first, own = column.numbers[bases[0]], column.numbers[row]
        if first and own:
            correct = first / own if column.quantity == TIME else own / first
            yield Hit(
                f"the table says {ratios.texts[row]}; {column.title} {column.texts[row]} against "
                f"{column.texts[bases[0]]} is {show(correct.value)}",
                rows=(table.labels[row], table.labels[bases[0]]),
            )


def _both_ratios(one: Number | None, other: Number | None) -> Iterator[Number]:
    if one and other and one.low > 0 and other.low > 0:
        yield one / other
        yield other / one


FAMILY = re.compile(r"(.*?)[-_ ]?(n|s|m|l|x|nano|tiny|small|medium|large|xlarge|huge)$")
ORDER = ("n", "nano", "tiny", "s", "small", "m", "medium", "l", "large", "x", "xlarge", "huge")


def _read_model_sizes(table: AuditTable) -> list[float]:
    for quantity in (kinds.WORK, kinds.PARAMS):
        column = table.find(quantity)
        if column is not None and len(column.known) == table.rows:
            return [one.value for one in column.known]
    matches = [FAMILY.fullmatch(text.lower()) for text in table.texts(kinds.MODEL)]
    if not matches or not all(matches) or len({one[1] for one in matches if one}) > 1:
        return []
    return [float(ORDER.index(one[2])) for one in matches if one]


@rule(
    "warning",
    "the first row includes a cold start: it is slower than the next, whose model is larger",
    "warm up before each row, and repeat the rows in a different order",
    bad="model,fps\nnet-n,8.0\nnet-s,9.4\nnet-m,8.5\n",
    clean="model,fps\nnet-n,10.0\nnet-s,9.4\nnet-m,8.5\n",
)
def first_row_cold(table: AuditTable) -> Iterator[Hit]:
    sizes = _read_model_sizes(table)
    if len(sizes) < 3 or sizes != sorted(sizes) or len(set(sizes)) < len(sizes):
        return
    for column in table.all(RATE, TIME):
        numbers = [one for one in column.numbers if one and one.value > 0]
        if len(numbers) < len(sizes) or (column.quantity == TIME and column.has(*NOT_LATENCY)):
            continue
        speeds = [one.value if column.quantity == RATE else 1 / one.value for one in numbers]
        if speeds[0] < 0.97 * speeds[1] and speeds[1:] == sorted(speeds[1:], reverse=True):
            yield Hit(
                f"{column.title}: {show(numbers[0].value)} in the first row, whose model is the "
                f"smallest, and {show(numbers[1].value)} in the second",
                rows=(table.labels[0], table.labels[1]),
            )


def _group_by_batch(
    table: AuditTable, column: AuditColumn
) -> Iterator[list[tuple[float, Number, int]]]:
    """For each setting with several batch sizes, yield (batch, number, row), sorted by batch."""
    batches = table.numbers(kinds.BATCH)
    groups: dict[tuple[str, ...], list[tuple[float, Number, int]]] = {}
    for row, (batch, number) in enumerate(zip(batches, column.numbers, strict=True)):
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
        return  # batch 1 may already use all of a CPU
    for table in case.tables:
        for column in table.all(RATE):
            for group in _group_by_batch(table, column):
                fps = [number.value for _, number, _ in group]
                if group[-1][0] >= 8 * group[0][0] and max(fps) < 1.25 * min(fps):
                    yield Hit(
                        f"{show(min(fps))} to {show(max(fps))} FPS for batch "
                        f"{show(group[0][0])} to {show(group[-1][0])}",
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
    column = table.find(TIME, "latency", but=NOT_LATENCY)
    for group in _group_by_batch(table, column) if column else ():
        (least, first, _), (most, last, _) = group[0], group[-1]
        if most >= 4 * least and last.high < first.low * 1.2:
            yield Hit(
                f"batch {show(least)}: {ms(first)}, batch {show(most)}: {ms(last)}. If these "
                f"were times of whole batches, the rates would be {show(least / first.value)} and "
                f"{show(most / last.value)} FPS. They are batch times divided by batch sizes: a "
                f"picture waits {ms(last.value * most)} for its whole batch",
                rows=tuple(table.labels[row] for *_, row in group),
            )
