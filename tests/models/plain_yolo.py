"""The blocks of YOLOv5 and YOLOv7 in plain numpy, for one picture. Tests compare graphs with them.

Normalisation is not folded into the weights of convolutions.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from detector.core.models.formats.yolo.architecture import Architecture, ConvStep
from tests.known_answers import plain_conv

EPSILON = 1e-3


def random_tensors(architecture: Architecture, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}

    def weight(name: str, shape: tuple[int, ...]) -> None:
        tensors[name] = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(
            np.float32
        )

    def vector(name: str, count: int, about: float = 0.0) -> None:
        tensors[name] = (about + 0.2 * random.standard_normal(count)).astype(np.float32)

    def norm(path: str, count: int) -> None:
        vector(f"{path}.weight", count, 1.0)
        vector(f"{path}.bias", count)
        vector(f"{path}.running_mean", count)
        tensors[f"{path}.running_var"] = (0.5 + random.random(count)).astype(np.float32)

    def plain(step: ConvStep) -> None:
        weight(f"{step.path}.weight", step.stored_shape)
        vector(f"{step.path}.bias", step.out.channels)

    def implicit(step: ConvStep) -> None:
        plain(step)
        added, multiplied = step.implicit_names
        vector(added, step.stored_shape[1])
        vector(multiplied, step.out.channels, 1.0)
        tensors[added] = tensors[added].reshape(1, -1, 1, 1)
        tensors[multiplied] = tensors[multiplied].reshape(1, -1, 1, 1)

    def normed(step: ConvStep) -> None:
        weight(f"{step.path}.conv.weight", step.stored_shape)
        norm(f"{step.path}.bn", step.out.channels)

    def rep(step: ConvStep) -> None:
        weight(f"{step.path}.rbr_dense.0.weight", step.stored_shape)
        norm(f"{step.path}.rbr_dense.1", step.out.channels)
        weight(f"{step.path}.rbr_1x1.0.weight", (*step.stored_shape[:2], 1, 1))
        norm(f"{step.path}.rbr_1x1.1", step.out.channels)
        if step.identity:
            norm(f"{step.path}.rbr_identity", step.out.channels)

    for step in architecture.convolutions:
        {"plain": plain, "implicit": implicit, "normed": normed, "rep": rep}[step.form](step)
    return tensors


def silu(x: NDArray) -> NDArray:
    return x / (1 + np.exp(-x))


class Plain:
    def __init__(self, tensors: Mapping[str, NDArray], activation=silu) -> None:
        self.t, self.activation = tensors, activation

    def norm(self, path: str, x: NDArray) -> NDArray:
        weight, bias, mean, variance = (
            self.t[f"{path}.{part}"].astype(np.float64)[:, None, None]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return weight * (x - mean) / np.sqrt(variance + EPSILON) + bias

    def conv(
        self, path: str, x: NDArray, stride: int = 1, groups: int = 1, activation=None
    ) -> NDArray:
        weights = self.t[f"{path}.conv.weight"]
        padding = weights.shape[2] // 2
        out = plain_conv(x, weights, stride=(stride, stride), padding=padding, groups=groups)
        return (activation or self.activation)(self.norm(f"{path}.bn", out))

    def detect(self, path: str, x: NDArray) -> NDArray:
        return plain_conv(x, self.t[f"{path}.weight"]) + self.t[f"{path}.bias"][:, None, None]

    def implicit_detect(self, head: str, at: int, x: NDArray) -> NDArray:
        added = x + self.t[f"{head}.ia.{at}.implicit"][0]
        return self.t[f"{head}.im.{at}.implicit"][0] * self.detect(f"{head}.m.{at}", added)

    def focus(self, path: str, x: NDArray) -> NDArray:
        return self.conv(f"{path}.conv", every_second_pixel(x))

    def bottleneck(self, path: str, x: NDArray, shortcut: bool = True, groups: int = 1) -> NDArray:
        out = self.conv(f"{path}.cv2", self.conv(f"{path}.cv1", x), groups=groups)
        return x + out if shortcut and out.shape == x.shape else out

    def c3(self, path: str, x: NDArray, repeats: int, shortcut: bool = True) -> NDArray:
        through = self.conv(f"{path}.cv1", x)
        for at in range(repeats):
            through = self.bottleneck(f"{path}.m.{at}", through, shortcut)
        return self.conv(f"{path}.cv3", np.concatenate([through, self.conv(f"{path}.cv2", x)]))

    def spp(self, path: str, x: NDArray, kernels: tuple[int, ...] = (5, 9, 13)) -> NDArray:
        x = self.conv(f"{path}.cv1", x)
        return self.conv(
            f"{path}.cv2", np.concatenate([x, *(max_pool(x, kernel) for kernel in kernels)])
        )

    def rep_conv(self, path: str, x: NDArray, stride: int = 1, groups: int = 1) -> NDArray:
        step = {"stride": (stride, stride), "groups": groups}
        dense = plain_conv(x, self.t[f"{path}.rbr_dense.0.weight"], padding=1, **step)
        point = plain_conv(x, self.t[f"{path}.rbr_1x1.0.weight"], **step)
        out = self.norm(f"{path}.rbr_dense.1", dense) + self.norm(f"{path}.rbr_1x1.1", point)
        if f"{path}.rbr_identity.weight" in self.t:
            out = out + self.norm(f"{path}.rbr_identity", x)
        return self.activation(out)

    def sppcspc(self, path: str, x: NDArray) -> NDArray:
        before = self.conv(f"{path}.cv4", self.conv(f"{path}.cv3", self.conv(f"{path}.cv1", x)))
        pyramid = np.concatenate([before, *(max_pool(before, kernel) for kernel in (5, 9, 13))])
        after = self.conv(f"{path}.cv6", self.conv(f"{path}.cv5", pyramid))
        return self.conv(f"{path}.cv7", np.concatenate([after, self.conv(f"{path}.cv2", x)]))

    def down_c(self, path: str, x: NDArray) -> NDArray:
        strided = self.conv(f"{path}.cv2", self.conv(f"{path}.cv1", x), stride=2)
        return np.concatenate([strided, self.conv(f"{path}.cv3", max_pool(x, 2, 2, 0))])


def every_second_pixel(x: NDArray) -> NDArray:
    """Turn 2x2 blocks into channels like YOLOX: top left, bottom left, top right, bottom right."""
    return np.concatenate([x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]])


def max_pool(x: NDArray, kernel: int, stride: int = 1, padding: int | None = None) -> NDArray:
    padding = kernel // 2 if padding is None else padding
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)), constant_values=-np.inf)
    rows = range(0, x.shape[1] - kernel + 1, stride)
    columns = range(0, x.shape[2] - kernel + 1, stride)
    return np.array(
        [[x[:, y : y + kernel, c : c + kernel].max(axis=(1, 2)) for c in columns] for y in rows]
    ).transpose(2, 0, 1)


def upsample(x: NDArray) -> NDArray:
    return x.repeat(2, axis=1).repeat(2, axis=2)
