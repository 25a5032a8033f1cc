"""Read the file of lines and zones, with sections for cameras and clips (docs/counting.md).

A section of ``cameras`` or ``clips`` inherits the options of the top level. It inherits lines and
zones, too, if it has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote, refuse_unknown
from detector.core.errors.reading import read_text
from detector.core.errors.yaml_parsing import parse_yaml

Point = tuple[float, float]

SIDES = ("in", "out")  # directions: from a line's left-hand to its right-hand side, and back
BOTTOM, CENTRE = "bottom", "centre"
MOST_STRETCH = 0.05  # aspect ratios may differ by this share (rounded sizes, oblong pixels)
OPTIONS = ("size", "point", "margin", "every", "classes", "start", "lines", "zones")
MOST_SHAPES, MOST_POINTS = 100, 200
LONGEST_NAME = 60
INTERVAL_S = 60.0
MARGIN = 0.15  # how far past a line a point must be, as a share of the mean of the box's sides
OWN_NAMES = "%Y%m%dT%H%M%S%z.mp4"  # names of our recordings of cameras
DIGITS = 4  # decimals of coordinates (0..1) when shapes are compared; the page stores more
EXAMPLE = "to get an example, run: detect-video zones in.mp4"


@dataclass(frozen=True, slots=True)
class Shape:
    """A line (two points) or a zone (a polygon). Seen from a line's first point towards the second,
    the direction "in" is from left to right. ``classes``: names or ids to count; None: all.
    ``stays_s``: after this long in the zone, an object "stays"; None: never. ``sides``: names
    of the directions in and out."""

    name: str
    points: tuple[Point, ...]
    is_line: bool
    classes: tuple[str, ...] | None = None
    stays_s: float | None = None
    sides: tuple[str, str] = SIDES


@dataclass(frozen=True, slots=True)
class ZoneSet:
    """Lines and zones with their options. ``size``: width and height that the points refer to; (1,
    1): points are in 0..1; None: points are in pixels. ``start``: when a clip starts, or the
    ``strptime`` format of clips' names."""

    shapes: tuple[Shape, ...] = ()
    size: tuple[float, float] | None = None
    point: str = BOTTOM
    every_s: float = INTERVAL_S
    margin: float = MARGIN
    start: str = OWN_NAMES

    def start_of(self, source: str) -> float | None:
        """Return the Unix time of a clip's start; None if unknown. Raises UsageError."""
        if "%" not in self.start:
            return _unix_time(datetime.fromisoformat(self.start))
        name = Path(source).name
        try:
            return _unix_time(datetime.strptime(name, self.start))
        except ValueError as error:
            if self.start == OWN_NAMES:
                return None
            raise UsageError(
                f'{name}: does not match "start", {self.start}; give its start below "clips": '
                f'"{name}": {{start: "2026-11-27 07:00"}}'
            ) from error

    def share(self, point: Point) -> Point:
        """Convert a point to 0..1 of ``size``."""
        width, height = self.size or (1.0, 1.0)
        return point[0] / width, point[1] / height

    def key_of(self, shape: Shape) -> tuple[object, ...]:
        """Return a key that is equal for shapes that differ only in the names of their sides."""
        points = [round(value, DIGITS) for point in shape.points for value in self.share(point)]
        plain = replace(shape, points=(), sides=SIDES)
        return plain, *points, self.point, self.margin

    def check_size(self, path: str, width: int, height: int) -> None:
        """Raise UsageError if points are outside the picture, or ``size`` has other proportions."""
        if self.size is None:
            for shape in self.shapes:
                _check_inside(f"{path}: {shape.name}", shape.points, (width, height))
        elif self.size != (1.0, 1.0):
            of_width, of_height = self.size
            if abs(of_width * height / (of_height * width) - 1) > MOST_STRETCH:
                raise UsageError(
                    f"{path}: made for pictures of {of_width:g}x{of_height:g}, but these have "
                    f'{width}x{height}; draw the lines again, or correct "size" in the file'
                )


@dataclass(frozen=True, slots=True)
class ZonesFile:
    path: str
    default: ZoneSet
    cameras: Mapping[str, ZoneSet]
    clips: Mapping[str, ZoneSet]  # pattern of a file's name -> its section

    def of_camera(self, name: str) -> ZoneSet:
        return self.cameras.get(name, self.default)

    def of_clip(self, source: str) -> ZoneSet:
        """Return the first section that fits the clip, or else the top level. Raises UsageError."""
        name = Path(source).name
        fitting = (
            zones
            for pattern, zones in self.clips.items()
            if fnmatchcase(name, pattern) or fnmatchcase(source, pattern)
        )
        section = next(fitting, self.default)
        if not section.shapes:
            raise UsageError(
                f"{self.path}: has no lines or zones for {name}; add some at the top level, or "
                f'in the section "clips", under "{name}"'
            )
        return section

    def each(self) -> Iterator[ZoneSet]:
        yield from (self.default, *self.cameras.values(), *self.clips.values())


