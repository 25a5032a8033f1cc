"""What the session keeps of lines and zones: totals for the summary, and their way over time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detector.tracks.counting import HEAT_COLUMNS, HEAT_ROWS, Counter, Key, Tally

if TYPE_CHECKING:
    from detector.core.session.document import SceneHistory, ZoneTotals

DECIMALS = 3  # of seconds


def totals_of(camera: str, counter: Counter) -> list[ZoneTotals]:
    from detector.core.session.document import DwellFigures, ZoneTotals

    found = []
    for number, shape in enumerate(counter.places.shapes):
        tallies = {
            counter.name_of(class_id): counter.total[at, class_id]
            for at, class_id in sorted(counter.total)
            if at == number
        }
        stays = [seconds for one in tallies.values() for seconds in one.stays]
        found.append(
            ZoneTotals(
                name=shape.name,
                kind="line" if shape.is_line else "zone",
                camera=camera,
                sides=list(shape.sides),
                counts={name: dict(tally.counts) for name, tally in tallies.items()},
                most={name: tally.most for name, tally in tallies.items() if not shape.is_line},
                dwell_s=DwellFigures(
                    visits=len(stays),
                    mean=round(statistics.fmean(stays), DECIMALS),
                    median=round(statistics.median(stays), DECIMALS),
                    longest=round(max(stays), DECIMALS),
                )
                if stays
                else None,
            )
        )
    return found


def history_of(camera: str, counter: Counter) -> SceneHistory:
    from detector.core.session.document import SceneHistory, ZoneSeries

    history, series = counter.history, []
    for key in sorted(counter.total):
        shape = counter.places.shapes[key[0]]
        kinds = list(counter.total[key].counts)
        series.append(
            ZoneSeries(
                zone=shape.name,
                kind="line" if shape.is_line else "zone",
                class_name=counter.name_of(key[1]),
                counts={kind: _counts(history.slots, key, kind) for kind in kinds},
                mean=[]
                if shape.is_line
                else [
                    round(slot[key].seconds / history.every_s, DECIMALS) if key in slot else 0.0
                    for slot in history.slots
                ],
            )
        )
    return SceneHistory(
        camera=camera,
        began_s=round(history.began_s, DECIMALS),
        every_s=history.every_s,
        series=series,
        heat_columns=HEAT_COLUMNS,
        heat_rows=HEAT_ROWS,
        heat_s=[round(one, 2) for one in counter.heat.ravel().tolist()],
        clock=_clock_of(counter),
    )


def _clock_of(counter: Counter) -> list[tuple[float, float]]:
    if counter.start_s is None:
        return []
    began_s = counter.start_s + counter.history.began_s
    marks, before = list[tuple[float, float]](), None
    for at_s in range(0, math.ceil(len(counter.history.slots) * counter.history.every_s), 60):
        offset_s = time.localtime(began_s + at_s).tm_gmtoff
        if offset_s != before:
            marks.append((at_s, began_s + at_s + offset_s))
        before = offset_s
    return marks


def _counts(slots: Sequence[dict[Key, Tally]], key: Key, kind: str) -> list[int]:
    return [slot[key].counts[kind] if key in slot else 0 for slot in slots]
