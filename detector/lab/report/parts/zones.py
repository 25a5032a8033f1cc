"""The part of the report on lines and zones (--zones): totals, flow over time, and a heat map."""

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
SHAPE = (16, 9)  # aspect ratio of the heat map if the picture's is unknown
HEAT_WIDTH = 640


def zones(session: SavedSession) -> str:
    document = session.document
    rows = list(_rows(document))
    scenes = document.scenes or []
    if not rows and not scenes:
        return ""
    parts = [table(Table("zones", _columns(rows), rows))] if rows else []
    videos = [source.video for source in document.each if source.zones]
    for number, scene in enumerate(scenes):
        # Each camera has its own scene, but all cameras together are one source of the document.
        video = videos[min(number, len(videos) - 1)] if videos else None
        source = scene.camera or (video.path if video and len(scenes) > 1 else "")
        prefix = f"{source}: " if source else ""
        parts += _draw_over_time(scene, prefix)
        shape = (video.width, video.height) if video and video.width and video.height else SHAPE
        parts.append(_draw_heat(scene, prefix, shape))
    return "".join(parts)


def _rows(document: SessionDocument) -> Iterator[tuple[str, ZoneTotals, str]]:
    several = len(document.each) > 1
    for source in document.each:
        for zone in source.zones or []:
            source_name = zone.camera or (source.video.path if several else "")
            for class_name in zone.counts or [""]:
                yield source_name, zone, class_name


def _count_of(kind: str) -> Any:
    """Return a function that returns a row's count of this kind; 0 if nothing was counted."""
    none = {"line": dict.fromkeys(KINDS[:2], 0), "zone": dict.fromkeys(KINDS[2:], 0)}
    return lambda row: row[1].counts.get(row[2], none[row[1].kind]).get(kind)


def _name_with_sides(row: tuple[str, ZoneTotals, str]) -> str:
    _, zone, _ = row
    named = zone.kind == "line" and zone.sides != list(KINDS[:2])
    return f"{zone.name} (in: {zone.sides[0]}, out: {zone.sides[1]})" if named else zone.name


def _median_stay(row: tuple[str, ZoneTotals, str]) -> float | None:
    _, zone, class_name = row
    visited = any(zone.counts.get(class_name, {}).values())
    return zone.dwell_s.median if zone.dwell_s is not None and visited else None


def _columns(rows: Sequence[tuple[str, ZoneTotals, str]]) -> tuple[Column, ...]:
    source = [Column("source", value=lambda row: row[0])] if any(row[0] for row in rows) else []
    return (
        *source,
        Column("zone", "line or zone", value=_name_with_sides),
        Column("class", value=lambda row: row[2]),
        *(Column(kind, value=_count_of(kind)) for kind in KINDS),
        Column("most", "most at once", value=lambda row: row[1].most.get(row[2])),
        Column("dwell", "median stay of all classes, s", value=_median_stay),
    )


def _draw_over_time(scene: SceneHistory, prefix: str) -> list[str]:
    lengths = [len(counts) for one in scene.series for counts in one.counts.values()]
    if max([*lengths, *(len(one.mean) for one in scene.series)], default=0) < 2:
        return []
    interval = f"{scene.every_s:g} s"
    drawn = []
    flows = {
        f"{one.zone} {kind}, {one.class_name}": counts
        for one in scene.series
        for kind, counts in one.counts.items()
        if one.kind == "line"
    }
    if flows:
        caption = f"{prefix}crossings of lines in each {interval}"
        drawn.append(_draw_lines(scene, flows, "crossings", caption))
    inside = {f"{one.zone}, {one.class_name}": one.mean for one in scene.series if one.mean}
    if inside:
        caption = f"{prefix}objects in zones, mean of each {interval}"
        drawn.append(_draw_lines(scene, inside, "objects", caption))
    return drawn


def _draw_lines(
    scene: SceneHistory, values: Mapping[str, Sequence[float]], unit: str, caption: str
) -> str:
    """Draw curves over time. Curves that are always 0 are omitted, unless all are."""
    series = {
        name: [((i + 0.5) * scene.every_s, float(one)) for i, one in enumerate(values[name])]
        for name in [name for name in values if any(values[name])] or values
    }
    names = drawings.legend(list(series)) if len(series) > 1 else text(next(iter(series)))
    clock = _label_clock(scene, scene.every_s * len(next(iter(values.values()))))
    unit_below = "local time" if clock else "s"
    return names + figure(drawings.lines(series, unit_below, unit, x_labels=clock), caption)


def _label_clock(scene: SceneHistory, end_s: float) -> dict[float, str]:
    """Return about eight labels at round local times: seconds since the start -> text."""
    step_s = next((one for one in STEPS_S if end_s / one <= 8), STEPS_S[-1])
    labels = {}
    ends = [*(at_s for at_s, _ in scene.clock[1:]), end_s]
    for (at_s, local_s), until_s in zip(scene.clock, ends, strict=False):
        x = at_s + -local_s % step_s
        while x < until_s:
            shown = datetime.fromtimestamp(local_s + x - at_s, UTC)
            labels[x] = shown.strftime("%H:%M" if step_s >= 60 else "%H:%M:%S")
            x += step_s
    return labels


def _draw_heat(scene: SceneHistory, prefix: str, shape: tuple[float, float]) -> str:
    most = max(scene.heat_s, default=0.0)
    if most <= 0:
        return ""
    columns, rows = scene.heat_columns, scene.heat_rows
    cell_width, cell_height = HEAT_WIDTH / columns, HEAT_WIDTH * shape[1] / shape[0] / rows
    cells = "".join(
        f'<rect x="{i % columns * cell_width:.1f}" y="{i // columns * cell_height:.1f}" '
        f'width="{cell_width:.2f}" height="{cell_height:.2f}" fill="#e8590c" '
        f'fill-opacity="{(seconds / most) ** 0.5:.2f}">'
        f"<title>{seconds:.1f} s</title></rect>"
        for i, seconds in enumerate(scene.heat_s)
        if seconds > 0
    )
    drawn = (
        f'<svg class="map" viewBox="0 0 {HEAT_WIDTH} {cell_height * rows:.0f}" role="img">'
        f'<rect width="{HEAT_WIDTH}" height="{cell_height * rows:.1f}" fill="none" '
        f'stroke="currentColor"/>{cells}</svg>'
    )
    return figure(drawn, f"{prefix}positions of objects; at most {most:.1f} s in a cell")


HOW = How(
    "zones",
    "lines and zones",
    "One point of each box counts: by default the middle of its lower edge. This point changes "
    "side only once it is well past the line. An object not seen to leave a zone counts as ended.",
    "What is counted",
    "docs/counting.md",
)
PARTS = (Part("zones", "Lines and zones", 17, zones, how=HOW),)
