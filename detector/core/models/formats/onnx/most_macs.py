"""Find an upper bound for the MACs of graphs in which a picture decides how many rows layers have.

The first stage of a two-stage detector finds a number of regions that depends on the picture. The
operators that count regions have bounds: NonZero returns at most one index per element,
NonMaxSuppression and TopK at most one per box. We infer shapes in a copy of the graph in which each
of these operators returns its maximum number of rows, with unknown values.

These shapes are upper bounds only if no size falls when a count rises. So we follow counts only
through operators whose results never fall when a count rises (``RISING``). Other values, and sizes
that depend on them, stay unknown. A file with unknown sizes is refused. For Reshape we assume that
with fewer elements, no axis of its result is longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from detector.core.errors import ModelError
from detector.core.models.formats import raised
from detector.core.models.formats.onnx.foreign import ForeignGraph, attributes_of
from detector.core.models.formats.onnx.shapes import MAX_ROUNDS, MAX_WORK, fold_once
from detector.core.models.graph.build import node_macs, uncounted

if TYPE_CHECKING:
    import onnx

# Shape inference computes the results of these operators if later shapes depend on them.
FOLLOWED = frozenset("Add Sub Mul Cast Concat Gather Slice Squeeze Unsqueeze Size".split())
MAX_BOUND = 1 << 40  # rows; a larger bound counts as no bound
COUNTING = ("NonZero", "NonMaxSuppression", "TopK", "Compress", "Unique")
# Operators whose results never fall when their first input, which holds counts (>= 0), rises.
RISING = frozenset(
    "Identity Cast Gather Slice Squeeze Unsqueeze Reshape Flatten Floor Ceil Relu ReduceProd "
    "ReduceSum ReduceMax ReduceMin".split()
)
RISING_IN_ALL = frozenset("Concat Add Mul Min Max".split())  # never fall when any input rises


def most_macs(graph: ForeignGraph, model: onnx.ModelProto) -> int:
    """Return the upper bound for a picture. ``model``: the graph with shapes. Raises ModelError if
    nothing limits the rows."""
    unbounded = uncounted(model)
    graph.infer()  # names may have changed since the last inference
    bounded = _with_maximal_counts(graph)
    shapes = {name: shape for name in bounded.dims if (shape := bounded.shape(name)) is not None}
    try:
        total = sum(node_macs(node, shapes) for node in model.graph.node)
    except ModelError as exc:
        raise ModelError(
            f"{graph.name}: nothing in the file limits how many rows {unbounded[0]} computes, so "
            "one picture could take forever: export it with a limit on its boxes, or without the "
            "layers after its NMS"
        ) from exc
    return total // shapes[model.graph.input[0].name][0]


def _with_maximal_counts(graph: ForeignGraph) -> ForeignGraph:
    from onnx import NodeProto

    copy = ForeignGraph(
        graph.name,
        graph.opset,
        graph.ir_version,
        graph.input,
        graph.sizes,
        dict(graph.outputs),
        [NodeProto.FromString(node.SerializeToString()) for node in graph.nodes],
        dict(graph.constants),
    )
    kept = _not_rising(graph)
    if kept is None or not _hide_values(copy, graph, kept):
        return copy
    work, rounds = raised(MAX_WORK), raised(MAX_ROUNDS)
    for _ in range(rounds):
        try:
            copy.infer()
        except ModelError:  # two counts must be equal, but their upper bounds differ
            return copy
        changed, work = fold_once(copy, work, kept)
        nodes: list[onnx.NodeProto] = []
        for node in copy.nodes:
            sides = _largest_shapes(copy, node)
            nodes += [node] if sides is None else _make_unknown(copy, node, sides)
        changed = changed or len(nodes) > len(copy.nodes)
        copy.nodes = nodes
        if not changed:
            break
    return copy


def _hide_values(copy: ForeignGraph, graph: ForeignGraph, kept: Set[str]) -> bool:
    """In the copy, make the values of the tensors ``kept`` unknown. Return False if we cannot."""
    from onnx import TensorProto

    copy.types = graph.types
    for at, node in reversed(list(enumerate(copy.nodes))):
        if kept.isdisjoint(node.output):
            continue
        shapes = [graph.shape(name) for name in node.output]
        known = [shape for shape in shapes if shape is not None]
        is_integer = graph.types.get(node.output[0]) in (TensorProto.INT32, TensorProto.INT64)
        if len(known) == len(shapes):
            copy.nodes[at : at + 1] = _make_unknown(copy, node, known)
        elif node.op_type in FOLLOWED and is_integer:
            return False
    return True


def _not_rising(graph: ForeignGraph) -> set[str] | None:
    """Return tensors whose values may fall when a count rises; None if a size may fall."""
    counts: set[str] = set()
    kept: set[str] = set()
    readers = graph.readers()
    for node in graph.nodes:
        if node.op_type == "Shape" and graph.shape(node.input[0]) is None:
            counts.update(node.output)
        elif not counts.isdisjoint(node.input):
            if any(name in counts for name in _shortening_inputs(node)):
                return None
            rises = _rises(graph, node, counts) or (
                node.op_type == "Concat" and _is_target(node.output[0], readers)
            )
            (counts if rises else kept).update(node.output)
    return kept


def _shortening_inputs(node: onnx.NodeProto) -> Sequence[str]:
    """Return the inputs that shorten the result when they rise, such as the start of a Slice."""
    if node.op_type == "Range":
        return (node.input[0], node.input[2])
    return (node.input[1], *node.input[4:]) if node.op_type == "Slice" else ()


def _rises(graph: ForeignGraph, node: onnx.NodeProto, counts: set[str]) -> bool:
    """Return whether the result never falls when the counts that the node reads rise."""
    if node.op_type in RISING:
        return counts.isdisjoint(node.input[1:])
    others = [graph.value(name) for name in node.input if name not in counts]
    if node.op_type == "Div" and node.input[0] in counts:
        return all(value is not None and (value > 0).all() for value in others) and bool(others)
    known = all(value is not None and (value >= 0).all() for value in others)
    return known and node.op_type in RISING_IN_ALL


def _is_target(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> bool:
    """Return whether a tensor is only a target shape (of Reshape or Expand). It may contain -1."""
    return all(
        node.op_type in ("Reshape", "Expand") and node.input[0] != name
        for node in readers.get(name, ())
    )


def _largest_shapes(graph: ForeignGraph, node: onnx.NodeProto) -> list[tuple[int, ...]] | None:
    """Return the outputs' largest shapes; None if unknown, or if ``node`` is not in COUNTING."""
    if node.op_type not in COUNTING:
        return None
    shape = graph.shape(node.input[0])
    if shape is None or math.prod(shape) > MAX_BOUND:
        return None
    if node.op_type == "NonZero":
        return [(len(shape), math.prod(shape))]
    if node.op_type == "NonMaxSuppression":
        return _most_boxes(graph, node)
    axis = attributes_of(node).get("axis", -1 if node.op_type == "TopK" else None)
    if node.op_type == "TopK":
        if graph.value(node.input[1]) is not None:
            return None
        return [shape, shape]
    if node.op_type == "Compress":
        return [(math.prod(shape),) if axis is None else shape]
    return None if axis is not None else [(math.prod(shape),)] * len(node.output)


def _most_boxes(graph: ForeignGraph, node: onnx.NodeProto) -> list[tuple[int, ...]] | None:
    """Return [(batch x classes x N, 3)]. N: the number of boxes, at most the limit per class."""
    scores = graph.shape(node.input[1])
    if scores is None or len(scores) != 3:
        return None
    batch, classes, boxes = scores
    limit = graph.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    most = boxes if limit is None else min(boxes, max(0, int(limit.reshape(-1)[0])))
    return [(batch * classes * most, 3)]


def _make_unknown(
    graph: ForeignGraph, node: onnx.NodeProto, shapes: list[tuple[int, ...]]
) -> list[onnx.NodeProto]:
    """Return nodes that make the outputs of ``node`` with these shapes, but unknown values."""
    from onnx import helper

    nodes: list[onnx.NodeProto] = []
    for name, shape in zip(node.output, shapes, strict=False):
        if not name:
            continue
        random = graph.node("RandomUniform", "most.of", [], shape=list(shape))
        kind: Any = graph.types.get(name)
        nodes += [
            random,
            helper.make_node("Cast", [random.output[0]], [name], name=node.name, to=kind),
        ]
    return nodes
