"""Walking people: skeletons with clothes, drawn as shaded limbs."""

# ruff: noqa: RUF005 -- here + adds arrays; it joins no lists

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from street.camera import Camera, Layer, Light, box_corners, capsule, cast_shadow

# Colours are BGR.
SKIN = [
    (150, 180, 225),
    (120, 155, 205),
    (95, 130, 185),
    (65, 95, 145),
    (45, 65, 105),
    (140, 170, 215),
]
HAIR = [
    (25, 25, 28),
    (30, 40, 60),
    (45, 70, 105),
    (90, 140, 180),
    (150, 150, 150),
    (20, 22, 24),
    (35, 45, 90),
]
TOPS = [
    (40, 40, 45),
    (200, 200, 205),
    (60, 50, 150),
    (130, 80, 40),
    (70, 100, 60),
    (90, 90, 95),
    (50, 90, 170),
    (150, 120, 90),
    (60, 60, 200),
    (170, 150, 60),
    (35, 45, 75),
    (95, 60, 110),
    (120, 140, 160),
    (30, 160, 200),
]
BOTTOMS = [
    (70, 50, 35),
    (110, 85, 60),
    (35, 35, 38),
    (60, 75, 95),
    (90, 95, 100),
    (45, 40, 40),
    (120, 130, 140),
]
SHOES = [(25, 25, 28), (220, 220, 220), (40, 55, 80), (60, 60, 65)]


@dataclass
class Person:
    start: np.ndarray  # x, z at t = 0
    velocity: np.ndarray  # dx, dz in m/s; zero for a person who stands
    heading: float  # radians, 0 = away from the camera; computed from the velocity if moving
    tall: float
    phase: float
    look: dict = field(default_factory=dict)
    category: int = 1
    kind: str = "person"
    moving: bool = field(init=False)

    def __post_init__(self) -> None:
        self.moving = bool(np.hypot(*self.velocity) > 0.05)
        if self.moving:
            self.heading = float(np.arctan2(self.velocity[0], self.velocity[1]))

    def base(self, t: float) -> np.ndarray:
        x, z = self.start + self.velocity * t
        return np.array([x, 0.0, z])

    def velocity_at(self, t: float) -> np.ndarray:
        """Return the velocity along x, y and z in m/s."""
        return np.array([self.velocity[0], 0.0, self.velocity[1]])

    def draw(self, camera: Camera, light: Light, t: float) -> Layer:
        base, h = self.base(t), self.tall
        layer = Layer(camera, box_corners(base - [0.6, 0.05, 0.6], base + [0.6, h * 1.08, 0.6]))
        if not layer.empty:
            _Figure(self, camera, light, t).draw(layer)
        return layer

    def shadows(self, light: Light, t: float) -> list[np.ndarray]:
        joints = skeleton(self, t)
        pairs = [
            ("hip_l", "knee_l", 0.09),
            ("knee_l", "ankle_l", 0.06),
            ("hip_r", "knee_r", 0.09),
            ("knee_r", "ankle_r", 0.06),
            ("pelvis", "neck", 0.2),
            ("neck", "head", 0.1),
        ]
        flat = {k: cast_shadow(v[None], light)[0] for k, v in joints.items()}
        outlines = []
        for a, b, r in pairs:
            outline = capsule(flat[a][[0, 2]], flat[b][[0, 2]], r, r)
            outlines.append(np.stack([outline[:, 0], np.zeros(len(outline)), outline[:, 1]], 1))
        return outlines

    def footprint(self, t: float) -> np.ndarray:
        turn = np.linspace(0, 2 * np.pi, 12, endpoint=False)
        return self.base(t) + np.stack([0.28 * np.cos(turn), 0 * turn, 0.28 * np.sin(turn)], 1)


