"""Prepare figures of lines and zones for the session: totals, and counts over time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from detector.tracks.counting import HEAT_COLUMNS, HEAT_ROWS, Counter, History, Key, ShapeTally
from detector.tracks.zones_file import Shape

if TYPE_CHECKING:
    from detector.core.session.document import SceneHistory, ZoneTotals

DECIMALS = 3  # decimals of seconds


def totals_of(camera: str, counter: Counter) -> list[ZoneTotals]:
    from detector.core.session.document import DwellFigures, ZoneTotals

    totals = []
    for shape, keys in _by_name(counter):
        tallies = {name: [counter.total[key] for key in some] for name, some in keys.items()}
        stays = [seconds for some in tallies.values() for tally in some for seconds in tally.stays]
        totals.append(
            ZoneTotals(
                name=shape.name,
                kind="line" if shape.is_line else "zone",
                camera=camera,
                sides=list(shape.sides),
                counts={
                    name: {
                        kind: sum(tally.counts[kind] for tally in some) for kind in some[0].counts
                    }
                    for name, some in tallies.items()
                },
                most={
                    name: max(tally.most for tally in some)
                    for name, some in tallies.items()
                    if not shape.is_line
                },
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
    return totals


def history_of(camera: str, counter: Counter) -> SceneHistory:
    from detector.core.session.document import SceneHistory, ZoneSeries

    history = counter.history
    series = [
        ZoneSeries(
            zone=shape.name,
            kind="line" if shape.is_line else "zone",
            class_name=name,
            counts={
                kind: [sum(tally.counts[kind] for tally in slot) for slot in _slots(history, keys)]
                for kind in counter.total[keys[0]].counts
            },
            mean=[]
            if shape.is_line
            else [
                round(sum(tally.seconds for tally in slot) / history.every_s, DECIMALS)
                for slot in _slots(history, keys)
            ],
        )
        for shape, named in _by_name(counter)
        for name, keys in named.items()
    ]
    return SceneHistory(
        camera=camera,
        began_s=round(history.began_s, DECIMALS),
        every_s=history.every_s,
        series=series,
        heat_columns=HEAT_COLUMNS,
        heat_rows=HEAT_ROWS,
        heat_s=[round(seconds, 2) for seconds in counter.heat.ravel().tolist()],
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


def _by_name(counter: Counter) -> Iterator[tuple[Shape, dict[str, list[Key]]]]:
    """Yield each line and zone once, even if it was redrawn, with the keys of each class."""
    shapes = counter.zones.shapes
    named = {(shape.name, shape.is_line): shape for shape in shapes}
    for (name, is_line), shape in named.items():
        keys: dict[str, list[Key]] = {}
        for key in sorted(counter.total):
            if (shapes[key[0]].name, shapes[key[0]].is_line) == (name, is_line):
                keys.setdefault(counter.name_of(key[1]), []).append(key)
        yield shape, keys


def _slots(history: History, keys: Sequence[Key]) -> Iterator[list[ShapeTally]]:
    return ([slot[key] for key in keys if key in slot] for slot in history.slots)
