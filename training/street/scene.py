"""The scene: traffic and walkers, rendered frame by frame with the boxes of visible objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from street.backdrop import draw_shadow, paint_backdrop
from street.furniture import place_furniture
from street.layout import LANE_M, Layout, aim_camera, choose_light, random_layout
from street.people import Person, random_look
from street.shapes import SHAPES
from street.vehicles import Vehicle, random_vehicle

STEP_HZ = 50.0  # time steps of the traffic simulation
SHUTTER = 0.4  # the shutter is open for this share of a frame's time; this gives motion blur
# Boxes are marked as crowd, which evaluators ignore, if their visible share is below LEAST_VISIBLE
# or if they are smaller than SMALLEST (width, height in pixels).
LEAST_VISIBLE = 0.25
SMALLEST = (4, 10)


@dataclass
class Box:
    track: int
    category: int
    kind: str
    xywh: tuple[int, int, int, int]
    area: int
    visibility: float

    @property
    def ignored(self) -> bool:
        is_small = self.xywh[2] < SMALLEST[0] or self.xywh[3] < SMALLEST[1]
        return self.visibility < LEAST_VISIBLE or is_small


class Scene:
    def __init__(self, seed: int, seconds: float, fps: float, width: int, height: int) -> None:
        self.rng = [np.random.default_rng([seed, part]) for part in range(6)]
        self.fps, self.frames = fps, max(1, round(seconds * fps))
        self.layout = random_layout(self.rng[0])
        self.camera = aim_camera(self.layout, width, height, self.rng[0])
        self.light = choose_light(self.layout.mode, self.rng[0])
        self.backdrop = paint_backdrop(self.camera, self.light, self.layout, self.rng[1])
        duration = self.frames / fps
        self.movers: list[Person | Vehicle] = [
            *make_traffic(self.layout, duration, self.rng[2]),
            *make_walkers(self.layout, duration, self.rng[3]),
        ]
        self.still = [
            (thing, thing.draw(self.camera, self.light, 0.0))
            for thing in place_furniture(self.layout, self.rng[4])
        ]
        self.still = [(thing, layer) for thing, layer in self.still if not layer.empty]
        self.grade = _random_grade(self.layout.mode, width, height, self.rng[0])

    def render(self) -> Iterator[tuple[np.ndarray, list[Box]]]:
        for index in range(self.frames):
            yield self.frame(index / self.fps)

    def frame(self, t: float) -> tuple[np.ndarray, list[Box]]:
        """Return the picture (u8 BGR) and the boxes at t seconds.

        Call it in the order of frames, because the noise is one stream of random numbers.
        """
        picture = self.backdrop.picture * self._shadows(t)
        # For each pixel, the number of the mover (person or vehicle) that it shows; 0: none.
        owner = np.zeros(picture.shape[:2], np.int32)
        full_areas = {}  # number -> pixels that the mover would have if nothing hid it
        things = [(self.camera.depth(m.base(t)), 1 + i, m, None) for i, m in enumerate(self.movers)]
        things += [(self.camera.depth(s.base(t)), 0, s, layer) for s, layer in self.still]
        things.append((self.backdrop.near_houses_depth, 0, None, None))
        for depth, number, thing, layer in sorted(things, key=lambda item: -item[0]):
            if thing is None:
                sprite, at, haze, smear = self.backdrop.near_houses, (0, 0), 0.0, np.zeros(2)
                _place(picture, owner, sprite, at, 0, haze, self.light.haze, smear)
                continue
            if depth < 0.5:
                continue
            layer = layer or thing.draw(self.camera, self.light, t)
            if layer.empty:
                continue
            smear = np.zeros(2)
            if number:
                smear = self._smear(thing, t)
            sprite = layer.to_frame_size()
            full_areas[number] = int((sprite[..., 3] > 127).sum())
            at, haze = tuple(layer.origin), self._haze(depth)
            _place(picture, owner, sprite, at, number, haze, self.light.haze, smear)
            if isinstance(thing, Vehicle) and thing.lights:
                self._add_glow(picture, thing, t)
        boxes = [
            b
            for i, m in enumerate(self.movers)
            if (b := _visible_box(owner, 1 + i, m, full_areas.get(1 + i, 0)))
        ]
        return self._expose(picture), boxes

    def _smear(self, mover: Person | Vehicle, t: float) -> np.ndarray:
        """Return by how many pixels (x, y) the mover moves while the shutter is open."""
        here = mover.base(t)
        a, b = self.camera.project(
            np.stack([here, here + mover.velocity_at(t) / self.fps * SHUTTER])
        )
        return b - a

    def _haze(self, depth: float) -> float:
        return float(1 - np.exp(-depth / 230))

    def _shadows(self, t: float) -> np.ndarray:
        """Return the share of light that shadows leave in every pixel. Objects cast soft shadows;
        movers also have contact shadows."""
        cast, contact = self.backdrop.shade.copy(), np.zeros_like(self.backdrop.shade)
        for mover in [*self.movers, *(s for s, _ in self.still)]:
            if self.camera.depth(mover.base(t)) < 1.0:
                continue
            if self.light.shadow:
                for outline in mover.shadows(self.light, t):
                    draw_shadow(cast, self.camera, outline)
            if isinstance(mover, Person | Vehicle):
                draw_shadow(contact, self.camera, mover.footprint(t))
        scale = self.camera.height / 540
        cast = cv2.GaussianBlur(cast, (0, 0), 1.8 * scale)
        contact = cv2.GaussianBlur(contact, (0, 0), 3.0 * scale)
        dark = 1 - (1 - self.light.shadow * cast.astype(np.float32) / 255) * (
            1 - 0.55 * contact.astype(np.float32) / 255
        )
        return (1 - dark * self.backdrop.ground_share)[..., None]

    def _add_glow(self, picture: np.ndarray, vehicle: Vehicle, t: float) -> None:
        s = vehicle.shape
        toward = -vehicle.base(t) @ [np.sin(vehicle.heading), 0, np.cos(vehicle.heading)] > 0
        end, color = (1, [0.9, 0.97, 1.0]) if toward else (-1, [0.1, 0.1, 0.7])
        y = s.lamps[0 if toward else 1]
        lamps = vehicle.place(
            np.array([[end * s.length / 2, y, side * s.width * 0.37] for side in (-1, 1)]), t
        )
        facing = abs(np.cos(vehicle.heading - self.camera.yaw))
        for uv, lamp in zip(self.camera.project(lamps), lamps, strict=True):
            r = int(np.clip(self.camera.focal / max(self.camera.depth(lamp), 1) * 0.9, 3, 90))
            x, y0 = int(uv[0]) - r, int(uv[1]) - r
            a, b = max(0, x), max(0, y0)
            part = picture[b : max(b, y0 + 2 * r), a : max(a, x + 2 * r)]
            if part.size and facing > 0.3:
                yy, xx = np.mgrid[b : b + part.shape[0], a : a + part.shape[1]]
                fall = np.exp(-((xx - uv[0]) ** 2 + (yy - uv[1]) ** 2) / (r * 0.45) ** 2)[..., None]
                part += (150 * facing * fall * np.array(color)).astype(np.float32)

    def _expose(self, picture: np.ndarray) -> np.ndarray:
        gain, sigma, vignette = self.grade
        picture = cv2.GaussianBlur(picture, (0, 0), 0.42) * gain * vignette
        rng, (h, w) = self.rng[5], picture.shape[:2]
        picture += rng.standard_normal((h, w, 1), np.float32) * sigma
        picture += cv2.resize(rng.standard_normal((h // 2, w // 2, 3), np.float32), (w, h)) * (
            sigma * 0.5
        )
        picture = 128 + (picture - 128) * 1.12
        # Compress highlights, like a real camera.
        picture = np.where(picture > 220, 220 + (picture - 220) * 0.6, picture)
        return np.clip(picture, 0, 255).astype(np.uint8)


def _random_grade(
    mode: str, width: int, height: int, rng: np.random.Generator
) -> tuple[np.ndarray, float, np.ndarray]:
    gain = np.float32(1 + rng.uniform(-0.05, 0.05, 3)) * np.float32(rng.uniform(0.95, 1.08))
    sigma = rng.uniform(2.0, 3.5) if mode == "dusk" else rng.uniform(0.8, 1.8)
    yy, xx = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    return gain, float(sigma), (1 - 0.1 * (xx**2 + yy**2)).astype(np.float32)[..., None]


def _place(
    picture: np.ndarray,
    owner: np.ndarray,
    sprite: np.ndarray,
    origin: tuple[int, int],
    number: int,
    haze: float,
    haze_color: np.ndarray,
    smear: np.ndarray,
) -> None:
    """Draw a sprite with motion blur. Mark in ``owner`` the pixels that it covers without the blur.
    ``haze``: the share of ``haze_color`` in the result."""
    x, y = origin
    in_picture, in_sprite = _overlap(picture.shape, x, y, sprite.shape)
    if in_picture is None:
        return
    owner[in_picture][sprite[in_sprite][..., 3] > 127] = number
    length = float(np.hypot(*smear))
    if length > 1.2:
        pad = int(np.ceil(length / 2))
        sprite = cv2.copyMakeBorder(sprite, pad, pad, pad, pad, cv2.BORDER_CONSTANT)
        sprite = cv2.filter2D(sprite, -1, _streak(smear, pad))
        in_picture, in_sprite = _overlap(picture.shape, x - pad, y - pad, sprite.shape)
    sprite = sprite[in_sprite]
    alpha = sprite[..., 3:] / 255
    color = sprite[..., :3] * (1 - haze) + haze_color.astype(np.float32) * (haze * alpha)
    picture[in_picture] = picture[in_picture] * (1 - alpha) + color


def _overlap(shape: tuple, x: int, y: int, size: tuple) -> tuple:
    """Return the slices of the picture and of the sprite in which they overlap, or None twice."""
    x0, y0 = max(0, x), max(0, y)
    x1, y1 = min(shape[1], x + size[1]), min(shape[0], y + size[0])
    if x1 <= x0 or y1 <= y0:
        return None, None
    return (slice(y0, y1), slice(x0, x1)), (slice(y0 - y, y1 - y), slice(x0 - x, x1 - x))


def _streak(smear: np.ndarray, pad: int) -> np.ndarray:
    kernel = np.zeros((2 * pad + 1, 2 * pad + 1), np.float32)
    for f in np.linspace(-0.5, 0.5, 4 * pad + 3):
        x, y = np.round(smear * f).astype(int) + pad
        kernel[min(max(y, 0), 2 * pad), min(max(x, 0), 2 * pad)] += 1
    return kernel / kernel.sum()


def _visible_box(
    owner: np.ndarray, number: int, mover: Person | Vehicle, full_area: int
) -> Box | None:
    if not full_area:
        return None
    mask = owner == number
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return None
    x, y, area = int(columns[0]), int(rows[0]), int(np.count_nonzero(mask))
    box = (x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y)
    return Box(number, mover.category, mover.kind, box, area, round(min(1.0, area / full_area), 4))


def make_traffic(layout: Layout, duration: float, rng: np.random.Generator) -> list[Vehicle]:
    """Make vehicles that follow each other in every lane, and some parked ones."""
    lights = layout.mode == "dusk"
    vehicles: list[Vehicle] = []
    cross_has_green = layout.phase == "cross"
    for lane in range(layout.lanes):
        offset = (lane + 0.5) * LANE_M
        away = np.array([layout.road_x + offset, 0, 0])
        toward = np.array([layout.road_x - offset, 0, 0])
        if cross_has_green:
            stop = -(layout.far_zebra[1] + 1.2)
            vehicles += _drive_lane(
                rng, toward, np.pi, stop - 26, stop, stop, duration, lights, 16.0
            )
            vehicles += _drive_lane(
                rng, away, 0.0, layout.far_zebra[1] + 4, 62.0, None, duration, lights, 30.0
            )
        else:
            vehicles += _drive_lane(
                rng, toward, np.pi, -40.0 - 9 * duration, 8.0, None, duration, lights, 32.0
            )
            vehicles += _drive_lane(
                rng, away, 0.0, -9 * duration, 62.0, None, duration, lights, 34.0
            )
    near, far = layout.cross[0] + LANE_M / 2 + 0.2, layout.cross[1] - LANE_M / 2 - 0.2
    for z, heading, sign in ((near, np.pi / 2, 1.0), (far, -np.pi / 2, -1.0)):
        where = np.array([0, 0, z])
        if cross_has_green:
            vehicles += _drive_lane(
                rng, where, heading, -25.0 - 9 * duration, 18.0, None, duration, lights, 17.0
            )
        else:
            stop = sign * layout.road_x - layout.half - 5.2
            vehicles += _drive_lane(
                rng, where, heading, stop - 30, stop, stop, duration, lights, 9.0
            )
    return vehicles + _park_vehicles(layout, rng, lights)


def _park_vehicles(layout: Layout, rng: np.random.Generator, lights: bool) -> list[Vehicle]:
    vehicles = []
    z = layout.cross[1] + layout.pavement * 0.5
    for sign in (-1.0, 1.0):  # left and right; vehicles have two wheels on the pavement
        x = layout.half + rng.uniform(9, 14)
        while x < 34 and rng.random() < 0.55:
            spot = np.array([layout.road_x + sign * x, 0, z - layout.pavement * 0.5 + 0.6])
            heading = float(rng.choice([-1, 1]) * np.pi / 2)
            name = str(rng.choice(["sedan", "hatch", "suv", "estate", "van"]))
            zeros = np.zeros(2)  # it neither drives nor brakes
            vehicles.append(
                random_vehicle(
                    rng, heading, np.stack([spot, spot]), 1e-6, zeros, zeros, False, name
                )
            )
            x += rng.uniform(5.6, 9)
    return vehicles


def _drive_lane(
    rng: np.random.Generator,
    where: np.ndarray,
    heading: float,
    tail: float,
    head: float,
    stop: float | None,
    duration: float,
    lights: bool,
    mean_gap: float,
) -> list[Vehicle]:
    """Fill a lane with vehicles from ``head`` back to ``tail``, and simulate how they drive.

    ``head``, ``tail`` and ``stop`` (the line of a red light) are in metres along the lane. Uses the
    intelligent-driver model (Treiber et al. 2000, https://arxiv.org/abs/cond-mat/0002177).
    """
    names, odds = list(SHAPES), [0.24, 0.24, 0.14, 0.2, 0.06, 0.05, 0.035, 0.035]
    forward = np.array([np.sin(heading), 0, np.cos(heading)])
    front, cars = head - rng.uniform(0, 6 if stop is None else 1), []
    cruise = rng.uniform(7.0, 10.0)
    while front > tail and len(cars) < 14:
        name = str(rng.choice(names, p=odds))
        vehicle = random_vehicle(
            rng, heading, np.zeros((2, 3)), 1.0, np.zeros(2), np.zeros(2), lights, name
        )
        cars.append((front - vehicle.shape.length / 2, vehicle))
        gap = (
            2.0
            + rng.exponential(3.0)
            + (0 if stop is not None and len(cars) < 2 else rng.exponential(mean_gap * 0.6))
        )
        front -= vehicle.shape.length + gap
    if not cars:
        return []
    s = np.array([c[0] for c in cars])
    length = np.array([c[1].shape.length for c in cars])
    v = np.full(len(cars), cruise)
    if stop is not None:
        v = np.where(np.arange(len(cars)) < 2, 0.0, cruise * 0.6)
    steps = int(duration * STEP_HZ) + 3
    path, slow = np.zeros((steps, len(cars))), np.zeros((steps, len(cars)))
    for k in range(steps):
        path[k] = s
        rears = [[1e3 if stop is None else stop + 2.0], s[:-1] - length[:-1] / 2]
        ahead = np.concatenate(rears) - (s + length / 2)
        lead_v = np.concatenate([[cruise if stop is None else 0.0], v[:-1]])
        desired_gap = 2.0 + v * 1.2 + v * (v - lead_v) / (2 * np.sqrt(1.6 * 2.5))
        closeness = np.maximum(desired_gap, 1.0) / np.maximum(ahead, 0.5)
        accel = np.clip(1.6 * (1 - (v / cruise) ** 4 - closeness**2), -7, 1.6)
        slow[k] = (accel < -0.6) | (v < 0.15)
        v = np.maximum(0, v + accel / STEP_HZ)
        s = s + v / STEP_HZ
    for i, (_, car) in enumerate(cars):
        car.track, car.rate = where + path[:, i : i + 1] * forward, STEP_HZ
        car.driven, car.braking = path[:, i], slow[:, i]
    return [car for _, car in cars]


def make_walkers(layout: Layout, duration: float, rng: np.random.Generator) -> list[Person]:
    people: list[Person] = []

    def add(x: float, z: float, dx: float, dz: float, heading: float = 0.0) -> None:
        tall = float(np.clip(rng.normal(1.71, 0.09), 1.5, 1.95))
        tall *= 0.72 if rng.random() < 0.06 else 1.0  # a child
        start, velocity, phase = np.array([x, z]), np.array([dx, dz]), rng.uniform(0, 6.28)
        people.append(Person(start, velocity, heading, tall, phase, random_look(rng)))

    left, right = layout.road_x - layout.half, layout.road_x + layout.half
    if layout.phase == "cross":
        for low, high, count in (
            (*layout.zebra, rng.integers(6, 11)),
            (*layout.far_zebra, rng.integers(1, 4)),
        ):
            for _ in range(int(count)):
                sign = float(rng.choice([-1, 1]))
                pace = rng.uniform(0.95, 1.6)
                start = rng.uniform(left - 2 - pace * duration * 0.6, right + 2)
                x = start if sign > 0 else left + right - start
                add(x, rng.uniform(low + 0.3, high - 0.3), sign * pace, rng.normal(0, 0.04))
    else:
        for low, high in layout.side_zebras:
            for _ in range(int(rng.integers(3, 6))):
                sign = float(rng.choice([-1, 1]))
                pace = rng.uniform(0.95, 1.6)
                start = rng.uniform(
                    layout.cross[0] - 2 - pace * duration * 0.6, layout.cross[1] + 2
                )
                z = start if sign > 0 else sum(layout.cross) - start
                add(rng.uniform(low + 0.3, high - 0.3), z, rng.normal(0, 0.04), sign * pace)
    for sign in (-1.0, 1.0):
        line = layout.road_x + sign * layout.half
        # Along the main road, on both sides of the crossing.
        for _ in range(int(rng.integers(2, 5))):
            x = line + sign * rng.uniform(1.0, layout.pavement - 0.6)
            pace = rng.uniform(0.9, 1.6) * rng.choice([-1, 1])
            beyond = rng.random() < 0.45
            z = rng.uniform(*((layout.far_zebra[1] + 1, 38) if beyond else (6, layout.zebra[0])))
            if layout.phase == "cross":  # walk away from the cross street, where vehicles drive
                pace = abs(pace) if z > layout.cross[1] else -abs(pace)
            add(x, z, rng.normal(0, 0.03), pace)
        for _ in range(int(rng.integers(1, 5))):  # along the far side of the cross street
            x = line + sign * rng.uniform(3, 22)
            add(
                x,
                layout.cross[1] + rng.uniform(1.6, layout.pavement - 0.5),
                rng.uniform(0.9, 1.5) * rng.choice([-1, 1]),
                0.0,
            )
        for _ in range(int(rng.integers(0, 4))):  # people waiting at the corners
            z = (
                layout.cross[1] + rng.uniform(0.8, 2.5)
                if rng.random() < 0.6
                else layout.zebra[0] - rng.uniform(0.3, 1.5)
            )
            add(line + sign * rng.uniform(0.8, 2.8), z, 0.0, 0.0, rng.uniform(0, 6.28))
    return people
