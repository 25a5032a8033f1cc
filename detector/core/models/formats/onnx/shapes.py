"""Fix all shapes of a graph, for the requested size and batch or for the file's own.

``settle_shapes`` sets size and batch of the input. Then ``fold`` computes everything that does not
depend on the picture. A size that the file fixes is changed only if ``_refuse_fixed_sizes``
permits it. A fixed batch is changed only if ``rebatch`` proves the change correct.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.models.formats import how_to_raise, raised
from detector.core.models.formats.onnx.branches import CONTROL_FLOW, refuse_branches, taken_branch
from detector.core.models.formats.onnx.foreign import (
    ForeignGraph,
    attributes_of,
    constant_of,
    describe_tensor,
)
from detector.core.models.formats.onnx.inputs import fix_sizes
from detector.core.models.formats.onnx.metadata import MAX_SIDE, Metadata
from detector.core.models.formats.onnx.operands import check_operands
from detector.core.models.formats.onnx.rebatch import BROADCAST, UNARY, rebatch
from detector.core.models.graph.build import node_macs
from detector.core.models.graph.operators import MULTIPLYING
from detector.core.models.layouts.output_shapes import Dims
from detector.core.models.own_files import KEY

if TYPE_CHECKING:
    import onnx

Size = tuple[int, int]  # height, width

STRIDE = 32  # if the metadata does not state it
MAX_ROUNDS = 100  # rounds of folding; D-FINE takes 8
MAX_NODE_ROUNDS = 600_000  # nodes times rounds
LARGEST = 1 << 24  # elements of a folded constant; the grids of an 8192x8192 input have fewer
MAX_WORK = 1 << 29  # elements read and written by folding, which takes some seconds
# Limits for unfolded constants, which an engine computes: elements, and multiply-accumulates.
MAX_LEFT, MAX_LEFT_MACS = 1 << 28, 1 << 38
# Never folded: quantised weights must stay quantised, and random numbers are not constants.
KEPT = frozenset(
    "DequantizeLinear QuantizeLinear RandomNormal RandomUniform RandomNormalLike RandomUniformLike "
    "Bernoulli Multinomial If Loop Scan SequenceMap".split()
)
# Operators with about as many elements in outputs as in inputs. numpy computes them fast.
STEADY = UNARY | frozenset(
    "And Or Xor BitShift Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Softmax LogSoftmax "
    "Concat Split Slice Reshape Flatten Squeeze Unsqueeze Transpose Shape Size NonZero Compress "
    "Unique ArgMax ArgMin ReduceMax ReduceMean ReduceMin ReduceSum ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSum ReduceLogSumExp CumSum TopK Trilu ScatterND ScatterElements "
    "DepthToSpace SpaceToDepth ReverseSequence".split()
)
# Operators whose outputs may be larger. numpy computes them if shape inference finds their size.
GROWING = frozenset(
    "Expand Tile Range Pad OneHot MatMul Gemm ConstantOfShape EyeLike GatherND GatherElements "
    "Gather Constant".split()
)
# All other operators run in Python. We count this cost per element, and fold at most this many.
SLOW, SLOW_ELEMENTS = 1000, 4096
OPEN_END = np.iinfo(np.int32).max  # exporters write "to the end" as the largest int32 or int64
# Operators that do not depend on the input size, in addition to the element-wise ones.
SIZELESS = frozenset(
    "AveragePool BatchNormalization Conv GlobalAveragePool MaxPool Concat Transpose".split()
)


def settle_shapes(
    graph: ForeignGraph, metadata: Metadata, size: Size | None, batch: int
) -> tuple[bool, Size]:
    """Fix all shapes, in place; return whether the graph reads NCHW, and its input size.

    ``size``: (height, width); None: the file's. Raises ModelError.
    """
    planar = _is_planar(graph)
    dims = graph.input.type.tensor_type.shape.dim
    batched = len(dims) == 4
    first = 1 if batched else 0
    spatial = (first + 1, first + 2) if planar else (first, first + 1)
    own = (dims[spatial[0]].dim_value, dims[spatial[1]].dim_value)  # 0: dynamic
    chosen = height, width = _choose_size(graph, metadata, size, own)
    resized = any(side and side != new for side, new in zip(own, chosen, strict=True))
    own_batch = dims[0].dim_value if batched else 1
    values = {first if planar else first + 2: 3, spatial[0]: height, spatial[1]: width}
    if batched:
        values[0] = own_batch or batch
    for at, value in values.items():
        dims[at].ClearField("dim_param")
        dims[at].dim_value = value
    fix_sizes(graph, chosen, own_batch or batch)
    if resized or own_batch not in (0, batch):
        graph.declared.clear()
    try:
        fold(graph)
    except ModelError as exc:
        if resized:
            raise ModelError(
                f"{graph.name}: the file is fixed at {_format_size(own)} and does not fit "
                f"{width}x{height} ({exc}); export it at {width}x{height}, or with dynamic sizes"
            ) from exc
        raise
    if resized:
        _refuse_fixed_sizes(graph, chosen, own)
    if own_batch and own_batch != batch:
        rebatch(graph, batch)
    return planar, chosen


def _is_planar(graph: ForeignGraph) -> bool:
    """Return whether the input is NCHW, not NHWC. Raises ModelError if it is not a picture."""
    from onnx import TensorProto

    tensor = graph.input.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    if KEY in graph.metadata:
        if tensor.elem_type == TensorProto.UINT8 and len(dims) == 4 and all(dims) and dims[3] == 3:
            return False
        raise ModelError(
            f"{graph.name}: its input {graph.input.name} is {describe_tensor(graph.input)}, so it "
            "was changed after the build; build it again"
        )
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8)
    sides = dims[1:] if len(dims) == 4 else dims
    fits = len(dims) in (3, 4) and (sides[0] in (0, 3) or sides[2] == 3)
    if tensor.elem_type not in kinds or not fits:
        raise ModelError(
            f"{graph.name}: its input {graph.input.name} is {describe_tensor(graph.input)}; export "
            "it with a picture as its input: float32, float16 or uint8 [batch, 3, height, width]"
        )
    return bool(sides[0] == 3 or sides[2] != 3)


def _choose_size(graph: ForeignGraph, metadata: Metadata, size: Size | None, own: Size) -> Size:
    if size is None and all(own):
        size = own
    if size is None:
        if metadata.imgsz is None:
            raise ModelError(
                f"{graph.name}: its input is {describe_tensor(graph.input)}, and the file does not "
                "give its training size; give it: --size 640 (or WIDTHxHEIGHT)"
            )
        size = metadata.imgsz
    stride = metadata.stride or STRIDE
    if size != own and any(side % stride for side in size):
        fitting = "x".join(str(-(-side // stride) * stride) for side in reversed(size))
        raise ModelError(
            f"{graph.name}: --size {size[1]}x{size[0]}: both sides must be multiples of {stride}; "
            f"the next size is --size {fitting}"
        )
    if any(side > (most := raised(MAX_SIDE)) for side in size):
        raise ModelError(
            f"{graph.name}: its input {size[1]}x{size[0]} is larger than {most}x{most}; "
            f"{how_to_raise()}"
        )
    return size


def fold(graph: ForeignGraph) -> None:
    """Compute all values that do not depend on the picture, in place, and infer all shapes.

    A small file may request terabytes, so ``_cost`` limits the work. Raises ModelError for branches
    that depend on the picture.
    """
    try:
        work, rounds = raised(MAX_WORK), raised(MAX_NODE_ROUNDS) // (1 + len(graph.nodes))
        for _ in range(min(raised(MAX_ROUNDS), 2 + rounds)):
            graph.infer()
            changed, work = fold_once(graph, work)
            if not changed:
                break
        drop_unused(graph)
        graph.infer()
        check_operands(graph)
    except ModelError:
        refuse_branches(graph)  # inference may have failed because of branches
        raise
    refuse_branches(graph)


def fold_once(graph: ForeignGraph, work: int, kept: Set[str] = frozenset()) -> tuple[bool, int]:
    """Visit all nodes once; return whether anything changed, and the remaining ``work``.
    ``kept``: tensors that must not become constants."""
    read = {name for node in graph.nodes for name in node.input} | set(graph.outputs)
    nodes: list[onnx.NodeProto] = []
    alias: dict[str, str] = {}
    changed = False
    # A branch may read any tensor of the outer graph by name, so with branches we rename nothing.
    has_branches = any(node.op_type in CONTROL_FLOW for node in graph.nodes)
    shapes: dict[str, Dims] = {}  # output of a Shape -> the shape that it holds, as far as known
    replaceable = () if has_branches else ("Identity", "Dropout")
    for node in graph.nodes:
        for at, name in enumerate(node.input):
            if name in alias:
                node.input[at] = alias[name]
        if (
            node.op_type in replaceable
            and node.output[0] not in graph.outputs
            and not any(name in read for name in node.output[1:])  # no node reads a Dropout's mask
        ):
            alias[node.output[0]] = node.input[0]
        elif (sides := _gather_sides(graph, node, shapes)) is not None:
            _make_constants(graph, node, [sides])
        elif node.op_type == "If" and (branch := taken_branch(graph, node)) is not None:
            nodes += branch
        elif not kept.isdisjoint(node.output):
            nodes.append(node)
            continue
        elif (cost := _cost(graph, node)) is not None and cost <= work:
            values = _constant_values(graph, node)
            work -= cost
            if values is None:
                nodes.append(node)
                continue
            _make_constants(graph, node, values)
        else:
            nodes.append(node)
            continue
        changed = True
    graph.nodes = nodes
    return changed, work


def _gather_sides(
    graph: ForeignGraph, node: onnx.NodeProto, shapes: dict[str, Dims]
) -> NDArray[Any] | None:
    """Add the result of a Shape to ``shapes``. For a Gather of such a result, return the sides."""
    if any(name in graph.outputs for name in node.output):
        return None
    if node.op_type == "Shape" and (dims := graph.dims.get(node.input[0])) is not None:
        attributes = attributes_of(node)
        shapes[node.output[0]] = dims[attributes.get("start", 0) : attributes.get("end")]
    if node.op_type != "Gather" or node.input[0] not in shapes:
        return None
    dims, indices = shapes[node.input[0]], graph.value(node.input[1])
    if indices is None or not all(-len(dims) <= at < len(dims) for at in indices.ravel().tolist()):
        return None
    sides = [dims[at] for at in indices.ravel().tolist()]
    if any(side is None for side in sides):
        return None
    return np.array(sides, np.int64).reshape(indices.shape)


def _make_constants(graph: ForeignGraph, node: onnx.NodeProto, values: list[NDArray[Any]]) -> None:
    from onnx import numpy_helper

    for name, array in zip(node.output, values, strict=False):
        if name:
            graph.constants[name] = numpy_helper.from_array(np.asarray(array), name)


def _cost(graph: ForeignGraph, node: onnx.NodeProto) -> int | None:
    """Return a node's folding cost in elements read and written; None if the node must stay."""
    if any(name in graph.outputs for name in node.output):
        return None
    if node.op_type == "Shape":
        return 1 if graph.shape(node.input[0]) is not None else None
    if node.op_type in KEPT or any(name and name not in graph.constants for name in node.input):
        return None
    read = sum(_size(graph, name) for name in node.input if name)
    written = _count_written(graph, node, read)
    if written is None or written > raised(LARGEST):
        return None
    if node.op_type in ("MatMul", "Gemm"):
        written *= max(1, *graph.constants[node.input[0]].dims)
    if node.op_type in STEADY or node.op_type in GROWING or node.op_type in BROADCAST:
        return 1 + read + written
    return SLOW * (1 + read + written) if read + written <= SLOW_ELEMENTS else None


