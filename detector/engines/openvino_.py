"""OpenVINO on the CPU: one compiled graph, one stream of threads for each request that may run at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.engines.base import (
    BF16_OPTION,
    Engine,
    EngineOptions,
    LayerExecution,
    Request,
    cpu_threads,
    stays_fp32,
    streams,
    translated,
)  # fmt: skip
from detector.engines.layer_timing import in_order
from detector.errors import EngineError, UsageError
from detector.models.base import Network

LIBRARY = "openvino"
INSTALL = "pip install 'detect-video[openvino]'"
# In fp32 as fast as ONNX Runtime, which is always there and loads sooner; in fewer bits well ahead of it, or alone
# (docs/performance.md).
AUTO = {"": 15, "bf16": 30, "int8": 30}
WHY = {"": "openvino is installed", "bf16": "the fastest in bf16 on a CPU", "int8": "the fastest in int8 on a CPU"}
# bf16 and fp16 are the plugin's own conversion of the fp32 graph: it knows which of its kernels have them. What bf16
# hurts most is marked, so that it stays fp32.
PRECISIONS = {"fp32": "fp32", "bf16": "fp32", "fp16": "fp32", "int8": "int8-u8"}
DEVICES = ("cpu",)
OPTIONS = {
    "mode": "throughput (default): requests of few threads side by side; latency: one request on all threads",
} | BF16_OPTION

# int8 is in the graph, as Q/DQ nodes; what those leave in float runs as f32. Never unset: on a CPU with bf16 the
# plugin would take bf16 by itself.
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
QUANTISED = ("u8", "i8")
# Layers of the runtime model that compute nothing: constants, and the doors of the graph.
NO_LAYERS = ("Const", "Input", "Output")
RUNS_OF_A_MEAN = 16  # under the profiler, before it starts anew
# u8 in these layers is the picture being moved, or cast; in all others it is quantised arithmetic.
MOVING = ("Transpose", "Reorder", "Convert", "Subgraph")


def import_library() -> None:
    """Imports openvino without its telemetry, which sends an event from inside the import, asked or not.

    openvino falls back to a stub of its own where ``openvino_telemetry`` cannot be imported.
    """
    if LIBRARY in sys.modules:
        return
    name = "openvino_telemetry"
    before = {name: sys.modules[name]} if name in sys.modules else {}
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to make an import fail
    try:
        importlib.import_module(LIBRARY)
    finally:
        del sys.modules[name]
        sys.modules.update(before)


def refusal(precision: str, device: str) -> str | None:
    """fp16 where the CPU lacks it: the plugin would run bf16 or f32 in its place and name it f16 to nobody."""
    if precision != "fp16":
        return None
    import_library()
    import openvino

    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "FP16" in able:
        return None
    instead = "--precision bf16" if "BF16" in able else "--precision int8"
    return f"this CPU has no fp16 arithmetic (AVX512-FP16), OpenVINO would run another type; {instead} runs here"


def concurrency(options: EngineOptions) -> int:
    return 1 if _mode(options) == "latency" else streams(options)


def _mode(options: EngineOptions) -> str:
    mode = options.own.get("mode", "throughput")
    if mode not in ("throughput", "latency"):
        raise UsageError(f"--engine-options mode={mode}: modes of openvino are throughput and latency")
    return mode


class OpenvinoRequest(Request):
    """Slot and outputs are handed over once; a run reads and writes them in place."""

    def __init__(self, compiled: Any, network: Network) -> None:
        from openvino import Tensor

        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._request = compiled.create_infer_request()
        self._request.set_input_tensor(Tensor(self.slot, shared_memory=True))
        for at, output in enumerate(self._outputs):
            self._request.set_output_tensor(at, Tensor(output, shared_memory=True))

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._request is None:
            raise EngineError("engine openvino: infer after close")
        with translated("openvino", "run the network"):
            # Not infer(): that makes a dictionary of arrays for every call.
            self._request.start_async()
            self._request.wait()
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._request = None


class OpenvinoEngine(Engine):
    name = "openvino"

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.precision = options.precision
        self.concurrency = options.concurrency or concurrency(options)
        self.threads = cpu_threads(options, self.concurrency)
        self._nodes = {node.name for node in network.graph.graph.node}
        stays = stays_fp32(network, options)
        with translated("openvino", "load the graph"):
            self._compiled: Any = _compile(network, HINTS[options.precision], stays, self.concurrency, self.threads)
            _check_contract(self._compiled, network)
            self.requests: list[OpenvinoRequest] = [
                OpenvinoRequest(self._compiled, network) for _ in range(options.requests)
            ]
            self.notes = _notes(self._compiled, options.precision)

    def execution(self) -> list[LayerExecution]:
        if self._compiled is None:
            return []
        with translated("openvino", "list the layers"):
            return _layers(self._compiled.get_runtime_model(), self._nodes)

    def close(self) -> None:
        self._compiled = None
        for request in self.requests:
            request.release()


def create(network: Network, options: EngineOptions) -> Engine:
    return OpenvinoEngine(network, options)


class OpenvinoLayerProfiler:
    """The graph compiled with PERF_COUNT: the request tells what every layer took, as the mean of all runs so far.

    In whole microseconds: a single run, which is the difference of two sums, is off by as many as there were runs. So
    the graph is compiled anew now and then.
    """

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self._network, self._options = network, options
        self._told: list[list[tuple[str, str, float]]] = []
        self._open()

    def _open(self) -> None:
        options, nodes = self._options, {node.name for node in self._network.graph.graph.node}
        with translated("openvino", "load the graph for a profile"):
            hint, stays = HINTS[options.precision], stays_fp32(self._network, options)
            compiled = _compile(self._network, hint, stays, 1, cpu_threads(options), PERF_COUNT=True)
            self._request: Any = compiled.create_infer_request()
            self._layers = _layers(compiled.get_runtime_model(), nodes)
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
        # What went into another layer is told too, and is no layer of the runtime model.
        self._told.append([self._single(mean) for mean in means if mean.node_name in self._names])

    def _single(self, mean: Any) -> tuple[str, str, float]:
        name, total = mean.node_name, mean.real_time.total_seconds() * 1e3 * self._runs
        before = self._sums.get(name, 0.0)
        self._sums[name] = total
        return name, mean.node_type, max(0.0, total - before)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return in_order(self._layers, self._told)

    def close(self) -> None:
        self._request = None


def layer_profiler(network: Network, options: EngineOptions) -> OpenvinoLayerProfiler:
    return OpenvinoLayerProfiler(network, options)


def _compile(network: Network, hint: str, stays: Set[str], streams: int, threads: int, **more: Any) -> Any:
    import openvino

    from detector.engines.openvino_graph.pairs import without_needless_pairs
    from detector.engines.openvino_graph.precise import precise

    core = openvino.Core()
    # Nothing is kept on disk, whatever the environment or a configuration file of OpenVINO says.
    core.set_property({"CACHE_DIR": ""})
    if network.precision == "int8-u8":
        source = without_needless_pairs(network.graph).SerializeToString()
    else:
        source = network.path or network.graph.SerializeToString()
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams * threads,
        "INFERENCE_PRECISION_HINT": hint,
        # Pinned threads cannot move when the reader or the encoder takes their core: inference then waits for both.
        "ENABLE_CPU_PINNING": False,
        **more,
    }
    model = core.read_model(source)
    return core.compile_model(precise(core, model, stays) if stays else model, "CPU", settings)


def _check_contract(compiled: Any, network: Network) -> None:
    """The graph must be what the description says; else memory would be written that is not there."""
    found = tuple(
        [(port.element_type.get_type_name(), tuple(port.partial_shape.to_shape())) for port in ports]
        for ports in (compiled.inputs, compiled.outputs)
    )
    if found != ([("u8", network.input_shape)], [("f32", tuple(shape)) for shape in network.output_shapes]):
        raise EngineError(
            f"engine openvino: the graph of {network.name} takes {found[0]} and gives {found[1]}; "
            f"wanted one u8 input {network.input_shape} and f32 outputs {network.output_shapes}"
        )


def _notes(compiled: Any, precision: str) -> list[str]:
    runs = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if runs == HINTS[precision]:
        return []
    return [f"engine openvino: {precision} was asked for; on this CPU OpenVINO runs {TYPES.get(runs, runs)}"]


def _layers(model: Any, known: set[str]) -> list[LayerExecution]:
    """The plugin's own account of what it runs. ``known``: the graph's nodes; the rest are inventions of the plugin."""
    constant: set[str] = set()  # worked out while loading: constants, and what hangs on nothing else
    layers = []
    for layer in model.get_ordered_ops():
        facts = {key: value.astype(str) for key, value in layer.get_rt_info().items() if key in FACTS}
        given = [value.get_node().get_friendly_name() for value in layer.input_values()]
        name, kind = layer.get_friendly_name(), facts["layerType"]
        if kind == "Const" or (given and constant.issuperset(given)):
            constant.add(name)
        elif kind not in NO_LAYERS:
            nodes = tuple(node for node in facts["originalLayersNames"].split(",") if node in known)
            layers.append(LayerExecution(name, kind, _precision(kind, facts["runtimePrecision"]), nodes=nodes))
    return layers


FACTS = ("layerType", "runtimePrecision", "originalLayersNames")


def _precision(kind: str, found: str) -> str:
    if found in QUANTISED and kind not in MOVING:
        return "int8"
    return TYPES.get(found, found)