def random_look(rng: np.random.Generator) -> dict:
    def pick(table: list) -> np.ndarray:
        return np.clip(np.array(table[rng.integers(len(table))]) * rng.uniform(0.8, 1.15), 8, 240)

    return {
        "skin": pick(SKIN),
        "hair": pick(HAIR),
        "top": pick(TOPS),
        "bottom": pick(BOTTOMS),
        "shoes": pick(SHOES),
        "long_hair": bool(rng.random() < 0.4),
        "legs": rng.choice(["trousers", "trousers", "trousers", "shorts", "skirt"]),
        "sleeves": bool(rng.random() < 0.7),
        "coat": bool(rng.random() < 0.35),
        "bag": rng.choice(["none", "none", "backpack", "handbag"]),
        "bag_color": pick(TOPS),
        "hat": bool(rng.random() < 0.15),
        "broad": rng.uniform(0.92, 1.15),
        "stride": rng.uniform(0.85, 1.1),
    }


def skeleton(person: Person, t: float) -> dict[str, np.ndarray]:
    """Return the joints in world coordinates."""
    h, broad = person.tall, person.look["broad"]
    forward = np.array([np.sin(person.heading), 0, np.cos(person.heading)])
    side = np.array([np.cos(person.heading), 0, -np.sin(person.heading)])
    up = np.array([0, 1.0, 0])
    pace = float(np.hypot(*person.velocity))
    swing = min(1.0, pace / 1.3) * person.look["stride"]
    cycle = person.phase + t * 2 * np.pi * (0.55 + 0.3 * pace) * (1.7 / h)
    bob = 0.012 * h * swing * np.cos(2 * cycle)
    pelvis = person.base(t) + up * (0.525 * h + bob)
    neck = pelvis + up * (0.30 * h) + forward * (0.02 * h * swing)
    joints = {"pelvis": pelvis, "neck": neck, "head": neck + up * (0.105 * h) + forward * 0.02 * h}
    for name, sign in (("l", -1.0), ("r", 1.0)):
        c = cycle + (0 if sign < 0 else np.pi)
        thigh = 0.45 * swing * np.sin(c)
        # The leg bends while it swings forward.
        bend = swing * (0.12 + 0.85 * max(0.0, np.cos(c)) ** 1.5) + 0.04
        hip = pelvis + side * (sign * 0.052 * h * broad)
        knee = hip + 0.245 * h * (forward * np.sin(thigh) - up * np.cos(thigh))
        shin = thigh - bend
        ankle = knee + 0.24 * h * (forward * np.sin(shin) - up * np.cos(shin))
        foot = shin * 0.6
        toe = ankle + 0.1 * h * (forward * np.cos(foot) + up * (np.sin(foot) - 0.25))
        shoulder = neck + side * (sign * 0.105 * h * broad) - up * 0.03 * h
        arm = -0.42 * swing * np.sin(c) + 0.03
        elbow = (
            shoulder
            + 0.165 * h * (forward * np.sin(arm) - up * np.cos(arm))
            + side * sign * 0.022 * h
        )
        hand = elbow + 0.165 * h * (
            forward * np.sin(arm + 0.25 + 0.25 * swing) - up * np.cos(arm + 0.4 * swing)
        )
        for joint, place in (
            ("hip", hip),
            ("knee", knee),
            ("ankle", ankle),
            ("toe", toe),
            ("shoulder", shoulder),
            ("elbow", elbow),
            ("hand", hand),
        ):
            joints[f"{joint}_{name}"] = place
    return joints


