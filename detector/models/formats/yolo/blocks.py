"""Rows -> steps: the blocks that YOLOv5 and YOLOv7 share. A block is a function; adding one is one row of its table.

Channels that a row asks for are those of its output; names of parts are those of the originals' state dicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from detector.models.formats.checkpoint.contents import Module
from detector.models.formats.yolo.description import LINEAR, Activation, Row, activation_of
from detector.models.formats.yolo.steps import (
    Add,
    Concat,
    Convolution,
    DetectionLayers,
    MaxPool,
    Plan,
    Step,
    Upsample,
    Value,
)

# Limits against files that only look like a network; the largest published ones stay far below.
MAX_TENSOR = 1 << 28  # numbers of one picture in one value, 1 GiB
MAX_PARAMETERS = 400_000_000  # 1.6 GB; an ONNX file ends at 2 GB
MAX_STEPS = 20_000


@dataclass(slots=True)
class Planner:
    """Adds steps to a plan. ``modules``: what a checkpoint says of its own; it may name other activations."""

    plan: Plan
    activation: Activation
    modules: Mapping[str, Module] = field(default_factory=dict)
    row: Row | None = None  # the one being planned, for messages
    parameters: int = 0

    def conv(
        self,
        path: str,
        x: Value,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        activation: Activation | None = None,
    ) -> Value:
        """Convolution, batch normalisation, activation: the block Conv, with its parts path.conv, path.bn, path.act."""
        activation = self._stored_activation(path) or activation or self.activation
        return self.convolution(path, x, channels, kernel, stride, padding, groups, activation)

    def convolution(
        self,
        path: str,
        x: Value,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        activation: Activation = LINEAR,
        *,
        form: str = "normed",
        add: str = "",
        multiply: str = "",
    ) -> Value:
        assert self.row is not None
        padding = kernel // 2 if padding is None else padding
        if x.channels % groups or channels % groups:
            raise self.row.error(
                f"{groups} groups do not divide {x.channels} or {channels} channels"
            )
        node = {"normed": f"{path}.conv", "rep": f"{path}.rbr_reparam"}.get(form, path)
        height, width = (_side(side, kernel, stride, padding) for side in (x.height, x.width))
        step = Convolution(
            path=path,
            inputs=(x,),
            out=self._value(
                node if activation == LINEAR else f"{path}.act", channels, height, width
            ),
            form=form,
            kernel=kernel,
            stride=stride,
            padding=padding,
            groups=groups,
            activation=activation,
            node=node,
            add=add,
            multiply=multiply,
        )
        self.parameters += step.parameters
        if self.parameters > MAX_PARAMETERS:
            raise self.row.error(
                f"up to here the network needs more than {MAX_PARAMETERS} parameters; check channels"
            )
        return self._add(step)

    def max_pool(
        self, path: str, x: Value, kernel: int, stride: int = 1, padding: int | None = None
    ) -> Value:
        padding = kernel // 2 if padding is None else padding
        height, width = (_side(side, kernel, stride, padding) for side in (x.height, x.width))
        out = self._value(path, x.channels, height, width)
        return self._add(
            MaxPool(path=path, inputs=(x,), out=out, kernel=kernel, stride=stride, padding=padding)
        )

    def concat(self, path: str, parts: Sequence[Value]) -> Value:
        assert self.row is not None
        if len({(part.height, part.width) for part in parts}) > 1:
            raise self.row.error(
                f"joins maps of different sizes: {', '.join(part.size for part in parts)}"
            )
        if len(parts) == 1:
            return parts[0]
        out = self._value(
            path, sum(part.channels for part in parts), parts[0].height, parts[0].width
        )
        return self._add(Concat(path=path, inputs=tuple(parts), out=out))

    def add(self, path: str, a: Value, b: Value) -> Value:
        assert self.row is not None
        if (a.channels, a.height, a.width) != (b.channels, b.height, b.width):
            raise self.row.error(
                f"adds {a.channels} channels of {a.size} to {b.channels} of {b.size}"
            )
        return self._add(
            Add(path=path, inputs=(a, b), out=self._value(path, a.channels, a.height, a.width))
        )

    def upsample(self, path: str, x: Value, scale: int) -> Value:
        out = self._value(path, x.channels, x.height * scale, x.width * scale)
        return self._add(Upsample(path=path, inputs=(x,), out=out, scale=scale))

    def every_second_pixel(self, path: str, x: Value) -> Value:
        """2x2 pixels to 4 times the channels. Only a convolution can read it: then it reads ``x`` (see build.py)."""
        assert self.row is not None
        if x.folded is not None:
            raise self.row.error("follows another of its kind; a convolution must stand between")
        if x.height % 2 or x.width % 2:
            raise self.row.error(f"halves a map of {x.size}, whose sides must be even")
        return Value(path, 4 * x.channels, x.height // 2, x.width // 2, folded=x)

    def _stored_activation(self, path: str) -> Activation | None:
        """What the checkpoint's own module path.act is; None where it does not say."""
        module = self.modules.get(f"{path}.act")
        if module is None:
            return None
        assert self.row is not None
        name, slope = module.path.rpartition(".")[2], module.settings.get("negative_slope", 0.01)
        found = activation_of(name, slope if isinstance(slope, float) else -1.0)
        if found is None:
            raise self.row.error(
                f"its activation {module.path} is not supported; export the model to ONNX instead"
            )
        return found

    def _value(self, name: str, channels: int, height: int, width: int) -> Value:
        assert self.row is not None
        if height < 1 or width < 1:
            raise self.row.error(
                f"nothing is left of an input of {self.plan.width}x{self.plan.height}; use a larger one"
            )
        if channels * height * width > MAX_TENSOR or channels > 65_536:
            raise self.row.error(
                f"gives {channels} channels of {width}x{height}; check channels, or use a smaller --size"
            )
        return Value(name, channels, height, width)

    def _add(self, step: Step) -> Value:
        assert self.row is not None
        for value in step.inputs:
            first = value.name == "images" or (
                value.folded is not None and value.folded.name == "images"
            )
            if (value.folded or first) and not isinstance(step, Convolution):
                what = "the picture" if first else f"the output of {value.name}"
                raise self.row.error(f"reads {what}; only a convolution can")
        if len(self.plan.steps) >= MAX_STEPS:
            raise self.row.error(f"more than {MAX_STEPS} steps; check repeats")
        self.plan.steps.append(step)
        return step.out


