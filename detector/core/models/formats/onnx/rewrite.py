"""Rewrite a graph for all engines: our input and outputs, simpler operators, and our names.

``read`` takes these steps in this order:

``settle_outputs``      makes outputs float32 of fixed shape, with the batch as the first axis
``simplify_operators``  replaces Splits by Slices, whose bounds all count from the start
``put_prefix``          makes the input u8 RGB NHWC, and converts it to the network's pixels
``rename_all``          names each node by a path of identifiers, and each output after its node
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.foreign import ForeignGraph, attributes_of, type_name
from detector.core.models.formats.onnx.pixels import Pixels
from detector.core.models.formats.onnx.shapes import drop_unused
from detector.core.models.graph.build import INPUT

if TYPE_CHECKING:
    import onnx

    from detector.core.models.layouts.base import JoinedOutput

MAX_PARTS = 24  # parts of a name; the deepest modules have ten
# Number of rows given to a list whose length depends on the picture. NMS may have sorted the list
# by class (YOLO-NAS), so with fewer rows the best detections could be cut off. super-gradients
# exports at most 1000 rows, torchvision and MMDeploy 300.
MAX_ROWS = 1000
BGR = [2, 1, 0]
PREFIX = "input"  # ``put_prefix`` names its nodes input.cast and so on
# Attributes of torch.nn.Module and torch.fx.GraphModule, which are not valid names of submodules.
RESERVED = frozenset(
    "T_destination add_module add_submodule apply bfloat16 buffers call_super_init children code "
    "compile constants cpu cuda delete_all_unused_submodules delete_submodule double dump_patches "
    "eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule graph "
    "half input ipu load_state_dict meta modules mtia named_buffers named_children named_modules "
    "named_parameters parameters print_readable recompile register_backward_hook register_buffer "
    "register_forward_hook register_forward_pre_hook register_full_backward_hook "
    "register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter "
    "register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state "
    "set_submodule shape_env share_memory state_dict to to_empty to_folder train training type "
    "xpu zero_grad".split()
)
# Operator -> number of an input -> last word of our name for the constant at this input.
OPERANDS = {name: {1: "weight", 2: "bias"} for name in ("Conv", "ConvTranspose", "Gemm")}


def join_levels(graph: ForeignGraph, joined: Mapping[str, JoinedOutput]) -> None:
    """Join the outputs of all strides, in place and in order."""
    from onnx import helper

    for name, output in joined.items():
        tables = []
        for level in output.levels:
            x, dims = level, graph.dims[level]
            if len(dims) == 4:
                graph.nodes.append(graph.node("Transpose", "level.last", [x], perm=[0, 2, 3, 1]))
                x = graph.nodes[-1].output[0]
            if len(dims) != 3:
                sides = [dims[0] if len(dims) == 4 else 1, -1, output.columns]
                shape = graph.constant("level.shape", np.array(sides, np.int64))
                graph.nodes.append(graph.node("Reshape", "level.rows", [x, shape]))
                x = graph.nodes[-1].output[0]
            tables.append(x)
        graph.nodes.append(helper.make_node("Concat", tables, [name], name=name, axis=1))
        graph.outputs[name] = graph.types[output.levels[0]]
    if joined:
        graph.infer()


def settle_outputs(
    graph: ForeignGraph, names: tuple[str, ...], bare: Collection[str], batch: int
) -> None:
    """Make ``names`` the graph's outputs, in place. Each is then the first output of its node.
    Outputs in ``bare`` get a batch axis. A list of varying length ([K, 7]) gets MAX_ROWS rows."""
    from onnx import TensorProto

    for name in names:
        _refuse_type(graph, name)
        if batch > 1 and (name in bare or not graph.dims[name] or graph.dims[name][0] != batch):
            raise ModelError(
                f"{graph.name}: output {name} {list(graph.dims[name])} is one list for the whole "
                "batch; use --batch 1"
            )
    settled = [_settle_output(graph, name, name in bare) for name in names]
    graph.outputs = dict.fromkeys(settled, TensorProto.FLOAT)
    drop_unused(graph)


def _refuse_type(graph: ForeignGraph, name: str) -> None:
    from onnx import TensorProto

    kind = graph.types[name]
    if kind not in (
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT32,
        TensorProto.INT64,
    ):
        raise ModelError(
            f"{graph.name}: output {name} is {type_name(kind)}; export it with outputs that are "
            "float32, float16 or integers"
        )


def _settle_output(graph: ForeignGraph, name: str, bare: bool) -> str:
    from onnx import TensorProto

    dims, x = graph.dims[name], name
    nodes: list[onnx.NodeProto] = []
    if graph.types[name] != TensorProto.FLOAT:
        nodes.append(graph.node("Cast", "output.cast", [x], to=TensorProto.FLOAT))
        x = nodes[-1].output[0]
    if name in graph.uses_declared:  # no shape was inferred: state the declared one
        sides = graph.constant("output.shape", np.array(dims, np.int64))
        nodes.append(graph.node("Reshape", "output.shaped", [x, sides]))
    elif None in dims:
        nodes += _fix_length(graph, name, x)
    elif bare:
        nodes.append(
            graph.node(
                "Unsqueeze", "output.batch", [x, graph.constant("output.axes", np.array([0]))]
            )
        )
    elif not nodes and graph.makers()[name].output[0] != name:  # must be the node's first output
        nodes.append(graph.node("Identity", "output", [x]))
    graph.nodes += nodes
    return nodes[-1].output[0] if nodes else name


def _fix_length(graph: ForeignGraph, name: str, x: str) -> list[onnx.NodeProto]:
    """Give MAX_ROWS rows to a list whose length is known only at run time: pad it, then cut it."""
    dims = graph.dims[name]
    unknown = [at for at, side in enumerate(dims) if side is None]
    known = [side for side in dims if side is not None]
    if len(unknown) != 1 or len(dims) > 3 or any(side != 1 for side in known[: unknown[0]]):
        shown = ["?" if side is None else side for side in dims]
        raise ModelError(
            f"{graph.name}: output {name} {shown}: only the number of detections may depend "
            "on the picture; export it with fixed shapes"
        )
    axis, rank = unknown[0], len(dims)
    pads = [0] * 2 * rank
    pads[rank + axis] = MAX_ROWS
    numbers = {
        "pads": np.array(pads, np.int64),
        "starts": np.array([0], np.int64),
        "ends": np.array([MAX_ROWS], np.int64),
        "axes": np.array([axis], np.int64),
        "shape": np.array([1, MAX_ROWS, *dims[axis + 1 :]], np.int64),
    }
    names = {key: graph.constant(f"output.{key}", value) for key, value in numbers.items()}
    padded = graph.node("Pad", "output.padded", [x, names["pads"]], mode="constant")
    cut = graph.node(
        "Slice", "output.cut", [padded.output[0], names["starts"], names["ends"], names["axes"]]
    )
    return [padded, cut, graph.node("Reshape", "output.rows", [cut.output[0], names["shape"]])]


def simplify_operators(graph: ForeignGraph) -> None:
    """Replace each Split by Slices, and make all bounds of a Slice count from the start.

    Give both inputs of a GridSample the same type, which ONNX Runtime and TensorRT need. Before a
    GatherElements (YOLOv10), do the reverse and replace a Slice by a Split: OpenVINO 2026.4 removes
    a Slice there and then rejects the graph.
    """
    gathered = {node.input[0] for node in graph.nodes if node.op_type == "GatherElements"}
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        is_split = node.op_type == "Split" and not gathered & set(node.output)
        if is_split and (slices := _split_to_slices(graph, node)):
            nodes += slices
            continue
        if node.op_type == "Slice":
            _resolve_bounds(graph, node)
        kinds = [graph.types[name] for name in node.input if node.op_type == "GridSample"]
        if len(set(kinds)) == 2:
            nodes.append(graph.node("Cast", "grid", [node.input[1]], to=kinds[0]))
            node.input[1] = nodes[-1].output[0]
        nodes.append(_slice_to_split(graph, node) if node.output[0] in gathered else node)
    graph.nodes = nodes


def _slice_to_split(graph: ForeignGraph, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a Split, with one used output, for a Slice of known bounds; other nodes unchanged."""
    from onnx import helper

    shape = graph.shape(node.input[0])
    bounds = [graph.value(name) for name in node.input[1:]]
    if (
        node.op_type != "Slice"
        or shape is None
        or len(bounds) != 3
        or any(b is None or b.size != 1 for b in bounds)
    ):
        return node
    start, end, axis = (int(bound.item()) for bound in bounds if bound is not None)
    sides = {"before": start, "": end - start, "after": shape[axis] - end}
    sides = {place: side for place, side in sides.items() if side > 0}
    outputs = [
        graph.fresh(f"{node.output[0]}.{place}") if place else node.output[0] for place in sides
    ]
    sizes = graph.constant(f"{node.output[0]}.sizes", np.array(list(sides.values()), np.int64))
    return helper.make_node("Split", [node.input[0], sizes], outputs, name=node.name, axis=axis)


