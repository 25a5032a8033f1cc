"""Moving vehicles: their shapes with paint, lamps and turning wheels."""

# ruff: noqa: RUF005 -- here + adds arrays; it joins no lists

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np

from street.camera import Camera, Layer, Light, cast_shadow
from street.shapes import SHAPES, Part, Shape

# Colours are BGR.
PAINT = [
    (225, 225, 225),
    (195, 198, 200),
    (120, 122, 125),
    (55, 55, 58),
    (28, 28, 30),
    (40, 35, 150),
    (120, 60, 30),
    (60, 40, 30),
    (150, 160, 165),
    (45, 70, 40),
    (60, 120, 175),
    (230, 230, 228),
    (90, 75, 60),
    (35, 30, 100),
]
BUSES = [(50, 45, 175), (60, 150, 200), (190, 190, 190), (130, 80, 40), (70, 130, 70)]
GLASS = np.array([62.0, 54.0, 48.0])
TRIM = np.array([34.0, 33.0, 32.0])


@dataclass
class Vehicle:
    shape: Shape
    paint: np.ndarray
    heading: float  # radians, 0 = away from the camera
    track: np.ndarray  # [steps, 3] world positions
    rate: float  # steps per second
    driven: np.ndarray  # [steps] metres driven; they set the angle of the wheels
    braking: np.ndarray  # [steps] 1 if the brake lights are on, else 0
    lights: bool = False
    category: int = 2
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.shape.kind

    def at_time(self, table: np.ndarray, t: float) -> np.ndarray:
        place = np.clip(t * self.rate, 0, len(table) - 1)
        i = min(int(place), len(table) - 2)
        return table[i] + (table[i + 1] - table[i]) * (place - i)

    def base(self, t: float) -> np.ndarray:
        return self.at_time(self.track, t)

    def velocity_at(self, t: float) -> np.ndarray:
        """Return the velocity along x, y and z in m/s."""
        return (
            (self.base(t + 0.02) - self.base(t - 0.02)) / 0.04
            if t > 0.02
            else self.base(t + 0.04) * 0
        )

    def place(self, local: np.ndarray, t: float) -> np.ndarray:
        """Convert [N, 3] in the vehicle's axes (u forward, y up, w to the right) to world
        coordinates."""
        forward = np.array([np.sin(self.heading), 0, np.cos(self.heading)])
        right = np.array([np.cos(self.heading), 0, -np.sin(self.heading)])
        local = np.asarray(local, float)
        return (
            self.base(t) + local[:, :1] * forward + local[:, 1:2] * [0, 1, 0] + local[:, 2:] * right
        )

    def corners(self, t: float) -> np.ndarray:
        s = self.shape
        u, w = s.length / 2, s.width / 2 + 0.12
        return self.place(
            np.array([[a, y, b] for a in (-u, u) for y in (0, s.height) for b in (-w, w)]), t
        )

    def draw(self, camera: Camera, light: Light, t: float) -> Layer:
        layer = Layer(camera, self.corners(t))
        if not layer.empty:
            _Body(self, layer, camera, light, t).draw()
        return layer

    def shadows(self, light: Light, t: float) -> list[np.ndarray]:
        outlines = []
        for part in self.shape.parts:
            outline = [
                [u, y, side * h]
                for (u, y), h in zip(part.profile, part.half, strict=True)
                for side in (-1, 1)
            ]
            outlines.append(cast_shadow(self.place(np.array(outline), t), light))
        return outlines

    def footprint(self, t: float) -> np.ndarray:
        u, w = self.shape.length / 2 - 0.1, self.shape.width / 2 - 0.05
        return self.place(np.array([[u, 0, w], [u, 0, -w], [-u, 0, -w], [-u, 0, w]]), t)


