"""A half-precision graph as float32 with every rounding spelt out, so that a CPU shows what half precision loses.

onnxruntime has no half kernels on most CPUs: it computes fp16 in float32 and leaves out roundings between its own
kernels, which flatters; bf16 it refuses. Here each node computes in float32, as tensor cores accumulate, and what it
makes is rounded to half and back by two explicit Casts. Hardware that fuses an activation rounds once less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same inputs and outputs; all half tensors of ``model`` are float32 in between, with half values."""
    graph = model.graph
    types = {
        info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.output)
    }
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        after = []
        for at, name in enumerate(node.output):
            half = types.get(name)
            if half not in HALVES:
                continue
            if any(entry.name == "value" for entry in node.attribute):
                raise ValueError(
                    f"node {node.name}: a half constant in an attribute is not written here"
                )
            exact, short = f"{name}@exact", f"{name}@half"
            made.output[at] = short if node.op_type == "Cast" else exact
            if node.op_type != "Cast":
                after.append(helper.make_node("Cast", [exact], [short], to=half))
            after.append(helper.make_node("Cast", [short], [name], to=TensorProto.FLOAT))
        nodes += [made, *after]
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.value_info[:], result.graph.initializer[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(map(_wide, graph.initializer))
    onnx.checker.check_model(result, full_check=True)
    return result


def _wide(tensor: onnx.TensorProto) -> Any:
    if tensor.data_type not in HALVES:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