def _size(graph: ForeignGraph, name: str) -> int:
    return int(math.prod(graph.constants[name].dims))


def _count_written(graph: ForeignGraph, node: onnx.NodeProto, read: int) -> int | None:
    """Return an upper bound of the elements that a node writes; None if it is not known yet."""
    shapes = [graph.shape(name) for name in node.output if name]
    known = [math.prod(shape) for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        return sum(known)
    if node.op_type in STEADY:
        return read
    dims = [tuple(graph.constants[name].dims) for name in node.input if name]
    if node.op_type in BROADCAST:
        try:
            return int(math.prod(np.broadcast_shapes(*dims)))
        except ValueError:
            return None
    if node.op_type == "Gather" and len(dims) == 2:
        return _size(graph, node.input[0]) * _size(graph, node.input[1])
    if node.op_type == "ConstantOfShape":
        target = graph.value(node.input[0])
        sides = () if target is None else target.ravel().tolist()
        return None if target is None else int(math.prod(max(0, side) for side in sides))
    return None


def _constant_values(graph: ForeignGraph, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
    """Return a node's outputs; None if ONNX's evaluator cannot compute them."""
    if node.op_type == "Shape":
        shape, attributes = graph.shape(node.input[0]) or (), attributes_of(node)
        return [np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)]
    if (tensor := constant_of(node)) is not None:
        from onnx import numpy_helper

        return [numpy_helper.to_array(tensor)]
    return _evaluate(graph, node)


def _evaluate(graph: ForeignGraph, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs = {name: graph.value(name) for name in node.input if name}
    single = helper.make_graph(
        [node],
        "one",
        [
            helper.make_value_info(
                name, helper.make_tensor_type_proto(graph.constants[name].data_type, None)
            )
            for name in inputs
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    model = helper.make_model(single, opset_imports=[helper.make_opsetid("", graph.opset)])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # the evaluator lacks an operator, but engines may have it
        return None
    values = iter(results)
    return [next(values) if name else np.zeros(0) for name in node.output]


def refuse_costly_constants(graph: ForeignGraph) -> None:
    """Raise ModelError if computing constants would take an engine too much memory or time: for
    instance, a Range of 2^40 numbers, or a thousand products of large matrices."""
    fixed = set(graph.constants)
    shapes = {name: shape for name in graph.dims if (shape := graph.shape(name)) is not None}
    elements = macs = 0
    for node in graph.nodes:
        if not all(name in fixed for name in node.input if name):
            continue
        fixed.update(node.output)
        outputs = [shapes.get(name) for name in node.output if name]
        if any(shape is None for shape in outputs) and node.op_type not in STEADY:
            raise ModelError(_too_costly(graph, node, "an unknown number of values"))
        read = sum(math.prod(shapes.get(name, ())) for name in node.input if name)
        elements += max(0, sum(math.prod(shape or ()) for shape in outputs) - read)
        if node.op_type in MULTIPLYING and all(name in shapes for name in node.input[:2]):
            macs += node_macs(node, shapes)
        if elements > raised(MAX_LEFT) or macs > raised(MAX_LEFT_MACS):
            raise ModelError(_too_costly(graph, node, "too many values"))


def _too_costly(graph: ForeignGraph, node: onnx.NodeProto, what: str) -> str:
    shapes = ", ".join(str(list(graph.dims.get(name, ()))) for name in node.output)
    return (
        f"{graph.name}: node {node.name or node.output[0]} ({node.op_type}) computes {what} from "
        f"constants alone: {shapes}. No detector needs that; export it again; {how_to_raise()}"
    )


def drop_unused(graph: ForeignGraph) -> None:
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.output):
            nodes.append(node)
            needed.update(node.input)
    graph.nodes = nodes[::-1]
    graph.constants = {name: tensor for name, tensor in graph.constants.items() if name in needed}


def _refuse_fixed_sizes(graph: ForeignGraph, size: Size, exported: Size) -> None:
    """Raise ModelError if a node may hold values for the exported size, such as old anchors."""
    for node in graph.nodes:
        if not _is_sizeless(graph, node):
            height, width = (own or new for own, new in zip(exported, size, strict=True))
            raise ModelError(
                f"{graph.name}: the file is fixed at {_format_size(exported)}, and node "
                f"{node.name or node.output[0]} ({node.op_type}) may hold values computed for that "
                f"size; use --size {width}x{height}, or export it at {size[1]}x{size[0]} or with "
                "dynamic sizes"
            )


def _format_size(size: Size) -> str:
    height, width = size
    if height and width:
        return f"{width}x{height}"
    return f"height {height}" if height else f"width {width}"


def _is_sizeless(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    if all(not name or name in graph.constants for name in node.input):
        return False
    if node.op_type in UNARY or node.op_type in SIZELESS:
        return True
    if node.op_type in BROADCAST:
        return all(_is_per_channel(graph, name) for name in node.input if name in graph.constants)
    return node.op_type in SIZELESS_FORMS and SIZELESS_FORMS[node.op_type](graph, node)


def _is_per_channel(graph: ForeignGraph, name: str) -> bool:
    """Return whether a constant is a factor per channel, [1, C, 1, 1], not a scale of boxes."""
    dims = graph.dims.get(name, ())
    return len(dims) in (3, 4) and dims[-2:] == (1, 1)


def _is_sizeless_slice(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """Accept slices of channels, and slices of pixels that start near 0 and reach the end."""
    bounds = [graph.value(name) for name in node.input[1:]]
    dims = graph.dims.get(node.input[0], ())
    if any(bound is None for bound in bounds) or len(bounds) < 3 or len(dims) != 4:
        return False
    starts, ends, axes = bounds[:3]
    assert starts is not None
    assert ends is not None
    assert axes is not None
    return all(
        axis == 1 or (axis in (2, 3) and 0 <= start < 8 and end >= OPEN_END)
        for start, end, axis in zip(starts.tolist(), ends.tolist(), axes.tolist(), strict=True)
    )


def _is_sizeless_split(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    return len(graph.dims.get(node.input[0], ())) == 4 and attributes_of(node).get("axis", 0) == 1


def _is_sizeless_reshape(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """Accept a Reshape of a map [b, C, h, w] to [b, C, -1]."""
    target, dims = graph.value(node.input[1]), graph.dims.get(node.input[0], ())
    return (
        target is not None
        and len(dims) == 4
        and len(target) == 3
        and target[1] in (0, dims[1])
        and target[2] == -1
    )


def _is_sizeless_resize(graph: ForeignGraph, node: onnx.NodeProto) -> bool:
    """Accept a Resize by factors, not to a size."""
    return len(node.input) == 3 and graph.value(node.input[2]) is not None


# Operators that do not depend on the input size in some of their forms.
SIZELESS_FORMS: dict[str, Callable[[ForeignGraph, onnx.NodeProto], bool]] = {
    "Reshape": _is_sizeless_reshape,
    "Resize": _is_sizeless_resize,
    "Slice": _is_sizeless_slice,
    "Split": _is_sizeless_split,
}
