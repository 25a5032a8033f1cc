"""What TensorRT made of the layers, from the JSON of its ``EngineInspector``; its form differs between 10 and 11."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from detector.engines.base import LayerExecution

# Words in a tensor's type or format ("Row major linear FP32", "Half", "Thirty-two wide ... Int8 format") -> our name.
# bf16 stands before fp16 and u8 before int8: the longer word holds the shorter one.
TYPES = (
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|half|float16", "fp16"),
    (r"fp8", "fp8"),
    (r"uint8", "u8"),
    (r"int8", "int8"),
    (r"int64", "int64"),
    (r"int32", "int32"),
    (r"bool", "bool"),
    (r"fp32|float", "fp32"),
)
MOVES = ("Reformat", "Cast", "NoOp", "Quantize", "Dequantize")  # their result's type is what they are for
UNKNOWN = "unknown"


def executed(trt: Any, engine: Any, context: Any, nodes: Collection[str]) -> list[LayerExecution]:
    """Layers in the engine's order; none where the plan was built without their names. ``nodes``: the graph's."""
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context  # fixes the shapes: without it types are "N/A due to dynamic shapes"
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return layers_of(json.loads(text), nodes)


def layers_of(information: Mapping[str, Any], nodes: Collection[str]) -> list[LayerExecution]:
    found = []
    for layer in information.get("Layers", []):
        if isinstance(layer, str):  # built without details
            layer = {"Name": layer}
        name = str(layer.get("Name", ""))
        text = f"{layer.get('Metadata', '')} {name}"
        found.append(
            LayerExecution(name, str(layer.get("LayerType", UNKNOWN)), _precision(layer), nodes=_nodes(text, nodes))
        )
    return found


def _precision(layer: Mapping[str, Any]) -> str:
    if "tf32" in str(layer.get("TacticName", "")).lower():
        return "tf32"
    sides = ("Outputs", "Inputs") if layer.get("LayerType") in MOVES else ("Inputs", "Outputs")
    for side in sides:
        for tensor in layer.get(side) or []:
            if kind := _type_of(tensor):
                return kind
    return UNKNOWN


def _type_of(tensor: Any) -> str | None:
    """TensorRT 10 has "Format/Datatype" in one text, 11 has them apart."""
    if not isinstance(tensor, Mapping):
        return None
    keys = {str(key).lower().replace(" ", ""): str(value) for key, value in tensor.items()}
    for key in ("datatype", "format/datatype", "format"):
        for pattern, name in TYPES:
            if key in keys and re.search(pattern, keys[key], re.IGNORECASE):
                return name
    return None


def _nodes(text: str, nodes: Collection[str]) -> tuple[str, ...]:
    """Names of the graph that stand in a layer's name or metadata: "0.conv + 0.act", "[ONNX Layer: 0.conv]"."""
    words = re.findall(r"[\w.]+", text)
    return tuple(dict.fromkeys(word for word in words if word in nodes))
