"""Convert the rows of a description to steps, with one function for each block.

A function adds the steps of its block, named as in the original state dicts. To add a block, write
a function and list it in a table. Blocks that both families share come first, then YOLOv5's,
YOLOv7's, and the ``Design``, which adds all rows of a description.

YOLOv5's blocks are written from the graphs that its releases published and from the names and
shapes in their state dicts. CSP: arXiv 1911.11929; pyramid pooling: arXiv 1406.4729.

YOLOv7's blocks are written from its paper (arXiv 2207.02696) and the names in its state dicts.
RepConv: planned re-parameterised convolution, section 4.1 (RepVGG, arXiv 2101.03697). Implicit
layers: YOLOR, arXiv 2105.04206. Auxiliary heads (section 4.2), used only in training, are not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from detector.core.errors import ModelError
from detector.core.models.formats.checkpoint.contents import Module
from detector.core.models.formats.yolo.architecture import (
    Architecture,
    ArchitectureBuilder,
    DetectionLayers,
    Value,
)
from detector.core.models.formats.yolo.description import YamlNetwork, YamlRow
from detector.core.models.graph.build import INPUT

PROBE = 2048  # an input side that is a multiple of every published stride
MAX_SIDE = 8192
CHANNEL_STEP = 8  # scaled channels are rounded up to a multiple of this


class BlockSpec(NamedTuple):
    """A row of a description, with its numbers after scaling."""

    row: YamlRow
    channels: int  # output channels, times the width multiple
    repeats: int  # times the depth multiple


Block = Callable[[ArchitectureBuilder, str, list[Value], BlockSpec], Value]


class Entry(NamedTuple):
    """``scaled``: the width multiple applies to the first argument, the number of channels.
    ``repeats_inside``: the block repeats only some of its parts."""

    block: Block
    scaled: bool = True
    repeats_inside: bool = False


def conv(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Add a block Conv. Arguments: channels, kernel, stride, padding, groups, activation."""
    row = spec.row
    kernel = row.integer(1, 1, high=31)
    padding = row.integer(3, kernel // 2, low=0, high=31)
    stride, groups = row.integer(2, 1, high=8), row.integer(4, 1)
    activation = row.activation(5, builder.activation)
    return builder.conv(path, inputs[0], spec.channels, kernel, stride, padding, groups, activation)


def depthwise_conv(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    kernel, stride = spec.row.integer(1, 1, high=31), spec.row.integer(2, 1, high=8)
    groups = math.gcd(inputs[0].channels, spec.channels)
    return builder.conv(path, inputs[0], spec.channels, kernel, stride, None, groups)


def focus(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Add YOLOv5's stem before release 6.0: 2x2 pixels become channels, for a Conv at path.conv."""
    return conv(builder, f"{path}.conv", [builder.fold_pixels(path, inputs[0])], spec)


def reorg(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    return builder.fold_pixels(path, inputs[0])


def concat(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    if spec.row.integer(0, 1, low=-9, high=9) != 1:
        raise spec.row.error("argument 1 must be 1: only joining along the channels is supported")
    return builder.concat(path, inputs)


def upsample(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    """Repeat pixels. Arguments: size (None), scale, mode."""
    row = spec.row
    mode = row.arguments[2] if len(row.arguments) > 2 else "nearest"
    if (row.arguments and row.arguments[0] is not None) or mode != "nearest":
        raise row.error("only the arguments [None, SCALE, nearest] are supported")
    return builder.upsample(path, inputs[0], row.integer(1, high=8))


def max_pool(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    """Add a max pool. Arguments, like those of nn.MaxPool2d: kernel, stride, padding."""
    row = spec.row
    kernel = row.integer(0, high=31)
    return builder.max_pool(
        path, inputs[0], kernel, row.integer(1, kernel, high=31), row.integer(2, 0, low=0, high=15)
    )


def detect(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    return _add_head(builder, path, inputs, spec.row, "plain")


def _add_head(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], row: YamlRow, form: str
) -> Value:
    """Add a 1x1 convolution for each input: [1, A*(5+C), h, w], raw. Return the first output."""
    anchors = _anchors_per_layer(builder, inputs, row)
    channels = anchors * (5 + builder.architecture.classes)
    outputs = [
        builder.convolution(f"{path}.m.{at}", x, channels, form=form) for at, x in enumerate(inputs)
    ]
    builder.architecture.head = DetectionLayers(path, tuple(outputs), anchors)
    return outputs[0]


def _anchors_per_layer(builder: ArchitectureBuilder, inputs: list[Value], row: YamlRow) -> int:
    """Return the number of anchors; raise ModelError if they do not fit the detection layers."""
    layers, anchors = len(inputs), builder.architecture.anchors
    if anchors is None:
        raise row.error("neither the description nor the weights have anchors")
    if len(anchors) != layers or len({len(pairs) for pairs in anchors}) != 1:
        counts = ", ".join(str(len(pairs)) for pairs in anchors)
        raise row.error(
            f"has {layers} detection layers, but 'anchors' has lists of {counts} pairs; give each "
            "layer a list of the same length"
        )
    return len(anchors[0])


def residual(
    builder: ArchitectureBuilder, path: str, x: Value, channels: int, hidden: int, row: YamlRow
) -> Value:
    """Add 1x1 and 3x3 convolutions, and a sum with the input if ``row`` and the shapes allow it."""
    shortcut, groups = row.flag(1, True), row.integer(2, 1)
    inner = builder.conv(f"{path}.cv1", x, hidden)
    out = builder.conv(f"{path}.cv2", inner, channels, 3, 1, None, groups)
    return builder.add(f"{path}.add", x, out) if shortcut and x.channels == channels else out


def bottleneck(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    """Add a residual block. Arguments: channels, shortcut, groups."""
    return residual(builder, path, inputs[0], spec.channels, spec.channels // 2, spec.row)


def c3(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Add bottlenecks that half of the channels bypass. Arguments: channels, shortcut, groups."""
    hidden = spec.channels // 2
    main = builder.conv(f"{path}.cv1", inputs[0], hidden)
    bypass = builder.conv(f"{path}.cv2", inputs[0], hidden)
    for at in range(spec.repeats):
        main = residual(builder, f"{path}.m.{at}", main, hidden, hidden, spec.row)
    return builder.conv(f"{path}.cv3", builder.concat(f"{path}.cat", [main, bypass]), spec.channels)


def spp(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Join the input and max pools of several sizes. Arguments: channels, kernels."""
    row = spec.row
    kernels = row.arguments[1] if len(row.arguments) > 1 else (5, 9, 13)
    if not isinstance(kernels, (list, tuple)) or not all(
        type(kernel) is int and kernel % 2 and 1 <= kernel <= 31 for kernel in kernels[:9]
    ):
        raise row.error("kernels must be odd whole numbers up to 31: [5, 9, 13]")
    x = builder.conv(f"{path}.cv1", inputs[0], inputs[0].channels // 2)
    pools = [builder.max_pool(f"{path}.m.{at}", x, kernel) for at, kernel in enumerate(kernels[:9])]
    return builder.conv(f"{path}.cv2", builder.concat(f"{path}.cat", [x, *pools]), spec.channels)


def sppf(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Compute SPP by one small pool, applied three times. Arguments: channels, kernel."""
    kernel = spec.row.integer(1, 5, high=31)
    if kernel % 2 == 0:
        raise spec.row.error(f"kernel {kernel} must be odd to keep the size of the map")
    parts = [builder.conv(f"{path}.cv1", inputs[0], inputs[0].channels // 2)]
    for at in range(3):
        parts.append(builder.max_pool(f"{path}.m.{at}", parts[-1], kernel))
    return builder.conv(f"{path}.cv2", builder.concat(f"{path}.cat", parts), spec.channels)


def halving_pool(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    kernel = spec.row.integer(0, 2, high=31)
    return builder.max_pool(f"{path}.m", inputs[0], kernel, kernel, 0)


def keeping_pool(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    """Add a max pool that keeps the size at stride 1. Arguments: kernel, stride."""
    kernel = spec.row.integer(0, 3, high=31)
    return builder.max_pool(f"{path}.m", inputs[0], kernel, spec.row.integer(1, 1, high=31))


def sppcspc(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Add a CSP block: half of the channels get pyramid pooling, the other half a convolution."""
    if any(argument is not None for argument in spec.row.arguments[1:]):
        raise spec.row.error("only the argument for channels is supported")
    x, hidden = inputs[0], spec.channels
    before = builder.conv(f"{path}.cv1", x, hidden)
    before = builder.conv(f"{path}.cv3", before, hidden, 3)
    before = builder.conv(f"{path}.cv4", before, hidden)
    pools = [
        builder.max_pool(f"{path}.m.{at}", before, kernel) for at, kernel in enumerate((5, 9, 13))
    ]
    after = builder.conv(f"{path}.cv5", builder.concat(f"{path}.pyramid", [before, *pools]), hidden)
    after = builder.conv(f"{path}.cv6", after, hidden, 3)
    bypass = builder.conv(f"{path}.cv2", x, hidden)
    return builder.conv(
        f"{path}.cv7", builder.concat(f"{path}.cat", [after, bypass]), spec.channels
    )


def rep_conv(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    """Add a 3x3 convolution with 1x1 and identity branches. Arguments: channels, kernel, stride."""
    row = spec.row
    if row.integer(1, 3) != 3 or row.integer(3, 1, low=0) != 1:
        raise row.error("only kernel 3 with padding 1 is supported")
    activation = row.activation(5, builder.activation)
    stride, groups = row.integer(2, 1, high=8), row.integer(4, 1)
    return builder.convolution(
        path, inputs[0], spec.channels, 3, stride, 1, groups, activation, form="rep"
    )


def down_c(builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec) -> Value:
    """Join a strided convolution and a pool. Arguments: channels, repeats (1), scale (2)."""
    row, x, half = spec.row, inputs[0], spec.channels // 2
    scale = row.integer(2, 2, high=8)
    strided = builder.conv(f"{path}.cv1", x, x.channels)
    strided = builder.conv(f"{path}.cv2", strided, half, 3, scale)
    pooled = builder.max_pool(f"{path}.mp", x, scale, scale, 0)
    pooled = builder.conv(f"{path}.cv3", pooled, half)
    return builder.concat(f"{path}.cat", [strided, pooled])


def shortcut(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    if len(inputs) != 2:
        raise spec.row.error(f"adds two layers, but {len(inputs)} are given")
    return builder.add(path, *inputs)


def implicit_detect(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    return _add_head(builder, path, inputs, spec.row, "implicit")


def auxiliary_detect(
    builder: ArchitectureBuilder, path: str, inputs: list[Value], spec: BlockSpec
) -> Value:
    """Add a head for the first half of the inputs, and a training-only head (m2) for the rest."""
    layers = len(inputs) // 2
    if len(inputs) != 2 * layers:
        raise spec.row.error(
            f"needs as many auxiliary as detection layers; {len(inputs)} are given in total"
        )
    first = _add_head(builder, path, inputs[:layers], spec.row, "implicit")
    for at, x in enumerate(inputs[layers:]):
        builder.convolution(f"{path}.m2.{at}", x, first.channels, form="plain")
    return first


SHARED: dict[str, Entry] = {
    "Conv": Entry(conv),
    "DWConv": Entry(depthwise_conv),
    "Focus": Entry(focus),
    "Concat": Entry(concat, scaled=False),
    "nn.Upsample": Entry(upsample, scaled=False),
    "nn.MaxPool2d": Entry(max_pool, scaled=False),
    "Detect": Entry(detect, scaled=False),
}

YOLOV5: dict[str, Entry] = {
    "Bottleneck": Entry(bottleneck),
    "C3": Entry(c3, repeats_inside=True),
    "SPP": Entry(spp),
    "SPPF": Entry(sppf),
}

YOLOV7: dict[str, Entry] = {
    "MP": Entry(halving_pool, scaled=False),
    "SP": Entry(keeping_pool, scaled=False),
    "ReOrg": Entry(reorg, scaled=False),
    "SPPCSPC": Entry(sppcspc),
    "RepConv": Entry(rep_conv),
    "DownC": Entry(down_c),
    "Shortcut": Entry(shortcut, scaled=False),
    "IDetect": Entry(implicit_detect, scaled=False),
    "IAuxDetect": Entry(auxiliary_detect, scaled=False),
}

BLOCKS = {**SHARED, **YOLOV5, **YOLOV7}

Anchors = list[tuple[tuple[float, float], ...]]


@dataclass(slots=True)
class Design:
    """Builds the architecture for any input size. ``anchors``: from the weights file, if any."""

    description: YamlNetwork
    modules: Mapping[str, Module] = field(default_factory=dict)
    anchors: Anchors | None = None

    def architecture(self, height: int, width: int) -> Architecture:
        net = self.description
        architecture = Architecture(
            net.origin, height, width, net.classes, self.anchors or net.anchors
        )
        builder = ArchitectureBuilder(architecture, net.activation, self.modules)
        values: list[Value] = []
        picture = Value(INPUT, 3, height, width)
        for row in net.rows:
            builder.row = row
            inputs = [picture if source == -1 else values[source] for source in row.sources]
            values.append(_add_row(builder, row, inputs, net))
        if architecture.head is None:
            raise net.error(
                "has no detection layer: its last layer must be Detect, IDetect or IAuxDetect"
            )
        _check_last(net)
        return architecture

    def at_size(self, size: tuple[int, int] | None) -> Architecture:
        """Return the architecture for (height, width); None: 640x640, or 1280x1280 at stride 64."""
        if size is None:
            side = 640 if self.stride <= 32 else 1280
            size = (side, side)
        check_size(size, self.stride, self.description.origin)
        network = self.architecture(*size)
        for cells in network.head.outputs if network.head else ():
            if network.height % cells.height or network.width % cells.width:
                raise ModelError(
                    f"{self.description.origin}: its head has {cells.size} cells for an input of "
                    f"{size[1]}x{size[0]}, so a cell is not a whole number of pixels; check "
                    "kernel, stride and padding (kernel 8 and stride 8 need padding 0)"
                )
        return network

    @property
    def stride(self) -> int:
        return self.architecture(PROBE, PROBE).stride


def check_size(size: tuple[int, int], stride: int, origin: str) -> None:
    if stride < 1:
        raise ModelError(
            f"{origin}: its head has more cells than the picture has pixels, so it is not a "
            "detector"
        )
    for value in size:
        if value % stride or not 1 <= value <= MAX_SIDE:
            nearest = min(max(stride, round(value / stride) * stride), MAX_SIDE // stride * stride)
            raise ModelError(
                f"{origin}: --size: both sides must be multiples of {stride}, the network's "
                f"stride, up to {MAX_SIDE}; nearest to {value}: {nearest}"
            )


def _add_row(
    builder: ArchitectureBuilder, row: YamlRow, inputs: list[Value], net: YamlNetwork
) -> Value:
    entry = BLOCKS.get(row.block)
    if entry is None:
        raise row.error(
            f"this block is not supported; supported: {', '.join(BLOCKS)}; "
            "export the model to ONNX instead"
        )
    builder.architecture.blocks.add(row.block)
    repeats = max(round(row.repeats * net.depth), 1) if row.repeats > 1 else 1
    scaled = math.ceil(row.integer(0) * net.width / CHANNEL_STEP) if entry.scaled else 0
    channels = scaled * CHANNEL_STEP
    if entry.repeats_inside or repeats == 1:
        return entry.block(builder, f"model.{row.index}", inputs, BlockSpec(row, channels, repeats))
    for at in range(repeats):
        inputs = [
            entry.block(builder, f"model.{row.index}.{at}", inputs, BlockSpec(row, channels, 1))
        ]
    return inputs[0]


def _check_last(net: YamlNetwork) -> None:
    """Refuse layers after a detection layer: they would be unused, or would read a raw map."""
    heads = [row.index for row in net.rows if row.block in ("Detect", "IDetect", "IAuxDetect")]
    if heads != [len(net.rows) - 1]:
        raise net.rows[heads[0]].error("a detection layer must be the last layer, and the only one")


def family_of(architecture: Architecture) -> str:
    return "yolov7" if architecture.blocks & YOLOV7.keys() else "yolov5"