class _Figure:
    """One person at one instant, in pixels."""

    def __init__(self, person: Person, camera: Camera, light: Light, t: float) -> None:
        self.person, self.look, self.light, self.camera = person, person.look, light, camera
        world = skeleton(person, t)
        self.at = dict(zip(world, camera.project(np.stack(list(world.values()))), strict=True))
        self.near = {k: -camera.depth(v) for k, v in world.items()}
        # Pixels per body height.
        self.px = camera.focal / max(camera.depth(person.base(t)), 0.5) * person.tall
        sight = person.base(t) - camera.eye
        self.turn = person.heading - float(np.arctan2(sight[0], sight[2]))  # 0: seen from behind
        self.side = 1.0 if light.sun @ camera.axes[0] > 0 else -1.0
        flat = light.sun * [1, 0, 1]
        facing = -sight * [1, 0, 1]
        frontal = float(flat @ facing / (np.linalg.norm(flat) * np.linalg.norm(facing) + 1e-6))
        self.lit = light.ambient + light.direct * (0.45 + 0.35 * frontal)

    def tint(self, color: np.ndarray, gain: float = 1.0) -> np.ndarray:
        return np.clip(color * self.lit * gain, 0, 255)

    def draw_limb(
        self,
        layer: Layer,
        a: str,
        b: str,
        ra: float,
        rb: float,
        color: np.ndarray,
        gain: float = 1.0,
    ) -> None:
        """Draw a limb, darker on the side away from the light."""
        ra, rb = ra * self.px, rb * self.px
        layer.limb(self.at[a], self.at[b], ra, rb, self.tint(color, 0.68 * gain))
        shift = np.array([self.side * 0.28, -0.05])
        layer.limb(
            self.at[a] + shift * ra,
            self.at[b] + shift * rb,
            ra * 0.7,
            rb * 0.7,
            self.tint(color, gain),
        )

    def draw(self, layer: Layer) -> None:
        away = "l" if self.near["shoulder_l"] < self.near["shoulder_r"] else "r"
        close = "r" if away == "l" else "l"
        behind = np.cos(self.turn) > 0  # seen from behind
        self.draw_arm(layer, away, 0.8)
        if self.look["bag"] == "backpack" and not behind:
            self.draw_backpack(layer)
        for leg in sorted("lr", key=lambda s: self.near[f"ankle_{s}"] + self.near[f"knee_{s}"]):
            self.draw_leg(layer, leg, 0.85 if leg == away else 1.0)
        if not behind:
            self.draw_hair_behind(layer)
        self.draw_torso(layer)
        self.draw_head(layer, behind)
        if self.look["bag"] == "backpack" and behind:
            self.draw_backpack(layer)
        self.draw_arm(layer, close, 1.0)

    def draw_leg(self, layer: Layer, s: str, gain: float) -> None:
        look = self.look
        shin = look["skin"] if look["legs"] in ("shorts", "skirt") else look["bottom"]
        layer.limb(
            self.at[f"ankle_{s}"],
            self.at[f"toe_{s}"],
            0.026 * self.px,
            0.02 * self.px,
            self.tint(look["shoes"], gain),
        )
        loose = 1.0 if shin is look["skin"] else 1.22
        self.draw_limb(layer, f"knee_{s}", f"ankle_{s}", 0.037 * loose, 0.025 * loose, shin, gain)
        self.draw_limb(layer, f"hip_{s}", f"knee_{s}", 0.062, 0.046, look["bottom"], gain)

    def draw_arm(self, layer: Layer, s: str, gain: float) -> None:
        sleeve = (
            self.look["top"] if self.look["sleeves"] or self.look["coat"] else self.look["skin"]
        )
        hand = self.at[f"hand_{s}"]
        layer.ellipse(hand, (0.023 * self.px, 0.03 * self.px), self.tint(self.look["skin"], gain))
        self.draw_limb(layer, f"elbow_{s}", f"hand_{s}", 0.03, 0.021, sleeve, gain)
        self.draw_limb(layer, f"shoulder_{s}", f"elbow_{s}", 0.04, 0.031, self.look["top"], gain)
        if self.look["bag"] == "handbag" and s == "r":
            corner = hand + np.array([0, 0.01]) * self.px
            quad = (
                corner
                + np.array([[-0.05, 0.03], [0.05, 0.03], [0.06, 0.13], [-0.06, 0.13]]) * self.px
            )
            layer.limb(
                self.at["hand_r"],
                corner + [0, 0.04 * self.px],
                0.004 * self.px,
                0.004 * self.px,
                self.tint(self.look["bag_color"], 0.5),
            )
            layer.gradient(
                quad, [self.tint(self.look["bag_color"]), self.tint(self.look["bag_color"], 0.6)]
            )

    def outline(self, levels: list[tuple[float, float, float]]) -> np.ndarray:
        """Return the silhouette of stacked ellipses.

        A level is (position, half width, half depth) of an ellipse. The position is 0 at the pelvis
        and 1 at the neck. Width and depth are in body heights.
        """
        pelvis, neck = self.at["pelvis"], self.at["neck"]
        c, s = np.cos(self.turn), np.sin(self.turn)
        left, right = [], []
        for place, wide, deep in levels:
            centre = pelvis + (neck - pelvis) * place
            half = np.hypot(wide * c, deep * s) * self.px * self.look["broad"]
            left.append(centre - [half, 0])
            right.append(centre + [half, 0])
        return np.array(left + right[::-1])

    def draw_torso(self, layer: Layer) -> None:
        look = self.look
        if look["coat"]:
            levels = [
                (-0.45, 0.105, 0.085),
                (0.0, 0.104, 0.094),
                (0.4, 0.095, 0.084),
                (0.75, 0.118, 0.088),
                (0.9, 0.115, 0.074),
                (0.97, 0.085, 0.055),
                (1.03, 0.04, 0.04),
            ]
        else:
            levels = [
                (-0.14, 0.096, 0.082),
                (0.1, 0.096, 0.086),
                (0.4, 0.088, 0.078),
                (0.75, 0.114, 0.084),
                (0.9, 0.112, 0.07),
                (0.97, 0.08, 0.05),
                (1.03, 0.035, 0.035),
            ]
        if look["legs"] == "skirt":
            skirt = self.outline([(-0.75, 0.13, 0.12), (-0.3, 0.115, 0.1), (0.1, 0.085, 0.07)])
            self.draw_body(layer, skirt, look["bottom"])
        elif not look["coat"]:
            self.draw_body(
                layer, self.outline([(-0.25, 0.095, 0.08), (0.05, 0.094, 0.078)]), look["bottom"]
            )
        self.draw_body(layer, self.outline(levels), look["top"])
        self.draw_folds(layer, levels)
        if look["coat"] and np.cos(self.turn) < -0.5:  # an open coat, from the front
            self.draw_body(
                layer,
                self.outline([(0.1, 0.022, 0.02), (0.6, 0.025, 0.02), (0.98, 0.03, 0.02)]),
                look["skin"],
            )

    def draw_folds(self, layer: Layer, levels: list[tuple[float, float, float]]) -> None:
        """Draw seams and creases, because the colour of real cloth is not uniform."""
        rng = np.random.default_rng(int(self.person.phase * 1e6))
        if self.px < 60:
            return
        low, high = levels[0][0] + 0.06, 0.85
        for _ in range(7):
            place, length, shift = (
                rng.uniform(low, high),
                rng.uniform(0.15, 0.4),
                rng.uniform(-0.7, 0.7),
            )
            outline = self.outline([(place, 0.1, 0.08), (min(0.9, place + length), 0.1, 0.08)])
            middle, half = (outline[0] + outline[3]) / 2, (outline[3] - outline[0]) / 2
            a, b = (
                middle + half * shift,
                (outline[1] + outline[2]) / 2 + half * (shift + rng.uniform(-0.3, 0.3)),
            )
            gain = rng.choice([0.72, 0.8, 1.18])
            layer.limb(a, b, 0.004 * self.px, 0.009 * self.px, self.tint(self.look["top"], gain))
        hem = self.outline(
            [(low - 0.05, levels[0][1], levels[0][2]), (low, levels[0][1], levels[0][2])]
        )
        layer.polygon(hem, self.tint(self.look["top"], 0.62))

    def draw_body(self, layer: Layer, outline: np.ndarray, color: np.ndarray) -> None:
        stops = [self.tint(color, g) for g in (0.5, 0.8, 1.02, 1.16, 1.0)]
        layer.gradient(outline, stops if self.side > 0 else stops[::-1], across=True)

    def draw_backpack(self, layer: Layer) -> None:
        pack = self.outline(
            [(0.3, 0.075, 0.0), (0.35, 0.085, 0.05), (0.8, 0.085, 0.06), (0.95, 0.06, 0.04)]
        )
        shift = -np.sin(self.turn) * 0.085 * self.px
        self.draw_body(layer, pack + [shift, 0], self.look["bag_color"])

    def draw_hair_behind(self, layer: Layer) -> None:
        if self.look["long_hair"]:
            head, px = self.at["head"], self.px
            layer.ellipse(
                head + [0, 0.03 * px], (0.055 * px, 0.085 * px), self.tint(self.look["hair"], 0.7)
            )

    def draw_head(self, layer: Layer, behind: bool) -> None:
        look, px, head = self.look, self.px, self.at["head"]
        layer.limb(self.at["neck"], head, 0.03 * px, 0.028 * px, self.tint(look["skin"], 0.7))
        ahead = np.sin(self.turn)  # > 0: the face looks to the right of the picture
        wide = 0.047 + 0.009 * abs(ahead)
        layer.ellipse(head, (wide * px, 0.066 * px), self.tint(look["skin"], 0.78))
        layer.ellipse(
            head + [self.side * 0.01 * px, 0],
            (wide * 0.75 * px, 0.055 * px),
            self.tint(look["skin"]),
        )
        hair = self.tint(look["hair"])
        if behind:
            layer.ellipse(
                head - [ahead * 0.008 * px, 0.008 * px], (wide * 1.08 * px, 0.058 * px), hair
            )
            if look["long_hair"]:
                layer.ellipse(head + [0, 0.045 * px], (0.05 * px, 0.08 * px), hair)
        else:
            turn = np.linspace(np.pi * 0.98, np.pi * 2.02, 14)
            cap = np.stack([np.cos(turn) * wide * 1.12, np.sin(turn) * 0.068], 1)
            brow = np.array([[wide * 0.9, -0.022], [0.0, -0.034], [-wide * 0.9, -0.022]])
            layer.polygon(head + np.concatenate([cap, brow]) * px - [ahead * 0.008 * px, 0], hair)
            back = head + [-ahead * 0.026 * px, -0.012 * px]
            if abs(ahead) > 0.4:
                layer.ellipse(back, (0.036 * px, 0.05 * px), hair)
            self.draw_face(layer, head, ahead)
        if look["hat"]:
            layer.ellipse(
                head - [0, 0.04 * px], (wide * 1.15 * px, 0.035 * px), self.tint(look["bag_color"])
            )
            layer.ellipse(
                head + [ahead * 0.03 * px, -0.022 * px],
                (0.06 * px, 0.008 * px),
                self.tint(look["bag_color"], 0.6),
            )

    def draw_face(self, layer: Layer, head: np.ndarray, ahead: float) -> None:
        if self.px < 90:
            return
        px, dark = self.px, self.tint(np.array([30.0, 35.0, 45.0]))
        for sign in (-1, 1):
            spot = 0.017 * sign * abs(np.cos(self.turn)) + 0.03 * ahead
            layer.ellipse(head + np.array([spot, -0.006]) * px, (0.006 * px, 0.004 * px), dark)
        layer.ellipse(
            head + np.array([0.034 * ahead, 0.03]) * px,
            (0.012 * px, 0.003 * px),
            self.tint(np.array([70.0, 70.0, 130.0])),
        )
        layer.ellipse(
            head + np.array([0.036 * ahead, 0.012]) * px,
            (0.005 * px, 0.008 * px),
            self.tint(self.look["skin"], 0.75),
        )