def _split_to_slices(graph: ForeignGraph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return one Slice for each output of a Split; [] if the sizes are unknown."""
    from onnx import helper

    shape, axis = graph.shape(node.input[0]), attributes_of(node).get("axis", 0)
    parts = [graph.shape(name) for name in node.output]
    if shape is None or any(part is None for part in parts):
        return []
    ends = list(itertools.accumulate(part[axis] for part in parts if part is not None))
    slices = []
    for at, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        bounds = [
            graph.constant(f"{node.name}.{key}", np.array([value], np.int64))
            for key, value in (("starts", start), ("ends", end), ("axes", axis % len(shape)))
        ]
        inputs, name = [node.input[0], *bounds], f"{node.name}_{at}" if node.name else ""
        if node.output[at]:
            slices.append(helper.make_node("Slice", inputs, [node.output[at]], name=name))
    return slices


def _resolve_bounds(graph: ForeignGraph, node: onnx.NodeProto) -> None:
    """Rewrite, in place, the bounds of a Slice that count from the end or lie beyond it."""
    shape = graph.shape(node.input[0])
    parts = [graph.value(name) if name else None for name in node.input[1:]]
    if (
        shape is None
        or len(parts) < 2
        or any(graph.value(name) is None for name in node.input[1:] if name)
    ):
        return
    starts, ends = parts[:2]
    assert starts is not None
    assert ends is not None
    axes = parts[2] if len(parts) > 2 and parts[2] is not None else np.arange(len(starts))
    steps = parts[3] if len(parts) > 3 and parts[3] is not None else np.ones(len(starts), np.int64)
    if (steps < 1).any():
        return  # we do not change a backward Slice
    axes = axes % len(shape)
    limits = np.array(shape, np.int64)[axes]
    starts, ends = (
        np.clip(np.where(b < 0, b + limits, b), 0, limits)
        for b in (starts.astype(int), ends.astype(int))
    )
    values = [starts, ends, axes] if (steps == 1).all() else [starts, ends, axes, steps]
    stem = node.name or node.output[0]
    del node.input[1:]
    node.input.extend(
        graph.constant(f"{stem}.bounds", np.asarray(value, np.int64)) for value in values
    )


def put_prefix(graph: ForeignGraph, pixels: Pixels, *, planar: bool) -> None:
    """Put our input (u8 RGB NHWC) before the graph, then nodes for type, axes, channels and scale.

    ``planar``: the graph reads NCHW. Where possible, channel order and scale are folded into the
    first convolutions. (Not if a mean is subtracted, nor in float16: small values become 0.)
    """
    from onnx import TensorProto, helper

    _free_prefix_names(graph)
    old, kind = graph.input, graph.input.type.tensor_type.elem_type
    sides = [dim.dim_value for dim in old.type.tensor_type.shape.dim]
    batched = len(sides) == 4
    batch, *rest = sides if batched else (1, *sides)
    height, width = rest[1:] if planar else rest[:2]
    graph.input = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [batch, height, width, 3])
    nodes = [
        helper.make_node("Cast", [INPUT], ["input.cast"], name="input.cast", to=TensorProto.FLOAT)
    ]
    if planar:
        nodes.append(_make_next(nodes, "Transpose", "input.transpose", perm=[0, 3, 1, 2]))
    folds = planar and batched and kind == TensorProto.FLOAT and pixels.plain
    order = BGR if pixels.bgr else [0, 1, 2]
    if not (folds and _fold_into_weights(graph, old.name, order, pixels.factor[0])):
        nodes += _convert_pixels(graph, nodes, pixels, planar)
    if not batched:
        shape = graph.constant("input.unbatched.shape", np.array(rest, np.int64))
        nodes.append(_make_next(nodes, "Reshape", "input.unbatched", shape))
    last = nodes[-1].output[0]
    if kind == TensorProto.UINT8 and (casts := _float_casts(graph, old.name)):
        for node in casts:
            graph.rename(node.output[0], last)
        graph.nodes = [node for node in graph.nodes if node not in casts]
    elif kind != TensorProto.FLOAT:
        name = "input.u8" if kind == TensorProto.UINT8 else "input.fp16"
        nodes.append(_make_next(nodes, "Cast", name, to=kind))
        last = nodes[-1].output[0]
    graph.rename(old.name, last)
    graph.nodes = [*nodes, *graph.nodes]


def _convert_pixels(
    graph: ForeignGraph, before: list[onnx.NodeProto], pixels: Pixels, planar: bool
) -> list[onnx.NodeProto]:
    nodes: list[onnx.NodeProto] = []
    if pixels.bgr:
        nodes += _swap_channels(graph, before[-1].output[0], axis=1 if planar else 3)
    shape = (1, -1, 1, 1) if planar else (1, 1, 1, -1)
    steps = (("Mul", "input.scale", pixels.factor, 1.0), ("Add", "input.shift", pixels.offset, 0.0))
    for operator, name, values, neutral in steps:
        if all(value == neutral for value in values):
            continue
        operand = np.array(values if len(set(values)) > 1 else values[:1], np.float32)
        operand = operand.reshape(shape) if len(operand) > 1 else operand
        constant = graph.constant(f"{name}.factor", operand)
        nodes.append(_make_next(nodes or before, operator, name, constant))
    return nodes


def _float_casts(graph: ForeignGraph, name: str) -> list[onnx.NodeProto]:
    """Return the nodes that read a tensor if all of them cast it to float32; else []."""
    from onnx import TensorProto

    nodes = [node for node in graph.nodes if name in node.input]
    to_float = [
        node
        for node in nodes
        if node.op_type == "Cast"
        and attributes_of(node)["to"] == TensorProto.FLOAT
        and node.output[0] not in graph.outputs
    ]
    return to_float if len(to_float) == len(nodes) else []


def _free_prefix_names(graph: ForeignGraph) -> None:
    tensors = {name for node in graph.nodes for name in (*node.input, *node.output)} - {
        graph.input.name
    }
    renamed = {
        name: graph.fresh(name)
        for name in tensors
        if name == INPUT or name.startswith(f"{PREFIX}.")
    }
    for node in graph.nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    graph.constants = {renamed.get(name, name): tensor for name, tensor in graph.constants.items()}
    for name in renamed.values():
        if name in graph.constants:
            graph.constants[name].name = name
    graph.outputs = {renamed.get(name, name): kind for name, kind in graph.outputs.items()}


def _make_next(
    nodes: list[onnx.NodeProto], operator: str, name: str, *operands: str, **attributes: object
) -> onnx.NodeProto:
    from onnx import helper

    inputs = [nodes[-1].output[0], *operands]
    return helper.make_node(operator, inputs, [name], name=name, **attributes)


def _swap_channels(graph: ForeignGraph, x: str, axis: int) -> list[onnx.NodeProto]:
    """Convert RGB to BGR by three Slices and a Concat, which all engines support."""
    from onnx import helper

    nodes = []
    for channel, name in zip(BGR, ("input.blue", "input.green", "input.red"), strict=True):
        bounds = [
            graph.constant(f"{name}.{key}", np.array([value], np.int64))
            for key, value in (("starts", channel), ("ends", channel + 1), ("axes", axis))
        ]
        nodes.append(helper.make_node("Slice", [x, *bounds], [name], name=name))
    parts = [node.output[0] for node in nodes]
    return [*nodes, helper.make_node("Concat", parts, ["input.bgr"], name="input.bgr", axis=axis)]


def _fold_into_weights(graph: ForeignGraph, start: str, order: list[int], scale: float) -> bool:
    """Adapt the weights of the Convs that read the picture. Return False if other nodes read it."""
    orders = {start: order}
    convolutions: list[tuple[onnx.NodeProto, list[int]]] = []
    for node in graph.nodes:
        read = [name for name in node.input if name in orders]
        if not read:
            continue
        if node.op_type == "Conv" and _has_plain_weights(graph, node, read):
            convolutions.append((node, orders[read[0]]))
        elif node.op_type == "Slice" and _keeps_channels(graph, node):
            orders[node.output[0]] = orders[read[0]]
        elif (
            node.op_type == "Concat"
            and len(read) == len(node.input)
            and attributes_of(node)["axis"] == 1
        ):
            orders[node.output[0]] = _join_orders([orders[name] for name in node.input])
        else:
            return False
    if not convolutions or any(name in graph.outputs for name in orders):
        return False
    for node, channels in convolutions:
        weights = graph.value(node.input[1])
        assert weights is not None
        # Channel c of the old input is channel channels[c] of the new one; argsort inverts this.
        reordered = weights[:, np.argsort(channels)] * np.float32(scale)
        node.input[1] = graph.constant(node.input[1], reordered.astype(np.float32))
    return True


def _has_plain_weights(graph: ForeignGraph, node: onnx.NodeProto, read: list[str]) -> bool:
    """Return whether a Conv without groups reads only the picture and constant weights."""
    weights = graph.dims.get(node.input[1], ())
    return (
        read == [node.input[0]]
        and node.input[1] in graph.constants
        and len(weights) == 4
        and attributes_of(node).get("group", 1) == 1
    )


def _keeps_channels(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    axes = graph.value(node.input[3]) if len(node.input) > 3 else None
    return axes is not None and bool((axes % 4 >= 2).all())


def _join_orders(orders: list[list[int]]) -> list[int]:
    joined: list[int] = []
    for order in orders:
        joined += [len(joined) + channel for channel in order]
    return joined


def rename_all(graph: ForeignGraph) -> None:
    """Rename nodes, tensors and constants, in place: ``/model.0/conv/Conv`` becomes
    ``model.0.conv`` if it is the module's only node. No name is a prefix of another name: torch
    modules with such names would clash."""
    names = _node_names(graph.nodes)
    tensors = {graph.input.name: graph.input.name}
    for node, name in zip(graph.nodes, names, strict=True):
        for at, output in enumerate(node.output):
            if output:
                tensors[output] = name if at == 0 else f"{name}.{at}"
    for node, name in zip(graph.nodes, names, strict=True):
        for at, tensor in enumerate(node.input):
            if tensor and tensor not in tensors:
                operand = OPERANDS.get(node.op_type, {}).get(at, f"in{at}")
                tensors[tensor] = f"{name}.{operand}"
    graph.constants = {tensors[old]: t for old, t in graph.constants.items() if old in tensors}
    for name, constant in graph.constants.items():
        constant.name = name
    for node, name in zip(graph.nodes, names, strict=True):
        node.name = name
        node.input[:] = [tensors[old] if old else "" for old in node.input]
        node.output[:] = [tensors[old] if old else "" for old in node.output]
    graph.outputs = {tensors[old]: kind for old, kind in graph.outputs.items()}


def _node_names(nodes: list[onnx.NodeProto]) -> list[str]:
    paths = [_path(node) for node in nodes]
    # The only node of a module without submodules gets the module's name.
    nodes_in = Counter(path[:-1] for path in paths)
    nodes_below = Counter(path[:end] for path in paths for end in range(1, len(path)))
    names: list[str] = []
    taken: set[tuple[str, ...]] = set()
    beginnings: set[tuple[str, ...]] = set()
    tries: Counter[tuple[str, ...]] = Counter()
    for path in paths:
        module = path[:-1]
        is_only = len(module) > 1 and nodes_in[module] == nodes_below[module] == 1
        name = _free_name(module if is_only else path, taken, beginnings, tries)
        taken.add(name)
        beginnings |= {name[:end] for end in range(1, len(name))}
        names.append(".".join(name))
    return names


def _path(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the name of the node, or else of its output or operator, as identifiers."""
    text = node.name or next(iter(node.output), "") or node.op_type
    if text.startswith("input.") and "/" not in text and node.name == node.output[0]:
        return tuple(text.split("."))  # a node of the prefix
    parts = [_identifier(part) for part in re.split(r"[/.:]+", text.split("@")[0]) if part]
    if len(parts) > MAX_PARTS:
        parts = [*parts[: MAX_PARTS - 1], "_".join(parts[MAX_PARTS - 1 :])]
    return tuple(parts) or (_identifier(node.op_type),)


def _identifier(text: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_]", "_", text)
    if text.isdecimal():
        return text
    if text[0].isdigit() or text[0] == "_":
        text = f"n{text}"
    return f"{text}_" if keyword.iskeyword(text) or text in RESERVED else text


def _free_name(
    path: tuple[str, ...],
    taken: set[tuple[str, ...]],
    beginnings: set[tuple[str, ...]],
    tries: Counter[tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the path, with a number if it clashes. ``tries``: path -> the last number used."""
    candidate = path
    while (
        candidate in taken
        or candidate in beginnings
        or any(candidate[:end] in taken for end in range(1, len(candidate)))
    ):
        # If a prefix of the path is the name of a node, the number is added to the prefix.
        at = next((end for end in range(1, len(path)) if path[:end] in taken), len(path))
        tries[path] += 1
        candidate = (*path[: at - 1], f"{path[at - 1]}_{tries[path]}", *path[at:])
    return candidate