def read_zones(path: str, text: str | None = None) -> ZonesFile:
    """Read a zones file. ``path``: its path, or text that starts with "{" and is the content.
    ``text``: content of a file that is not written yet."""
    if path.startswith("{"):
        text, path = path, "zones"
    text = read_text(path, "a file of lines and zones") if text is None else text
    content = parse_yaml(text, path)
    if not isinstance(content, dict):
        raise UsageError(f'{path}: is not a mapping with the keys "lines" and "zones"; {EXAMPLE}')
    refuse_unknown(path, "key", content, (*OPTIONS, "cameras", "clips"))
    default = _parse_section(path, content, {})
    own = {
        group: {
            str(name): _parse_section(
                f"{path}: {group}.{name}", mapping(f"{path}: {group}", section), content
            )
            for name, section in mapping(f"{path}: {group}", content.get(group) or {}).items()
        }
        for group in ("cameras", "clips")
    }
    file = ZonesFile(path, default, own["cameras"], own["clips"])
    if not any(zones.shapes for zones in file.each()):
        raise UsageError(
            f"{path}: has no lines or zones; draw and save some on the page that this command "
            "writes: detect-video zones SOURCE"
        )
    return file


def mapping(where: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {quote(value)} is not a mapping of names; {EXAMPLE}")
    return value


def _parse_section(where: str, section: dict[Any, Any], above: Mapping[Any, Any]) -> ZoneSet:
    """Read a section. ``above``: the top level, for inherited options; {} to read the top level."""
    if above:
        refuse_unknown(where, "key", section, OPTIONS)
        inherited = [key for key in OPTIONS if key in above and key not in section]
        if not {"lines", "zones"}.isdisjoint(section):
            inherited = [key for key in inherited if key not in ("lines", "zones")]
        section = {**{key: above[key] for key in inherited}, **section}
    point = section.get("point", BOTTOM)
    if point not in (BOTTOM, CENTRE):
        raise UsageError(f"{where}: point: {quote(point)} is neither {BOTTOM} nor {CENTRE}")
    margin = section.get("margin", MARGIN)
    if not _is_number(margin) or not 0 <= margin <= 1:
        raise UsageError(f"{where}: margin: {quote(margin)} is not a fraction of a box, 0 to 1")
    every_s = _parse_seconds(f"{where}: every", section.get("every", INTERVAL_S))
    start = _parse_start(where, section.get("start", OWN_NAMES))
    size = _parse_size(where, section.get("size"))
    classes = _parse_classes(where, section.get("classes"))
    shapes = [
        _parse_shape(f"{where}: {group}", name, given, group == "lines", classes)
        for group in ("lines", "zones")
        for name, given in mapping(f"{where}: {group}", section.get(group) or {}).items()
    ]
    names = [shape.name for shape in shapes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{where}: the name {min(twice)} is used twice; names must be unique")
    if len(shapes) > MOST_SHAPES:
        raise UsageError(f"{where}: more than {MOST_SHAPES} lines and zones; remove some")
    points = [point for shape in shapes for point in shape.points]
    if size is None and points and all(0 <= value <= 1 for point in points for value in point):
        size = (1.0, 1.0)
    for shape in shapes if size is not None else ():
        assert size is not None
        _check_inside(f"{where}: {shape.name}", shape.points, size)
    return ZoneSet(tuple(shapes), size, point, every_s, float(margin), start)


def _parse_shape(
    where: str, name: Any, content: Any, is_line: bool, classes: tuple[str, ...] | None
) -> Shape:
    text = _parse_name(where, name)
    where = f"{where}.{text}"
    if isinstance(content, list):
        content = {"points": content}
    content = mapping(where, content)
    keys = ("points", "classes", *(SIDES if is_line else ("stays",)))
    refuse_unknown(where, "key", content, keys)
    points = _parse_points(f"{where}.points", content.get("points"))
    if is_line:
        if len(points) != 2:
            raise UsageError(f"{where}.points: a line needs 2 points, this one has {len(points)}")
        if points[0] == points[1]:
            raise UsageError(f"{where}.points: the line has no length: both points are the same")
    else:
        _check_polygon(f"{where}.points", points)
    sides = tuple(_parse_name(f"{where}.{side}", content.get(side, side)) for side in SIDES)
    if sides[0] == sides[1]:
        raise UsageError(f'{where}: "in" and "out" have the same name, {sides[0]}; give two names')
    stays = content.get("stays")
    return Shape(
        text,
        points,
        is_line,
        _parse_classes(where, content["classes"]) if "classes" in content else classes,
        None if stays is None else _parse_seconds(f"{where}.stays", stays),
        (sides[0], sides[1]),
    )


def _parse_name(where: str, name: Any) -> str:
    if isinstance(name, bool) or not isinstance(name, (str, int, float)):
        raise UsageError(
            f"{where}: YAML reads the name as {quote(str(name))} (on, off, yes and no are true or "
            'false); put it in quotes: "off"'
        )
    text = str(name)
    if not text.strip() or len(text) > LONGEST_NAME or not text.isprintable():
        raise UsageError(f"{where}: {quote(text)} is not a name of 1 to {LONGEST_NAME} characters")
    return text


def _parse_points(where: str, points: Any) -> tuple[Point, ...]:
    if not isinstance(points, list):
        raise UsageError(f"{where}: is not a list of points: [[x, y], [x, y]]")
    if len(points) > MOST_POINTS:
        raise UsageError(f"{where}: more than {MOST_POINTS} points; remove some")
    for point in points:
        if not isinstance(point, list) or len(point) != 2 or not all(map(_is_number, point)):
            raise UsageError(f"{where}: {quote(point)} is not a point: [x, y], two numbers")
    return tuple((float(x), float(y)) for x, y in points)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parse_seconds(where: str, value: Any) -> float:
    """Parse 60, 60s, 1m or 1h. Raises UsageError unless it is a second to a day."""
    text = str(value).strip() if not isinstance(value, bool) else ""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise UsageError(f"{where}: {quote(value)} is not a time from 1 s to a day (30, 5m, 1h)")
    return seconds


def _parse_start(where: str, value: Any) -> str:
    text = str(value)
    with suppress(ValueError):
        if "%" in text or _unix_time(datetime.fromisoformat(text)) is not None:
            return text
    raise UsageError(
        f"{where}: start: {quote(text)} is neither a date and time (2026-11-27 07:00) nor a "
        "pattern of file names (door-%Y%m%d-%H%M%S.mp4); if a time occurs twice as DST ends, add "
        "its UTC offset: 2026-10-25 02:30+02:00"
    )


def _unix_time(began: datetime) -> float | None:
    """Return the Unix time; None for a local time that occurs twice, as when DST ends."""
    if not 1970 <= began.year < 9999:
        return None
    is_twice = not began.tzinfo and began.timestamp() != began.replace(fold=1).timestamp()
    return None if is_twice else began.timestamp()


def _parse_size(where: str, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(_is_number(side) and side >= 1 for side in value)
    ):
        raise UsageError(f"{where}: size: {quote(value)} is not a width and height: [1280, 720]")
    return float(value[0]), float(value[1])


def _parse_classes(where: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, (str, int)) for name in names):
        raise UsageError(f"{where}: classes: {quote(value)} is not a list of names: [person, car]")
    return tuple(str(name) for name in names)


def _check_inside(where: str, points: Sequence[Point], size: tuple[float, float]) -> None:
    width, height = size
    for x, y in points:
        if not (0 <= x <= width and 0 <= y <= height):
            raise UsageError(
                f"{where}: the point [{x:g}, {y:g}] lies outside the picture of {width:g} x "
                f'{height:g}; if it was drawn for another size, set "size" to that'
            )


def _check_polygon(where: str, points: Sequence[Point]) -> None:
    count = len(points)
    if count > 1 and points[0] == points[-1]:
        raise UsageError(f"{where}: the last point repeats the first; remove it")
    if count < 3:
        raise UsageError(f"{where}: a zone needs at least 3 points, this one has {count}")
    edges = _edges(tuple(points))
    for i, (a, b) in enumerate(edges):
        if a == b:
            raise UsageError(f"{where}: point {i + 1} is repeated")
    if (crossing := _find_crossing(tuple(points))) is not None:
        i, j = crossing
        raise UsageError(
            f"{where}: the zone crosses itself: the edge from point {i + 1} to {i + 2} meets the "
            f"edge from {j + 1} to {(j + 1) % count + 1}; change the order of the points"
        )
    if abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in edges)) < 1e-9:
        raise UsageError(f"{where}: all points lie on one line; a zone has an area")


