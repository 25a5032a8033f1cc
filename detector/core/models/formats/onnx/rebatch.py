"""Change the fixed batch size of an exported graph, if that is provably correct.

The proof follows the batch axis from the input through every node. The rules below check that each
operator treats pictures separately, and that no Reshape merges or splits the axis. Operators
without a rule are refused. Only constants that contain the batch size are changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.foreign import ForeignGraph, attributes_of, describe_tensor

if TYPE_CHECKING:
    import onnx

UNARY = frozenset(
    "Abs Cast Ceil Celu Clip Cos DequantizeLinear Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "Identity LeakyRelu Log Mish Neg Not QuantizeLinear Reciprocal Relu Round Selu Sigmoid Sign "
    "Sin Softplus Softsign Sqrt Tanh ThresholdedRelu IsNaN IsInf Dropout".split()
)
BROADCAST = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow PRelu "
    "Sub Sum Where".split()
)
# Operators on [batch, channels, ...]: only the first input depends on the pictures.
SPATIAL = frozenset(
    "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool "
    "GlobalMaxPool InstanceNormalization LRN MaxPool SpaceToDepth GroupNormalization".split()
)
REDUCTIONS = frozenset(
    "ArgMax ArgMin ReduceMax ReduceMean ReduceMin ReduceSum ReduceL1 ReduceL2 ReduceProd "
    "ReduceSumSquare ReduceLogSumExp".split()
)
# Operators that work along one axis, the last one by default.
ALONG = frozenset("Softmax LogSoftmax Hardmax TopK LpNormalization".split())


class _UnprovenError(Exception):
    """Says why a node is not known to treat pictures separately."""


@dataclass(slots=True)
class _BatchAxes:
    graph: ForeignGraph
    old: int
    new: int
    axes: dict[str, int]  # tensor that depends on the pictures -> its batch axis

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.graph.shape(name)
        if shape is None:
            raise _UnprovenError("its size depends on the picture")
        return shape

    def batched_inputs(self, node: onnx.NodeProto) -> list[str]:
        return [name for name in node.input if name in self.axes]

    def only_axis(self, node: onnx.NodeProto) -> int:
        """Return the batch axis of the first input, which must be the only batched one."""
        if self.batched_inputs(node) != [node.input[0]]:
            raise _UnprovenError("an input other than its first depends on the picture")
        return self.axes[node.input[0]]

    def numbers(self, name: str) -> list[int]:
        value = self.graph.value(name)
        if value is None:
            raise _UnprovenError(f"{name} is computed")
        return [int(number) for number in value.ravel()]


def rebatch(graph: ForeignGraph, new: int) -> None:
    """Change the batch of a graph to ``new``, in place. The graph must have been folded at its own
    batch. Raises ModelError."""
    dims = graph.input.type.tensor_type.shape.dim
    if len(dims) < 4:
        raise ModelError(
            f"{graph.name}: its input {graph.input.name} is {describe_tensor(graph.input)}, one "
            "picture without a batch; use --batch 1, or export it with a dynamic batch"
        )
    old = int(dims[0].dim_value)
    walk = _BatchAxes(graph, old, new, {graph.input.name: 0})
    before = dict(graph.dims)
    for node in graph.nodes:
        try:
            _follow_node(walk, node)
        except _UnprovenError as why:
            raise ModelError(
                f"{graph.name}: the file is fixed at batch {old}, and node "
                f"{node.name or node.output[0]} ({node.op_type}) is not known to treat {new} "
                f"pictures separately: {why}; use --batch {old}, or export it with a dynamic batch"
            ) from None
    dims[0].dim_value = new
    graph.infer()
    _check_shapes(walk, before)


def _follow_node(walk: _BatchAxes, node: onnx.NodeProto) -> None:
    if not walk.batched_inputs(node):
        return
    if node.op_type in UNARY:
        axis = walk.only_axis(node)
    elif node.op_type in BROADCAST:
        axis = _follow_broadcast(walk, node)
    elif node.op_type in SPATIAL:
        if (axis := walk.only_axis(node)) != 0:
            raise _UnprovenError("the batch is not its first axis")
    elif node.op_type in ALONG:
        axis = _follow_along(walk, node)
    elif node.op_type in REDUCTIONS:
        axis = _follow_reduction(walk, node)
    elif node.op_type in RULES:
        axis = RULES[node.op_type](walk, node)
    else:
        raise _UnprovenError("no rule is known for this operator")
    walk.axes |= {name: axis for name in node.output if name}


def _check_shapes(walk: _BatchAxes, before: dict[str, tuple[int | None, ...]]) -> None:
    """Raise ModelError if a shape changed in more than the batch. Outputs must begin with it."""
    graph = walk.graph
    for name, axis in walk.axes.items():
        old, new = before.get(name), graph.dims.get(name)
        if old is None or new is None:
            continue
        if new != (*old[:axis], walk.new, *old[axis + 1 :]):
            raise ModelError(
                f"{graph.name}: at batch {walk.new}, more than the batch would change in tensor "
                f"{name}: from {list(old)} to {list(new)}; use --batch {walk.old}"
            )
    for name in graph.outputs:
        if walk.axes.get(name) != 0:
            raise ModelError(
                f"{graph.name}: output {name} does not have the batch as its first axis; use "
                f"--batch {walk.old}"
            )


def _follow_broadcast(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    """Return the batch axis; shapes align at their ends. Refuse constants that vary by picture."""
    rank = max(len(walk.shape(name)) for name in node.input if name)
    from_end = {len(walk.shape(name)) - walk.axes[name] for name in walk.batched_inputs(node)}
    if len(from_end) != 1:
        raise _UnprovenError("the batch axes of its inputs differ")
    distance = from_end.pop()
    for name in node.input:
        if name and name not in walk.axes:
            shape = walk.shape(name)
            if len(shape) >= distance and shape[-distance] != 1:
                raise _UnprovenError(
                    f"constant {name} {list(shape)} differs from picture to picture"
                )
    return rank - distance


def _check_axis(axis: int, used: int, rank: int) -> int:
    """Return ``axis``, the batch axis. Refuse an operator whose own axis, ``used``, is the same."""
    if used % rank == axis:
        raise _UnprovenError("it works along the batch axis")
    return axis


def _follow_along(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    used = attributes_of(node).get("axis", 0 if node.op_type == "Split" else -1)
    return _check_axis(walk.only_axis(node), used, len(walk.shape(node.input[0])))


def _axis_without(axis: int, removed: Sequence[int], rank: int) -> int:
    positive = {other % rank for other in removed}
    if axis in positive:
        raise _UnprovenError("it removes the batch axis")
    return axis - sum(other < axis for other in positive)


def _follow_reduction(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, attributes = walk.only_axis(node), attributes_of(node)
    rank = len(walk.shape(node.input[0]))
    if node.op_type in ("ArgMax", "ArgMin"):
        removed: Sequence[int] | None = [attributes.get("axis", 0)]
    else:
        removed = attributes.get("axes") or (
            walk.numbers(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        )
    after = _axis_without(axis, removed or range(rank), rank)
    return axis if attributes.get("keepdims", 1) else after


def _follow_layer_normalization(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, rank = walk.only_axis(node), len(walk.shape(node.input[0]))
    if attributes_of(node).get("axis", -1) % rank <= axis:
        raise _UnprovenError("it works along the batch axis")
    return axis


def _follow_concat(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    if len(walk.batched_inputs(node)) != len(node.input):
        raise _UnprovenError("one of its inputs is the same for all pictures")
    axes = {walk.axes[name] for name in node.input}
    if len(axes) != 1:
        raise _UnprovenError("the batch axes of its inputs differ")
    return _check_axis(axes.pop(), attributes_of(node)["axis"], len(walk.shape(node.input[0])))


def _follow_transpose(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, rank = walk.only_axis(node), len(walk.shape(node.input[0]))
    return list(attributes_of(node).get("perm", range(rank)[::-1])).index(axis)


def _follow_slice(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, rank = walk.only_axis(node), len(walk.shape(node.input[0]))
    starts = walk.numbers(node.input[1])
    used = (
        walk.numbers(node.input[3])
        if len(node.input) > 3 and node.input[3]
        else list(range(len(starts)))
    )
    for other in used:
        _check_axis(axis, other, rank)
    return axis


def _follow_gather(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, rank = walk.only_axis(node), len(walk.shape(node.input[0]))
    used = attributes_of(node).get("axis", 0) % rank
    _check_axis(axis, used, rank)
    return axis if axis < used else axis + len(walk.shape(node.input[1])) - 1


def _follow_gather_elements(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    data, indices = node.input[0], node.input[1]
    if walk.axes.get(data) is None or walk.axes.get(data) != walk.axes.get(indices):
        raise _UnprovenError("one of its inputs is the same for all pictures")
    return _check_axis(walk.axes[data], attributes_of(node).get("axis", 0), len(walk.shape(data)))


def _follow_grid_sample(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    if [walk.axes.get(name) for name in node.input] != [0, 0]:
        raise _UnprovenError("its inputs do not both have the batch as their first axis")
    return 0


def _follow_matmul(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    ranks = [len(walk.shape(name)) for name in node.input]
    if node.input[0] in walk.axes and node.input[1] not in walk.axes and ranks[1] == 2:
        # Rows are independent of each other, so the batch axis may be the axis of rows.
        return _check_axis(walk.axes[node.input[0]], -1, ranks[0])
    for name, rank in zip(node.input, ranks, strict=True):
        if name in walk.axes and walk.axes[name] >= rank - 2:
            raise _UnprovenError("it multiplies along the batch axis")
    return _follow_broadcast(walk, node)


def _follow_gemm(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    attributes = attributes_of(node)
    if walk.only_axis(node) != 0 or attributes.get("transA"):
        raise _UnprovenError("it multiplies along the batch axis")
    if len(node.input) > 2 and node.input[2]:
        shape = walk.shape(node.input[2])
        if len(shape) == 2 and shape[0] != 1:
            raise _UnprovenError(
                f"constant {node.input[2]} {list(shape)} differs from picture to picture"
            )
    return 0


def _read_axes(walk: _BatchAxes, node: onnx.NodeProto) -> list[int]:
    if len(node.input) < 2 or not node.input[1]:
        raise _UnprovenError("it does not state its axes")
    return walk.numbers(node.input[1])


def _follow_squeeze(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    return _axis_without(
        walk.only_axis(node), _read_axes(walk, node), len(walk.shape(node.input[0]))
    )


def _follow_unsqueeze(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, added = walk.only_axis(node), _read_axes(walk, node)
    rank = len(walk.shape(node.input[0])) + len(added)
    positions = {other % rank for other in added}
    return [at for at in range(rank) if at not in positions][axis]


def _follow_flatten(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    if walk.only_axis(node) != 0 or attributes_of(node).get("axis", 1) != 1:
        raise _UnprovenError("it mixes the batch axis with others")
    return 0


def _follow_reshape(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    """Return the result's batch axis: the product of the sides before it must stay the same, and
    so must the product of the sides after it."""
    axis, source, target = (
        walk.only_axis(node),
        walk.shape(node.input[0]),
        walk.shape(node.output[0]),
    )
    before, after = math.prod(source[:axis]), math.prod(source[axis + 1 :])
    places = [
        at
        for at, side in enumerate(target)
        if side == walk.old
        and math.prod(target[:at]) == before
        and math.prod(target[at + 1 :]) == after
    ]
    if not places:
        raise _UnprovenError(f"{list(source)} -> {list(target)} mixes the batch axis with others")
    place, sides = places[0], walk.numbers(node.input[1])
    copies = sides[place] == 0 and place == axis and not attributes_of(node).get("allowzero", 0)
    if sides[place] != -1 and not copies:
        sides[place] = walk.new
        node.input[1] = walk.graph.constant(node.input[1], np.array(sides, np.int64))
    return place


def _follow_expand(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, rank = walk.only_axis(node), len(walk.shape(node.input[0]))
    sides = walk.numbers(node.input[1])
    at = len(sides) - (rank - axis)
    if at >= 0 and sides[at] not in (1, walk.old):
        raise _UnprovenError("it repeats the batch axis")
    if at >= 0 and sides[at] == walk.old:
        sides[at] = walk.new
        node.input[1] = walk.graph.constant(node.input[1], np.array(sides, np.int64))
    return max(rank, len(sides)) - (rank - axis)


def _follow_tile(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis = walk.only_axis(node)
    if walk.numbers(node.input[1])[axis] != 1:
        raise _UnprovenError("it repeats the batch axis")
    return axis


def _follow_pad(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    axis, rank = walk.only_axis(node), len(walk.shape(node.input[0]))
    pads = walk.numbers(node.input[1])
    if len(pads) != 2 * rank or pads[axis] or pads[rank + axis]:
        raise _UnprovenError("it pads the batch axis")
    return axis


def _follow_resize(walk: _BatchAxes, node: onnx.NodeProto) -> int:
    if walk.only_axis(node) != 0:
        raise _UnprovenError("the batch is not its first axis")
    if len(node.input) > 3 and node.input[3]:
        sizes = walk.numbers(node.input[3])
        if sizes[0] != walk.old or attributes_of(node).get("axes"):
            raise _UnprovenError("it resizes the batch axis")
        node.input[3] = walk.graph.constant(
            node.input[3], np.array([walk.new, *sizes[1:]], np.int64)
        )
    elif (
        (scales := walk.graph.value(node.input[2])) is None
        or scales[0] != 1
        or attributes_of(node).get("axes")
    ):
        raise _UnprovenError("it resizes the batch axis")
    return 0


# Operator -> a function that returns the batch axis of its outputs.
RULES: dict[str, Callable[[_BatchAxes, onnx.NodeProto], int]] = {
    "Concat": _follow_concat,
    "Expand": _follow_expand,
    "Flatten": _follow_flatten,
    "Gather": _follow_gather,
    "GatherElements": _follow_gather_elements,
    "Gemm": _follow_gemm,
    "GridSample": _follow_grid_sample,
    "LayerNormalization": _follow_layer_normalization,
    "MatMul": _follow_matmul,
    "Pad": _follow_pad,
    "Reshape": _follow_reshape,
    "Resize": _follow_resize,
    "Slice": _follow_slice,
    "Split": _follow_along,
    "Squeeze": _follow_squeeze,
    "Tile": _follow_tile,
    "Transpose": _follow_transpose,
    "Unsqueeze": _follow_unsqueeze,
}
