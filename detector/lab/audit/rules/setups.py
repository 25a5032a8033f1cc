"""Mistakes in what was compared, such as rows that differ in more than one setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from detector.lab.audit import columns as kinds
from detector.lab.audit.case import Case
from detector.lab.audit.columns import ACCURACY, BYTES, RATE, TIME
from detector.lab.audit.numbers import show
from detector.lab.audit.rule import Hit, Rule, rule
from detector.lab.audit.rules.rates import NOT_LATENCY, find_latency
from detector.lab.audit.tables import AuditTable, find_precision, ms

REDUCED_PRECISIONS = ("fp16", "bf16", "int8", "fp8", "int4", "tf32")
MOST_ROWS = 300  # all pairs of rows are compared; longer tables are skipped
SPLIT = re.compile(r"\s*[;,+&]\s*|\s+and\s+")
QUANTISED = re.compile(r"int8|int4|quanti[sz]|prun", re.IGNORECASE)


def _compares(table: AuditTable) -> bool:
    if table.find(kinds.STAGE) or table.find(kinds.NAME, "name", "layer", "kernel", "function"):
        return False
    return table.rows > 1 and bool(table.all(TIME, RATE))


def _find_difference(setting: str, table: AuditTable) -> Iterator[Hit]:
    if not _compares(table) or table.rows > MOST_ROWS:
        return
    # An input size is part of a model, so models may differ in it.
    part_of_model = setting in (kinds.SIZE, kinds.MODEL)
    for subject in (kinds.ENGINE,) if part_of_model else (kinds.ENGINE, kinds.MODEL):
        settings = [table.setting(row) for row in range(table.rows)]
        stated = [
            (row, one[subject], one[setting])
            for row, one in enumerate(settings)
            if subject in one and one.get(setting)
        ]
        fair = {a[1] for a in stated for b in stated if a[1] != b[1] and a[2] == b[2]}
        alone = list(dict.fromkeys(one[1] for one in stated if one[1] not in fair))
        if len({one[1] for one in stated}) < 2 or len(stated) < table.rows or not alone:
            continue
        stated.sort(key=lambda one: one[1] in fair)
        shown_pairs = "; ".join(f"{one[1]}: {one[2]}" for one in stated[:4])
        which = f" that includes {' or '.join(alone[:3])}" if fair else ""
        yield Hit(
            f"{subject} and {setting} change together in every pair of rows{which} ({shown_pairs})",
            rows=tuple(table.labels[row] for row, *_ in stated[:6]),
        )
        return


def _make_rule(setting: str, bad: tuple[str, str], same: str) -> Rule:
    head = f"engine,{TITLES.get(setting, setting)},FPS\n"
    return Rule(
        f"{setting.replace(' ', '-')}-differs",
        "warning",
        f"the compared rows also differ in {setting}",
        f"keep {setting} the same in all rows, or compare only rows that share it",
        partial(_find_difference, setting),
        bad=f"{head}pytorch,{bad[0]},10\nort,{bad[0]},20\ntensorrt,{bad[1]},40\n",
        clean=f"{head}pytorch,{same},10\ntensorrt,{same},25\n",
    )


TITLES = {kinds.SIZE: "input size (pixels)", kinds.CLIP: "video"}  # otherwise the setting's name
PRECISION_DIFFERS = _make_rule(kinds.PRECISION, ("fp32", "fp16"), "fp16")
MODEL_DIFFERS = _make_rule(kinds.MODEL, ("yolov5s", "yolov5n"), "yolov5s")
BATCH_DIFFERS = _make_rule(kinds.BATCH, ("1", "16"), "8")
SIZE_DIFFERS = _make_rule(kinds.SIZE, ("640x640", "416x416"), "640x640")
THREADS_DIFFERS = _make_rule(kinds.THREADS, ("1", "8"), "4")
DEVICE_DIFFERS = _make_rule(kinds.DEVICE, ("cpu", "cuda"), "cuda")
DECODER_DIFFERS = _make_rule(kinds.DECODER, ("cv2", "av"), "av")
CLIP_DIFFERS = _make_rule(kinds.CLIP, ("people.mp4", "traffic.mp4"), "people.mp4")


@rule(
    "warning",
    "faster rows are less exact, and no column says by how much",
    "run eval on labels, or run compare, which prints the agreement with fp32",
    bad="model,precision,FPS\na,fp32,40\na,int8,90\n",
    clean="model,precision,FPS,mAP\na,fp32,40,0.374\na,int8,90,0.361\n",
)
def accuracy_not_checked(table: AuditTable) -> Iterator[Hit]:
    if not _compares(table) or table.all(ACCURACY):
        return
    precisions = [table.setting(row).get(kinds.PRECISION) for row in range(table.rows)]
    precision_varies = len(set(precisions)) > 1
    rows = [
        row
        for row, precision in enumerate(precisions)
        if (precision_varies and precision in REDUCED_PRECISIONS)
        or any(QUANTISED.search(one.texts[row]) for one in table.all(kinds.CHANGES))
    ]
    exact = [row for row in range(table.rows) if row not in rows]
    rows = [row for row in rows if _is_faster(table, row, exact)]
    titles = [
        one.title
        for one in table.all(TIME, RATE)
        if find_precision(one.title) in REDUCED_PRECISIONS
    ]
    if rows or titles:
        changed = titles or [table.labels[row] for row in rows]
        yield Hit(
            "no accuracy column (AP, agreement) next to rows that compute less exactly",
            rows=tuple(changed[:6]),
        )


def _is_faster(table: AuditTable, row: int, exact: list[int]) -> bool:
    """Return whether a row is faster than one of the rows ``exact``; True if speeds are unknown."""
    rate = table.find(RATE)
    column = rate or find_latency(table)
    speed = column.numbers[row] if column else None
    known = [one.value for at in exact if column and (one := column.numbers[at])]
    return not (speed and known) or (speed.value > min(known) if rate else speed.value < max(known))


@rule(
    "error",
    "the precision that ran is not the requested one",
    "name the row after the precision that ran, or choose an engine that runs the requested one",
    bad="engine,precision,executed precision,FPS\nort,int8,fp32 100% of MACs,40\n",
    clean="engine,precision,executed precision,FPS\nort,int8,int8 97% of MACs,40\n",
)
def precision_not_executed(table: AuditTable) -> Iterator[Hit]:
    requested, ran = table.find(kinds.PRECISION), table.find(kinds.EXECUTED)
    for row in range(table.rows if requested and ran else 0):
        texts = [one.texts[row] for one in (requested, ran) if one]
        precision = find_precision(texts[0])
        if precision and texts[1] and precision not in texts[1].lower():
            yield Hit(f"asked for {texts[0]!r}, executed {texts[1]!r}", rows=(table.labels[row],))


@rule(
    "warning",
    "several changes in one row: the gain cannot be credited to any of them",
    "add a row for each change alone",
    bad="model,FPS,changes\na,40,batch; onnx; int8\n",
    clean="model,FPS,changes\na,40,batch\na,45,batch; onnx\n",
)
def several_changes_at_once(table: AuditTable) -> Iterator[Hit]:
    for column in table.all(kinds.CHANGES):
        rows = [row for row, text in enumerate(column.texts) if len(SPLIT.split(text)) > 1]
        has_single = any(len(SPLIT.split(text)) == 1 for text in column.texts if text)
        if rows and not has_single:
            yield Hit(
                f"rows with several changes: {len(rows)} (first: {column.texts[rows[0]]!r}); "
                "rows with one change: none",
                rows=tuple(table.labels[row] for row in rows),
            )


def _pair_before_and_after(case: Case) -> Iterator[tuple[AuditTable, int, AuditTable, int]]:
    for after in case.tables:
        if not after.all(kinds.CHANGES):
            continue
        for before in case.tables:
            models = before.texts(kinds.MODEL)
            if before is after or before.all(kinds.CHANGES, kinds.BATCH, kinds.NAME):
                continue
            for row, model in enumerate(after.texts(kinds.MODEL)):
                if model and list(models).count(model) == 1:
                    yield before, list(models).index(model), after, row


@rule(
    "error",
    "a size is the same before and after the weights were compressed",
    "check which layers were converted: dynamic quantization does not convert convolutions",
    over="all",
    bad="| model | size (MB) | FPS |\n|---|---|---|\n| a | 27.56 | 15 |\n\n"
    "| model | size (MB) | FPS | changes |\n|---|---|---|---|\n| a | 27.56 | 19 | int8 |\n",
    clean="| model | size (MB) | FPS |\n|---|---|---|\n| a | 27.56 | 15 |\n\n"
    "| model | size (MB) | FPS | changes |\n|---|---|---|---|\n| a | 7.1 | 19 | int8 |\n",
)
def unchanged_where_change_was_claimed(case: Case) -> Iterator[Hit]:
    labels: dict[tuple[str, str], list[str]] = {}
    evidence: dict[tuple[str, str], str] = {}
    for before, old, after, row in _pair_before_and_after(case):
        changes = " ".join(one.texts[row] for one in after.all(kinds.CHANGES))
        sizes = [table.find(BYTES) for table in (before, after)]
        pair = [one.numbers[at] if one else None for one, at in zip(sizes, (old, row), strict=True)]
        if QUANTISED.search(changes) and pair[0] and pair[1] and pair[0].value == pair[1].value:
            key = before.name, after.name
            labels.setdefault(key, []).append(after.labels[row])
            evidence[key] = f"{show(pair[1].value / 1e6)} MB before and after {changes!r}"
    for names, rows in labels.items():
        yield Hit(f"{evidence[names]}: the weights did not change", names, tuple(rows))
    for table in case.tables:
        yield from _find_same_memory(table)


def _find_same_memory(table: AuditTable) -> Iterator[Hit]:
    size = table.find(BYTES)
    rows: dict[str, dict[str, int]] = {}
    for row in range(table.rows if size else 0):
        setting = table.setting(row)
        precision = setting.pop(kinds.PRECISION, None)
        if precision and kinds.MODEL in setting:
            rows.setdefault(repr(sorted(setting.items())), {})[precision] = row
    for by_precision in rows.values():
        full = by_precision.get("fp32")
        for precision, row in by_precision.items():
            one, two = (size.numbers[at] if size and at is not None else None for at in (full, row))
            if precision in REDUCED_PRECISIONS and one and two and one.value == two.value and size:
                yield Hit(
                    f"{size.title}: {size.texts[row]} in fp32 and in {precision}, so "
                    "what this column measures was not converted",
                    (table.name,),
                    (table.labels[row],),
                )


@rule(
    "note",
    "the changes made a row slower",
    "say so, and state how large the noise is",
    over="all",
    bad="| model | latency (ms) |\n|---|---|\n| a | 413.5 |\n\n"
    "| model | latency (ms) | changes |\n|---|---|---|\n| a | 421.3 | onnx |\n",
    clean="| model | latency (ms) |\n|---|---|\n| a | 413.5 |\n\n"
    "| model | latency (ms) | changes |\n|---|---|---|\n| a | 321.3 | onnx |\n",
)
def worse_not_said(case: Case) -> Iterator[Hit]:
    for before, old, after, row in _pair_before_and_after(case):
        times = [find_latency(table) for table in (before, after)]
        pair = [one.numbers[at] if one else None for one, at in zip(times, (old, row), strict=True)]
        if pair[0] and pair[1] and pair[1].low > pair[0].high:
            yield Hit(
                f"{ms(pair[0])} before, {ms(pair[1])} after: "
                f"{pair[1].value / pair[0].value - 1:+.1%}",
                (before.name, after.name),
                (after.labels[row],),
            )


@rule(
    "warning",
    "times differ because the inputs differ",
    "give every row the same input, or compare the time per pixel",
    bad="name,input,CPU total (ms),calls\nforward,544x640,145.7,1\nforward,480x640,128.3,1\n"
    "forward,384x640,108.1,1\n",
    clean="name,input,CPU total (ms),calls\nforward,640x640,145.7,1\nforward,640x640,128.3,1\n"
    "forward,640x640,108.1,1\n",
)
def different_work_compared(table: AuditTable) -> Iterator[Hit]:
    sizes, time = (
        table.find(kinds.SIZE),
        table.find(TIME, but=("self", *NOT_LATENCY)) or table.find(TIME, "total", but=("self",)),
    )
    if sizes is None or time is None:
        return
    groups: dict[str, list[tuple[int, float, float]]] = {}
    for row in range(table.rows):
        sides, number = re.findall(r"\d+", sizes.texts[row]), time.numbers[row]
        if len(sides) >= 2 and number and number.value > 0:
            label = " ".join(
                one.texts[row] for one in table.columns if one.quantity in (kinds.NAME, kinds.MODEL)
            )
            groups.setdefault(label, []).append(
                (row, number.value, float(sides[0]) * float(sides[1]))
            )
    for name, rows in groups.items():
        if len(rows) < 3 or len({one[2] for one in rows}) < 2:
            continue
        times, per_pixel = [one[1] for one in rows], [one[1] / one[2] for one in rows]
        if max(times) > 1.1 * min(times) and max(per_pixel) < 1.2 * min(per_pixel):
            yield Hit(
                f"{name}: {ms(min(times))} to {ms(max(times))} for inputs of "
                f"{show(min(o[2] for o in rows))} to {show(max(o[2] for o in rows))} pixels; "
                f"the time per pixel is {show(min(per_pixel) * 1e9)} to "
                f"{show(max(per_pixel) * 1e9)} ns",
                rows=tuple(table.labels[one[0]] for one in rows),
            )