def _side(side: int, kernel: int, stride: int, padding: int) -> int:
    return (side + 2 * padding - kernel) // stride + 1


class Wanted(NamedTuple):
    """A row with its multiples applied: ``channels`` of the output, ``repeats``."""

    row: Row
    channels: int
    repeats: int


Block = Callable[[Planner, str, list[Value], Wanted], Value]


class Entry(NamedTuple):
    """``scaled``: the first argument is the channels of the output. ``repeats_inside``: the block does it itself."""

    block: Block
    scaled: bool = True
    repeats_inside: bool = False


def conv(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Arguments: channels, kernel, stride, padding, groups, activation."""
    row = wanted.row
    return planner.conv(
        path, inputs[0], *_conv_arguments(wanted), activation=row.activation(5, planner.activation)
    )


def _conv_arguments(wanted: Wanted) -> tuple[int, int, int, int, int]:
    """Channels, kernel, stride, padding, groups."""
    row = wanted.row
    kernel = row.integer(1, 1, high=31)
    padding = row.integer(3, kernel // 2, low=0, high=31)
    return wanted.channels, kernel, row.integer(2, 1, high=8), padding, row.integer(4, 1)


def depthwise_conv(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    kernel, stride = wanted.row.integer(1, 1, high=31), wanted.row.integer(2, 1, high=8)
    groups = math.gcd(inputs[0].channels, wanted.channels)
    return planner.conv(path, inputs[0], wanted.channels, kernel, stride, None, groups)


def focus(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """YOLOv5's first stem: 2x2 pixels to channels, then a convolution, one deeper: path.conv.conv."""
    x = planner.every_second_pixel(path, inputs[0])
    return planner.conv(
        f"{path}.conv", x, *_conv_arguments(wanted), wanted.row.activation(5, planner.activation)
    )


def reorg(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    return planner.every_second_pixel(path, inputs[0])


def concat(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    if wanted.row.integer(0, 1, low=-9, high=9) != 1:
        raise wanted.row.error("only joining along the channels (1) is supported")
    return planner.concat(path, inputs)


def upsample(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Arguments: size (None), scale, mode."""
    row = wanted.row
    mode = row.arguments[2] if len(row.arguments) > 2 else "nearest"
    if (row.arguments and row.arguments[0] is not None) or mode != "nearest":
        raise row.error("only [None, SCALE, nearest] is supported")
    return planner.upsample(path, inputs[0], row.integer(1, high=8))


def max_pool(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Arguments as torch's nn.MaxPool2d: kernel, stride, padding."""
    row = wanted.row
    kernel = row.integer(0, high=31)
    return planner.max_pool(
        path, inputs[0], kernel, row.integer(1, kernel, high=31), row.integer(2, 0, low=0, high=15)
    )


def detect(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """One 1x1 convolution an input: [1, A*(5+C), h, w], raw."""
    anchors = anchors_a_layer(planner, inputs, wanted.row)
    channels = anchors * (5 + planner.plan.classes)
    outputs = [
        planner.convolution(f"{path}.m.{at}", x, channels, form="plain")
        for at, x in enumerate(inputs)
    ]
    planner.plan.head = DetectionLayers(path, tuple(outputs), anchors)
    return outputs[0]


def anchors_a_layer(planner: Planner, inputs: list[Value], row: Row, layers: int = 0) -> int:
    """How many, with a check of the description's anchors against the detection layers."""
    layers = layers or len(inputs)
    anchors = planner.plan.anchors
    if anchors is None:
        raise row.error("the description has no anchors, nor have the weights")
    if len(anchors) != layers or len({len(pairs) for pairs in anchors}) != 1:
        counts = ", ".join(str(len(pairs)) for pairs in anchors)
        raise row.error(
            f"has {layers} detection layers, anchors: has lists of {counts} pairs; give one of equal length each"
        )
    return len(anchors[0])


SHARED: dict[str, Entry] = {
    "Conv": Entry(conv),
    "DWConv": Entry(depthwise_conv),
    "Focus": Entry(focus),
    "Concat": Entry(concat, scaled=False),
    "nn.Upsample": Entry(upsample, scaled=False),
    "nn.MaxPool2d": Entry(max_pool, scaled=False),
    "Detect": Entry(detect, scaled=False),
}
