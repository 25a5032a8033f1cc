"""What the session keeps of lines and zones: totals for the summary, and their way over time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from detector.tracks.counting import HEAT_COLUMNS, HEAT_ROWS, Counter, Key, Tally

if TYPE_CHECKING:
    from detector.core.session.document import SceneHistory, ZoneTotals

DECIMALS = 3  # of seconds


def totals_of(camera: str, counter: Counter, names: Sequence[str]) -> list[ZoneTotals]:
    from detector.core.session.document import DwellFigures, ZoneTotals

    found = []
    # A line that was moved while the run lasted is one with what it counted before.
    shapes = {(one.name, one.is_line): one for one in counter.places.shapes}
    for (name, is_line), shape in shapes.items():
        tallies: dict[str, list[Tally]] = {}
        for (number, class_id), tally in sorted(counter.total.items()):
            one = counter.places.shapes[number]
            if (one.name, one.is_line) == (name, is_line):
                tallies.setdefault(_name(class_id, names), []).append(tally)
        stays = [seconds for some in tallies.values() for tally in some for seconds in tally.stays]
        found.append(
            ZoneTotals(
                name=name,
                kind="line" if is_line else "zone",
                camera=camera,
                sides=list(shape.sides),
                counts={
                    key: {kind: sum(one.counts[kind] for one in some) for kind in some[0].counts}
                    for key, some in tallies.items()
                },
                most={
                    key: max(one.most for one in some)
                    for key, some in tallies.items()
                    if not is_line
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
    return found


def history_of(camera: str, counter: Counter, names: Sequence[str]) -> SceneHistory:
    from detector.core.session.document import SceneHistory, ZoneSeries

    history, series = counter.history, []
    for key in sorted({key for slot in history.slots for key in slot}):
        shape = counter.places.shapes[key[0]]
        kinds = list(counter.total[key].counts)
        series.append(
            ZoneSeries(
                zone=shape.name,
                kind="line" if shape.is_line else "zone",
                class_name=_name(key[1], names),
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
    )


def _counts(slots: Sequence[dict[Key, Tally]], key: Key, kind: str) -> list[int]:
    return [slot[key].counts[kind] if key in slot else 0 for slot in slots]


def _name(class_id: int, names: Sequence[str]) -> Any:
    return names[class_id] if class_id < len(names) else str(class_id)
