"""Fixed shapes for a graph from elsewhere: the size and batch that were asked for, or the file's own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import ModelError
from detector.models.formats.onnx.foreign import ForeignGraph, attributes_of
from detector.models.formats.onnx.load import described
from detector.models.formats.onnx.rebatch import BROADCAST, UNARY, rebatch
from detector.models.formats.onnx.recognise import Metadata

if TYPE_CHECKING:
    import onnx


# ----------------------------------------------------------------------
# Everything that does not depend on the picture is computed now, so that the engines find fixed shapes.
#
# Nodes whose inputs are all constants are evaluated by ONNX's own reference evaluator; a Shape of a tensor whose shape
# is known becomes a constant. Rounds go on while that makes more shapes known.

MAX_ROUNDS = 50
LARGEST = 1 << 24  # elements of a folded constant: the grids of an 8192x8192 input are below it
# Quantised weights stay quantised; random numbers are no constants.
KEPT = {
    "DequantizeLinear",
    "QuantizeLinear",
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "If",
    "Loop",
    "Scan",
}
# Their outputs' sizes cannot be known before, but are no larger than their inputs'.
SHRINKING = {"NonZero", "Compress", "Unique", "NonMaxSuppression", "Shape", "Size"}
CONTROL_FLOW = ("If", "Loop", "Scan")


def fold(graph: ForeignGraph) -> None:
    """In place; afterwards ``graph.infer`` has run. Raises ModelError for branches that depend on the picture."""
    try:
        for _ in range(MAX_ROUNDS):
            graph.infer()
            if not _round(graph):
                break
        drop_unused(graph)
        graph.infer()
    except ModelError:
        _refuse_branches(graph)  # what is inside of them is what inference stumbles over
        raise
    _refuse_branches(graph)


def _refuse_branches(graph: ForeignGraph) -> None:
    branching = sorted({node.op_type for node in graph.nodes if node.op_type in CONTROL_FLOW})
    if branching:
        raise ModelError(
            f"{graph.name}: holds {', '.join(branching)} whose way depends on the picture; such control flow is not "
            "supported: export it without NMS, or with a fixed size"
        )


def _round(graph: ForeignGraph) -> bool:
    """One pass over all nodes, in order, so that chains fold at once; returns whether anything changed."""
    left: list[onnx.NodeProto] = []
    alias: dict[str, str] = {}
    changed = False
    # A branch may read a tensor by its name from inside, where it would not be found.
    passes = (
        set()
        if any(node.op_type in CONTROL_FLOW for node in graph.nodes)
        else {"Identity", "Dropout"}
    )
    for node in graph.nodes:
        for at, name in enumerate(node.input):
            if name in alias:
                node.input[at] = alias[name]
        if node.op_type in passes and node.output[0] not in graph.outputs and _alone(graph, node):
            alias[node.output[0]] = node.input[0]
        elif node.op_type == "If" and (branch := _branch(graph, node)) is not None:
            left += branch
        elif (values := _values(graph, node)) is not None:
            _keep(graph, node, values)
        else:
            left.append(node)
            continue
        changed = True
    graph.nodes = left
    return changed


def _alone(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """Whether only the first output of a Dropout is read; its mask is an output of its own."""
    return len(node.output) == 1 or not any(node.output[1] in other.input for other in graph.nodes)


def _branch(graph: ForeignGraph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """The nodes of the branch that an If takes always, with its results under the If's own names."""
    from onnx import helper

    condition = graph.value(node.input[0])
    if condition is None:
        return None
    attributes = {attribute.name: attribute.g for attribute in node.attribute}
    taken = attributes["then_branch" if condition.item() else "else_branch"]
    graph.constants |= {tensor.name: tensor for tensor in taken.initializer}
    ends = [
        helper.make_node("Identity", [info.name], [name], name=graph.fresh(f"{node.name}.end"))
        for info, name in zip(taken.output, node.output, strict=True)
    ]
    return [*taken.node, *ends]


def _keep(graph: ForeignGraph, node: onnx.NodeProto, values: list[NDArray[Any]]) -> None:
    from onnx import numpy_helper

    for name, array in zip(node.output, values, strict=False):
        if name:
            graph.constants[name] = numpy_helper.from_array(np.asarray(array), name)


