"""List the layers that OpenVINO's plugin runs, and time each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.engines._layer_times import match_layers
from detector.core.engines.base import EngineOptions, LayerExecution, translated
from detector.core.engines.openvino.compiling import TYPES, compile_graph, plan_compilation
from detector.core.engines.openvino.devices import open_core
from detector.core.engines.openvino.pairs import ELEMENTWISE
from detector.core.engines.openvino.precise import WITHOUT_BIASES
from detector.core.errors import EngineError
from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

FACTS = ("layerType", "runtimePrecision", "originalLayersNames")
QUANTISED = ("u8", "i8")
SUBGRAPH = re.compile(r"^subgraph\d+: ")
# Layers of the runtime model that compute nothing: constants, inputs and outputs.
PASSIVE = ("Const", "Input", "Output")
RUNS_OF_A_MEAN = 16  # number of profiled runs after which we compile the graph again
# These layers only move or cast data. In them, u8 data is the picture; elsewhere it is quantised.
LAYERS_THAT_MOVE = ("Transpose", "Reorder", "Convert", "Subgraph")


class OpenvinoLayerProfiler:
    """A profiler that uses PERF_COUNT. OpenVINO reports each layer's mean time over all runs of a
    request, so we compute a run's time from the means before and after. The more runs, the less
    exact the result, so we compile the graph again every RUNS_OF_A_MEAN runs."""

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self._network, self._options = network, options
        self._runs_of_layers: list[list[tuple[str, str, float]]] = []
        self._open()

    def _open(self) -> None:
        with translated("openvino", "load the graph for a profile"):
            core = open_core()
            compilation = plan_compilation(self._network, self._options, 1, core)
            compiled = compile_graph(core, compilation, PERF_COUNT=True)
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
        # OpenVINO also reports nodes that were fused into a layer. Omit them.
        times = [self._subtract(mean) for mean in means if _name(mean) in self._names]
        if not times:
            raise EngineError(
                "engine openvino: no layer times: the device reports none under the layers' names"
            )
        self._runs_of_layers.append(times)

    def _subtract(self, mean: Any) -> tuple[str, str, float]:
        name, total = _name(mean), mean.real_time.total_seconds() * 1e3 * self._runs
        previous = self._sums.get(name, 0.0)
        self._sums[name] = total
        return name, mean.node_type, max(0.0, total - previous)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return match_layers(self._layers, self._runs_of_layers)

    def close(self) -> None:
        self._request = None


def _name(mean: Any) -> str:
    """Return a layer's name without HETERO's prefix: ``0.conv`` for ``subgraph0: 0.conv``."""
    return SUBGRAPH.sub("", mean.node_name)


def layers_of(model: Any, graph: onnx.GraphProto) -> list[LayerExecution]:
    """Return the layers that the plugin reports, with their nodes in ``graph``."""
    known = {node.name for node in graph.node}
    constant: set[str] = set()  # layers computed at compile time, from constants only
    layers = []
    for layer in model.get_ordered_ops():
        facts = {
            key: value.astype(str) for key, value in layer.get_rt_info().items() if key in FACTS
        }
        sources = [value.get_node().get_friendly_name() for value in layer.input_values()]
        name, kind = layer.get_friendly_name(), facts["layerType"]
        if kind == "Const" or (sources and constant.issuperset(sources)):
            constant.add(name)
        elif kind not in PASSIVE:
            originals = facts["originalLayersNames"].split(",")
            if name.endswith(WITHOUT_BIASES):
                # If the bias is 0, the plugin drops it, and with it the convolution's own name.
                originals.append(name.removesuffix(WITHOUT_BIASES))
            nodes = tuple(node for node in dict.fromkeys(originals) if node in known)
            layers.append(
                LayerExecution(name, kind, _precision(kind, facts["runtimePrecision"]), nodes=nodes)
            )
    return add_hidden_nodes(layers, graph)


def add_hidden_nodes(
    layers: Sequence[LayerExecution], graph: onnx.GraphProto
) -> list[LayerExecution]:
    """If a convolution is in no layer, add it to the layer whose result it reads. Without AVX-512
    the plugin fuses a depthwise convolution into a preceding 1x1 convolution (openvino 2026.4)."""
    layer_of_node = {node: at for at, layer in enumerate(layers) for node in layer.nodes}
    makers = {name: node.name for node in graph.node for name in node.output}
    hidden: dict[str, int] = {}
    for node in graph.node:
        maker = makers.get(node.input[0], "") if node.input else ""
        # Activations after such a Conv are fused too. Other nodes without a layer were removed.
        is_hidden = node.op_type == "Conv" or (node.op_type in ELEMENTWISE and maker in hidden)
        if node.name not in layer_of_node and is_hidden and maker in layer_of_node:
            hidden[node.name] = layer_of_node[node.name] = layer_of_node[maker]
    return [
        replace(layer, nodes=(*layer.nodes, *(name for name, its in hidden.items() if its == at)))
        for at, layer in enumerate(layers)
    ]


def _precision(kind: str, found: str) -> str:
    if found in QUANTISED and kind not in LAYERS_THAT_MOVE:
        return "int8"
    return TYPES.get(found, found)
