"""The most multiply-accumulates that a picture takes, where it decides how many rows layers see.

The first stage of a two-stage detector finds regions: none, or as many as its file allows.
Operators that count regions are bounded: NonZero finds no more than there are elements,
NonMaxSuppression and TopK no more than there are boxes. In a copy of the graph each of them gives
its most, as unknown numbers, for shape inference.

These shapes are upper bounds only while no size falls where a count rises. So what is computed of
a count becomes a constant through operators alone that never fall (``RISING``); through any other
it stays unknown, and so do the sizes that hang on it. Unknown sizes are no bound: such a file is
refused, since a few bytes of it may ask for any number of rows. A Reshape makes no more elements
than there are; how it shares them out among its sides is taken as it is at the most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from detector.core.errors import ModelError
from detector.core.errors.limits import raised
from detector.core.models.formats.onnx.foreign import ForeignGraph, attributes_of
from detector.core.models.formats.onnx.shapes import MAX_ROUNDS, MAX_WORK, fold_once
from detector.core.models.graph.build import node_macs, uncounted

if TYPE_CHECKING:
    import onnx

# Through these, inference follows values, whatever they are computed of.
FOLLOWED = frozenset("Add Sub Mul Cast Concat Gather Slice Squeeze Unsqueeze Size".split())
MOST_ROWS = 1 << 40  # a larger bound is none
COUNTING = ("NonZero", "NonMaxSuppression", "TopK", "Compress", "Unique")
# What they make of counts, which are never negative, rises with them or stays. Of several inputs...
RISING = frozenset(
    "Identity Cast Gather Slice Squeeze Unsqueeze Reshape Flatten Floor Ceil Relu ReduceProd "
    "ReduceSum ReduceMax ReduceMin".split()  # ... the first one
)
RISING_IN_ALL = frozenset("Concat Add Mul Min Max".split())  # ... each


def most_macs(graph: ForeignGraph, model: onnx.ModelProto) -> int:
    """Return a picture's most MACs. ``model``: with shapes. Raises ModelError if unbounded."""
    open_ones = uncounted(model)
    graph.infer()  # its names may be new
    bounded = _at_its_most(graph)
    shapes = {name: shape for name in bounded.dims if (shape := bounded.shape(name)) is not None}
    try:
        total = sum(node_macs(node, shapes) for node in model.graph.node)
    except ModelError as exc:
        raise ModelError(
            f"{graph.name}: nothing in the file limits how many rows {open_ones[0]} computes, so "
            "one picture could take forever: export it with a limit on its boxes, or without the "
            "layers after its NMS"
        ) from exc
    return total // shapes[model.graph.input[0].name][0]


def _at_its_most(graph: ForeignGraph) -> ForeignGraph:
    """Copy the graph with maximal counts; infer its shapes."""
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
    if kept is None or not _hide(copy, graph, kept):
        return copy
    work, rounds = raised(MAX_WORK), raised(MAX_ROUNDS)
    for _ in range(rounds):
        try:
            copy.infer()
        except ModelError:  # two counts that are equal, with bounds that are not
            return copy
        changed, work = fold_once(copy, work, kept)
        nodes: list[onnx.NodeProto] = []
        for node in copy.nodes:
            sides = _most(copy, node)
            nodes += [node] if sides is None else _unknown(copy, node, sides)
        changed = changed or len(nodes) > len(copy.nodes)
        copy.nodes = nodes
        if not changed:
            break
    return copy


def _hide(copy: ForeignGraph, graph: ForeignGraph, kept: Set[str]) -> bool:
    """Make ``kept`` values unknown in the copy; False if one's shape is not known."""
    from onnx import TensorProto

    copy.types = graph.types
    for at, node in reversed(list(enumerate(copy.nodes))):
        if kept.isdisjoint(node.output):
            continue
        shapes = [graph.shape(name) for name in node.output]
        known = [shape for shape in shapes if shape is not None]
        whole = graph.types.get(node.output[0]) in (TensorProto.INT32, TensorProto.INT64)
        if len(known) == len(shapes):
            copy.nodes[at : at + 1] = _unknown(copy, node, known)
        elif node.op_type in FOLLOWED and whole:
            return False
    return True


