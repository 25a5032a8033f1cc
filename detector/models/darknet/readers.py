"""One function a section kind: a cfg section and the layers before it -> one checked layer with its shape."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypedDict

from detector.models.activations import ACTIVATIONS
from detector.models.darknet.cfg import Section, shown
from detector.models.darknet.layers import (
    AveragePool,
    Convolution,
    Dropout,
    Layer,
    MaxPool,
    Plan,
    Route,
    Shortcut,
    Upsample,
    Yolo,
)

MAX_SIDE = 16384  # pixels, of the input and of an anchor
MAX_CHANNELS = 1 << 16
MAX_CLASSES = 20_000


class Seat(TypedDict):
    """What every layer needs to know of its place."""

    index: int
    line: int


def _seat(section: Section, plan: Plan) -> Seat:
    return {"index": len(plan.layers), "line": section.line}


def _before(plan: Plan) -> Layer:
    """The layer before; the picture itself before the first."""
    if plan.layers:
        return plan.layers[-1]
    one = Fraction(1)
    return Layer(index=-1, line=0, inputs=(), channels=3, height=plan.height, width=plan.width, reduction=one)


def _input(section: Section, plan: Plan) -> Layer:
    source = _before(plan)
    if isinstance(source, Yolo):
        raise section.error(f"[{section.name}] reads the output of the [yolo] before it; a [route] must stand between")
    return source


def _referred(section: Section, plan: Plan, key: str) -> list[Layer]:
    """The layers that ``layers=`` or ``from=`` means: negative counts back from this one, others are absolute."""
    here = len(plan.layers)
    numbers = section.integers(key)
    if not numbers:
        raise section.error(f"[{section.name}] needs {key}=NUMBER,...", key)
    found = []
    for number in numbers:
        index = number + here if number < 0 else number
        if not 0 <= index < here:
            raise section.error(
                f"{key}={number} means layer {index}; this is layer {here}, it can read 0..{here - 1}", key
            )
        if isinstance(plan.layers[index], Yolo):
            raise section.error(f"{key}={number} means layer {index}, a [yolo]: its output cannot be read", key)
        found.append(plan.layers[index])
    return found


def _activation(section: Section, default: str) -> str:
    name = section.text("activation", default).lower()
    if name not in ACTIVATIONS:
        raise section.error(
            f"activation {shown(name)} is not supported; supported: {', '.join(ACTIVATIONS)}", "activation"
        )
    return name


def _refuse(section: Section, *keys: str) -> None:
    """Keys that change what the network computes, in ways that are not written here."""
    for key in keys:
        if section.text(key, "0") not in ("0", "none"):
            raise section.error(f"{key}={shown(section.text(key))} in [{section.name}] is not supported", key)


def _strides(section: Section) -> tuple[int, int]:
    stride = section.integer("stride", 1, low=1, high=64)
    return (
        section.integer("stride_y", stride, low=1, high=64),
        section.integer("stride_x", stride, low=1, high=64),
    )


def _check_fits(section: Section, source: Layer, height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise section.error(
            f"[{section.name}] leaves nothing of its {source.size} input; check size, stride and padding"
        )


def _convolution(section: Section, plan: Plan) -> Convolution:
    source = _input(section, plan)
    _refuse(section, "antialiasing", "xnor", "binary", "share_index", "flipped", "coordconv", "deform")
    kernel = section.integer("size", 1, low=1, high=64)
    groups = section.integer("groups", 1, low=1, high=MAX_CHANNELS)
    filters = section.integer("filters", low=1)
    dilation = section.integer("dilation", 1, low=1, high=64)
    if source.channels % groups or filters % groups:
        raise section.error(
            f"groups={groups} divides not both {source.channels} input channels and {filters} filters", "groups"
        )
    padding = kernel // 2 if section.flag("pad") else section.integer("padding", 0, low=0, high=256)
    padding *= dilation  # darknet multiplies at run time
    reach = dilation * (kernel - 1) + 1
    stride = _strides(section)
    height = (source.height + 2 * padding - reach) // stride[0] + 1
    width = (source.width + 2 * padding - reach) // stride[1] + 1
    _check_fits(section, source, height, width)
    return Convolution(
        **_seat(section, plan),
        inputs=(source.index,),
        channels=filters,
        height=height,
        width=width,
        reduction=source.reduction * max(stride),
        in_channels=source.channels,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        batch_normalize=section.flag("batch_normalize"),
        activation=_activation(section, "logistic"),  # darknet's default
    )


def _maxpool(section: Section, plan: Plan) -> MaxPool:
    """darknet's ``padding`` is the sum of both sides; half of it, rounded down, lies before the first pixel."""
    source = _input(section, plan)
    _refuse(section, "maxpool_depth", "antialiasing")
    stride = _strides(section)
    kernel = section.integer("size", max(stride), low=1, high=256)
    padding = section.integer("padding", kernel - 1, low=0, high=512)
    begin = padding // 2
    if begin >= kernel:
        raise section.error(f"padding={padding} puts whole windows of size {kernel} outside the picture", "padding")
    height, bottom = _pooled(source.height, kernel, stride[0], padding)
    width, right = _pooled(source.width, kernel, stride[1], padding)
    _check_fits(section, source, height, width)
    if bottom >= kernel or right >= kernel:
        raise section.error(f"padding={padding} puts whole windows of size {kernel} outside the picture", "padding")
    return MaxPool(
        **_seat(section, plan),
        inputs=(source.index,),
        channels=source.channels,
        height=height,
        width=width,
        reduction=source.reduction * max(stride),
        kernel=kernel,
        stride=stride,
        pads=(begin, begin, bottom, right),
    )


