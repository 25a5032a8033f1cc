"""Convert the sections of a cfg to layers with shapes. All mistakes in a cfg are reported here,
with their lines, before weights are read."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypedDict

from detector.core.errors import ModelError
from detector.core.errors.parsing import quote
from detector.core.errors.text import counted
from detector.core.models.formats import how_to_raise, raised
from detector.core.models.formats.darknet.cfg import CfgSection
from detector.core.models.graph.operators import ACTIVATIONS

MAX_SIDE = 16384  # pixels, for inputs and anchors
MAX_CHANNELS = 1 << 19  # yolo9000 has 28,269
MAX_CLASSES = 100_000  # yolo9000 has 9,418
# The next two limits are far above the largest published darknet networks.
MAX_TENSOR = 1 << 28  # floats in the output of one layer: 1 GiB
MAX_FLOATS = 400_000_000  # floats in all weights: 1.6 GB; the limit of an ONNX file is 2 GB

ALIASES = {"network": "net", "conv": "convolutional", "max": "maxpool", "avg": "avgpool"}

# Keys of AlexeyAB's darknet that affect only training or what is printed.
TRAINING_KEYS = frozenset(
    "assisted_excitation badlabels_rejection_percentage beta_nms cbn cls_normalizer "
    "counters_per_class delta_normalizer dets_for_show dets_for_track dontload dontloadscales "
    "dropblock dropblock_size_abs dropblock_size_rel embedding_layer equidistant_point focal_loss "
    "grad_centr ignore_thresh iou_loss iou_normalizer iou_thresh iou_thresh_kind jitter "
    "label_smooth_eps learning_rate_scale map max max_delta nms_kind num_sigmas_reject_badlabels "
    "obj_normalizer objectness_smooth onlyforward probability random resize sim_thresh "
    "stopbackward thresh track_ciou_norm train_only_bn truth_thresh wait_stream".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """``inputs``: indices of the layers that it reads, -1 for the picture."""

    index: int  # darknet's index: 0 is the first section after [net]
    line: int  # the line of its section in the cfg
    inputs: tuple[int, ...]
    channels: int
    height: int
    width: int
    reduction: Fraction  # input pixels per cell, along one side

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def floats(self) -> int:
        """Number of the layer's floats in a .weights file."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Layer):
    in_channels: int  # the total of all groups
    kernel: int
    stride: tuple[int, int]  # y, x
    padding: int  # zeros on each side
    dilation: int
    groups: int
    batch_normalize: bool
    activation: str

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.channels, self.in_channels // self.groups, self.kernel, self.kernel)

    @property
    def floats(self) -> int:
        filters, channels, height, width = self.weight_shape
        return filters * channels * height * width + filters * (4 if self.batch_normalize else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool(Layer):
    kernel: int
    stride: tuple[int, int]  # y, x
    pads: tuple[int, int, int, int]  # top, left, bottom, right; the padding counts as -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePool(Layer):
    """The mean of each channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Layer):
    """Joins the channels of its inputs; with ``groups``, only group ``group_id`` of each input."""

    groups: int
    group_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcut(Layer):
    """The sum of its inputs, with as many channels as the first input has. If another input has
    more channels, the rest are ignored. If it has fewer, it is added to the first channels."""

    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication(Layer):
    """The product of two inputs; the second may have one value per channel, or per position."""

    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsample(Layer):
    stride: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout(Layer):
    """Has no effect in inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yolo(Layer):
    anchors: tuple[tuple[float, float], ...]  # selected by mask; width, height in network pixels
    classes: int
    scale_x_y: float
    new_coords: bool


@dataclass(slots=True)
class CfgNetwork:
    path: str
    height: int
    width: int
    letter_box: bool = False  # pad the picture with grey; False: stretch it
    layers: list[Layer] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def yolos(self) -> list[Yolo]:
        return [layer for layer in self.layers if isinstance(layer, Yolo)]

    @property
    def convolutions(self) -> list[Convolution]:
        return [layer for layer in self.layers if isinstance(layer, Convolution)]

    @property
    def stride(self) -> int:
        """Both sides of the input must be multiples of this."""
        return max((-(-layer.reduction // 1) for layer in self.layers), default=1)

    @property
    def floats(self) -> int:
        """Number of floats in a .weights file, after the header."""
        return sum(layer.floats for layer in self.layers)

    @property
    def floats_fused(self) -> int:
        """Number of floats in the graph, with batch norm folded into weights and biases."""
        return sum(
            layer.floats - 3 * layer.channels * layer.batch_normalize for layer in self.convolutions
        )


def read_architecture(
    sections: list[CfgSection], *, size: tuple[int, int] | None = None, batch: int = 1
) -> CfgNetwork:
    """Read the layers. ``size``: (height, width); None: the cfg's. ``batch`` only affects limits.
    Raises ModelError."""
    net = sections[0]
    if ALIASES.get(net.name, net.name) != "net":
        raise net.error(f"the first section is [{net.name}]; a darknet cfg begins with [net]")
    if size is not None:
        _check_size(sections, size)
    architecture = _read_net(net, size)
    floats = 0
    for section in sections[1:]:
        kind = _find_kind(section)
        layer = kind.read(section, architecture)
        floats += layer.floats
        _check_limits(section, layer, floats, batch)
        _warn_of_unknown_keys(section, kind, architecture)
        architecture.layers.append(layer)
    if not architecture.yolos:
        raise net.error("there is no [yolo] section, so this network finds no boxes")
    _check_stride(net, architecture.stride, (architecture.height, architecture.width), None)
    return architecture


def _check_size(sections: list[CfgSection], size: tuple[int, int]) -> None:
    """Check --size before reading layers at this size. Otherwise a [route] would get the blame."""
    try:
        stride = read_architecture(sections).stride
    except ModelError:
        return  # the cfg has no size, or a mistake that the caller will report
    _check_stride(sections[0], stride, size, "--size")


def _read_net(net: CfgSection, size: tuple[int, int] | None) -> CfgNetwork:
    channels = net.integer("channels", 3)
    if channels != 3:
        raise net.error(
            f"channels={channels}: only pictures of 3 channels (RGB) are supported", "channels"
        )
    height = net.integer("height", None if size is None else size[0], low=1, high=MAX_SIDE)
    width = net.integer("width", None if size is None else size[1], low=1, high=MAX_SIDE)
    if size is not None:
        height, width = size
        if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
            raise ModelError(
                f"{net.path}: input size {width}x{height} is out of range: "
                f"--size takes 1 to {MAX_SIDE}"
            )
    return CfgNetwork(net.path, height, width, letter_box=net.flag("letter_box"))


def _find_kind(section: CfgSection) -> SectionKind:
    name = ALIASES.get(section.name, section.name)
    if name not in SECTIONS:
        raise section.error(
            f"section [{section.name}] is not supported; supported: {', '.join(SECTIONS)}"
        )
    return SECTIONS[name]


def _check_limits(section: CfgSection, layer: Layer, floats: int, batch: int) -> None:
    channels, numbers = raised(MAX_CHANNELS), raised(MAX_TENSOR)
    if layer.channels > channels or layer.channels * layer.height * layer.width * batch > numbers:
        raise section.error(
            f"[{section.name}] gives {layer.channels} channels of {layer.size} at batch {batch}: "
            f"more than {channels} channels or {numbers} numbers; check filters, or use a smaller "
            f"--size or --batch; {how_to_raise()}"
        )
    if floats > raised(MAX_FLOATS):
        raise section.error(
            f"up to here the network needs more than {raised(MAX_FLOATS)} weights; check filters "
            f"and size; {how_to_raise()}"
        )


def _warn_of_unknown_keys(section: CfgSection, kind: SectionKind, architecture: CfgNetwork) -> None:
    known = kind.keys | TRAINING_KEYS
    for key, (_, line) in section.values.items():
        if key not in known:
            nearest = difflib.get_close_matches(key, known, 1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            architecture.warnings.append(
                f"{section.path}:{line}: unknown key {key} of [{section.name}] ignored{hint}"
            )


def _check_stride(net: CfgSection, stride: int, size: tuple[int, int], flag: str | None) -> None:
    for key, value in zip(("height", "width"), size, strict=True):
        if value % stride == 0:
            continue
        nearest = max(stride, round(value / stride) * stride)
        if flag is not None:  # --size 300 does not say which side is 300: name neither
            raise ModelError(
                f"{net.path}: {flag}: both sides must be multiples of {stride}, the network's "
                f"stride; nearest to {value}: {nearest}"
            )
        raise net.error(
            f"input {key} {value} is not a multiple of the network's stride {stride}; "
            f"nearest: {nearest}",
            key,
        )


class LayerPlace(TypedDict):
    index: int
    line: int
    inputs: tuple[int, ...]


def _place(section: CfgSection, architecture: CfgNetwork, *sources: Layer) -> LayerPlace:
    inputs = tuple(source.index for source in sources)
    return {"index": len(architecture.layers), "line": section.line, "inputs": inputs}


def _previous_layer(section: CfgSection, architecture: CfgNetwork) -> Layer:
    if not architecture.layers:
        return Layer(
            index=-1,
            line=0,
            inputs=(),
            channels=3,
            height=architecture.height,
            width=architecture.width,
            reduction=Fraction(1),
        )
    source = architecture.layers[-1]
    if isinstance(source, Yolo):
        raise section.error(
            f"[{section.name}] reads the output of the [yolo] before it; put a [route] between them"
        )
    return source


def _find_layers(section: CfgSection, architecture: CfgNetwork, key: str) -> list[Layer]:
    """Return the layers that ``key`` lists. Negative numbers count back from this layer."""
    here = len(architecture.layers)
    numbers = section.integers(key)
    if not numbers:
        raise section.error(f"[{section.name}] needs {key}=NUMBER,...", key)
    layers = []
    for number in numbers:
        index = number + here if number < 0 else number
        if not 0 <= index < here:
            raise section.error(
                f"{key}={number} means layer {index}; this is layer {here}, "
                f"which can read layers 0..{here - 1}",
                key,
            )
        if isinstance(architecture.layers[index], Yolo):
            raise section.error(
                f"{key}={number} means layer {index}, a [yolo], whose output cannot be read", key
            )
        layers.append(architecture.layers[index])
    return layers


def _read_activation(section: CfgSection, default: str) -> str:
    name = section.text("activation", default).lower()
    if name not in ACTIVATIONS:
        raise section.error(
            f"activation {quote(name)} is not supported; supported: {', '.join(ACTIVATIONS)}",
            "activation",
        )
    return name


def _refuse_keys(section: CfgSection, *keys: str) -> None:
    for key in keys:
        if section.text(key, "0") not in ("0", "none"):
            raise section.error(
                f"{key}={quote(section.text(key))} in [{section.name}] is not supported", key
            )


def _read_strides(section: CfgSection) -> tuple[int, int]:
    stride = section.integer("stride", 1, low=1, high=64)
    return (
        section.integer("stride_y", stride, low=1, high=64),
        section.integer("stride_x", stride, low=1, high=64),
    )


def _check_fits(section: CfgSection, source: Layer, height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise section.error(
            f"[{section.name}] makes an empty map from its {source.size} input; check size, stride "
            "and padding"
        )


def _read_convolution(section: CfgSection, architecture: CfgNetwork) -> Convolution:
    source = _previous_layer(section, architecture)
    _refuse_keys(
        section, "antialiasing", "xnor", "binary", "share_index", "flipped", "coordconv", "deform"
    )
    kernel = section.integer("size", 1, low=1, high=64)
    groups = section.integer("groups", 1, low=1, high=raised(MAX_CHANNELS))
    filters = section.integer("filters", low=1)
    dilation = section.integer("dilation", 1, low=1, high=64)
    if source.channels % groups or filters % groups:
        raise section.error(
            f"groups={groups} must divide both the {source.channels} input channels "
            f"and the {filters} filters",
            "groups",
        )
    padding = kernel // 2 if section.flag("pad") else section.integer("padding", 0, low=0, high=256)
    padding *= dilation  # as in darknet's convolution
    reach = dilation * (kernel - 1) + 1
    stride = _read_strides(section)
    height = (source.height + 2 * padding - reach) // stride[0] + 1
    width = (source.width + 2 * padding - reach) // stride[1] + 1
    _check_fits(section, source, height, width)
    return Convolution(
        **_place(section, architecture, source),
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
        activation=_read_activation(section, "logistic"),  # darknet's default
    )


def _read_maxpool(section: CfgSection, architecture: CfgNetwork) -> MaxPool:
    """Read a pool. ``padding`` is for both sides; left and top get half of it, rounded down."""
    source = _previous_layer(section, architecture)
    _refuse_keys(section, "maxpool_depth", "antialiasing")
    stride = _read_strides(section)
    kernel = section.integer("size", max(stride), low=1, high=256)
    padding = section.integer("padding", kernel - 1, low=0, high=512)
    begin = padding // 2
    height, bottom = _pool_side(source.height, kernel, stride[0], padding)
    width, right = _pool_side(source.width, kernel, stride[1], padding)
    _check_fits(section, source, height, width)
    if max(begin, bottom, right) >= kernel:
        raise section.error(
            f"padding={padding} puts whole windows of size {kernel} outside the picture", "padding"
        )
    return MaxPool(
        **_place(section, architecture, source),
        channels=source.channels,
        height=height,
        width=width,
        reduction=source.reduction * max(stride),
        kernel=kernel,
        stride=stride,
        pads=(begin, begin, bottom, right),
    )


def _pool_side(length: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Return the output's length, and the padding that the last window needs after the input."""
    cells = (length + padding - kernel) // stride + 1
    return cells, max(0, (cells - 1) * stride + kernel - length - padding // 2)


def _read_avgpool(section: CfgSection, architecture: CfgNetwork) -> AveragePool:
    source = _previous_layer(section, architecture)
    return AveragePool(
        **_place(section, architecture, source),
        channels=source.channels,
        height=1,
        width=1,
        reduction=source.reduction,
    )


def _read_route(section: CfgSection, architecture: CfgNetwork) -> Route:
    sources = _find_layers(section, architecture, "layers")
    _refuse_keys(section, "stream")
    groups = section.integer("groups", 1, low=1, high=raised(MAX_CHANNELS))
    group_id = section.integer("group_id", 0)
    if not 0 <= group_id < groups:
        raise section.error(
            f"group_id={group_id}: groups={groups} allows only 0..{groups - 1}", "group_id"
        )
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
                f"groups={groups} does not divide the {source.channels} channels "
                f"of layer {source.index}",
                "groups",
            )
    return Route(
        **_place(section, architecture, *sources),
        channels=sum(source.channels // groups for source in sources),
        height=first.height,
        width=first.width,
        reduction=max(source.reduction for source in sources),
        groups=groups,
        group_id=group_id,
    )


def _read_shortcut(section: CfgSection, architecture: CfgNetwork) -> Shortcut:
    _refuse_keys(section, "weights_type", "weights_normalization")
    first = _previous_layer(section, architecture)
    sources = [first, *_find_layers(section, architecture, "from")]
    for source in sources:
        if (source.height, source.width) != (first.height, first.width):
            raise section.error(
                f"[shortcut] adds different sizes: layer {first.index} is {first.size}, "
                f"layer {source.index} is {source.size}",
                "from",
            )
    return Shortcut(
        **_place(section, architecture, *sources),
        channels=first.channels,
        height=first.height,
        width=first.width,
        reduction=max(source.reduction for source in sources),
        activation=_read_activation(section, "linear"),
    )


def _read_multiplication(section: CfgSection, architecture: CfgNetwork) -> Multiplication:
    """Read a product of layer ``from`` and the previous layer. The previous layer has one factor
    per value ([sam]), per position (``scale_wh``) or per channel."""
    factors = _previous_layer(section, architecture)
    sources = _find_layers(section, architecture, "from")
    if len(sources) != 1:
        raise section.error(f"[{section.name}] needs from=NUMBER, with one layer", "from")
    source = sources[0]
    channels, height, width = source.channels, source.height, source.width
    if section.name == "scale_channels":
        by_position = section.flag("scale_wh")
        channels, height, width = (1, height, width) if by_position else (channels, 1, 1)
    if (factors.channels, factors.height, factors.width) != (channels, height, width):
        raise section.error(
            f"[{section.name}] multiplies layer {source.index}, {source.size}x{source.channels}, "
            f"by layer {factors.index}, {factors.size}x{factors.channels}; expected "
            f"{width}x{height}x{channels}",
            "from",
        )
    return Multiplication(
        **_place(section, architecture, source, factors),
        channels=source.channels,
        height=source.height,
        width=source.width,
        reduction=source.reduction,
        activation=_read_activation(section, "linear"),
    )


def _read_upsample(section: CfgSection, architecture: CfgNetwork) -> Upsample:
    source = _previous_layer(section, architecture)
    stride = section.integer("stride", 2, low=1, high=64)
    return Upsample(
        **_place(section, architecture, source),
        channels=source.channels,
        height=source.height * stride,
        width=source.width * stride,
        reduction=source.reduction / stride,
        stride=stride,
        scale=section.real("scale", 1.0),
    )


def _read_dropout(section: CfgSection, architecture: CfgNetwork) -> Dropout:
    source = _previous_layer(section, architecture)
    return Dropout(
        **_place(section, architecture, source),
        channels=source.channels,
        height=source.height,
        width=source.width,
        reduction=source.reduction,
    )


def _read_yolo(section: CfgSection, architecture: CfgNetwork) -> Yolo:
    source = _previous_layer(section, architecture)
    classes = section.integer("classes", 20, low=1, high=raised(MAX_CLASSES))  # darknet's default
    anchors = _read_anchors(section)
    filters = len(anchors) * (5 + classes)
    if source.channels != filters:
        raise section.error(
            f"[yolo] has {counted(len(anchors), 'mask')}, classes={classes}; the layer before needs"
            f" filters={filters}, {len(anchors)} x (5 + {classes}), not {source.channels}"
        )
    if architecture.yolos and architecture.yolos[0].classes != classes:
        raise section.error(
            f"classes={classes}, but the first [yolo] has classes={architecture.yolos[0].classes}",
            "classes",
        )
    return Yolo(
        **_place(section, architecture, source),
        channels=source.channels,
        height=source.height,
        width=source.width,
        reduction=source.reduction,
        anchors=anchors,
        classes=classes,
        scale_x_y=section.real("scale_x_y", 1.0),
        new_coords=section.flag("new_coords"),
    )


def _read_anchors(section: CfgSection) -> tuple[tuple[float, float], ...]:
    """Return (width, height) of the anchors in ``mask``; without a mask, of the first ``num``."""
    values = section.reals("anchors")
    if not values or len(values) % 2:
        raise section.error(
            f"[yolo] needs anchors=W,H, W,H, ...; found {len(values)} numbers", "anchors"
        )
    if not all(0 < value <= MAX_SIDE for value in values):
        raise section.error(f"anchors must be between 0 and {MAX_SIDE} pixels", "anchors")
    pairs = list(zip(values[::2], values[1::2], strict=True))
    num = section.integer("num", len(pairs), low=1)
    if num > len(pairs):
        raise section.error(f"num={num}, but anchors= has {len(pairs)} pairs", "num")
    mask = section.integers("mask") or list(range(num))
    for number in mask:
        if not 0 <= number < len(pairs):
            raise section.error(
                f"mask={number} is out of range: there are {len(pairs)} anchors, "
                f"0..{len(pairs) - 1}",
                "mask",
            )
    return tuple(pairs[number] for number in mask)


class SectionKind(NamedTuple):
    """The function that reads a section, and the section's known keys (without TRAINING_KEYS)."""

    read: Callable[[CfgSection, CfgNetwork], Layer]
    keys: frozenset[str]


SECTIONS: dict[str, SectionKind] = {
    "convolutional": SectionKind(
        _read_convolution,
        frozenset(
            "batch_normalize filters size stride stride_x stride_y pad padding dilation groups "
            "activation antialiasing xnor binary share_index flipped coordconv deform".split()
        ),
    ),
    "maxpool": SectionKind(
        _read_maxpool,
        frozenset("size stride stride_x stride_y padding maxpool_depth antialiasing".split()),
    ),
    "avgpool": SectionKind(_read_avgpool, frozenset()),
    "route": SectionKind(_read_route, frozenset({"layers", "groups", "group_id", "stream"})),
    "shortcut": SectionKind(
        _read_shortcut, frozenset({"from", "activation", "weights_type", "weights_normalization"})
    ),
    "scale_channels": SectionKind(
        _read_multiplication, frozenset({"from", "activation", "scale_wh"})
    ),
    "sam": SectionKind(_read_multiplication, frozenset({"from", "activation"})),
    "upsample": SectionKind(_read_upsample, frozenset({"stride", "scale"})),
    "dropout": SectionKind(_read_dropout, frozenset()),
    "yolo": SectionKind(
        _read_yolo, frozenset({"mask", "anchors", "classes", "num", "scale_x_y", "new_coords"})
    ),
}
