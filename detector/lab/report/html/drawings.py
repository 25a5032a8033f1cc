"""Draw tables, figures and SVG of the HTML report. Elements store their unrounded numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, TypeVar

from detector.core.tables import Column, Table, plain

LONG = 36  # characters; longer cells wrap
MAX_POINTS = 600  # points of a drawn series


Item = TypeVar("Item")


def thin_out(items: Sequence[Item]) -> Sequence[Item]:
    return items[:: max(1, -(-len(items) // MAX_POINTS))]


def section(name: str, title: str, *content: str, how: str = "") -> str:
    """Return a section with a heading. ``how``: name of an explanation to link in the heading."""
    link = f' <a class="how screen" href="#how-{how}">(how measured?)</a>' if how else ""
    return f'<section id="{name}-part"><h2>{escape(title)}{link}</h2>{"".join(content)}</section>'


def stage_key(names: Sequence[str]) -> str:
    return colour_key([(name, name) for name in names])


def colour_key(parts: Sequence[tuple[str, str]]) -> str:
    """Return a key of colours. ``parts``: (CSS class, name)."""
    inside = "".join(
        f'<span><i class="{escape(kind)}"></i>{escape(name)}</span>' for kind, name in parts
    )
    return f'<div class="key">{inside}</div>'


def legend(names: Sequence[str]) -> str:
    return colour_key([(f"series-{at % SERIES}", name) for at, name in enumerate(names)])


def text(*sentences: str | None) -> str:
    return f"<p>{escape(' '.join(one for one in sentences if one))}</p>"


def zoom_buttons(note: str) -> str:
    buttons = "".join(
        f'<button type="button" data-zoom="{factor}">{name}</button>'
        for name, factor in (("zoom in", 0.5), ("zoom out", 2), ("all", 0))
    )
    return f'<p class="screen zooming">{buttons} {note}</p>'


def details(summary: str, *content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{''.join(content)}</details>"


def figure(drawn: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="scroll">{drawn}</div>{below}</figure>'


def table(described: Table, sortable: bool = True) -> str:
    """Return an HTML table. Rows after the first ``most`` are hidden until a click or filter."""
    name, columns = escape(described.name), described.columns
    rows = [[column.of(row) for column in columns] for row in described.rows]
    heads = []
    for at, column in enumerate(columns):
        kind = ' class="text"' if rows and isinstance(rows[0][at], str) else ""
        title = escape(column.head())
        inside = f'<button type="button">{title}</button>' if sortable else title
        heads.append(f'<th scope="col"{kind}>{inside}</th>')
    body = "".join("<tr>" + "".join(map(cell, columns, values)) + "</tr>" for values in rows)
    most = described.most
    fold = most is not None and len(rows) > most
    kinds = " ".join(["sortable"] * sortable + ["folded"] * fold)
    kind = f' class="{kinds}" data-most="{most}"' if fold else f' class="{kinds}"' if kinds else ""
    inside = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{body}</tbody>"
    more = (
        f'<button type="button" class="more screen" data-table="{name}" aria-expanded="false">'
        f"show all {len(rows)} {escape(described.rest)}</button>"
        if fold
        else ""
    )
    return f'<div class="scroll"><table id="{name}"{kind}>{inside}</table></div>{more}'


def filter_box(name: str, what: str) -> str:
    label = escape(f"filter {what}")
    return (
        f'<input class="filter screen" type="search" data-table="{name}" placeholder="{label}" '
        f'aria-label="{label}">'
    )


def cell(column: Column, value: Any) -> str:
    fine = column.form.endswith(("3f", "4f", "6f"))
    text = (replace(column, form="") if fine else column).text(value, absent="–")
    if value is None or (isinstance(value, float) and value != value):
        return f'<td class="none">{text}</td>'
    if isinstance(value, (int, float)):
        full = float(value) if isinstance(value, float) else value  # subclasses have another repr
        return f'<td data-value="{full!r}">{escape(text)}</td>'
    return f'<td class="text{" long" if len(text) > LONG else ""}">{escape(text)}</td>'


Series = Sequence[tuple[float, float]]
WIDTH, LEFT, RIGHT = 960, 84, 14
HALF = 760  # width of a drawing next to a table
SERIES = 6  # number of colours for curves
FEW = 30  # curves with more different x get no dots


def bar(parts: Sequence[tuple[str, str, float]], unit: str, labels: bool = True) -> str:
    """Draw a bar of parts (CSS class, name, value). Labels that do not fit are hidden."""
    total = sum(value for *_, value in parts) or 1.0
    shapes = []
    for kind, name, value in parts:
        if value <= 0:
            continue
        label = escape(f"{name} {value:.2f} {unit} ({value / total:.1%})")
        inside = f"<b>{escape(name)} {plain(value)}</b>" if labels else ""
        shapes.append(
            f'<span class="{escape(kind)}" style="flex-grow:{value / total:.6f}" title="{label}" '
            f'data-value="{value!r}">{inside}</span>'
        )
    return (
        f'<div class="bar" role="img" aria-label="{escape(unit)} by part">{"".join(shapes)}</div>'
    )


def lanes(
    threads: Sequence[str], slices: Iterable[tuple[int, str, str, float, float]], span_ms: float
) -> str:
    """Draw a lane for each thread. ``slices``: (lane, CSS class, text, start, end), in ms."""
    width, height = WIDTH - LEFT - 2 * RIGHT, 26 * len(threads) + 22
    scale = width / span_ms if span_ms else 0.0
    names = [
        f'<text x="4" y="{26 * at + 17}">{escape(name)}</text>' for at, name in enumerate(threads)
    ]
    shapes = []
    for lane, kind, text, start, end in slices:
        place = f'x="{start * scale:.2f}" y="{26 * lane + 3}" height="20"'
        place += f' width="{max(0.3, (end - start) * scale):.2f}"'
        shapes.append(
            f'<rect class="{escape(kind)}" {place}>{_title(f"{text}, {end - start:.2f} ms")}</rect>'
        )
    marks = "".join(
        _tick(LEFT + tick * scale, height - 6, f"{_short(tick)} ms")
        for tick in ticks(0, span_ms, 8)
    )
    # The slices are in an inner SVG. Only this is zoomed, so that text is not stretched.
    inner = (
        f'<svg x="{LEFT}" y="0" width="{width}" height="{height - 20}" '
        f'preserveAspectRatio="none" viewBox="0 0 {width} {height - 20}">'
        f"{''.join(shapes)}</svg>"
    )
    return (
        f'<svg class="zoom" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline" '
        f'data-span="{span_ms!r}" data-left="{LEFT}">{"".join(names)}{inner}'
        f'<g class="ticks">{marks}</g></svg>'
    )


def curve(points: Series, x_unit: str, y_unit: str) -> str:
    axes = Axes.around(points, 180)
    return _svg(180, axes.draw(x_unit, y_unit) + axes.curve(points))


def lines(
    series: Mapping[str, Series],
    x_unit: str,
    y_unit: str,
    marks: Mapping[str, float] | None = None,
    height: int = 200,
    width: int = WIDTH,
    dense: bool = False,
    x_labels: Mapping[float, str] | None = None,
) -> str:
    """Draw curves on axes that start at 0; their CSS classes are ``series-0``, ... ``marks``: label
    -> x of a vertical line. Curves get dots if they have at most ``FEW`` different x in all and are
    not ``dense``. ``x_labels``: x -> text."""
    everything = [point for points in series.values() for point in points]
    axes = Axes.around([(0.0, 0.0), *everything], height, width=width)
    places = sorted({x for x, _ in everything})
    marked = len(places) <= FEW and not dense
    shapes = [axes.draw(x_unit, y_unit, x_labels or (places if marked else None))]
    where = "" if x_labels else f" at {{}} {x_unit}"
    for number, (name, points) in enumerate(series.items()):
        kind = f"series-{number % SERIES}"
        shapes.append(axes.curve(points, f"curve {kind}", name))
        if marked:
            shapes += [
                axes.dot(x, y, f"{name}: {_short(y)} {y_unit}{where.format(_short(x))}", kind)
                for x, y in points
            ]
    for word, x in (marks or {}).items():
        shapes += [axes.mark(x), _label(axes.x(x) + 4, height - 32, word)]
    return _svg(height, "".join(shapes), width)


def histogram(values: Sequence[float], marks: Mapping[str, float], unit: str) -> str:
    """Draw counts of values in 60 equal bins up to the 99.5th percentile. ``marks``: label -> x."""
    height, ordered = 180, sorted(values)
    top = ordered[min(len(ordered) - 1, int(len(ordered) * 0.995))] or 1e-9
    counts = [0] * 60
    for value in ordered:
        counts[min(59, int(value / top * 60))] += 1
    axes = Axes(0, top, 0, max(counts), height, whole=True)
    shapes = [
        f'<rect class="dot" x="{axes.x(at * top / 60):.1f}" y="{axes.y(count):.1f}" '
        f'width="{(WIDTH - LEFT - RIGHT) / 60 - 1:.1f}" '
        f'height="{height - 24 - axes.y(count):.1f}"/>'
        for at, count in enumerate(counts)
        if count
    ]
    for number, (name, value) in enumerate(marks.items()):
        x = axes.x(min(value, top))
        at_end = x > WIDTH - 160
        text = f"{name} {plain(value)} {unit}"
        shapes.append(axes.mark(min(value, top)))
        shapes.append(_label(x - 4 if at_end else x + 4, 34 + 18 * number, text, at_end))
    return _svg(height, axes.draw(unit, "calls") + "".join(shapes))


def roofline(
    dots: Sequence[tuple[str, float, float]],
    roofs: Mapping[str, float],
    slopes: Mapping[str, float],
) -> str:
    """Draw a roofline plot. ``dots``: (layer, FLOPs per byte, GFLOP/s). ``roofs``: data type ->
    GFLOP/s. ``slopes``: memory level -> GB/s."""
    height = 320
    fastest, slowest = max(slopes.values()), min(slopes.values())
    highest = max(roofs.values())
    xs = [x for _, x, _ in dots if x > 0] + [highest / slowest, min(roofs.values()) / fastest]
    ys = [y for _, _, y in dots if y > 0] + list(roofs.values())
    axes = Axes(*_decades(xs), *_decades(ys), height, log=True)
    shapes, labels = [], []
    label_ys: list[float] = []  # positions of the labels so far, to avoid overlaps
    for name, rate in sorted(slopes.items(), key=lambda one: -one[1]):
        left = max(axes.x0, axes.y0 / rate)
        slope = [(left, left * rate), (highest / rate, highest)]
        shapes.append(axes.curve(slope, title=f"{name}: {rate:.1f} GB/s"))
        y = axes.y(left * rate) - 8
        while any(abs(y - other) < 15 for other in label_ys):
            y += 15
        label_ys.append(y)
        labels.append(_label(axes.x(left) + 8, y, f"{name} {rate:.0f} GB/s"))
    for name, peak in roofs.items():
        shapes.append(axes.curve([(peak / fastest, peak), (axes.x1, peak)]))
        label = f"{name} {peak:.0f} GFLOP/s"
        labels.append(_label(axes.x(axes.x1) - 4, axes.y(peak) - 5, label, at_end=True))
    shapes += [
        axes.dot(x, y, f"{name}: {x:.2f} FLOP/byte, {y:.1f} GFLOP/s")
        for name, x, y in dots
        if x > 0 and y > 0
    ]
    return _svg(height, axes.draw("FLOP/byte", "GFLOP/s") + "".join([*shapes, *labels]))


@dataclass(slots=True)
class Axes:
    """The axes of a plot, with margins for labels at the left and below. Axes convert x (``x0`` to
    ``x1``) and y (``y0`` to ``y1``) to pixels. ``whole``: y has labels only at integers."""

    x0: float
    x1: float
    y0: float
    y1: float
    height: int
    log: bool = False
    whole: bool = False
    width: int = WIDTH

    def __post_init__(self) -> None:
        self.x1, self.y1 = self.x1 or 1.0, self.y1 or 1.0

    @classmethod
    def around(cls, points: Series, height: int, width: int = WIDTH) -> Axes:
        xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
        low = min(ys) if min(ys) > 0.5 * max(ys) else 0.0  # far from 0, show only the curve's range
        left = 0.0 if min(xs) < 0.1 * max(xs) else min(xs)
        return cls(left, max(xs), low, max(ys), height, width=width)

    def x(self, value: float) -> float:
        return LEFT + self._share(value, self.x0, self.x1) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - 24 - self._share(value, self.y0, self.y1) * (self.height - 48)

    def place(self, points: Series) -> str:
        """Return points as the attribute of an SVG polyline."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    def curve(self, points: Series, kind: str = "curve", title: str = "") -> str:
        inside = _title(title) if title else ""
        return f'<polyline class="{kind}" points="{self.place(points)}">{inside}</polyline>'

    def dot(self, x: float, y: float, title: str, kind: str = "dot") -> str:
        place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}"'
        return f'<circle class="{kind}" {place} r="4">{_title(title)}</circle>'

    def mark(self, x: float) -> str:
        place = f'x1="{self.x(x):.1f}" x2="{self.x(x):.1f}"'
        return f'<line class="mark" {place} y1="20" y2="{self.height - 24}"/>'

    def _share(self, value: float, low: float, high: float) -> float:
        if self.log:
            value, low, high = math.log10(max(value, 1e-12)), math.log10(low), math.log10(high)
        return (value - low) / (high - low) if high > low else 0.0

    def draw(self, x_unit: str, y_unit: str, places: Iterable[float] | None = None) -> str:
        """Draw the axes. ``places``: x values to mark, or x -> label; by default round numbers."""
        marks, low = powers if self.log else ticks, self.height - 7
        last = self.width - RIGHT - 12 * len(x_unit) - 24  # the unit is to the right of the marks
        if places is not None:
            y_unit, x_unit, last = f"{y_unit}, by {x_unit}", "", self.width
        below = marks(self.x0, self.x1, 8) if places is None else places
        names = places if isinstance(places, Mapping) else {}
        shapes = [_tick(self.x(v), low, names.get(v, _short(v))) for v in below if self.x(v) < last]
        for value in marks(self.y0, self.y1, 4):
            if self.whole and value != int(value):
                continue
            y = self.y(value)
            shapes.append(
                f'<line x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            shapes.append(_tick(LEFT - 6, y + 4, _short(value), "end"))
        shapes.append(_tick(self.width - RIGHT, low, x_unit, "end"))
        return "".join([*shapes, _tick(4, 14, y_unit, "start")])


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round numbers from low to high."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    if not 0 < raw < math.inf:  # low and high are too close or too far apart for floats
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step)
    return [at * step for at in range(first, math.floor(high / step) + 1)]


def powers(low: float, high: float, count: int) -> list[float]:
    return [
        10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.1), max(values, default=10.0)
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9)


def _svg(height: int, shapes: str, width: int = WIDTH) -> str:
    half = ' class="half"' if width == HALF else ""
    return f'<svg{half} viewBox="0 0 {width} {height}" role="img">{shapes}</svg>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _label(x: float, y: float, text: str, at_end: bool = False) -> str:
    anchor = ' text-anchor="end"' if at_end else ""
    return f'<text class="halo" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'


def _tick(x: float, y: float, text: str, anchor: str = "middle") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="dim" {place}>{escape(text)}</text>'


def _short(value: float) -> str:
    """Round to three digits, and from 100 on to an integer. Tiny and huge numbers: 1e+06."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.0e}"
