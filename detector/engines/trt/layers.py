"""What TensorRT made of the layers, from the JSON of its ``EngineInspector``; its form differs between 10 and 11."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.engines.base import Engine, LayerExecution
from detector.engines.layer_times import in_order
from detector.engines.trt.running import TrtRequest
from detector.errors import EngineError
from detector.models.graph.halves import original_names

if TYPE_CHECKING:
    import onnx


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
MOVES = (
    "Reformat",
    "Cast",
    "NoOp",
    "Quantize",
    "Dequantize",
)  # their result's type is what they are for
COPY = "Reformatting CopyNode"  # what TensorRT puts in itself is named by the layer that it is put in front of
ONNX_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f]|\[ONNX Layer: |$)", re.DOTALL)
UNKNOWN = "unknown"


def executed(
    trt: Any, engine: Any, context: Any, graph: onnx.ModelProto | None
) -> list[LayerExecution]:
    """Layers in the engine's order; none where the plan was built without their names. ``graph``: what it was built
    of; None where that is not known, and the names of nodes are those that the plan kept."""
    inspector = engine.create_engine_inspector()
    inspector.execution_context = (
        context  # fixes the shapes: without it types are "N/A due to dynamic shapes"
    )
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return layers_of(json.loads(text), None if graph is None else _known(graph))


def layers_of(
    information: Mapping[str, Any], known: Mapping[str, str] | None
) -> list[LayerExecution]:
    """``known``: node of the graph -> its name before the graph was converted; None: take every node that is told."""
    told = [
        {"Name": layer} if isinstance(layer, str) else layer
        for layer in information.get("Layers") or []
    ]
    nodes = _shared_out([(layer.get("LayerType") in MOVES, _nodes(layer, known)) for layer in told])
    return [
        LayerExecution(
            str(layer.get("Name", "")),
            str(layer.get("LayerType", UNKNOWN)),
            _precision(layer),
            nodes=own,
        )
        for layer, own in zip(told, nodes, strict=True)
    ]


def _known(graph: onnx.ModelProto) -> dict[str, str]:
    renamed = original_names(graph)
    return {node.name: renamed.get(node.name, node.name) for node in graph.graph.node}


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


def _nodes(layer: Mapping[str, Any], known: Mapping[str, str] | None) -> list[str]:
    """The nodes that a layer stands for, by its metadata, "[ONNX Layer: 0.conv]\\x1f[ONNX Layer: 0.act]"; where a plan
    without details has none, by its name, "0.conv + 0.act". A copy that TensorRT put in stands for none."""
    name = str(layer.get("Name", ""))
    words = ONNX_NODE.findall(str(layer.get("Metadata", "")))
    if not words and known is not None and not name.startswith(COPY):
        words = re.findall(r"[\w.]+", name)
    return words if known is None else [known[word] for word in words if word in known]


def _shared_out(told: Sequence[tuple[bool, Sequence[str]]]) -> list[tuple[str, ...]]:
    """Every node once, or its cost would count twice: of several layers that name it, it is the first one's that does
    more than move (True: it only moves)."""
    owners: dict[str, int] = {}
    for wanted in (False, True):
        for at, (moves, nodes) in enumerate(told):
            if moves is wanted:
                for node in nodes:
                    owners.setdefault(node, at)
    return [
        tuple(dict.fromkeys(node for node in nodes if owners[node] == at))
        for at, (_, nodes) in enumerate(told)
    ]


# ----------------------------------------------------------------------
# What every layer takes, by TensorRT's own ``IProfiler``, on an engine that runs for nothing else.


def kept_times(trt: Any) -> Any:
    """An ``IProfiler`` that keeps what it is told. ``taken()`` hands that out, (layer, ms) in order, and forgets it."""

    class KeptTimes(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._told: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """Called by TensorRT's C++, which no exception may pass through: nothing here can raise."""
            self._told.append((layer_name, ms))

        def taken(self) -> list[tuple[str, float]]:
            told, self._told = self._told, []
            return told

    return KeptTimes()


class TrtLayerProfiler:
    """``engine``: of one request; it becomes the profiler's own."""

    def __init__(self, trt: Any, engine: Engine, request: TrtRequest) -> None:
        self._engine, self._request = engine, request
        self._layers = engine.execution()
        self._kept = kept_times(trt)  # outlives the context that calls it
        self._told: list[list[tuple[str, str, float]]] = []
        request.attach(self._kept)

    def run(self, slot: NDArray[np.uint8]) -> None:
        np.copyto(self._request.slot, slot)
        self._request.infer(len(slot))
        self._request.report()
        run = [(str(name), UNKNOWN, float(ms)) for name, ms in self._kept.taken()]
        if not run:
            raise EngineError(
                "engine trt: no layer times: TensorRT's profiler was told of no layer"
            )
        self._told.append(run)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return in_order(self._layers, self._told)

    def close(self) -> None:
        self._engine.close()
