"""List TensorRT's layers and their precisions from the JSON of ``EngineInspector``. Time the layers
with ``IProfiler`` on a separate engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.engines._layer_times import match_layers
from detector.core.engines.base import Engine, LayerExecution
from detector.core.engines.trt.edition import Edition
from detector.core.engines.trt.running import TrtRequest
from detector.core.models.graph.halves import original_names

if TYPE_CHECKING:
    import onnx


# Pattern in a tensor's type or format ("Row major linear FP32", "Half", "Thirty-two wide ... Int8
# format") -> our name. The first match counts: bf16 comes before fp16, since "bfloat16" contains
# "float16", and u8 before int8, since "uint8" contains "int8".
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
# Layers that only change type or format. Their precision is the type of their result.
MOVES = ("Reformat", "Cast", "NoOp", "Quantize", "Dequantize")
# TensorRT inserts layers that copy data. Their names have this prefix and the next layer's name.
COPY = "Reformatting CopyNode"
ONNX_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f]|\[ONNX Layer: |$)", re.DOTALL)
UNKNOWN = "unknown"


def list_executed_layers(
    trt: Any, engine: Any, context: Any, graph: onnx.ModelProto | None
) -> list[LayerExecution]:
    """Return the layers in the engine's order, or [] if the plan was built without their names."""
    inspector = engine.create_engine_inspector()
    # A context fixes the shapes; otherwise types are "N/A due to dynamic shapes".
    inspector.execution_context = context
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    if graph is None:
        return layers_of(json.loads(text), None)
    renamed = original_names(graph)
    known = {node.name: renamed.get(node.name, node.name) for node in graph.graph.node}
    return layers_of(json.loads(text), known)


def layers_of(
    information: Mapping[str, Any], known: Mapping[str, str] | None
) -> list[LayerExecution]:
    """Return the layers. ``known``: node of the graph -> its name before conversion. If None, all
    names of nodes count as known."""
    listed = [
        {"Name": layer} if isinstance(layer, str) else layer
        for layer in information.get("Layers") or []
    ]
    nodes = _assign_nodes(
        [(layer.get("LayerType") in MOVES, _nodes(layer, known)) for layer in listed]
    )
    return [
        LayerExecution(
            str(layer.get("Name", "")),
            str(layer.get("LayerType", UNKNOWN)),
            _precision(layer),
            nodes=own,
        )
        for layer, own in zip(listed, nodes, strict=True)
    ]


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
    """Return a tensor's type. TensorRT 10 has a key "Format/Datatype", TensorRT 11 two keys."""
    if not isinstance(tensor, Mapping):
        return None
    keys = {str(key).lower().replace(" ", ""): str(value) for key, value in tensor.items()}
    for key in ("datatype", "format/datatype", "format"):
        for pattern, name in TYPES:
            if key in keys and re.search(pattern, keys[key], re.IGNORECASE):
                return name
    return None


def _nodes(layer: Mapping[str, Any], known: Mapping[str, str] | None) -> list[str]:
    """Parse metadata such as "[ONNX Layer: 0.conv]", or a name such as "0.conv + 0.act"."""
    name = str(layer.get("Name", ""))
    words = ONNX_NODE.findall(str(layer.get("Metadata", "")))
    if not words and known is not None and not name.startswith(COPY):
        words = re.findall(r"[\w.]+", name)
    return words if known is None else [known[word] for word in words if word in known]


def _assign_nodes(layers: Sequence[tuple[bool, Sequence[str]]]) -> list[tuple[str, ...]]:
    """Return the nodes of each layer. A node of several layers is assigned to the first layer that
    computes, or to the first one if all only move data. ``layers``: for each layer, (whether it
    only moves data, its nodes)."""
    owners: dict[str, int] = {}
    for moving in (False, True):
        for at, (moves, nodes) in enumerate(layers):
            if moves is moving:
                for node in nodes:
                    owners.setdefault(node, at)
    return [
        tuple(dict.fromkeys(node for node in nodes if owners[node] == at))
        for at, (_, nodes) in enumerate(layers)
    ]


def make_profiler(trt: Any) -> Any:
    """Return an ``IProfiler``. Its ``taken`` returns each (layer, ms) since the previous call."""

    class KeptTimes(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._times: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            # This must not raise, since TensorRT's C++ code calls it.
            self._times.append((layer_name, ms))

        def taken(self) -> list[tuple[str, float]]:
            times, self._times = self._times, []
            return times

    return KeptTimes()


class TrtLayerProfiler:
    """Times the layers of ``engine``, which has one request. ``close`` closes the engine."""

    def __init__(self, edition: Edition, engine: Engine, request: TrtRequest) -> None:
        self._edition, self._profiled, self._request = edition, engine, request
        self._layers = self._profiled.execution()
        self._reported = make_profiler(edition.trt)  # must outlive the context that calls it
        self._runs: list[list[tuple[str, str, float]]] = []
        request.attach(self._reported)

    def run(self, slot: NDArray[np.uint8]) -> None:
        np.copyto(self._request.slot, slot)
        self._request.infer(len(slot))
        self._request.report()
        run = [(str(name), UNKNOWN, float(ms)) for name, ms in self._reported.taken()]
        if not run:
            raise self._edition.error("no layer times: the profiler reported no layers")
        self._runs.append(run)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return match_layers(self._layers, self._runs)

    def close(self) -> None:
        self._profiled.close()
