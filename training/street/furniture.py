"""Street furniture, which hides people: trees, lamps, signs, bins."""

# ruff: noqa: RUF005 -- arrays are added here, not lists joined

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from street.camera import Camera, Layer, Light, cast_shadow
from street.layout import Layout


@dataclass
class Tree:
    place: np.ndarray
    tall: float
    seed: int

    def base(self, _t: float) -> np.ndarray:
        return self.place

    def draw(self, camera: Camera, light: Light, _t: float) -> Layer:
        rng = np.random.default_rng(self.seed)
        reach = self.tall * 0.36
        layer = Layer(
            camera,
            self.place + np.array([[-reach, 0, 0], [reach, self.tall * 1.05, 0], [0, 0, 0.2]]),
        )
        if layer.empty:
            return layer
        px = camera.focal / max(camera.depth(self.place), 0.5)
        trunk = camera.project(self.place + np.array([[0, 0, 0], [0, self.tall * 0.55, 0]]))
        bark = light.shade(np.array([50.0, 62, 75]), np.array([0, 0.2, 0]))
        layer.limb(trunk[0], trunk[1], self.tall * 0.03 * px, self.tall * 0.018 * px, bark)
        base = np.array([45.0, 95, 65]) * rng.uniform(0.75, 1.25)
        count = int(np.clip(px * 3, 90, 420))
        spread = rng.normal(0, 1, (count, 3))
        spread /= np.linalg.norm(spread, axis=1, keepdims=True) * rng.uniform(1, 1.9, (count, 1))
        side = 1.0 if light.sun @ camera.axes[0] > 0 else -1.0
        for x, y, _ in spread[np.argsort(spread[:, 1] * 0.4 - spread[:, 2])]:
            at = camera.project(
                (self.place + [x * reach * 0.85, self.tall * (0.66 + 0.3 * y), 0])[None]
            )[0]
            gain = 0.72 + 0.38 * y + 0.22 * x * side + rng.uniform(-0.18, 0.18)
            leaf = np.clip(base * gain * (light.ambient + light.direct * 0.6) * 1.1, 0, 255)
            size = rng.uniform(0.05, 0.14) * reach * px
            layer.ellipse(at, (size * 1.3, size), leaf, rng.uniform(0, 3))
        return layer

    def shadows(self, light: Light, _t: float) -> list[np.ndarray]:
        turn = np.linspace(0, 2 * np.pi, 10, endpoint=False)
        r = self.tall * 0.27
        crown = self.place + np.stack(
            [r * np.cos(turn), self.tall * 0.66 + r * np.sin(turn), 0 * turn], 1
        )
        flat = cast_shadow(crown, light)
        foot = self.place + np.array([[-0.12, 0, 0], [0.12, 0, 0]])
        top = cast_shadow(self.place[None] + [[0, self.tall * 0.5, 0]], light)
        return [flat + [0, 0, 1] * (flat - flat.mean(0))[:, :1] * 0.4, np.concatenate([foot, top])]


@dataclass
class Post:
    """A lamp, a traffic light, a sign, a bin or a bollard."""

    place: np.ndarray
    kind: str
    green: bool = False

    def base(self, _t: float) -> np.ndarray:
        return self.place

    def tall(self) -> float:
        return {"lamp": 6.5, "signal": 3.3, "sign": 2.6, "bin": 1.0, "bollard": 0.9}[self.kind]

    def draw(self, camera: Camera, light: Light, _t: float) -> Layer:
        h = self.tall()
        layer = Layer(camera, self.place + np.array([[-0.9, 0, 0], [0.9, h + 0.1, 0]]))
        if layer.empty:
            return layer
        px = camera.focal / max(camera.depth(self.place), 0.5)
        foot, top = camera.project(self.place + np.array([[0, 0, 0], [0, h, 0]]))
        metal = light.shade(np.array([88.0, 90, 88]), np.array([0, 0.3, 0]))
        r = {"lamp": 0.07, "signal": 0.06, "sign": 0.035, "bin": 0.24, "bollard": 0.07}[
            self.kind
        ] * px
        layer.limb(foot, top, r, r * 0.8, metal * 0.7)
        layer.limb(foot + [r * 0.25, 0], top + [r * 0.25, 0], r * 0.5, r * 0.4, metal)
        if self.kind == "lamp":
            layer.limb(top, top + np.array([0.7, -0.02]) * px, 0.05 * px, 0.08 * px, metal * 0.6)
        if self.kind == "sign":
            layer.ellipse(top, (0.3 * px, 0.3 * px), np.array([40.0, 40, 190]))
            layer.ellipse(top, (0.22 * px, 0.22 * px), np.array([225.0, 225, 225]))
        if self.kind == "signal":
            box = top + np.array([[-0.16, 0], [0.16, 0], [0.16, 0.95], [-0.16, 0.95]]) * px
            layer.polygon(box, np.array([25.0, 28, 25]))
            lamps = [
                np.array([60.0, 60, 250]),
                np.array([60.0, 190, 250]),
                np.array([160.0, 240, 60]),
            ]
            for k, color in enumerate(lamps):
                bright = 1.0 if k == (2 if self.green else 0) else 0.22
                layer.ellipse(
                    top + np.array([0, 0.18 + 0.3 * k]) * px, (0.1 * px, 0.1 * px), color * bright
                )
        return layer

    def shadows(self, light: Light, _t: float) -> list[np.ndarray]:
        r = 0.22 if self.kind == "bin" else 0.06
        foot = self.place + np.array([[-r, 0, 0], [r, 0, 0]])
        return [np.concatenate([foot, cast_shadow(foot + [0, self.tall(), 0], light)[::-1]])]


def place_furniture(layout: Layout, rng: np.random.Generator) -> list[Tree | Post]:
    objects: list[Tree | Post] = []
    for sign in (-1.0, 1.0):
        kerb = layout.road_x + sign * (layout.half + 0.6)
        trees = bool(rng.random() < 0.6)
        for z in np.arange(layout.far_zebra[1] + 5, 110, rng.uniform(8, 13)):
            if trees and rng.random() < 0.8:
                place = np.array([kerb + sign * 0.3, 0, z + rng.uniform(-1, 1)])
                objects.append(Tree(place, rng.uniform(4.5, 8), int(rng.integers(1 << 31))))
            elif rng.random() < 0.6:
                objects.append(Post(np.array([kerb, 0, z]), "lamp"))
        signals = [(layout.zebra[0] - 0.6, 0.35), (layout.far_zebra[1] + 0.4, 1.0)]
        for z in [place for place, odds in signals if rng.random() < odds]:
            green = layout.phase == "main"
            objects.append(Post(np.array([kerb, 0, z]), "signal", green))
        back = layout.cross[1] + 0.7
        for x in np.arange(7, 45, rng.uniform(7, 12)):
            kind = str(rng.choice(["lamp", "sign", "bollard", "bin", "tree"]))
            place = np.array([layout.road_x + sign * (layout.half + x), 0, back])
            objects.append(
                Tree(place, rng.uniform(4, 7), int(rng.integers(1 << 31)))
                if kind == "tree"
                else Post(place, kind)
            )
        if layout.park[0 if sign < 0 else 1]:
            for _ in range(int(rng.integers(5, 12))):
                x = layout.road_x + sign * (layout.half + layout.pavement + rng.uniform(2, 26))
                place = np.array([x, 0, layout.cross[1] + layout.pavement + rng.uniform(2, 24)])
                objects.append(Tree(place, rng.uniform(4.5, 9), int(rng.integers(1 << 31))))
    return objects