class _Body:
    """One vehicle at one instant."""

    def __init__(
        self, vehicle: Vehicle, layer: Layer, camera: Camera, light: Light, t: float
    ) -> None:
        self.v, self.layer, self.camera, self.light, self.t = vehicle, layer, camera, light, t
        eye = camera.eye - vehicle.base(t)
        forward = np.array([np.sin(vehicle.heading), 0, np.cos(vehicle.heading)])
        right = np.array([np.cos(vehicle.heading), 0, -np.sin(vehicle.heading)])
        self.axes = np.stack([forward, np.array([0, 1.0, 0]), right])
        # The camera in the vehicle's axes.
        self.eye = np.array([eye @ forward, eye[1], eye @ right])
        self.near = 1.0 if self.eye[2] > 0 else -1.0  # the side that the camera sees
        self.color = {
            "paint": vehicle.paint,
            "glass": GLASS,
            "trim": TRIM,
            "box": np.array([205.0, 208.0, 210.0]),
            "back": vehicle.paint * 0.8,
        }

    def uv(self, local: np.ndarray) -> np.ndarray:
        return self.camera.project(self.v.place(local, self.t))

    def shade(self, skin: str, normal: np.ndarray) -> np.ndarray:
        world = normal @ self.axes
        if skin == "glass":  # inclined glass reflects the sky
            return self.light.shade(GLASS, world) * 0.75 + self.light.haze * (
                0.12 + 0.3 * max(0.0, normal[1])
            )
        return self.light.shade(self.color[skin], world)

    def faces_camera(self, point: np.ndarray, normal: np.ndarray) -> bool:
        return float((self.eye - point) @ normal) > 0

    def draw(self) -> None:
        for side in (-self.near, self.near):
            for u in self.v.shape.wheels:
                self.draw_tyre(u, side)
        parts = self.v.shape.parts
        if self.v.kind == "truck" and self.eye[0] < 1.9:
            parts = (parts[0], parts[2], parts[1])
        for number, part in enumerate(parts):
            self.draw_strips(part)
            self.draw_side(part)
            if number == 0:
                self.draw_ends()
                for u in self.v.shape.wheels:
                    self.draw_wheel(u)
        if self.v.kind in ("bus", "truck"):  # their lamps are on the last part
            self.draw_ends()
            for u in self.v.shape.wheels:
                self.draw_wheel(u)
        if self.v.kind in ("car", "van"):
            self.draw_mirrors()

    def draw_strips(self, part: Part) -> None:
        points = [
            np.array([[u, y, -h], [u, y, h]])
            for (u, y), h in zip(part.profile, part.half, strict=True)
        ]
        for a, b, skin in zip(points, points[1:], part.skins, strict=False):
            du, dy = b[0, 0] - a[0, 0], b[0, 1] - a[0, 1]
            normal = np.array([dy, -du, 0.0])
            normal /= np.linalg.norm(normal) + 1e-9
            if not self.faces_camera((a[0] + b[1]) / 2, normal):
                continue
            quad = self.uv(np.stack([a[0], a[1], b[1], b[0]]))
            base = self.shade(skin, normal)
            if skin == "glass":
                self.layer.polygon(quad, self.shade("paint", normal) * 0.8)
                centre = quad.mean(0)
                inset = centre + (quad - centre) * [0.88, 0.86]
                self.layer.gradient(
                    inset, [np.clip(base * 1.5 + 12, 0, 255), base * 0.8, base * 1.05]
                )
            elif abs(normal[1]) > 0.7:
                self.layer.gradient(quad, [np.clip(base * 1.12, 0, 255), base * 0.95])
            else:
                self.layer.gradient(quad, [np.clip(base * 1.1, 0, 255), base * 0.78])
            if skin == "back":  # the rear window of a bus
                centre = (a[0] + b[1]) / 2 + [0, 0.3, 0]
                pane = centre + np.array(
                    [[0, 0.45, -0.95], [0, 0.45, 0.95], [0, -0.35, 0.95], [0, -0.35, -0.95]]
                )
                self.layer.polygon(self.uv(pane), self.shade("glass", normal))

    def on_side(self, part: Part, outline: np.ndarray) -> np.ndarray:
        """Convert profile coordinates to points on the vehicle's near side. This side leans
        inwards towards the roof."""
        ys = np.array([p[1] for p in part.profile])
        low, high = part.half[int(ys.argmin())], part.half[int(ys.argmax())]
        share = (outline[:, 1] - ys.min()) / max(1e-6, float(np.ptp(ys)))
        return np.column_stack([outline, self.near * (low + (high - low) * np.clip(share, 0, 1))])

    def draw_side(self, part: Part) -> None:
        ring = np.array(
            [[u, y, self.near * h] for (u, y), h in zip(part.profile, part.half, strict=True)]
        )
        ys = ring[:, 1]
        lean = (part.half[int(ys.argmin())] - part.half[int(ys.argmax())]) / max(
            0.2, float(np.ptp(ys))
        )
        normal = np.array([0, max(-0.5, min(0.6, lean)), self.near])
        normal /= np.linalg.norm(normal)
        if not self.faces_camera(ring[len(ring) // 2], normal):
            return
        base = self.shade(part.paint, normal)
        sky = self.light.haze * 0.1
        stops = [
            np.clip(base * 1.15 + sky, 0, 255),
            base * 1.02,
            base * 0.86,
            base * 0.95,
            base * 0.55,
        ]
        self.layer.gradient(self.uv(ring), stops)
        glass = self.shade("glass", normal)
        for window in part.windows:
            pane = self.on_side(part, np.array(window))
            self.layer.polygon(self.uv(pane), TRIM * 0.9)
            inner = pane.mean(0) + (pane - pane.mean(0)) * [0.94, 0.92, 1.0]
            self.layer.gradient(
                self.uv(inner), [np.clip(glass * 1.45 + 10, 0, 255), glass * 0.9, glass * 0.7]
            )
        if self.v.kind == "car" and not part.windows:
            self.draw_doors(part, base)

    def draw_doors(self, part: Part, base: np.ndarray) -> None:
        cabin = self.v.shape.parts[1].profile
        low, high = part.profile[0][1] + 0.1, part.profile[5][1] - 0.02
        middle = (cabin[0][0] + cabin[4][0]) / 2
        for u in (cabin[0][0] - 0.15, middle, cabin[4][0] + 0.45):
            seam = np.array([[u, low], [u, high], [u - 0.02, high], [u - 0.02, low]])
            self.layer.polygon(self.uv(self.on_side(part, seam)), base * 0.6)
        for u in (middle + 0.12, cabin[4][0] + 0.6):
            top, low_edge = high - 0.13, high - 0.17
            grip = np.array([[u, top], [u + 0.18, top], [u + 0.18, low_edge], [u, low_edge]])
            self.layer.polygon(self.uv(self.on_side(part, grip)), base * 0.65)
        sill = np.array([[1.2, 0.36], [1.2, 0.24], [-1.2, 0.24], [-1.2, 0.36]])
        self.layer.polygon(self.uv(self.on_side(part, sill)), TRIM * 0.8)

    def ring(self, u: float, side: float, r: float, lift: float = 0.0) -> np.ndarray:
        turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        s = self.v.shape
        w = np.full(24, side * (s.width / 2 - 0.04 + lift))
        return np.column_stack([u + r * np.cos(turn), s.radius + r * np.sin(turn), w])

    def draw_tyre(self, u: float, side: float) -> None:
        outer = self.uv(self.ring(u, side, self.v.shape.radius))
        inner = self.uv(self.ring(u, side, self.v.shape.radius, -0.22))
        hull = cv2.convexHull(np.concatenate([outer, inner]).astype(np.float32))[:, 0]
        self.layer.polygon(hull, np.array([22.0, 22.0, 22.0]))

    def draw_wheel(self, u: float) -> None:
        if abs(self.eye[2]) < self.v.shape.width / 2:
            return
        r, side = self.v.shape.radius, self.near
        arch = self.ring(u, side, r * 1.16, 0.02)
        arch[:, 1] = np.maximum(arch[:, 1], r * 0.75)
        self.layer.polygon(self.uv(arch), np.array([16.0, 16.0, 16.0]))
        self.layer.polygon(self.uv(self.ring(u, side, r, 0.03)), np.array([26.0, 26.0, 27.0]))
        metal = self.light.shade(
            np.array([165.0, 165.0, 165.0]), np.array([0, 0.2, 0.0]) + side * self.axes[2]
        )
        self.layer.polygon(self.uv(self.ring(u, side, r * 0.64, 0.035)), metal)
        self.layer.polygon(self.uv(self.ring(u, side, r * 0.56, 0.035)), metal * 0.45)
        angle = -float(self.v.at_time(self.v.driven, self.t)) / r
        w = side * (self.v.shape.width / 2)
        for k in range(5):
            a = angle + k * 2 * np.pi / 5
            tip = np.array([np.cos(a), np.sin(a)]) * r * 0.6
            across = np.array([-np.sin(a), np.cos(a)]) * r * 0.09
            spoke = np.zeros((4, 3))
            spoke[:, :2] = tip + across, tip - across, -across * 1.5, across * 1.5
            self.layer.polygon(self.uv(spoke + [u, r, w]), metal)
        self.layer.polygon(self.uv(self.ring(u, side, r * 0.14, 0.04)), metal * 0.8)

    def paint_end(
        self, end: int, w: tuple[float, float], y: tuple[float, float], color: np.ndarray
    ) -> None:
        """Paint a rectangle on the front (``end`` 1) or the rear (-1)."""
        u = end * (self.v.shape.length / 2 + 0.01)
        quad = np.array([[u, y[0], w[0]], [u, y[0], w[1]], [u, y[1], w[1]], [u, y[1], w[0]]])
        self.layer.polygon(self.uv(quad), color)

    def draw_ends(self) -> None:
        s, half = self.v.shape, self.v.shape.width / 2
        if self.eye[0] > s.length / 2:
            self.draw_nose(s, half)
        elif self.eye[0] < -s.length / 2:
            self.draw_tail(s, half)

    def draw_nose(self, s: Shape, half: float) -> None:
        normal = np.array([1.0, 0, 0])
        dark = self.shade("trim", normal)
        y = s.lamps[0]
        self.paint_end(1, (-half * 0.5, half * 0.5), (y - 0.08, y + 0.05), dark)
        self.paint_end(1, (-half * 0.75, half * 0.75), (y - 0.34, y - 0.22), dark * 0.8)
        plate = self.light.shade(np.array([215.0, 220.0, 220.0]), normal @ self.axes)
        self.paint_end(1, (-0.26, 0.26), (y - 0.21, y - 0.11), plate)
        lamp = np.array([255.0, 255, 255])
        if not self.v.lights:
            lamp = self.light.shade(np.array([235.0, 232, 228]), normal @ self.axes)
        for side in (-1, 1):
            frame = side * half * 0.52, side * half * 0.93
            glass = side * half * 0.56, side * half * 0.9
            self.paint_end(1, frame, (y - 0.09, y + 0.09), dark)
            self.paint_end(1, glass, (y - 0.06, y + 0.07), lamp)

    def draw_tail(self, s: Shape, half: float) -> None:
        normal = np.array([-1.0, 0, 0])
        y = s.lamps[1]
        stop = float(self.v.at_time(self.v.braking, self.t)) > 0.5
        red = np.array([70.0, 60, 255])
        if not (stop or self.v.lights):
            red = self.light.shade(np.array([35.0, 30, 165]), normal @ self.axes)
        for side in (-1, 1):
            self.paint_end(-1, (side * half * 0.62, side * half * 0.95), (y - 0.1, y + 0.1), red)
        plate = self.light.shade(np.array([210.0, 215.0, 215.0]), normal @ self.axes)
        self.paint_end(-1, (-0.26, 0.26), (y - 0.2, y - 0.1), plate)
        self.paint_end(-1, (-half * 0.8, half * 0.8), (0.26, 0.38), self.shade("trim", normal))

    def draw_mirrors(self) -> None:
        cabin = self.v.shape.parts[-1].profile
        u, y = cabin[0][0] - 0.25, cabin[0][1] + 0.12
        w = self.near * (self.v.shape.width / 2 + 0.05)
        quad = np.array(
            [[u, y, w], [u - 0.14, y + 0.02, w], [u - 0.14, y + 0.14, w], [u, y + 0.12, w]]
        )
        self.layer.polygon(self.uv(quad), self.shade("paint", np.array([0, 0.3, self.near])) * 0.8)


def random_vehicle(
    rng: np.random.Generator,
    heading: float,
    track: np.ndarray,
    rate: float,
    driven: np.ndarray,
    braking: np.ndarray,
    lights: bool,
    name: str,
) -> Vehicle:
    table = BUSES if name == "bus" else PAINT
    paint = np.clip(np.array(table[rng.integers(len(table))]) * rng.uniform(0.85, 1.1), 12, 240)
    return Vehicle(SHAPES[name], paint, heading, track, rate, driven, braking, lights)
