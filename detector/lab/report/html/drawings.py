"""Tables, figures and SVG drawings of the HTML report. Every number carries its full value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, TypeVar

from detector.core.tables import Column, Table, plain

LONG = 36  # characters of a cell that wraps
MOST_POINTS = 600  # of a drawn series


Item = TypeVar("Item")


def thinned(items: Sequence[Item]) -> Sequence[Item]:
    return items[:: max(1, -(-len(items) // MOST_POINTS))]


def section(name: str, title: str, *content: str, how: str = "") -> str:
    """A part of the page with a heading; ``how``: a link to how its numbers are taken."""
    link = f' <a class="how screen" href="#how-{how}">(how measured?)</a>' if how else ""
    return f'<section id="{name}-part"><h2>{escape(title)}{link}</h2>{"".join(content)}</section>'


def key(names: Sequence[str]) -> str:
    return key_of([(name, name) for name in names])


def key_of(parts: Sequence[tuple[str, str]]) -> str:
    """Return what the colours mean; ``parts``: (class, name)."""
    inside = "".join(
        f'<span><i class="{escape(kind)}"></i>{escape(name)}</span>' for kind, name in parts
    )
    return f'<div class="key">{inside}</div>'


def legend(names: Sequence[str]) -> str:
    return key_of([(f"series-{at % SERIES}", name) for at, name in enumerate(names)])


def text(*sentences: str | None) -> str:
    return f"<p>{escape(' '.join(one for one in sentences if one))}</p>"


def zoom_buttons(note: str) -> str:
    buttons = "".join(
        f'<button type="button" data-zoom="{factor}">{name}</button>'
        for name, factor in (("zoom in", 0.5), ("zoom out", 2), ("all", 0))
    )
    return f'<p class="screen zooming">{buttons} {note}</p>'


def folded(summary: str, *content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{''.join(content)}</details>"


def figure(drawn: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="scroll">{drawn}</div>{below}</figure>'


def table(described: Table, sortable: bool = True) -> str:
    """Fold away rows beyond ``most``; a button, a filter or paper shows them."""
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


def filter_of(name: str, what: str) -> str:
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
        full = float(value) if isinstance(value, float) else value  # not what a kind of number says
        return f'<td data-value="{full!r}">{escape(text)}</td>'
    return f'<td class="text{" long" if len(text) > LONG else ""}">{escape(text)}</td>'


Series = Sequence[tuple[float, float]]
WIDTH, LEFT, RIGHT = 960, 84, 14
HALF = 760  # of a drawing next to a table
SERIES = 6  # colours of curves
FEW = 30  # points of a curve that are shown one by one


def bar(parts: Sequence[tuple[str, str, float]], unit: str, labels: bool = True) -> str:
    """A horizontal bar of parts (class, name, value); labels that do not fit are hidden."""
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
    height, scale = 26 * len(threads) + 22, (WIDTH - LEFT) / span_ms if span_ms else 0.0
    names = [
        f'<text x="4" y="{26 * at + 17}">{escape(name)}</text>' for at, name in enumerate(threads)
    ]
    shapes = []
    for lane, kind, text, start, end in slices:
        width = max(0.3, (end - start) * scale)
        place = f'x="{start * scale:.2f}" y="{26 * lane + 3}" width="{width:.2f}" height="20"'
        shapes.append(
            f'<rect class="{escape(kind)}" {place}>{_title(f"{text}, {end - start:.2f} ms")}</rect>'
        )
    marks = "".join(
        _tick(LEFT + tick * scale, height - 6, f"{_short(tick)} ms")
        for tick in ticks(0, span_ms, 8)
    )
    # The slices are an inner picture: zooming stretches them, and never a letter.
    inner = (
        f'<svg x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{height - 20}" '
        f'preserveAspectRatio="none" viewBox="0 0 {WIDTH - LEFT} {height - 20}">'
        f"{''.join(shapes)}</svg>"
    )
    return (
        f'<svg class="zoom" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline" '
        f'data-span="{span_ms!r}" data-left="{LEFT}">{"".join(names)}{inner}'
        f'<g class="ticks">{marks}</g></svg>'
    )


def queue(
    points: Series,
    around: Sequence[tuple[float, float, float]],
    room: float,
    x_unit: str,
    y_unit: str,
    height: int = 150,
) -> str:
    """A count over time: mean line, (x, least, most) band, and the room as a broken line."""
    everything = [(x, 0.0) for x, _ in points] + [(x, most) for x, _, most in around]
    axes = Axes.around([(0.0, 0.0), *everything, (points[-1][0], room)], height, whole=True)
    upper = [(x, most) for x, _, most in around]
    lower = [(x, least) for x, least, _ in reversed(around)]
    band = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in upper + lower)
    line = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    top = f"{axes.y(room):.1f}"
    shapes = (
        f'<polygon class="band" points="{band}"/><polyline class="curve" points="{line}"/>'
        f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top}" y2="{top}"/>'
        f'<text class="halo" x="{WIDTH - RIGHT}" y="{axes.y(room) - 5:.1f}" text-anchor="end">'
        f"room for {plain(room)}</text>"
    )
    return _svg(height, axes.drawn(x_unit, y_unit) + shapes)


def curve(points: Series, x_unit: str, y_unit: str, height: int = 180) -> str:
    axes = Axes.around(points, height)
    line = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    return _svg(height, axes.drawn(x_unit, y_unit) + f'<polyline class="curve" points="{line}"/>')


def lines(
    series: Mapping[str, Series],
    x_unit: str,
    y_unit: str,
    at: Mapping[str, float] | None = None,
    height: int = 200,
    width: int = WIDTH,
    dense: bool = False,
    below: Mapping[float, str] | None = None,
) -> str:
    """Curves on axes from 0, with the classes ``series-0``, ... ``at``: a word -> x of an
    upright line. Few points get marks unless ``dense``. ``below``: x -> what the axis says."""
    everything = [point for points in series.values() for point in points]
    axes = Axes.around([(0.0, 0.0), *everything], height, width=width)
    places = sorted({x for x, _ in everything})
    marked = len(places) <= FEW and not dense
    shapes = [axes.drawn(x_unit, y_unit, below or (places if marked else None))]
    where = "" if below else f" at {{}} {x_unit}"
    for number, (name, points) in enumerate(series.items()):
        line = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
        kind = f"series-{number % SERIES}"
        shapes.append(f'<polyline class="curve {kind}" points="{line}">{_title(name)}</polyline>')
        if marked:
            shapes += [
                f'<circle class="{kind}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3.5">'
                f"{_title(f'{name}: {_short(y)} {y_unit}{where.format(_short(x))}')}</circle>"
                for x, y in points
            ]
    for word, x in (at or {}).items():
        shapes.append(
            f'<line class="mark" x1="{axes.x(x):.1f}" x2="{axes.x(x):.1f}" y1="16" '
            f'y2="{height - 24}"/>'
        )
        shapes.append(
            f'<text class="halo" x="{axes.x(x) + 4:.1f}" y="{height - 32}">{escape(word)}</text>'
        )
    return _svg(height, "".join(shapes), width)


def histogram(
    values: Sequence[float], marks: Mapping[str, float], unit: str, height: int = 180
) -> str:
    """Counts of values in 60 equal bins up to the 99.5th percentile, with marks."""
    ordered = sorted(values)
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
        place = f'x="{x - 4:.1f}" text-anchor="end"' if x > WIDTH - 160 else f'x="{x + 4:.1f}"'
        shapes.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{height - 24}"/>')
        shapes.append(
            f'<text class="halo" {place} y="{34 + 18 * number}">{escape(name)} {plain(value)} '
            f"{unit}</text>"
        )
    return _svg(height, axes.drawn(unit, "calls") + "".join(shapes))


def roofline(
    dots: Sequence[tuple[str, float, float]],
    roofs: Mapping[str, float],
    slopes: Mapping[str, float],
    height: int = 320,
) -> str:
    """``dots``: (name, FLOPs a byte, GFLOP/s). ``roofs``: GFLOP/s by type. ``slopes``: GB/s."""
    fastest, slowest = max(slopes.values()), min(slopes.values())
    highest = max(roofs.values())
    xs = [x for _, x, _ in dots if x > 0] + [highest / slowest, min(roofs.values()) / fastest]
    ys = [y for _, _, y in dots if y > 0] + list(roofs.values())
    axes = Axes(*_decades(xs), *_decades(ys), height, log=True)
    shapes = []
    alike: list[float] = []  # heights of words at the left edge, which would lie on each other
    for name, rate in sorted(slopes.items(), key=lambda one: -one[1]):
        left = max(axes.x0, axes.y0 / rate)
        start = f"{axes.x(left):.1f},{axes.y(left * rate):.1f}"
        end = f"{axes.x(highest / rate):.1f},{axes.y(highest):.1f}"
        title = _title(f"{name}: {rate:.1f} GB/s")
        shapes.append(f'<polyline class="curve" points="{start} {end}">{title}</polyline>')
        y = axes.y(left * rate) - 8
        while any(abs(y - other) < 15 for other in alike):
            y += 15
        alike.append(y)
        word = f"{escape(name)} {rate:.0f} GB/s"
        shapes.append(f'<text class="halo" x="{axes.x(left) + 8:.1f}" y="{y:.1f}">{word}</text>')
    for name, peak in roofs.items():
        x, y = axes.x(axes.x1), axes.y(peak)
        ridge = f"{axes.x(peak / fastest):.1f},{y:.1f}"
        shapes.append(f'<polyline class="curve" points="{ridge} {x:.1f},{y:.1f}"/>')
        label = f"{escape(name)} {peak:.0f} GFLOP/s"
        shapes.append(
            f'<text class="halo" x="{x - 4:.1f}" y="{y - 5:.1f}" text-anchor="end">{label}</text>'
        )
    for name, x, y in dots:
        if x > 0 and y > 0:
            shapes.append(
                f'<circle class="dot" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4">'
                f"{_title(f'{name}: {x:.2f} FLOP/byte, {y:.1f} GFLOP/s')}</circle>"
            )
    return _svg(height, axes.drawn("FLOP/byte", "GFLOP/s") + "".join(shapes))


def scatter(dots: Sequence[tuple[str, float, float]], x_unit: str, y_unit: str) -> str:
    """Draw ``dots``: (name, x, y), labelled with their names. Both axes begin at 0."""
    most_x = max(x for _, x, _ in dots) * 1.15 or 1.0
    most_y = max(y for _, _, y in dots) * 1.15 or 1.0
    height = 300
    axes = Axes(0.0, most_x, 0.0, most_y, height)
    shapes = []
    for name, x, y in dots:
        at = f'x="{axes.x(x) + 8:.1f}" y="{axes.y(y) - 6:.1f}"'
        shapes.append(
            f'<circle class="dot" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4">'
            f"{_title(f'{name}: {x:.3g} {x_unit}, {y:.4g} {y_unit}')}</circle>"
            f'<text class="halo" {at}>{escape(name)}</text>'
        )
    return _svg(height, axes.drawn(x_unit, y_unit) + "".join(shapes))


class Axes:
    """Data -> pixels, for a plot with room for labels at the left and below."""

    def __init__(
        self,
        x0: float,
        x1: float,
        y0: float,
        y1: float,
        height: int,
        log: bool = False,
        whole: bool = False,
        width: int = WIDTH,
    ) -> None:
        self.x0, self.x1, self.y0, self.y1, self.height, self.log = (
            x0,
            x1 or 1.0,
            y0,
            y1 or 1.0,
            height,
            log,
        )
        self.whole, self.width = whole, width

    @classmethod
    def around(cls, points: Series, height: int, whole: bool = False, width: int = WIDTH) -> Axes:
        xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
        low = min(ys) if min(ys) > 0.5 * max(ys) else 0.0  # a curve far from zero is not squashed
        left = 0.0 if min(xs) < 0.1 * max(xs) else min(xs)
        return cls(left, max(xs), low, max(ys), height, whole=whole, width=width)

    def x(self, value: float) -> float:
        return LEFT + self._share(value, self.x0, self.x1) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return (
            self.height - 24 - self._share(value, self.y0, self.y1) * (self.height - 48)
        )  # above: the unit

    def _share(self, value: float, low: float, high: float) -> float:
        if self.log:
            value, low, high = math.log10(max(value, 1e-12)), math.log10(low), math.log10(high)
        return (value - low) / (high - low) if high > low else 0.0

    def drawn(self, x_unit: str, y_unit: str, places: Iterable[float] | None = None) -> str:
        """``places``: where the marks below stand, and what they say, if it is a mapping; round
        numbers where it does not say."""
        marks, low = powers if self.log else ticks, self.height - 7
        last = self.width - RIGHT - 12 * len(x_unit) - 24  # right of it stands the unit
        if places is not None:
            y_unit, x_unit, last = f"{y_unit}, by {x_unit}", "", self.width
        below = marks(self.x0, self.x1, 8) if places is None else places
        said = places if isinstance(places, Mapping) else {}
        shapes = [_tick(self.x(v), low, said.get(v, _short(v))) for v in below if self.x(v) < last]
        for value in marks(self.y0, self.y1, 4):
            if self.whole and value != int(value):
                continue
            y = self.y(value)
            shapes.append(
                f'<line x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            shapes.append(
                f'<text class="dim" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                f"{_short(value)}</text>"
            )
        unit = (
            f'<text class="dim" x="{self.width - RIGHT}" y="{low}" text-anchor="end">'
            f"{escape(x_unit)}</text>"
        )
        return "".join([*shapes, unit, f'<text class="dim" x="4" y="14">{escape(y_unit)}</text>'])


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from low to high, about so many."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    if not 0 < raw < math.inf:  # no number of marks tells such values apart
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


def _tick(x: float, y: float, text: str) -> str:
    return f'<text class="dim" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _short(value: float) -> str:
    """Three figures at most, without an exponent as long as it can be read."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.0e}"
