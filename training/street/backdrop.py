"""The background, painted once for all frames: sky, ground and houses."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from street.camera import Camera, Light, cast_shadow
from street.layout import LANE_M, Layout

OVER = 2  # the backdrop is painted this many times larger, then scaled down
WALLS = [
    (120, 145, 175),
    (90, 105, 150),
    (150, 165, 180),
    (175, 185, 190),
    (85, 95, 110),
    (140, 170, 195),
    (105, 120, 135),
    (70, 85, 140),
    (190, 200, 205),
    (130, 135, 130),
]
SIGNS = [
    (40, 40, 180),
    (150, 80, 30),
    (40, 120, 40),
    (30, 30, 30),
    (40, 160, 210),
    (160, 160, 160),
    (90, 40, 110),
]


def noise(
    rng: np.random.Generator, height: int, width: int, cells: int, octaves: int = 4
) -> np.ndarray:
    """Return smooth float32 noise with mean 0. ``cells``: number of bumps along the height in the
    first octave."""
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        n = cells * 2**octave
        grid = rng.standard_normal(
            (min(n, height) + 1, min(max(2, n * width // height), width) + 1)
        ).astype(np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * 0.55**octave
    return total


def paint_sky(camera: Camera, light: Light, rng: np.random.Generator) -> np.ndarray:
    h, w = camera.height * OVER, camera.width * OVER
    top = {"day": [215, 165, 105], "dusk": [130, 95, 85], "overcast": [200, 197, 193]}[light.mode]
    low = {"day": [235, 225, 210], "dusk": [120, 160, 225], "overcast": [222, 220, 218]}[light.mode]
    ramp = np.linspace(0, 1, h)[:, None, None] ** 0.8 * 2.2
    picture = np.array(top) + (np.array(low, float) - top) * np.clip(ramp, 0, 1)
    clouds = np.clip(noise(rng, h, w, 5) * 0.35 + rng.uniform(-0.2, 0.2), 0, 0.8)[..., None]
    white = np.array(low, float) * 1.03
    return picture * np.ones((1, w, 1)) * (1 - clouds) + np.minimum(white, 250) * clouds


def paint_ground(
    camera: Camera, light: Light, layout: Layout, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ground's colour in every pixel, and a mask of the pixels that show ground."""
    x, z, far, seen = (a.astype(np.float32) if a.dtype != bool else a for a in camera.ground(OVER))
    rx, half = layout.road_x, layout.half
    main, crossing = np.abs(x - rx) - half, np.maximum(layout.cross[0] - z, z - layout.cross[1])
    radius = 2.2
    corner = (main > -0.2) & (main < radius) & (crossing > -0.2) & (crossing < radius)
    edge = np.where(
        corner, radius - np.hypot(radius - main, radius - crossing), np.minimum(main, crossing)
    )

    grain = cv2.remap(_tile(rng), _fold(x * 130), _fold(z * 130), cv2.INTER_LINEAR)
    stain = cv2.remap(_tile(rng, 4), _fold(x * 16), _fold(z * 16), cv2.INTER_LINEAR)
    fine = np.clip(12 / np.maximum(far, 1), 0.05, 1.0)
    asphalt = rng.uniform(72, 105) + grain * 7 * fine + stain * 1.5
    picture = asphalt[..., None] * np.array([1.03, 1.0, 0.98], np.float32)

    tile_m = rng.choice([0.5, 0.6, 1.0])
    joints = (
        (((x % tile_m) < 0.03) | ((z % tile_m) < 0.03))
        * np.clip(14 / np.maximum(far, 1), 0, 1)
        * 26
    )
    slab = rng.uniform(135, 170) + grain * 4 * fine + stain * 3 - joints
    tint = np.array([0.97, 1.0, 1.02]) + rng.uniform(-0.03, 0.03, 3)
    picture = np.where((edge > 0)[..., None], slab[..., None] * tint.astype(np.float32), picture)
    grass = np.array([55, 105, 80]) * (1 + 0.12 * grain * fine + 0.08 * stain)[..., None]
    green = (edge > layout.pavement) & (z > layout.cross[0])
    green &= np.where(x < rx, layout.park[0], layout.park[1])
    picture = np.where(green[..., None], grass, picture)
    picture = np.where(
        ((edge > 0) & (edge < 0.16))[..., None], np.array([178.0, 180, 182]), picture
    )
    picture = np.where(((edge > -0.1) & (edge <= 0))[..., None], picture * 0.75, picture)

    wear = (
        np.clip(0.85 + 0.1 * stain + 0.08 * grain, 0.35, 1.0)[..., None]
        * (marks(layout, x, z, edge)[..., None])
    )
    picture = picture * (1 - wear) + np.array([222.0, 225, 226]) * wear
    lit = light.ambient * 0.95 + light.direct * max(0.25, float(light.sun[1])) * 0.9
    picture = picture * lit
    haze = (1 - np.exp(-far / 190))[..., None]
    return picture * (1 - haze) + light.haze * haze, seen


