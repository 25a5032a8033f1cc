"""Sections of a cfg -> checked layers with shapes. Everything that can be wrong in a cfg is found here, by line."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from detector.errors import ModelError
from detector.models.darknet.cfg import Section, shown
from detector.models.darknet.layers import Layer, Plan
from detector.models.darknet.readers import MAX_CHANNELS, MAX_SIDE, READERS

# Limits against files that only look like a network. The largest published darknet networks stay far below.
MAX_TENSOR = 1 << 28  # floats in one output of one layer, 1 GiB
MAX_FLOATS = 400_000_000  # in all weights: 1.6 GB; an ONNX file ends at 2 GB

ALIASES = {"network": "net", "conv": "convolutional", "max": "maxpool", "avg": "avgpool"}

KEYS: dict[str, set[str]] = {
    "convolutional": {
        *("batch_normalize", "filters", "size", "stride", "stride_x", "stride_y", "pad", "padding", "dilation"),
        *("groups", "activation", "antialiasing", "xnor", "binary", "share_index", "flipped", "coordconv", "deform"),
    },
    "maxpool": {"size", "stride", "stride_x", "stride_y", "padding", "maxpool_depth", "antialiasing"},
    "avgpool": set(),
    "route": {"layers", "groups", "group_id", "stream"},
    "shortcut": {"from", "activation", "weights_type", "weights_normalization"},
    "upsample": {"stride", "scale"},
    "dropout": set(),
    "yolo": {"mask", "anchors", "classes", "num", "scale_x_y", "new_coords"},
}

# Keys of AlexeyAB's darknet that matter in training, or for its own printing, only.
TRAINING_KEYS = frozenset(
    {
        *("assisted_excitation", "badlabels_rejection_percentage", "beta_nms", "cbn", "cls_normalizer"),
        *("counters_per_class", "delta_normalizer", "dets_for_show", "dets_for_track", "dontload", "dontloadscales"),
        *("dropblock", "dropblock_size_abs", "dropblock_size_rel", "embedding_layer", "equidistant_point"),
        *("focal_loss", "grad_centr", "ignore_thresh", "iou_loss", "iou_normalizer", "iou_thresh", "iou_thresh_kind"),
        *("jitter", "label_smooth_eps", "learning_rate_scale", "map", "max", "max_delta", "nms_kind"),
        *("num_sigmas_reject_badlabels", "obj_normalizer", "objectness_smooth", "onlyforward", "probability"),
        *("random", "resize", "sim_thresh", "stopbackward", "thresh", "track_ciou_norm", "train_only_bn"),
        *("truth_thresh", "wait_stream"),
    }
)


def make_plan(sections: list[Section], *, size: tuple[int, int] | None = None, batch: int = 1) -> Plan:
    """The layers at the cfg's own input size, or at ``size`` (height, width)."""
    net = sections[0]
    if ALIASES.get(net.name, net.name) != "net":
        raise net.error(f"the first section is [{shown(net.name)}]; a darknet cfg begins with [net]")
    if size is not None:
        _check_size(sections, size)
    plan = _read_net(net, size)
    floats = 0
    for section in sections[1:]:
        layer = _reader(section)(section, plan)
        floats += layer.floats
        _check_limits(section, layer, floats, batch)
        _note_unknown_keys(section, plan)
        plan.layers.append(layer)
    if not plan.yolos:
        raise net.error("no [yolo] section follows, so this network finds no boxes")
    _check_stride(net, plan.stride, (plan.height, plan.width), None)
    return plan


def _check_size(sections: list[Section], size: tuple[int, int]) -> None:
    """The size asked for against the stride of the network at its own size: at a wrong one the layers would not fit
    each other, and the message would be about some [route]."""
    try:
        stride = make_plan(sections).stride
    except ModelError:
        return  # a cfg without a size, or with another mistake: that one will be named
    _check_stride(sections[0], stride, size, "--size")


def _read_net(net: Section, size: tuple[int, int] | None) -> Plan:
    channels = net.integer("channels", 3)
    if channels != 3:
        raise net.error(f"channels={channels}: only pictures of 3 channels (RGB) are supported", "channels")
    height = net.integer("height", None if size is None else size[0], low=1, high=MAX_SIDE)
    width = net.integer("width", None if size is None else size[1], low=1, high=MAX_SIDE)
    if size is not None:
        height, width = size
        if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
            raise ModelError(f"{net.path}: input size {width}x{height} is out of range; --size takes 1 to {MAX_SIDE}")
    return Plan(net.path, height, width, letter_box=net.flag("letter_box"))


def _reader(section: Section) -> Callable[[Section, Plan], Layer]:
    name = ALIASES.get(section.name, section.name)
    if name not in READERS:
        raise section.error(f"section [{shown(section.name)}] is not supported; supported: {', '.join(READERS)}")
    return READERS[name]


def _check_limits(section: Section, layer: Layer, floats: int, batch: int) -> None:
    if layer.channels > MAX_CHANNELS or layer.channels * layer.height * layer.width * batch > MAX_TENSOR:
        raise section.error(
            f"[{section.name}] gives {layer.channels} channels of {layer.size} at batch {batch}: more than "
            f"{MAX_CHANNELS} channels or {MAX_TENSOR} numbers; check filters, or use a smaller --size or --batch"
        )
    if floats > MAX_FLOATS:
        raise section.error(f"up to here the network needs more than {MAX_FLOATS} weights; check filters and size")


def _note_unknown_keys(section: Section, plan: Plan) -> None:
    known = KEYS[ALIASES.get(section.name, section.name)] | TRAINING_KEYS
    for key, (_, line) in section.values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            plan.warnings.append(f"{section.path}:{line}: key {shown(key)} of [{section.name}] unknown, ignored{hint}")


def _check_stride(net: Section, stride: int, size: tuple[int, int], flag: str | None) -> None:
    for key, value in zip(("height", "width"), size, strict=True):
        if value % stride == 0:
            continue
        near = max(stride, round(value / stride) * stride)
        text = f"input {key} {value} is not a multiple of the network's stride {stride}; nearest: {near}"
        if flag is not None:
            raise ModelError(f"{net.path}: {text} ({flag})")
        raise net.error(text, key)
