"""Everything that does not depend on the picture is computed now, so that the engines find fixed shapes.

Nodes whose inputs are all constants are evaluated by ONNX's own reference evaluator; a Shape of a tensor whose shape
is known becomes a constant. Rounds go on while that makes more shapes known.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import ModelError
from detector.models.onnx_file.foreign import ForeignGraph, attributes_of

if TYPE_CHECKING:
    import onnx

MAX_ROUNDS = 50
LARGEST = 1 << 24  # elements of a folded constant: the grids of an 8192x8192 input are below it
# Quantised weights stay quantised; random numbers are no constants.
KEPT = {"DequantizeLinear", "QuantizeLinear", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
        "Bernoulli", "Multinomial", "If", "Loop", "Scan"}  # fmt: skip
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
    passes = set() if any(node.op_type in CONTROL_FLOW for node in graph.nodes) else {"Identity", "Dropout"}
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
            grows = node.op_type in ("Expand", "Tile", "Range", "Resize", "Pad", "OneHot", "Upsample", "MatMul")
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
        [helper.make_value_info(name, helper.make_tensor_type_proto(graph.constants[name].data_type, None))
         for name in given],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )  # fmt: skip
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