def _edges(points: tuple[Point, ...]) -> list[tuple[Point, Point]]:
    return list(zip(points, [*points[1:], points[0]], strict=True))


@lru_cache(1000)  # sections of cameras and clips inherit the same zones
def _find_crossing(points: tuple[Point, ...]) -> tuple[int, int] | None:
    """Return two edges of a polygon that meet although they are not neighbours."""
    edges, count = _edges(points), len(points)
    for i in range(count):
        for j in range(i + 2, count):
            if not (i == 0 and j == count - 1) and _meet(*edges[i], *edges[j]):
                return i, j
    return None


def _meet(a: Point, b: Point, c: Point, d: Point) -> bool:
    def side(p: Point, q: Point, r: Point) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    def between(p: Point, q: Point, r: Point) -> bool:
        return min(p[0], q[0]) <= r[0] <= max(p[0], q[0]) and (
            min(p[1], q[1]) <= r[1] <= max(p[1], q[1])
        )

    s, t, u, v = side(a, b, c), side(a, b, d), side(c, d, a), side(c, d, b)
    if s * t < 0 and u * v < 0:
        return True
    touching = ((s, a, b, c), (t, a, b, d), (u, c, d, a), (v, c, d, b))
    return any(turn == 0 and between(p, q, r) for turn, p, q, r in touching)
