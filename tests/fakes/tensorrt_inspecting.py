"""The layers of a fake plan, in the JSON of the engine inspector of TensorRT 10 or 11.

The JSON has the form of real listings. A layer's name is the names of its nodes, joined by " + ".
"Metadata" has the nodes, separated by control characters. Copies that TensorRT inserts have an
empty "Metadata", and a name that contains another layer's name. Each Q or DQ is a layer "Reformat"
of origin "QDQ", unless it is fused into another layer.
"""

import json
from collections.abc import Iterator
from typing import Any

COMPUTING = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ACTIVATIONS = ("LeakyRelu", "Relu", "Sigmoid", "Clip", "HardSwish", "Elu")
KINDS = {
    "Conv": "CaskConvolution",
    "Transpose": "Shuffle",
    "QuantizeLinear": "Reformat",
    "DequantizeLinear": "Reformat",
}
FORMATS = {  # TensorRT 10 has layout and type in one text
    "FLOAT": "Row major linear FP32",
    "HALF": "Channel major FP16 format where channel % 8 == 0",
    "INT8": "Thirty-two wide channel vectorized row major Int8 format",
}
WORDS = {"FLOAT": "Float", "HALF": "Half", "UINT8": "UInt8", "INT8": "Int8", "BF16": "BFloat16"}
FP32 = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckcrs_nhwc"
TF32 = "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc"


class EngineInspector:
    __slots__ = ("_engine", "execution_context")

    def __init__(self, engine: Any) -> None:
        self._engine, self.execution_context = engine, None

    def get_engine_information(self, format: Any) -> str:
        engine, major = self._engine, self._trt.fake.major
        layers: list[Any] = layers_of(engine)
        if engine._facts["verbosity"] == "NONE":
            layers = []
        elif engine._facts["verbosity"] != "DETAILED":
            layers = [layer["Name"] for layer in layers]
        elif major == 10 and self.execution_context is None and engine._facts["profiles"]:
            for layer in layers:
                for tensor in (*layer["Inputs"], *layer["Outputs"]):
                    tensor["Format/Datatype"] = "N/A due to dynamic shapes"
        return json.dumps({"Layers": layers})


def layers_of(engine: Any) -> list[dict[str, Any]]:
    model, facts, major = engine._model, engine._facts, engine._trt.fake.major
    types = _value_types(model)
    layers: list[dict[str, Any]] = []
    for nodes in _fused(model, facts["int8_kernels"]):
        layer = _layer(nodes, types, facts, major)
        if layer["LayerType"] == "CaskConvolution" and not any(
            one["LayerType"] == layer["LayerType"] for one in layers
        ):
            layers.append(_copy(layer))
        layers.append(layer)
    return layers


def _fused(model: Any, int8_kernels: bool) -> Iterator[list[Any]]:
    """Yield the nodes of each layer: one node, or a convolution with the DQ of its weights and the
    activation after it. With integer kernels, the DQ before and the Q after join this layer."""
    constants = {tensor.name for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    readers: dict[str, list[Any]] = {info.name: [None] for info in model.graph.output}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    fused: set[str] = set()

    def follows(node: Any, kinds: tuple[str, ...]) -> Any:
        following = readers.get(node.output[0], [])
        return (
            following[0]
            if len(following) == 1 and following[0] is not None and following[0].op_type in kinds
            else None
        )

    def is_fused(node: Any) -> bool:
        """Return whether the node is a DQ that becomes part of its readers' layers."""
        if node.op_type != "DequantizeLinear":
            return False
        if node.input[0] in constants:
            return True
        following = readers[node.output[0]]
        return int8_kernels and all(
            reader is not None and reader.op_type in COMPUTING for reader in following
        )

    for node in model.graph.node:
        if node.name in fused or is_fused(node):
            continue
        group = [node]
        if node.op_type in COMPUTING:
            before = [
                makers[name] for name in node.input if name in makers and is_fused(makers[name])
            ]
            while (following := follows(group[-1], ACTIVATIONS)) is not None:
                group.append(following)
            if int8_kernels and (following := follows(group[-1], ("QuantizeLinear",))) is not None:
                group.append(following)
            group = [*before, *group]
        fused.update(member.name for member in group)
        yield group


def _layer(
    nodes: list[Any], types: dict[str, str], facts: dict[str, Any], major: int
) -> dict[str, Any]:
    main = next((node for node in nodes if node.op_type in COMPUTING), nodes[0])
    input_name = next(
        (node.input[0] for node in nodes if main.input[0] in node.output), main.input[0]
    )
    kind = types.get(input_name, "FLOAT")
    floats = main.op_type in COMPUTING and kind == "FLOAT"
    tf32 = facts["tf32"] and facts["tf32_kernels"]
    return {
        "Name": " + ".join(node.name for node in nodes),
        "LayerType": KINDS.get(main.op_type, main.op_type),
        "Inputs": [_tensor(input_name, kind, major)],
        "Outputs": [_tensor(nodes[-1].output[0], types.get(nodes[-1].output[0], "FLOAT"), major)],
        **({"Origin": "QDQ"} if main.op_type in ("QuantizeLinear", "DequantizeLinear") else {}),
        **({"TacticName": TF32 if tf32 else FP32} if floats else {}),
        "Metadata": "\x1f".join(f"[ONNX Layer: {node.name}]" for node in nodes),
    }


def _copy(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the copy that TensorRT inserts before a layer that needs another memory layout."""
    return {
        "Name": f"Reformatting CopyNode for Input Tensor 0 to {layer['Name']}",
        "LayerType": "Reformat",
        "Inputs": layer["Inputs"],
        "Outputs": [
            {**layer["Inputs"][0], "Name": f"Reformatted Input Tensor 0 to {layer['Name']}"}
        ],
        "Origin": "REFORMAT",
        "Metadata": "",
    }


def _tensor(name: str, kind: str, major: int) -> dict[str, Any]:
    word = WORDS.get(kind, kind.capitalize())
    if major == 10:
        return {"Name": name, "Format/Datatype": FORMATS.get(kind, word)}
    return {"Name": name, "Format": "Row major linear format (kLINEAR)", "Datatype": word}


def _value_types(model: Any) -> dict[str, str]:
    from onnx import TensorProto, shape_inference

    graph = shape_inference.infer_shapes(model).graph
    infos = [*graph.input, *graph.value_info, *graph.output]
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    words = {TensorProto.FLOAT16: "HALF", TensorProto.BFLOAT16: "BF16"}
    return {
        name: words.get(kind) or TensorProto.DataType.Name(kind) for name, kind in types.items()
    }