def _tile(rng: np.random.Generator, cells: int = 64) -> np.ndarray:
    return noise(rng, 512, 512, cells, 3).astype(np.float32)


def _fold(place: np.ndarray) -> np.ndarray:
    """Map coordinates into one tile. Mirrored copies of the tile repeat without seams."""
    return np.abs((place % 1020) - 510)


def marks(layout: Layout, x: np.ndarray, z: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Return the painted marks of the road: 1 on paint, 0 elsewhere."""
    dx, half = x - layout.road_x, layout.half
    zn, zc, zf = layout.zebra, layout.cross, layout.far_zebra
    on_main, on_cross = np.abs(dx) < half - 0.15, (z > zc[0] + 0.1) & (z < zc[1] - 0.1)
    stripes = ((dx % 1.0) < 0.5) & on_main
    paint = stripes & (((z > zn[0]) & (z < zn[1])) | ((z > zf[0]) & (z < zf[1])))
    for low, high in layout.side_zebras:
        paint |= ((z % 1.0) < 0.5) & on_cross & (x > low) & (x < high)
    free = (z < zn[0] - 1.0) | (z > zf[1] + 1.0)
    paint |= free & (np.abs(dx) < 0.07) & on_main
    for lane in range(1, layout.lanes):
        for sign in (-1, 1):
            paint |= free & (np.abs(dx - sign * lane * LANE_M) < 0.06) & ((z % 6.0) < 3.0)
    stop_near = (z > zn[0] - 0.9) & (z < zn[0] - 0.5) & (dx > 0.1) & on_main
    stop_far = (z > zf[1] + 0.5) & (z < zf[1] + 0.9) & (dx < -0.1) & on_main
    away = np.abs(dx) > half + 5.4
    middle = (np.abs(z - (zc[0] + zc[1]) / 2) < 0.06) & away & ((x % 4.0) < 2.4)
    return ((paint | stop_near | stop_far | middle) & (edge < -0.1)).astype(np.float32)


def paint_facade(
    rng: np.random.Generator, wide: float, tall: float, ppm: float, light: Light
) -> np.ndarray:
    """Paint a house front at ``ppm`` pixels per metre."""
    ppm = float(np.clip(ppm, 5, 60))
    w, h = max(24, int(wide * ppm)), max(24, int(tall * ppm))
    wall = np.clip(np.array(WALLS[rng.integers(len(WALLS))]) * rng.uniform(0.85, 1.15), 20, 235)
    picture = wall + noise(rng, h, w, 6)[..., None] * 3.5
    if rng.random() < 0.6:  # rows of bricks
        joints = (np.arange(h) % max(2, int(ppm * 0.18))) == 0
        picture[joints] *= 0.93
    floor, shop = rng.uniform(2.9, 3.5), bool(rng.random() < 0.65)
    bay, frame = rng.uniform(1.7, 3.0), wall * rng.choice([1.25, 0.6])
    tall_pane, wide_pane = rng.uniform(1.3, 1.9), rng.uniform(0.9, 1.4)
    lit_share = 0.35 if light.mode == "dusk" else 0.03

    def rect(
        x0: float, y0: float, x1: float, y1: float, color: np.ndarray
    ) -> None:  # in metres; y points up, from the street
        a, b = int(max(0, x0 * ppm)), int(max(0, h - y1 * ppm))
        c, d = int(x1 * ppm), int(max(0, h - y0 * ppm))
        picture[b:d, a:c] = np.clip(color, 0, 255)

    ground_floor = 3.6 if shop else floor
    level = ground_floor + 0.8
    while level + tall_pane < tall - 0.5:
        count = int((wide - 0.8) / bay)
        gap = (wide - count * bay) / 2
        for k in range(count):
            x = gap + k * bay + (bay - wide_pane) / 2
            rect(x - 0.1, level - 0.12, x + wide_pane + 0.1, level + tall_pane + 0.1, frame)
            glass = np.array([88.0, 78, 68]) * rng.uniform(0.6, 1.5)
            if rng.random() < lit_share:
                glass = np.array([120.0, 190, 235])
            rect(x, level, x + wide_pane, level + tall_pane, glass)
            rect(x, level + tall_pane * 0.55, x + wide_pane, level + tall_pane, glass * 1.18)
            middle, top = x + wide_pane / 2, level + tall_pane
            rect(middle - 0.04, level, middle + 0.04, top, frame * 0.9)
            if rng.random() < 0.25:  # a blind
                rect(x, level + tall_pane * 0.5, x + wide_pane, top, np.array([200.0, 205, 208]))
        level += floor
    rect(0, tall - 0.5, wide, tall, wall * 0.72)
    rect(0, tall - 0.62, wide, tall - 0.5, wall * 0.5)
    if shop:
        _paint_shops(rng, rect, wide, light)
    else:
        rect(0, 0, wide, 0.7, wall * 0.6)
        door = rng.uniform(1, wide - 2)
        rect(door, 0, door + 1.1, 2.3, np.array(SIGNS[rng.integers(len(SIGNS))]) * 0.6)
    return np.clip(picture, 0, 255)


def _paint_shops(rng: np.random.Generator, rect, wide: float, light: Light) -> None:
    x = 0.3
    while x < wide - 2:
        w = min(rng.uniform(3, 6), wide - 0.3 - x)
        glass = np.array([150.0, 205, 235]) if light.mode == "dusk" else np.array([85.0, 80, 75])
        rect(x, 0, x + w, 3.3, np.array([50.0, 50, 52]))
        rect(x + 0.15, 0.5, x + w - 0.15, 2.6, glass * rng.uniform(0.7, 1.2))
        for k in range(int(w / 0.5)):  # goods in the window
            tall = rng.uniform(0.3, 1.4)
            a = x + 0.2 + k * 0.5
            rect(a, 0.55, a + rng.uniform(0.15, 0.4), 0.55 + tall, rng.uniform(30, 210, 3))
        rect(
            x + w * 0.45,
            0,
            x + w * 0.45 + 1.0,
            2.5,
            np.array([60.0, 60, 62]) * rng.uniform(0.6, 1.6),
        )
        rect(x, 2.7, x + w, 3.3, np.array(SIGNS[rng.integers(len(SIGNS))]) * 1.0)
        for k in range(int(w / 0.45) - 2):  # bars that look like letters from afar
            rect(
                x + 0.5 + k * 0.4,
                2.85,
                x + 0.5 + k * 0.4 + rng.uniform(0.15, 0.3),
                3.15,
                np.array([225.0, 228, 230]),
            )
        x += w + 0.3


@dataclass
class House:
    # [4, 3] bottom left, bottom right, top right, top left, as seen from the street
    corners: np.ndarray
    normal: np.ndarray

    def depth(self, camera: Camera) -> float:
        return camera.depth(self.corners.mean(0) * [1, 0, 1])


def line_up_houses(layout: Layout, rng: np.random.Generator) -> list[House]:
    houses = []
    for sign in (-1.0, 1.0):
        line = layout.road_x + sign * (layout.half + layout.pavement)
        houses += _house_row(rng, line, sign, 2.0, layout.cross[0] - layout.pavement)
        park = layout.park[0 if sign < 0 else 1]
        start = layout.cross[1] + layout.pavement + (28.0 if park else 0.0)
        houses += _house_row(rng, line, sign, start, 150.0)
        x = line
        while abs(x - line) < 75:  # along the cross street, facing the camera
            wide, tall = rng.uniform(8, 16), rng.uniform(8, 22)
            houses.append(_house_across(*sorted((x, x + sign * wide)), start, tall))
            x += sign * wide
    for x in np.arange(-120, 120, 20.0):  # houses at the end of the view
        houses.append(_house_across(x, x + 20, 150.0, rng.uniform(10, 28)))
    return houses


def _house_across(a: float, b: float, z: float, tall: float) -> House:
    """Return a house that faces the camera, from x = a to b."""
    corners = np.array([[a, 0, z], [b, 0, z], [b, tall, z], [a, tall, z]])
    return House(corners, np.array([0, 0, -1.0]))


def _house_row(
    rng: np.random.Generator, line: float, sign: float, z0: float, z1: float
) -> list[House]:
    houses, z = [], z0
    while z < z1 - 3:
        wide, tall = min(rng.uniform(7, 14), z1 - z), rng.uniform(8, 22)
        a, b = (z, z + wide) if sign < 0 else (z + wide, z)
        corners = np.array([[line, 0, a], [line, 0, b], [line, tall, b], [line, tall, a]])
        houses.append(House(corners, np.array([-sign, 0, 0])))
        z += wide
    return houses


@dataclass
class Backdrop:
    picture: np.ndarray  # the empty street at frame size, float32 BGR
    ground_share: np.ndarray  # the share of each pixel that shows ground
    shade: np.ndarray  # u8, the shadows of the houses
    # The houses in front of the crossing, which hide vehicles; premultiplied BGRA.
    near_houses: np.ndarray
    near_houses_depth: float


def paint_backdrop(
    camera: Camera, light: Light, layout: Layout, rng: np.random.Generator
) -> Backdrop:
    picture = paint_sky(camera, light, rng)
    ground, seen = paint_ground(camera, light, layout, rng)
    picture = np.where(seen[..., None], ground, picture).astype(np.float32)
    ground_share = seen.astype(np.float32)
    houses = line_up_houses(layout, rng)
    near_end = layout.cross[0] - layout.pavement + 0.1
    near_alpha = np.zeros(ground_share.shape, np.float32)
    shade = np.zeros((camera.height, camera.width), np.uint8)
    for house in sorted(houses, key=lambda h: -h.depth(camera)):
        drawn = _paint_house(picture, ground_share, house, camera, light, rng)
        if drawn is not None and house.corners[:, 2].max() < near_end:
            part, inside = drawn
            near_alpha[part][inside > 0] = 255
        if light.shadow and float(house.normal @ light.sun) < 0:
            draw_shadow(
                shade,
                camera,
                np.concatenate([house.corners[:2], cast_shadow(house.corners[2:], light)]),
            )
    size = (camera.width, camera.height)
    picture, ground_share, near_alpha = (
        cv2.resize(a, size, interpolation=cv2.INTER_AREA)
        for a in (picture, ground_share, near_alpha)
    )
    near_houses = np.dstack([picture * (near_alpha[..., None] / 255), near_alpha])
    near_houses_depth = camera.depth(np.array([layout.road_x, 0, near_end]))
    return Backdrop(picture, ground_share, shade, near_houses, near_houses_depth)


def draw_shadow(shade: np.ndarray, camera: Camera, points: np.ndarray) -> None:
    """Draw the convex hull of the ground points that are in front of the camera."""
    ahead = np.array([p for p in points if camera.depth(p) > 0.5])
    if len(ahead) < 3:
        return
    uv = np.clip(camera.project(ahead), -8000, 8000).astype(np.float32)
    cv2.fillConvexPoly(
        shade, np.round(cv2.convexHull(uv)[:, 0] * 16).astype(np.int32), 255, cv2.LINE_AA, 4
    )


def _paint_house(
    picture: np.ndarray,
    ground_share: np.ndarray,
    house: House,
    camera: Camera,
    light: Light,
    rng: np.random.Generator,
) -> tuple | None:
    """Paint a house, and clear ``ground_share`` there. Return the slices of the picture around
    the house, and a mask of the house within the slices; None if the house is not visible."""
    wide = float(np.linalg.norm(house.corners[1] - house.corners[0]))
    near = min(camera.depth(c) for c in house.corners[:2])
    middle = max(1.0, camera.depth(house.corners.mean(0)))
    texture = paint_facade(
        rng, wide, float(house.corners[2, 1]), camera.focal * OVER / max(near, 4.0), light
    )
    if near < 0.5 or float((camera.eye - house.corners[0]) @ house.normal) <= 0:
        return None
    lit = light.ambient + light.direct * max(0.0, float(house.normal @ light.sun))
    haze = 1 - np.exp(-middle / 170)
    texture = (texture * lit * (1 - haze) + light.haze * haze).astype(np.float32)
    h, w = texture.shape[:2]
    uv = (camera.project(house.corners) * OVER).astype(np.float32)
    low = np.clip(np.floor(uv.min(0)), 0, None).astype(int)
    high = np.minimum(np.ceil(uv.max(0)).astype(int) + 1, [picture.shape[1], picture.shape[0]])
    if (high - low).min() <= 0:
        return None
    source = np.array([[0, h], [w, h], [w, 0], [0, 0]], np.float32)
    matrix = cv2.getPerspectiveTransform(source, uv - low.astype(np.float32))
    size = tuple(int(n) for n in high - low)
    warped = cv2.warpPerspective(
        texture, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    inside = np.zeros((size[1], size[0]), np.uint8)
    cv2.fillConvexPoly(inside, np.round((uv - low) * 16).astype(np.int32), 1, cv2.LINE_8, 4)
    part = (slice(low[1], high[1]), slice(low[0], high[0]))
    cv2.copyTo(warped, inside, picture[part])
    ground_share[part][inside > 0] = 0
    return part, inside