def _values(graph: ForeignGraph, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
    """What a node gives, where that does not depend on the picture."""
    if any(name in graph.outputs for name in node.output):
        return None
    if node.op_type == "Shape":
        shape = graph.shape(node.input[0])
        if shape is None:
            return None
        attributes = attributes_of(node)
        return [np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)]
    if node.op_type in KEPT or any(name and name not in graph.constants for name in node.input):
        return None
    if not _small(graph, node):
        return None
    return _evaluated(graph, node)


def _small(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """A file may ask for a constant of any size: it is asked first how large it would be."""
    if node.op_type in SHRINKING:
        return True
    if node.op_type == "ConstantOfShape":
        asked = graph.value(node.input[0])
        return asked is not None and math.prod(int(side) for side in asked) <= LARGEST
    for name in node.output:
        if not name:
            continue
        shape = graph.shape(name)
        if shape is None or math.prod(shape) > LARGEST:
            # Inference runs once a round: inside a chain nothing is known yet, and element-wise results are no
            # larger than their inputs together.
            grows = node.op_type in (
                "Expand",
                "Tile",
                "Range",
                "Resize",
                "Pad",
                "OneHot",
                "Upsample",
                "MatMul",
            )
            if shape is not None or grows:
                return False
    return True


def _evaluated(graph: ForeignGraph, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    given = {name: graph.value(name) for name in node.input if name}
    single = helper.make_graph(
        [node],
        "one",
        [
            helper.make_value_info(
                name, helper.make_tensor_type_proto(graph.constants[name].data_type, None)
            )
            for name in given
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    model = helper.make_model(single, opset_imports=[helper.make_opsetid("", graph.opset)])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, given)
    except Exception:  # what the evaluator lacks stays a node; the engines may have it
        return None
    made = iter(results)
    return [next(made) if name else np.zeros(0) for name in node.output]


def drop_unused(graph: ForeignGraph) -> None:
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(node.input)
    graph.nodes = kept[::-1]
    graph.constants = {name: tensor for name, tensor in graph.constants.items() if name in wanted}


# ----------------------------------------------------------------------
# A graph exported for one input size, at another: where it is convolutions all through and nothing in it was laid out
# for the exported size.
#
# A grid of anchors that was computed at export would be silently wrong at another size of as many cells; so a list of
# operators that hold no sizes is what counts, not whether the shapes happen to fit.

OPEN_END = np.iinfo(
    np.int32
).max  # exporters write "to the end" as the largest number of 32 or 64 bits
POOLS = frozenset(
    "AveragePool BatchNormalization Conv GlobalAveragePool MaxPool Concat Transpose".split()
)


def refuse_fixed_sizes(
    graph: ForeignGraph, size: tuple[int, int], exported: tuple[int, int]
) -> None:
    """Raises ModelError with the first node that may hold the exported size; ``size`` and ``exported``: (h, w)."""
    for node in graph.nodes:
        if not _free(graph, node):
            height, width = exported
            raise ModelError(
                f"{graph.name}: the file is fixed at {width}x{height}, and node {node.name or node.output[0]} "
                f"({node.op_type}) may hold numbers laid out for that; use --size {width}x{height}, or export it at "
                f"{size[1]}x{size[0]} or with dynamic sizes"
            )


def _free(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    if all(not name or name in graph.constants for name in node.input):
        return False
    if node.op_type in UNARY or node.op_type in POOLS:
        return True
    if node.op_type in BROADCAST:
        return all(_per_channel(graph, name) for name in node.input if name in graph.constants)
    return node.op_type in RULES and RULES[node.op_type](graph, node)


def _per_channel(graph: ForeignGraph, name: str) -> bool:
    """A factor per channel of a map, [1, C, 1, 1]: never the rows of a decoded output, nor the scale of boxes."""
    dims = graph.dims.get(name, ())
    return len(dims) in (3, 4) and dims[-2:] == (1, 1)


def _slice(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """Of channels, or every second pixel from the first or second on: nothing that ends at a pixel."""
    parts = [graph.value(name) for name in node.input[1:]]
    dims = graph.dims.get(node.input[0], ())
    if any(part is None for part in parts) or len(parts) < 3 or len(dims) != 4:
        return False
    starts, ends, axes = parts[:3]
    assert starts is not None
    assert ends is not None
    assert axes is not None
    return all(
        axis == 1 or (axis in (2, 3) and 0 <= start < 8 and end >= OPEN_END)
        for start, end, axis in zip(starts.tolist(), ends.tolist(), axes.tolist(), strict=True)
    )


def _split(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    return len(graph.dims.get(node.input[0], ())) == 4 and attributes_of(node).get("axis", 0) == 1


def _reshape(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """A map [b, C, h, w] to [b, C, -1]."""
    target, dims = graph.value(node.input[1]), graph.dims.get(node.input[0], ())
    return (
        target is not None
        and len(dims) == 4
        and len(target) == 3
        and target[1] in (0, dims[1])
        and target[2] == -1
    )


def _upsample(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """By factors, not to a size."""
    return len(node.input) == 3 and graph.value(node.input[2]) is not None


RULES: dict[str, Callable[[ForeignGraph, onnx.NodeProto], bool]] = {
    "Reshape": _reshape,
    "Resize": _upsample,
    "Slice": _slice,
    "Split": _split,
}


STRIDE = 32
MAX_SIDE = 8192

Size = tuple[int, int]  # height, width


def settle_shapes(
    graph: ForeignGraph, metadata: Metadata, size: Size | None, batch: int
) -> tuple[bool, Size]:
    """Folds the graph at (height, width) and batch; returns whether it reads NCHW, and its size.

    A free dimension takes what was asked for; a fixed one is changed only where that is proven right. Raises
    ModelError.
    """
    planar = _planar(graph)
    dims = graph.input.type.tensor_type.shape.dim
    spatial = (2, 3) if planar else (1, 2)
    own = tuple(dims[at].dim_value for at in spatial)  # 0: free
    height, width = _wanted(graph, metadata, size, (own[0], own[1]))
    own_batch = dims[0].dim_value
    values = {0: own_batch or batch, 1 if planar else 3: 3, spatial[0]: height, spatial[1]: width}
    for at, value in values.items():
        dims[at].ClearField("dim_param")
        dims[at].dim_value = value
    if _changed((height, width), own) or own_batch not in (0, batch):
        graph.declared.clear()
    try:
        fold(graph)
    except ModelError as exc:
        if _changed((height, width), own):
            raise ModelError(
                f"{graph.name}: the file is fixed at {own[1]}x{own[0]} and does not fit {width}x{height} ({exc}); "
                f"export it at {width}x{height}, or with dynamic sizes"
            ) from exc
        raise
    if _changed((height, width), own):
        refuse_fixed_sizes(graph, (height, width), (own[0], own[1]))
    if own_batch and own_batch != batch:
        rebatch(graph, batch)
    return planar, (height, width)


def _changed(size: Size, own: tuple[int, ...]) -> bool:
    return any(side and side != wanted for side, wanted in zip(own, size, strict=True))


def _planar(graph: ForeignGraph) -> bool:
    """Whether the input is NCHW; NHWC otherwise. Raises ModelError for what is no picture."""
    from onnx import TensorProto

    tensor = graph.input.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    if tensor.elem_type not in floats or len(dims) != 4 or not (dims[1] in (0, 3) or dims[3] == 3):
        raise ModelError(
            f"{graph.name}: its input {graph.input.name} is {described(graph.input)}; wanted is a picture: float32 "
            "or float16 [batch, 3, height, width]; export it so"
        )
    return bool(dims[1] == 3 or dims[3] != 3)


def _wanted(graph: ForeignGraph, metadata: Metadata, size: Size | None, own: Size) -> Size:
    """What was asked for, else the file's own size, else what its metadata says."""
    if size is None:
        if all(own):
            return own
        if metadata.imgsz is None:
            raise ModelError(
                f"{graph.name}: its input is {described(graph.input)}, and nothing says which size it was trained at; "
                "give it: --size 640 (or WIDTHxHEIGHT)"
            )
        size = metadata.imgsz
    stride = metadata.stride or STRIDE
    if size != own and any(side % stride for side in size):
        fitting = "x".join(str(-(-side // stride) * stride) for side in reversed(size))
        raise ModelError(
            f"{graph.name}: --size {size[1]}x{size[0]}: both sides must be multiples of {stride}; "
            f"the next is --size {fitting}"
        )
    if any(side > MAX_SIDE for side in size):
        raise ModelError(
            f"{graph.name}: its input {size[1]}x{size[0]} is larger than {MAX_SIDE}x{MAX_SIDE}"
        )
    return size
