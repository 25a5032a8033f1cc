"""The part of the report on lines and zones (--zones): totals, flow, and where objects were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from detector.core.session.document import SceneHistory, SessionDocument, ZoneTotals
from detector.core.tables import Column, Table
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import figure, table, text
from detector.lab.report.part import How, Part
from detector.lab.session.read import SavedSession

KINDS = ("in", "out", "entered", "left", "appeared", "ended")
STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200)
SHAPE = (16, 9)  # of the heat map, where the picture's is not known
HEAT_WIDTH = 640


def zones(session: SavedSession) -> str:
    document = session.document
    rows = list(_rows(document))
    scenes = document.scenes or []
    if not rows and not scenes:
        return ""
    parts = [table(Table("zones", _columns(rows), rows))] if rows else []
    several = len(scenes) > 1
    for number, scene in enumerate(scenes):
        whose = scene.camera or (_source(document, number) if several else "")
        parts += _over_time(scene, whose)
        parts.append(_heat(scene, whose, _shape(document, number)))
    return "".join(parts)


def _rows(document: SessionDocument) -> Iterator[tuple[str, ZoneTotals, str]]:
    several = len(document.each) > 1
    for source in document.each:
        for zone in source.zones or []:
            whose = zone.camera or (source.video.path if several else "")
            for name in zone.counts or [""]:
                yield whose, zone, name


def _count(kind: str) -> Any:
    """0 for a line or zone that counted nothing."""
    none = {"line": dict.fromkeys(KINDS[:2], 0), "zone": dict.fromkeys(KINDS[2:], 0)}
    return lambda row: row[1].counts.get(row[2], none[row[1].kind]).get(kind)


def _columns(rows: Sequence[tuple[str, ZoneTotals, str]]) -> tuple[Column, ...]:
    whose = [Column("source", value=lambda row: row[0])] if any(row[0] for row in rows) else []
    return (
        *whose,
        Column("zone", "line or zone", value=lambda row: row[1].name),
        Column("class", value=lambda row: row[2]),
        *(Column(kind, value=_count(kind)) for kind in KINDS),
        Column("most", "most at once", value=lambda row: row[1].most.get(row[2])),
        Column(
            "dwell", "median stay, s", value=lambda row: row[1].dwell_s and row[1].dwell_s.median
        ),
    )


def _over_time(scene: SceneHistory, whose: str) -> list[str]:
    lengths = [len(counts) for one in scene.series for counts in one.counts.values()]
    if max([*lengths, *(len(one.mean) for one in scene.series)], default=0) < 2:
        return []
    said, of = f"{scene.every_s:g} s", f"{whose}: " if whose else ""
    drawn = []
    flows = {
        f"{one.zone} {kind}, {one.class_name}": counts
        for one in scene.series
        for kind, counts in one.counts.items()
        if one.kind == "line"
    }
    if flows:
        drawn.append(_lines(scene, flows, "crossings", f"{of}crossings of lines in each {said}"))
    there = {f"{one.zone}, {one.class_name}": one.mean for one in scene.series if one.mean}
    if there:
        drawn.append(_lines(scene, there, "objects", f"{of}objects in zones, mean of each {said}"))
    return drawn


def _lines(
    scene: SceneHistory, values: Mapping[str, Sequence[float]], unit: str, caption: str
) -> str:
    """Without what is always 0, unless all is."""
    series = {
        name: [((i + 0.5) * scene.every_s, float(one)) for i, one in enumerate(values[name])]
        for name in [name for name in values if any(values[name])] or values
    }
    names = drawings.legend(list(series)) if len(series) > 1 else text(next(iter(series)))
    clock = _clock(scene, scene.every_s * len(next(iter(values.values()))))
    unit_below = "local time" if clock else "s"
    return names + figure(drawings.lines(series, unit_below, unit, below=clock), caption)


def _clock(scene: SceneHistory, end_s: float) -> dict[float, str]:
    """Seconds since the beginning -> round times of the local clock, about eight."""
    step_s = next((one for one in STEPS_S if end_s / one <= 8), STEPS_S[-1])
    found = {}
    ends = [*(at_s for at_s, _ in scene.clock[1:]), end_s]
    for (at_s, local_s), until_s in zip(scene.clock, ends, strict=False):
        x = at_s + -local_s % step_s
        while x < until_s:
            shown = datetime.fromtimestamp(local_s + x - at_s, UTC)
            found[x] = shown.strftime("%H:%M" if step_s >= 60 else "%H:%M:%S")
            x += step_s
    return found


def _heat(scene: SceneHistory, whose: str, shape: tuple[float, float]) -> str:
    most = max(scene.heat_s, default=0.0)
    if most <= 0:
        return ""
    columns, rows = scene.heat_columns, scene.heat_rows
    wide, high = HEAT_WIDTH / columns, HEAT_WIDTH * shape[1] / shape[0] / rows
    cells = "".join(
        f'<rect x="{i % columns * wide:.1f}" y="{i // columns * high:.1f}" width="{wide:.2f}" '
        f'height="{high:.2f}" fill="#e8590c" fill-opacity="{(seconds / most) ** 0.5:.2f}">'
        f"<title>{seconds:.1f} s</title></rect>"
        for i, seconds in enumerate(scene.heat_s)
        if seconds > 0
    )
    drawn = (
        f'<svg class="map" viewBox="0 0 {HEAT_WIDTH} {high * rows:.0f}" role="img">'
        f'<rect width="{HEAT_WIDTH}" height="{high * rows:.1f}" fill="none" '
        f'stroke="currentColor"/>{cells}</svg>'
    )
    of = f"{whose}: " if whose else ""
    return figure(drawn, f"{of}positions of objects; at most {most:.1f} s in a cell")


def _source(document: SessionDocument, number: int) -> str:
    counted = [source for source in document.each if source.zones]
    return counted[number].video.path if number < len(counted) else ""


def _shape(document: SessionDocument, number: int) -> tuple[float, float]:
    counted = [source.video for source in document.each if source.zones]
    video = counted[min(number, len(counted) - 1)] if counted else None
    return (video.width, video.height) if video and video.width and video.height else SHAPE


HOW = How(
    "zones",
    "lines and zones",
    "Of each box one point counts: by default the middle of its lower edge. It changes side only "
    "once it is well past the line. Objects not seen leaving count as ended in the zone.",
    "What is counted",
    "docs/counting.md",
)
PARTS = (Part("zones", "Lines and zones", 17, zones, how=HOW),)
