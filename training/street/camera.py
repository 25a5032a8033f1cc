"""A pinhole camera, the light, and the small canvas on which one object is drawn.

World coordinates are metres: x to the right, y up, z away from the camera. The ground is y = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np

SUBPIXEL = 4  # fractional bits of cv2's drawing functions
NEAR = 0.4  # metres; nearer points are projected as if at this depth


@dataclass
class Camera:
    width: int
    height: int
    focal: float  # pixels
    eye: np.ndarray  # [3]
    yaw: float  # radians, to the right
    pitch: float  # radians, down
    axes: np.ndarray = field(init=False)  # rows: right, up, forward

    def __post_init__(self) -> None:
        cy, sy, cp, sp = np.cos(self.yaw), np.sin(self.yaw), np.cos(self.pitch), np.sin(self.pitch)
        right, forward = np.array([cy, 0, -sy]), np.array([sy * cp, -sp, cy * cp])
        self.axes = np.stack([right, np.cross(forward, right), forward])

    def project(self, points: np.ndarray) -> np.ndarray:
        """Project [N, 3] world to [N, 2] pixels."""
        x, y, z = self.axes @ (np.asarray(points, float) - self.eye).T
        z = np.maximum(z, NEAR)
        return np.stack(
            [self.width / 2 + self.focal * x / z, self.height / 2 - self.focal * y / z], axis=1
        )

    def depth(self, point: np.ndarray) -> float:
        return float(self.axes[2] @ (np.asarray(point, float) - self.eye))

    def ground(self, scale: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return x, z and depth of the ground at each pixel, and whether the pixel shows ground.

        The pixels are those of a picture ``scale`` times larger.
        """
        u = (np.arange(self.width * scale) + 0.5) / scale - self.width / 2
        v = self.height / 2 - (np.arange(self.height * scale) + 0.5) / scale
        rays = (
            u[None, :, None] * self.axes[0]
            + v[:, None, None] * self.axes[1]
            + self.focal * self.axes[2]
        ) / self.focal
        seen = rays[..., 1] < -1e-3
        t = np.where(seen, self.eye[1] / np.maximum(-rays[..., 1], 1e-3), 1e4)
        return self.eye[0] + t * rays[..., 0], self.eye[2] + t * rays[..., 2], t, seen


@dataclass
class Light:
    mode: str  # "day" | "dusk" | "overcast"
    sun: np.ndarray  # unit vector towards the sun
    direct: np.ndarray  # BGR factors
    ambient: np.ndarray
    shadow: float  # 0 = none, 1 = black
    haze: np.ndarray  # BGR 0..255: the colour of distant objects

    def shade(self, color: np.ndarray, normal: np.ndarray, bounce: float = 0.0) -> np.ndarray:
        up = 0.75 + 0.25 * normal[1]
        lit = self.ambient * up + self.direct * max(0.0, float(normal @ self.sun)) + bounce
        return np.clip(np.asarray(color, float) * lit, 0, 255)


