"""The shapes of vehicles: side profiles extruded to a width, with windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Part:
    """A part of a vehicle: a side profile, extruded to a width that may differ at each point.

    Profile coordinates: u forward along the vehicle, y up, in metres.
    """

    # Points from the lower front over the top to the lower rear.
    profile: tuple[tuple[float, float], ...]
    half: tuple[float, ...]  # half the width at each point
    skins: tuple[str, ...]  # from each point to the next: paint, glass, trim, box or back
    # Outlines on both sides, in profile coordinates.
    windows: tuple[tuple[tuple[float, float], ...], ...] = ()
    paint: str = "paint"  # the skin of the sides


@dataclass(frozen=True)
class Shape:
    kind: str
    length: float
    width: float
    height: float
    wheels: tuple[float, ...]  # u of the axles
    radius: float  # the radius of the wheels
    parts: tuple[Part, ...]
    lamps: tuple[float, float]  # heights of head and tail lamps


def _car(
    kind: str, length: float, height: float, belt: float, hood: float, cabin: tuple[float, ...]
) -> Shape:
    """Return a car with a cabin on a lower body.

    ``cabin``: u of the windscreen's lower edge, the front and rear edges of the roof, and the rear
    window's lower edge, as fractions of the length.
    """
    width = 1.78 + 0.12 * (height > 1.6)
    a, b, c, d = (f * length for f in cabin)
    half, nose = width / 2, length / 2
    lower = Part(
        profile=(
            (nose - 0.06, 0.22),
            (nose, 0.42),
            (nose - 0.04, 0.66),
            (nose - 0.22, hood - 0.06),
            (a, hood + 0.06),
            (d, belt),
            (max(-nose + 0.12, -nose), belt - 0.04),
            (-nose, 0.6),
            (-nose + 0.08, 0.24),
        ),
        half=(
            half * 0.9,
            half * 0.95,
            half * 0.94,
            half * 0.93,
            half,
            half,
            half * 0.92,
            half * 0.95,
            half * 0.9,
        ),
        skins=("trim", "paint", "paint", "paint", "paint", "paint", "paint", "trim"),
    )
    top, roof = height, half * 0.74
    sill, lintel = belt + 0.03, top - 0.09

    def edge(y: float, low: tuple[float, float], high: tuple[float, float]) -> float:
        return low[0] + (high[0] - low[0]) * (y - low[1]) / (high[1] - low[1])

    screen, rear = ((a, hood + 0.02), (b, top)), ((d, belt - 0.03), (c, top))
    pillar = a * 0.2 + d * 0.3 + b * 0.25 + c * 0.25 - 0.05
    first = (
        (edge(sill, *screen) - 0.14, sill),
        (edge(lintel, *screen) - 0.1, lintel),
        (pillar + 0.04, lintel),
        (pillar + 0.06, sill),
    )
    second = (
        (pillar - 0.04, sill),
        (pillar - 0.05, lintel),
        (edge(lintel, *rear) + 0.14, lintel),
        (edge(sill, *rear) + 0.3, sill),
    )
    upper = Part(
        profile=(
            (a, hood + 0.02),
            (b, top - 0.03),
            ((b + c) / 2, top),
            (c, top - 0.03),
            (d, belt - 0.03),
        ),
        half=(half * 0.96, roof, roof, roof, half * 0.96),
        skins=("glass", "paint", "paint", "glass"),
        windows=(first, second),
    )
    return Shape(
        kind,
        length,
        width,
        height,
        (0.31 * length, -0.3 * length),
        0.31 + 0.04 * (height > 1.6),
        (lower, upper),
        (0.66, 0.8),
    )


def _van(windows: bool) -> Shape:
    length, height, half = 5.3, 2.15, 0.98
    lower = Part(
        (
            (2.6, 0.25),
            (2.65, 0.5),
            (2.58, 0.85),
            (2.2, 1.12),
            (1.95, 1.18),
            (-2.65, 1.18),
            (-2.65, 0.28),
        ),
        (0.9, 0.95, 0.95, 0.95, half, half, 0.95),
        ("trim", "paint", "paint", "paint", "paint", "paint"),
    )
    panes: list = [((1.85, 1.22), (1.3, 1.92), (0.45, 1.92), (0.45, 1.22))]
    if windows:
        panes += [
            ((0.35, 1.25), (0.35, 1.92), (-1.0, 1.92), (-1.0, 1.25)),
            ((-1.1, 1.25), (-1.1, 1.92), (-2.4, 1.92), (-2.4, 1.25)),
        ]
    upper = Part(
        ((2.05, 1.15), (1.35, 2.06), (1.1, height), (-2.5, height), (-2.63, 1.15)),
        (half, 0.82, 0.8, 0.8, half),
        ("glass", "paint", "paint", "glass" if windows else "paint"),
        tuple(panes),
    )
    return Shape("van", length, 2 * half, height, (1.7, -1.6), 0.34, (lower, upper), (0.78, 0.95))


def _bus() -> Shape:
    length, height, half = 11.0, 3.1, 1.25
    panes = [((5.3, 1.35), (5.25, 2.55), (4.5, 2.55), (4.5, 1.35))]
    panes += [
        ((u, 1.35), (u, 2.55), (u - 1.28, 2.55), (u - 1.28, 1.35))
        for u in np.arange(4.35, -4.2, -1.4)
    ]
    doors = [((u, 0.45), (u, 2.55), (u - 0.95, 2.55), (u - 0.95, 0.45)) for u in (4.35, -0.2)]
    body = Part(
        (
            (5.4, 0.32),
            (5.5, 1.15),
            (5.42, 2.75),
            (5.2, height),
            (-5.3, height),
            (-5.5, 1.3),
            (-5.45, 0.35),
        ),
        (1.2, half, half, 1.15, 1.15, half, 1.2),
        ("paint", "glass", "paint", "paint", "back", "paint"),
        tuple(panes + doors),
    )
    return Shape("bus", length, 2 * half, height, (2.9, -2.9), 0.48, (body,), (0.75, 1.0))


def _truck() -> Shape:
    cab = Part(
        ((3.75, 0.4), (3.85, 1.2), (3.7, 1.5), (3.4, 2.4), (3.1, 2.55), (1.95, 2.55), (1.95, 0.5)),
        (1.05, 1.1, 1.1, 1.0, 0.98, 0.98, 1.05),
        ("trim", "paint", "glass", "paint", "paint", "paint"),
        (((3.5, 1.45), (3.25, 2.25), (2.35, 2.25), (2.35, 1.45)),),
    )
    cargo = Part(
        ((1.8, 0.8), (1.8, 3.2), (-3.8, 3.2), (-3.8, 0.8)),
        (1.18,) * 4,
        ("box", "box", "box"),
        paint="box",
    )
    frame = Part(
        ((3.4, 0.4), (3.4, 0.85), (-3.7, 0.85), (-3.7, 0.45)),
        (0.9,) * 4,
        ("trim",) * 3,
        paint="trim",
    )
    return Shape("truck", 7.65, 2.36, 3.2, (2.75, -2.3), 0.46, (frame, cargo, cab), (0.8, 0.75))


SHAPES = {
    "sedan": _car("car", 4.6, 1.45, 0.96, 0.84, (0.22, 0.07, -0.18, -0.36)),
    "hatch": _car("car", 4.0, 1.5, 0.97, 0.88, (0.25, 0.09, -0.36, -0.47)),
    "estate": _car("car", 4.7, 1.5, 0.96, 0.86, (0.22, 0.07, -0.4, -0.48)),
    "suv": _car("car", 4.6, 1.72, 1.1, 1.02, (0.24, 0.1, -0.38, -0.47)),
    "van": _van(False),
    "minibus": _van(True),
    "bus": _bus(),
    "truck": _truck(),
}
