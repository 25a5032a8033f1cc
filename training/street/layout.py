"""The layout of a crossing: its roads, zebra crossings and pavements, the camera and the light.

Everything follows from one seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from street.camera import Camera, Light

LANE_M = 3.2


@dataclass(frozen=True)
class Layout:
    road_x: float  # centre of the main road, which runs along z
    half: float  # half the width of the main road
    lanes: int  # lanes in each direction
    zebra: tuple[float, float]  # z of the near zebra crossing over the main road
    cross: tuple[float, float]  # z of the cross street
    pavement: float  # width
    phase: str  # the road that has a green light: "cross" or "main"
    mode: str  # the kind of light: "day", "dusk" or "overcast"
    park: tuple[bool, bool]  # whether the far left and far right corners have trees, not houses

    @property
    def far_zebra(self) -> tuple[float, float]:
        return self.cross[1] + 1.2, self.cross[1] + 4.2

    @property
    def side_zebras(self) -> tuple[tuple[float, float], tuple[float, float]]:
        left, right = self.road_x - self.half, self.road_x + self.half
        return (left - 4.4, left - 1.4), (right + 1.4, right + 4.4)


def random_layout(rng: np.random.Generator) -> Layout:
    lanes = int(rng.choice([1, 1, 2]))
    half = lanes * LANE_M + rng.uniform(0.2, 0.6)
    pavement = rng.uniform(3.0, 4.5)
    zebra = rng.uniform(7.0, 10.0)
    start = zebra + 3.2 + rng.uniform(1.0, 2.5)
    return Layout(
        road_x=float(rng.choice([-1, 1])) * (half + rng.uniform(-1.2, 1.6)),
        half=half,
        lanes=lanes,
        zebra=(zebra, zebra + 3.2),
        cross=(start, start + 2 * LANE_M + rng.uniform(0.2, 0.8)),
        pavement=pavement,
        phase=str(rng.choice(["cross", "cross", "main"])),
        mode=str(rng.choice(["day", "day", "overcast", "dusk"])),
        park=(bool(rng.random() < 0.3), bool(rng.random() < 0.3)),
    )


def aim_camera(layout: Layout, width: int, height: int, rng: np.random.Generator) -> Camera:
    tall = rng.uniform(2.3, 5.2)
    aim = layout.road_x * rng.uniform(0.1, 0.55) + rng.normal(0, 1.0)
    view = np.deg2rad(rng.uniform(42, 56))
    focal = width / 2 / np.tan(view / 2)
    pitch = np.deg2rad(2.0 + 1.9 * tall + rng.uniform(-1.0, 1.0))
    return Camera(
        width, height, focal, np.array([0.0, tall, 0.0]), float(np.arctan2(aim, 20.0)), float(pitch)
    )


def choose_light(mode: str, rng: np.random.Generator) -> Light:
    side = rng.uniform(0.35, 0.95) * rng.choice([-1, 1])
    depth = rng.uniform(-0.9, 0.35)  # the sun is mostly behind the camera
    if mode == "day":
        sun = np.array([side, rng.uniform(0.7, 1.4), depth])
        colors = ([0.75, 0.8, 0.86], [0.66, 0.58, 0.54], 0.46, [225, 210, 195])
    elif mode == "dusk":
        sun = np.array([side, rng.uniform(0.35, 0.55), depth])
        colors = ([0.28, 0.44, 0.6], [0.52, 0.46, 0.44], 0.4, [150, 150, 175])
    else:
        sun = np.array([side, 1.8, depth])
        colors = ([0.2, 0.2, 0.2], [0.9, 0.88, 0.87], 0.0, [205, 203, 200])
    direct, ambient, shadow, haze = colors
    gain = rng.uniform(0.88, 1.08)
    return Light(
        mode,
        sun / np.linalg.norm(sun),
        np.array(direct) * gain,
        np.array(ambient) * gain,
        shadow,
        np.array(haze, float) * gain,
    )