class Layer:
    """A premultiplied BGRA canvas for one object.

    The object is drawn ``scale`` times larger and averaged down, which gives soft edges.
    """

    def __init__(self, camera: Camera, points: np.ndarray, margin: float = 2.0) -> None:
        uv = camera.project(points)
        # Also draw up to this far outside the frame: scene.py needs the area of the whole object.
        reach = np.array([camera.width, camera.height]) * 0.35
        low = np.clip(np.floor(uv.min(0) - margin), -reach, None).astype(int)
        high = np.clip(
            np.ceil(uv.max(0) + margin), None, np.array([camera.width, camera.height]) + reach
        ).astype(int)
        self.camera, self.origin = camera, low
        self.size = np.maximum(high - low, 0)
        self.scale = 4 if self.size[1] < 70 else 3 if self.size[1] < 160 else 2
        visible = (
            (high > 0).all()
            and (low < [camera.width, camera.height]).all()
            and (self.size > 1).all()
        )
        self.empty = not visible
        if visible:
            self.canvas = np.zeros(
                (self.size[1] * self.scale, self.size[0] * self.scale, 4), np.uint8
            )

    def pixels(self, uv: np.ndarray) -> np.ndarray:
        """Convert frame pixels to canvas pixels, in cv2's fixed point."""
        limited = np.clip((uv - self.origin) * self.scale, -20000, 20000)
        return np.round((limited - 0.5) * (1 << SUBPIXEL)).astype(np.int32)

    def polygon(self, uv: np.ndarray, color: np.ndarray) -> None:
        b, g, r = (float(c) for c in color)
        cv2.fillPoly(self.canvas, [self.pixels(uv)], (b, g, r, 255.0), cv2.LINE_8, SUBPIXEL)

    def gradient(self, uv: np.ndarray, stops: list[np.ndarray], across: bool = False) -> None:
        """Fill a polygon with colours that change from top to bottom, or from left to right."""
        points = self.pixels(uv)
        height, width = self.canvas.shape[:2]
        low = np.clip(points.min(0) >> SUBPIXEL, 0, [width, height])
        high = np.clip((points.max(0) >> SUBPIXEL) + 2, 0, [width, height])
        extent = points.max(0) - points.min(0) >> SUBPIXEL
        if (high - low).min() <= 0:
            return
        if extent.max() < 10:
            self.polygon(uv, stops[len(stops) // 2])
            return
        mask = np.zeros((high[1] - low[1], high[0] - low[0]), np.uint8)
        cv2.fillPoly(mask, [points - (low << SUBPIXEL).astype(np.int32)], 255, cv2.LINE_8, SUBPIXEL)
        axis = 0 if across else 1
        start = points.min(0)[axis] / (1 << SUBPIXEL)
        place = (np.arange(low[axis], high[axis]) - start) / max(1, extent[axis])
        table = np.stack(
            [
                np.interp(place, np.linspace(0, 1, len(stops)), [s[c] for s in stops])
                for c in range(3)
            ],
            1,
        )
        fill = np.concatenate([table, np.full((len(table), 1), 255.0)], 1).astype(np.uint8)
        ramp = np.broadcast_to(fill[None] if across else fill[:, None], (*mask.shape, 4))
        cv2.copyTo(
            np.ascontiguousarray(ramp), mask, self.canvas[low[1] : high[1], low[0] : high[0]]
        )

    def limb(self, a: np.ndarray, b: np.ndarray, ra: float, rb: float, color: np.ndarray) -> None:
        """Draw a capsule from a to b with a radius at each end, all in frame pixels."""
        self.polygon(capsule(a, b, ra, rb), color)

    def ellipse(
        self, centre: np.ndarray, axes: tuple[float, float], color: np.ndarray, angle: float = 0.0
    ) -> None:
        t = np.linspace(0, 2 * np.pi, 28, endpoint=False)
        c, s = np.cos(angle), np.sin(angle)
        x, y = axes[0] * np.cos(t), axes[1] * np.sin(t)
        self.polygon(np.stack([centre[0] + c * x - s * y, centre[1] + s * x + c * y], 1), color)

    def to_frame_size(self) -> np.ndarray:
        """Return the canvas at frame size, float32 premultiplied BGRA."""
        return cv2.resize(self.canvas, tuple(self.size), interpolation=cv2.INTER_AREA).astype(
            np.float32
        )


ARC = np.linspace(-np.pi / 2, np.pi / 2, 7)


def capsule(a: np.ndarray, b: np.ndarray, ra: float, rb: float) -> np.ndarray:
    along = np.arctan2(b[1] - a[1], b[0] - a[0])
    far = np.stack([b[0] + rb * np.cos(along + ARC), b[1] + rb * np.sin(along + ARC)], 1)
    near = np.stack(
        [a[0] + ra * np.cos(along + np.pi + ARC), a[1] + ra * np.sin(along + np.pi + ARC)], 1
    )
    return np.concatenate([far, near])


def box_corners(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.array(
        [[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])]
    )


def cast_shadow(points: np.ndarray, light: Light) -> np.ndarray:
    """Return the ground points on which the shadows of these points fall."""
    points = np.asarray(points, float)
    flat = points - light.sun * (points[:, 1:2] / max(light.sun[1], 0.2))
    flat[:, 1] = 0
    return flat