def _not_rising(graph: ForeignGraph) -> set[str] | None:
    """Return tensors that may fall as a count rises; None if a count cuts off the front."""
    counts: set[str] = set()
    kept: set[str] = set()
    readers = graph.readers()
    for node in graph.nodes:
        if node.op_type == "Shape" and graph.shape(node.input[0]) is None:
            counts.update(node.output)
        elif not counts.isdisjoint(node.input):
            if any(name in counts for name in _cutting(node)):
                return None
            rises = _rises(graph, node, counts) or (
                node.op_type == "Concat" and _is_target(node.output[0], readers)
            )
            (counts if rises else kept).update(node.output)
    return kept


def _cutting(node: onnx.NodeProto) -> Sequence[str]:
    """The inputs that make a result shorter where they rise: where a Slice begins, and so on."""
    if node.op_type == "Range":
        return (node.input[0], node.input[2])
    return (node.input[1], *node.input[4:]) if node.op_type == "Slice" else ()


def _rises(graph: ForeignGraph, node: onnx.NodeProto, counts: set[str]) -> bool:
    """Return whether the result rises with the counts that the node reads, or stays."""
    if node.op_type in RISING:
        return counts.isdisjoint(node.input[1:])
    by = [graph.value(name) for name in node.input if name not in counts]
    if node.op_type == "Div" and node.input[0] in counts:
        return all(value is not None and (value > 0).all() for value in by) and bool(by)
    known = all(value is not None and (value >= 0).all() for value in by)
    return known and node.op_type in RISING_IN_ALL


def _is_target(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> bool:
    """Return whether a shape is only a target, where -1 is not a size."""
    return all(
        node.op_type in ("Reshape", "Expand") and node.input[0] != name
        for node in readers.get(name, ())
    )


def _most(graph: ForeignGraph, node: onnx.NodeProto) -> list[tuple[int, ...]] | None:
    """The outputs' largest shapes; None if the node counts nothing or its inputs are unknown."""
    if node.op_type not in COUNTING:
        return None
    given = graph.shape(node.input[0])
    if given is None or math.prod(given) > MOST_ROWS:
        return None
    if node.op_type == "NonZero":
        return [(len(given), math.prod(given))]
    if node.op_type == "NonMaxSuppression":
        return _most_boxes(graph, node)
    axis = attributes_of(node).get("axis", -1 if node.op_type == "TopK" else None)
    if node.op_type == "TopK":
        if graph.value(node.input[1]) is not None:
            return None
        return [given, given]
    if node.op_type == "Compress":
        return [(math.prod(given),) if axis is None else given]
    return None if axis is not None else [(math.prod(given),)] * len(node.output)


def _most_boxes(graph: ForeignGraph, node: onnx.NodeProto) -> list[tuple[int, ...]] | None:
    """[batch x classes x boxes, 3], of a class no more boxes than are asked for."""
    scores = graph.shape(node.input[1])
    if scores is None or len(scores) != 3:
        return None
    batch, classes, boxes = scores
    asked = graph.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    most = boxes if asked is None else min(boxes, max(0, int(asked.reshape(-1)[0])))
    return [(batch * classes * most, 3)]


def _unknown(
    graph: ForeignGraph, node: onnx.NodeProto, shapes: list[tuple[int, ...]]
) -> list[onnx.NodeProto]:
    """Make nodes for the outputs of ``node`` with these shapes and unknown values."""
    from onnx import helper

    made: list[onnx.NodeProto] = []
    for name, shape in zip(node.output, shapes, strict=False):
        if not name:
            continue
        drawn = graph.node("RandomUniform", "most.of", [], shape=list(shape))
        kind: Any = graph.types.get(name)
        made += [
            drawn,
            helper.make_node("Cast", [drawn.output[0]], [name], name=node.name, to=kind),
        ]
    return made
