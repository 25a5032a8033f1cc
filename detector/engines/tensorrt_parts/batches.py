"""A graph of fixed batch -> the same graph for any batch, as a plan with a range of batches needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from detector.errors import EngineError

if TYPE_CHECKING:
    import onnx

BATCH = "batch"  # the name of the first dimension


def any_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose inputs and outputs begin with a batch that is chosen at run time.

    Constants of Reshape that hold the batch become 0, which means: as it comes in. Raises EngineError that names the
    node at which the batch is lost, where another one holds it.
    """
    import onnx
    from onnx import shape_inference

    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    graph = whole.graph
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_value
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = BATCH
    _free_reshapes(graph, batch)
    wanted = [info.name for info in graph.output]
    try:
        shaped = shape_inference.infer_shapes(_without_claims(whole), strict_mode=True, data_prop=True).graph
    except shape_inference.InferenceError as exc:
        raise EngineError(f"engine trt: no range of batches for this graph: {' '.join(str(exc).split())}") from exc
    open_ended = {info.name for info in (*shaped.input, *shaped.value_info, *shaped.output) if _begins_open(info)}
    for name in wanted:
        if name not in open_ended:
            raise EngineError(f"engine trt: {_culprit(shaped, open_ended)}; build it for one batch: --batch {batch}")
    return whole


def _free_reshapes(graph: onnx.GraphProto, batch: int) -> None:
    """The first number of a Reshape's shape, where it is the batch."""
    from onnx import numpy_helper

    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for tensor in graph.initializer:
        if tensor.name in shapes:
            values = numpy_helper.to_array(tensor).copy()
            if len(values) > 1 and values[0] == batch:
                values[0] = 0
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


def _without_claims(model: onnx.ModelProto) -> onnx.ModelProto:
    """Outputs without shapes: inference must find them, not be told."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for info in bare.graph.output:
        info.type.tensor_type.ClearField("shape")
    return bare


def _begins_open(info: onnx.ValueInfoProto) -> bool:
    shape = info.type.tensor_type.shape
    return bool(shape.dim) and not shape.dim[0].HasField("dim_value")


def _culprit(graph: onnx.GraphProto, open_ended: set[str]) -> str:
    for node in graph.node:
        if any(name in open_ended for name in node.input) and node.output[0] not in open_ended:
            return f"node {node.name} ({node.op_type}) holds the batch in its constants, so no range of batches fits"
    return "the batch is held in constants, so no range of batches fits"
