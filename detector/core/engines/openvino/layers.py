"""The layers that the plugin runs, and how long each takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.engines._layer_times import match_layers
from detector.core.engines.base import EngineOptions, LayerExecution, translated
from detector.core.engines.openvino.compiling import TYPES, compilation, compile_graph
from detector.core.engines.openvino.devices import open_core
from detector.core.engines.openvino.pairs import ELEMENTWISE
from detector.core.errors import EngineError
from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

FACTS = ("layerType", "runtimePrecision", "originalLayersNames")
QUANTISED = ("u8", "i8")
SUBGRAPH = re.compile(r"^subgraph\d+: ")
# Layers of the runtime model that compute nothing: constants, inputs and outputs.
NO_LAYERS = ("Const", "Input", "Output")
# Suffix of a convolution whose bias is a separate node. If that bias is 0, the plugin drops it, and
# with it the convolution's name among the original ones.
WITHOUT_BIASES = "/WithoutBiases"
RUNS_OF_A_MEAN = 16  # profiled runs before the graph is compiled again
# u8 is the picture in these layers, which move or cast it; elsewhere it is quantised data.
LAYERS_THAT_MOVE = ("Transpose", "Reorder", "Convert", "Subgraph")


class OpenvinoLayerProfiler:
    """A profiler with PERF_COUNT: the request reports each layer's mean time so far, in us. A run
    is the difference of two sums, so the graph is compiled again every RUNS_OF_A_MEAN runs."""

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self._network, self._options = network, options
        self._told: list[list[tuple[str, str, float]]] = []
        self._open()

    def _open(self) -> None:
        with translated("openvino", "load the graph for a profile"):
            core = open_core()
            wanted = compilation(self._network, self._options, 1, core)
            compiled = compile_graph(core, wanted, PERF_COUNT=True)
            self._request: Any = compiled.create_infer_request()
            self._layers = layers_of(compiled.get_runtime_model(), self._network.graph.graph)
        self._names = {layer.name for layer in self._layers}
        self._sums: dict[str, float] = {}
        self._runs = 0

    def run(self, slot: NDArray[np.uint8]) -> None:
        from openvino import Tensor

        if self._runs == RUNS_OF_A_MEAN:
            self._open()
        with translated("openvino", "run the network"):
            self._request.set_input_tensor(Tensor(slot))
            self._request.infer()
            means = self._request.get_profiling_info()
        self._runs += 1
        # It also reports what was fused into another layer, which the runtime model does not list.
        times = [self._single(mean) for mean in means if _name(mean) in self._names]
        if not times:
            raise EngineError("engine openvino: no layer times: the device reports none by name")
        self._told.append(times)

    def _single(self, mean: Any) -> tuple[str, str, float]:
        name, total = _name(mean), mean.real_time.total_seconds() * 1e3 * self._runs
        before = self._sums.get(name, 0.0)
        self._sums[name] = total
        return name, mean.node_type, max(0.0, total - before)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return match_layers(self._layers, self._told)

    def close(self) -> None:
        self._request = None


def _name(mean: Any) -> str:
    """Return a layer's name without HETERO's prefix for its graph: ``subgraph0: 0.conv``."""
    return SUBGRAPH.sub("", mean.node_name)


def layers_of(model: Any, graph: onnx.GraphProto) -> list[LayerExecution]:
    """Return the layers that the plugin reports. Nodes outside ``graph`` are the plugin's own."""
    known = {node.name for node in graph.node}
    constant: set[str] = set()  # computed while compiling: constants, and what only depends on them
    layers = []
    for layer in model.get_ordered_ops():
        facts = {
            key: value.astype(str) for key, value in layer.get_rt_info().items() if key in FACTS
        }
        given = [value.get_node().get_friendly_name() for value in layer.input_values()]
        name, kind = layer.get_friendly_name(), facts["layerType"]
        if kind == "Const" or (given and constant.issuperset(given)):
            constant.add(name)
        elif kind not in NO_LAYERS:
            originals = facts["originalLayersNames"].split(",")
            if name.endswith(WITHOUT_BIASES):
                originals.append(name.removesuffix(WITHOUT_BIASES))
            nodes = tuple(node for node in dict.fromkeys(originals) if node in known)
            layers.append(
                LayerExecution(name, kind, _precision(kind, facts["runtimePrecision"]), nodes=nodes)
            )
    return name_swallowed(layers, graph)


def name_swallowed(
    layers: Sequence[LayerExecution], graph: onnx.GraphProto
) -> list[LayerExecution]:
    """Add each convolution that no layer names to the layer whose result it reads. Without AVX-512
    the plugin computes a depthwise convolution inside the 1x1 before it (openvino 2026.4)."""
    layer_of = {node: at for at, layer in enumerate(layers) for node in layer.nodes}
    makers = {name: node.name for node in graph.node for name in node.output}
    added: dict[str, int] = {}
    for node in graph.node:
        maker = makers.get(node.input[0], "") if node.input else ""
        # An activation follows its convolution; one without is omitted by the plugin, not hidden.
        follows = node.op_type == "Conv" or (node.op_type in ELEMENTWISE and maker in added)
        if node.name not in layer_of and follows and maker in layer_of:
            added[node.name] = layer_of[node.name] = layer_of[maker]
    return [
        replace(layer, nodes=(*layer.nodes, *(name for name, its in added.items() if its == at)))
        for at, layer in enumerate(layers)
    ]


def _precision(kind: str, found: str) -> str:
    if found in QUANTISED and kind not in LAYERS_THAT_MOVE:
        return "int8"
    return TYPES.get(found, found)
