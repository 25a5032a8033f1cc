"""Random weights that give the outputs of all layers the same scale.

We run a small picture through the network and scale the weights of each layer so that its output
has a fixed root mean square (a variant of layer-sequential unit variance, arXiv 1511.06422). Other
pictures then give similar outputs and some dozens of boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from detector.core.models.formats.yolo.architecture import (
    Add,
    Architecture,
    ConcatStep,
    ConvStep,
    NetStep,
    PoolStep,
    UpsampleStep,
    Value,
)
from detector.core.models.formats.yolo.weights import FoldedConv
from detector.core.models.graph.build import INPUT

PROBE_CELLS = 4  # height and width of the coarsest feature map of the small picture
# At this scale SiLU is nearly a ReLU, so differences between pictures do not grow with depth.
RMS = 4.0  # root mean square of the outputs of hidden layers
OBJECTNESS = -4.0  # the bias of objectness: some dozens of cells score high, as in a street scene
# Computers differ in the last bits of the outputs. We round the factors and shifts that we compute
# from outputs, so that a seed gives the same weights everywhere.
FACTOR_STEPS, SHIFT_STEPS = 8, 64  # factors: powers of 2 ** (1 / 8); shifts: multiples of 1 / 64

Floats = NDArray[np.float32]
KINDS: dict[str, Callable[[Floats, float], Floats]] = {
    "silu": lambda x, slope: x / (1 + np.exp(-np.clip(x, -60, 60))),
    "leaky": lambda x, slope: np.where(x > 0, x, slope * x),
    "relu": lambda x, slope: np.maximum(x, 0),
}


class RandomNumbers:
    """Random weights. ``probe``: the architecture at an input side of PROBE_CELLS x stride."""

    def __init__(self, probe: Architecture, seed: int) -> None:
        self._stream = np.random.RandomState(seed)
        self._probe = probe
        self._values = {INPUT: self._draw_picture(probe.height, probe.width)}
        self._filters = self._draw_filters()

    def filter(self, step: ConvStep) -> FoldedConv:
        node, folded = next(self._filters)
        assert node == step.node, "filters must be requested in the order of the architecture"
        return folded

    def _draw_picture(self, height: int, width: int) -> Floats:
        """Return a picture [3, h, w] in 0..1: patches of 16 pixels, and noise."""
        patches = self._stream.random_sample((3, -(-height // 16), -(-width // 16)))
        large = patches.repeat(16, axis=1).repeat(16, axis=2)[:, :height, :width]
        return (0.75 * large + 0.25 * self._stream.random_sample(large.shape)).astype(np.float32)

    def _draw_filters(self) -> Iterator[tuple[str, FoldedConv]]:
        for step in self._probe.needed:
            inputs = [self._find_value(value) for value in step.inputs]
            if isinstance(step, ConvStep):
                folded, raw = self._draw(step, inputs[0])
                kind = step.activation.kind
                self._values[step.out.name] = (
                    KINDS[kind](raw, step.activation.slope) if kind in KINDS else raw
                )
                yield step.node, folded
            else:
                self._values[step.out.name] = _run(step, inputs)

    def _find_value(self, value: Value) -> Floats:
        if value.folded is None:
            return self._values[value.name]
        x = self._values[value.folded.name]
        return np.concatenate(
            [x[:, row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
        )

    def _draw(self, step: ConvStep, x: Floats) -> tuple[FoldedConv, Floats]:
        shape = step.stored_shape
        weight = self._stream.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
        bias = 0.05 * self._stream.standard_normal(shape[0])
        raw = convolve(x, weight.astype(np.float32), step)
        head = self._probe.head
        if head is not None and step.out in head.outputs:
            factor = _round_factor(1 / max(float(np.sqrt(raw.var(axis=(1, 2)).mean())), 1e-6))
            bias -= np.round(SHIFT_STEPS * raw.mean(axis=(1, 2)) * factor) / SHIFT_STEPS
            bias.reshape(head.anchors, -1)[:, 4] += OBJECTNESS
        else:
            factor = _round_factor(RMS / max(float(np.sqrt(np.square(raw).mean())), 1e-6))
        scaled = raw * factor + bias[:, None, None]
        return FoldedConv(weight * factor, bias), scaled.astype(np.float32)


def _round_factor(factor: float) -> float:
    return float(2.0 ** (round(FACTOR_STEPS * math.log2(factor)) / FACTOR_STEPS))


def convolve(x: Floats, weight: Floats, step: ConvStep) -> Floats:
    """Convolve x [c, h, w] with weight [n, c / groups, k, k]; return [n, h', w']."""
    padding, groups = step.padding, step.groups
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(1, 2))
    windows = windows[:, :: step.stride, :: step.stride]  # [c, h', w', k, k]
    parts = [
        np.tensordot(part, window, axes=((1, 2, 3), (0, 3, 4)))
        for part, window in zip(np.split(weight, groups), np.split(windows, groups), strict=True)
    ]
    return np.concatenate(parts)


def _run(step: NetStep, inputs: list[Floats]) -> Floats:
    match step:
        case PoolStep():
            padding = step.padding
            pads = ((0, 0), (padding, padding), (padding, padding))
            x = np.pad(inputs[0], pads, constant_values=-np.inf)
            windows = np.lib.stride_tricks.sliding_window_view(
                x, (step.kernel, step.kernel), axis=(1, 2)
            )
            pooled: Floats = windows[:, :: step.stride, :: step.stride].max(axis=(3, 4))
            return pooled
        case UpsampleStep():
            return inputs[0].repeat(step.scale, axis=1).repeat(step.scale, axis=2)
        case ConcatStep():
            return np.concatenate(inputs)
        case Add():
            return inputs[0] + inputs[1]
    raise AssertionError(f"no numpy for {type(step).__name__}")
