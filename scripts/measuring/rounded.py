"""Simulate a half-precision graph by a float32 graph with explicit roundings.

ONNX Runtime has no half kernels on most CPUs. It computes fp16 in float32 and omits roundings
between nodes, so fp16 looks too exact. It rejects bf16. Here each node computes in float32, like
tensor cores. Then one explicit Cast rounds its result to half, and another converts it back.
Hardware that fuses a node with its activation rounds one time less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the graph's half tensors, except inputs and outputs, by equal float32 tensors."""
    graph = model.graph
    types = {
        info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.output)
    }
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        casts = []
        for at, name in enumerate(node.output):
            half = types.get(name)
            if half not in HALVES:
                continue
            if any(entry.name == "value" for entry in node.attribute):
                raise ValueError(f"node {node.name}: half constant in an attribute")
            exact, short = f"{name}@exact", f"{name}@half"
            copy.output[at] = short if node.op_type == "Cast" else exact
            if node.op_type != "Cast":
                casts.append(helper.make_node("Cast", [exact], [short], to=half))
            casts.append(helper.make_node("Cast", [short], [name], to=TensorProto.FLOAT))
        nodes += [copy, *casts]
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
