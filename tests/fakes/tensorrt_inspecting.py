"""What the fake TensorRT's inspector says of the layers, in the JSON of either major."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.tensorrt_state import ONNX_TYPES


class EngineInspector:
    def get_engine_information(self, format: Any) -> str:
        engine, major = self._engine, self._trt.fake.major
        layers: list[Any] = [_layer(engine, nodes, major, self._execution_context) for nodes in _fused(engine._model)]
        if not engine._facts["detailed"]:
            layers = [layer["Name"] for layer in layers]
        names = list(engine._tensors)
        tensors = {"Bindings": names} if major < 11 else {"I/O Tensors": [{"Name": name} for name in names]}
        return json.dumps({"Layers": layers, **tensors})


def _fused(model: Any) -> list[list[Any]]:
    """A convolution takes the activation after it along."""
    groups: list[list[Any]] = []
    for node in model.graph.node:
        if groups and groups[-1][-1].op_type == "Conv" and node.op_type in ("LeakyRelu", "Relu", "Sigmoid"):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


WORDS = {"FLOAT": "Float", "HALF": "Half", "UINT8": "UInt8", "INT8": "Int8", "BF16": "BFloat16"}


def _layer(engine: Any, nodes: list[Any], major: int, context: Any) -> dict[str, Any]:
    types = _value_types(engine._model)
    kinds = {"Conv": "CaskConvolution", "Cast": "Cast", "Transpose": "Shuffle"}

    def described(name: str) -> dict[str, Any]:
        word = WORDS.get(types.get(name, "FLOAT"), "Float")
        if major < 11:
            dynamic = context is None and engine._facts["profiles"]
            return {"Name": name, "Format/Datatype": "N/A due to dynamic shapes" if dynamic else word}
        return {"Name": name, "Format": "Row major linear format (kLINEAR)", "Datatype": word}

    return {
        "Name": " + ".join(node.name for node in nodes),
        "LayerType": kinds.get(nodes[0].op_type, nodes[0].op_type),
        "Inputs": [described(nodes[0].input[0])],
        "Outputs": [described(nodes[-1].output[0])],
        "TacticName": "sm80_xmma_fprop_tf32f32" if engine._facts["tf32"] and nodes[0].op_type == "Conv" else "sm80",
        "Metadata": "".join(f"[ONNX Layer: {node.name}]\x1e" for node in nodes),
    }


def _value_types(model: Any) -> dict[str, str]:
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model).graph
    infos = [*graph.input, *graph.value_info, *graph.output]
    return {info.name: ONNX_TYPES.get(info.type.tensor_type.elem_type, "FLOAT") for info in infos}