def _pooled(length: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Cells along one side, and the padding after the last pixel that some window really reaches."""
    cells = (length + padding - kernel) // stride + 1
    return cells, max(0, (cells - 1) * stride + kernel - length - padding // 2)


def _avgpool(section: Section, plan: Plan) -> AveragePool:
    source = _input(section, plan)
    return AveragePool(
        **_seat(section, plan),
        inputs=(source.index,),
        channels=source.channels,
        height=1,
        width=1,
        reduction=source.reduction,
    )


def _route(section: Section, plan: Plan) -> Route:
    sources = _referred(section, plan, "layers")
    _refuse(section, "stream")
    groups = section.integer("groups", 1, low=1, high=MAX_CHANNELS)
    group_id = section.integer("group_id", 0)
    if not 0 <= group_id < groups:
        raise section.error(f"group_id={group_id} is out of range: groups={groups} has 0..{groups - 1}", "group_id")
    first = sources[0]
    for source in sources:
        if (source.height, source.width) != (first.height, first.width):
            raise section.error(
                f"[route] joins different sizes: layer {first.index} is {first.size}, "
                f"layer {source.index} is {source.size}",
                "layers",
            )
        if source.channels % groups:
            raise section.error(
                f"groups={groups} does not divide the {source.channels} channels of layer {source.index}", "groups"
            )
    return Route(
        **_seat(section, plan),
        inputs=tuple(source.index for source in sources),
        channels=sum(source.channels // groups for source in sources),
        height=first.height,
        width=first.width,
        reduction=max(source.reduction for source in sources),
        groups=groups,
        group_id=group_id,
    )


def _shortcut(section: Section, plan: Plan) -> Shortcut:
    _refuse(section, "weights_type", "weights_normalization")
    here = _input(section, plan)
    sources = [here, *_referred(section, plan, "from")]
    for source in sources:
        if (source.channels, source.height, source.width) != (here.channels, here.height, here.width):
            raise section.error(
                f"[shortcut] adds different shapes: layer {here.index} is {here.size}x{here.channels}, "
                f"layer {source.index} is {source.size}x{source.channels}",
                "from",
            )
    return Shortcut(
        **_seat(section, plan),
        inputs=tuple(source.index for source in sources),
        channels=here.channels,
        height=here.height,
        width=here.width,
        reduction=max(source.reduction for source in sources),
        activation=_activation(section, "linear"),
    )


def _upsample(section: Section, plan: Plan) -> Upsample:
    source = _input(section, plan)
    stride = section.integer("stride", 2, low=1, high=64)
    return Upsample(
        **_seat(section, plan),
        inputs=(source.index,),
        channels=source.channels,
        height=source.height * stride,
        width=source.width * stride,
        reduction=source.reduction / stride,
        stride=stride,
        scale=section.real("scale", 1.0),
    )


def _dropout(section: Section, plan: Plan) -> Dropout:
    source = _input(section, plan)
    return Dropout(
        **_seat(section, plan),
        inputs=(source.index,),
        channels=source.channels,
        height=source.height,
        width=source.width,
        reduction=source.reduction,
    )


def _yolo(section: Section, plan: Plan) -> Yolo:
    source = _input(section, plan)
    classes = section.integer("classes", 20, low=1, high=MAX_CLASSES)  # darknet's default
    anchors = _anchors(section)
    wanted = len(anchors) * (5 + classes)
    if source.channels != wanted:
        raise section.error(
            f"[yolo] has {len(anchors)} masks and {classes} classes, so the layer before it needs "
            f"filters={wanted} = {len(anchors)} x (5 + {classes}); it has {source.channels}"
        )
    if plan.yolos and plan.yolos[0].classes != classes:
        raise section.error(f"classes={classes} here, {plan.yolos[0].classes} in the first [yolo]", "classes")
    return Yolo(
        **_seat(section, plan),
        inputs=(source.index,),
        channels=source.channels,
        height=source.height,
        width=source.width,
        reduction=source.reduction,
        anchors=anchors,
        classes=classes,
        scale_x_y=section.real("scale_x_y", 1.0),
        new_coords=section.flag("new_coords"),
    )


def _anchors(section: Section) -> tuple[tuple[float, float], ...]:
    """Width and height of the anchors that ``mask`` selects; all of them without a mask."""
    values = section.reals("anchors")
    if not values or len(values) % 2:
        raise section.error(f"[yolo] needs anchors=W,H, W,H, ...; found {len(values)} numbers", "anchors")
    if not all(0 < value <= MAX_SIDE for value in values):
        raise section.error(f"anchors must lie between 0 and {MAX_SIDE} pixels", "anchors")
    pairs = list(zip(values[::2], values[1::2], strict=True))
    num = section.integer("num", len(pairs), low=1)
    if num > len(pairs):
        raise section.error(f"num={num}, but anchors= holds {len(pairs)} pairs", "num")
    mask = section.integers("mask") or list(range(num))
    for number in mask:
        if not 0 <= number < len(pairs):
            raise section.error(
                f"mask={number} is out of range: there are {len(pairs)} anchors, 0..{len(pairs) - 1}", "mask"
            )
    return tuple(pairs[number] for number in mask)


READERS: dict[str, Callable[[Section, Plan], Layer]] = {
    "convolutional": _convolution,
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "route": _route,
    "shortcut": _shortcut,
    "upsample": _upsample,
    "dropout": _dropout,
    "yolo": _yolo,
}
