"""OpenVINO on the CPU: one compiled graph, one stream of threads for each request that may run at
once.

From top to bottom: the engine and its profiler; how the graph is compiled and what the plugin says
about its layers; how needless Q/DQ pairs are removed before; how single nodes are kept in float32.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from detector.core.engines._layer_times import match_layers
from detector.core.engines.base import (
    BF16_OPTION,
    AutoChoice,
    Engine,
    EngineOptions,
    LayerExecution,
    Request,
    best_streams,
    cpu_threads,
    stays_fp32,
    translated,
)
from detector.core.errors import EngineError, UsageError
from detector.core.errors.machine import BF16, cpu_flags
from detector.core.models.base import Network
from detector.core.models.graph.operators import MOVING, MULTIPLYING

if TYPE_CHECKING:
    import onnx


# int8 is in the graph, as Q/DQ nodes; what they leave in float runs as f32, or in bf16 (``_hint``).
# The hint is never left out: on a CPU with bf16 the plugin would take bf16 by itself.
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
QUANTISED = ("u8", "i8")
# Layers of the runtime model that compute nothing: constants, inputs and outputs.
NO_LAYERS = ("Const", "Input", "Output")
RUNS_OF_A_MEAN = 16  # under the profiler, before the graph is compiled again
# u8 in these layers is the picture, which is moved or cast. In all others it is quantised
# arithmetic.
LAYERS_THAT_MOVE = ("Transpose", "Reorder", "Convert", "Subgraph")


class OpenvinoRequest(Request):
    """Slot and outputs are given to OpenVINO once; each run reads and writes them in place."""

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
    library = "openvino"
    install = "pip install 'detect-video[openvino]'"
    # In fp32 it is as fast as ONNX Runtime, which is always there and loads sooner. In fewer bits
    # it is well ahead of ONNX Runtime, or the only one (docs/settings.md).
    auto = AutoChoice(15, "openvino is installed")
    auto_in: ClassVar[Mapping[str, AutoChoice]] = {
        "bf16": AutoChoice(30, "the fastest in bf16 on a CPU"),
        "int8": AutoChoice(30, "the fastest in int8 on a CPU"),
    }
    # bf16 and fp16 are the plugin's own conversion of the fp32 graph: it knows which of its kernels
    # have them. What bf16 hurts most is marked, so that it stays fp32.
    precisions: ClassVar[Mapping[str, str]] = {
        "fp32": "fp32",
        "bf16": "fp32",
        "fp16": "fp32",
        "int8": "int8-u8",
    }
    own_options = {
        "mode": "throughput (default): requests of few threads side by side; "
        "latency: one request on all threads",
        "float": "what int8 leaves in float: auto (default): bf16 where the CPU has it and the "
        "calibration says what it loses, else fp32; fp32; bf16",
    } | BF16_OPTION
    model_suffixes = (".xml",)
    model_kind = "an OpenVINO IR"
    model_front_end = "detector.core.engines._openvino_ir"

    @classmethod
    def import_library(cls) -> None:
        """Imports openvino without its telemetry, which sends an event from inside the import,
        asked or not.

        openvino falls back to a stub of its own where ``openvino_telemetry`` cannot be imported.
        """
        if "openvino" in sys.modules:
            return
        name = "openvino_telemetry"
        before = {name: sys.modules[name]} if name in sys.modules else {}
        sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to make an import fail
        try:
            importlib.import_module("openvino")
        finally:
            del sys.modules[name]
            sys.modules.update(before)

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        """fp16 where the CPU lacks it: the plugin would silently run bf16 or f32 in its place."""
        if precision != "fp16":
            return None
        cls.import_library()
        import openvino

        able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if "FP16" in able:
            return None
        instead = "--precision bf16" if "BF16" in able else "--precision int8"
        return (
            "this CPU has no fp16 arithmetic (AVX512-FP16), and OpenVINO would run another type; "
            f"{instead} runs here"
        )

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        mode = options.own.get("mode", "throughput")
        if mode not in ("throughput", "latency"):
            raise UsageError(
                f"--engine-options mode={mode}: modes of openvino are throughput and latency"
            )
        return 1 if mode == "latency" else best_streams(options)

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> OpenvinoLayerProfiler:
        return OpenvinoLayerProfiler(network, options)

    def __init__(self, network: Network, options: EngineOptions) -> None:
        if network.plan is not None:
            _check_precision_of_ir(network.plan, options)
        self.precision = options.precision
        self.concurrency = options.concurrency or self.best_concurrency(options)
        self.threads = cpu_threads(options, self.concurrency)
        self._graph = network.graph.graph
        stays, hint = stays_fp32(network, options), _hint(network, options)
        with translated("openvino", "load the graph"):
            self._compiled: Any = _compile(network, hint, stays, self.concurrency, self.threads)
            _check_contract(self._compiled, network)
            self.requests: list[OpenvinoRequest] = [
                OpenvinoRequest(self._compiled, network) for _ in range(options.requests)
            ]
            self.notes = _notes(self._compiled, network, options.precision, hint)

    def execution(self) -> list[LayerExecution]:
        if self._compiled is None:
            return []
        with translated("openvino", "list the layers"):
            return _layers(self._compiled.get_runtime_model(), self._graph)

    def close(self) -> None:
        self._compiled = None
        for request in self.requests:
            request.release()


class OpenvinoLayerProfiler:
    """The graph compiled with PERF_COUNT: the request reports the time of every layer as the mean
    of all runs so far.

    The means are in whole microseconds. A single run is the difference of two sums, so its error
    grows with the number of runs. Therefore the graph is compiled again every RUNS_OF_A_MEAN runs.
    """

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self._network, self._options = network, options
        self._told: list[list[tuple[str, str, float]]] = []
        self._open()

    def _open(self) -> None:
        options = self._options
        with translated("openvino", "load the graph for a profile"):
            hint, stays = _hint(self._network, options), stays_fp32(self._network, options)
            compiled = _compile(
                self._network, hint, stays, 1, cpu_threads(options), PERF_COUNT=True
            )
            self._request: Any = compiled.create_infer_request()
            self._layers = _layers(compiled.get_runtime_model(), self._network.graph.graph)
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
        # It also reports what was fused into another layer, which is no layer of the runtime model.
        self._told.append([self._single(mean) for mean in means if mean.node_name in self._names])

    def _single(self, mean: Any) -> tuple[str, str, float]:
        name, total = mean.node_name, mean.real_time.total_seconds() * 1e3 * self._runs
        before = self._sums.get(name, 0.0)
        self._sums[name] = total
        return name, mean.node_type, max(0.0, total - before)

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        return match_layers(self._layers, self._told)

    def close(self) -> None:
        self._request = None


def _compile(
    network: Network, hint: str, stays: Set[str], streams: int, threads: int, **more: Any
) -> Any:
    import openvino

    core = openvino.Core()
    # Nothing is kept on disk, whatever the environment or a configuration file of OpenVINO says.
    core.set_property({"CACHE_DIR": ""})
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams * threads,
        "INFERENCE_PRECISION_HINT": hint,
        # Pinned threads cannot move when the reader or the encoder takes their core: inference then
        # waits for both.
        "ENABLE_CPU_PINNING": False,
        **more,
    }
    model = _read(core, network)
    return core.compile_model(mark_precise(core, model, stays) if stays else model, "CPU", settings)


def _read(core: Any, network: Network) -> Any:
    if network.plan is not None:
        from detector.core.engines._openvino_ir import read_ir

        size = network.input.height, network.input.width
        return read_ir(core, Path(network.plan), size, network.batch, network.details["outputs"])
    if network.precision == "int8-u8":
        return core.read_model(remove_needless_pairs(network.graph).SerializeToString())
    return core.read_model(network.path or network.graph.SerializeToString())


def _check_precision_of_ir(plan: str, options: EngineOptions) -> None:
    """An IR is not converted: what it was quantised to stays, and the rest runs in a float type."""
    if options.precision == "int8":
        raise EngineError(
            f"engine openvino: {plan} cannot be quantised here; one that was quantised runs in "
            "int8 as it is, without --precision; or give the ONNX file that it was made from"
        )
    if reason := OpenvinoEngine.refusal(options.precision, options.device):
        raise EngineError(f"engine openvino: {options.precision} cannot run here: {reason}")


def _check_contract(compiled: Any, network: Network) -> None:
    """The compiled graph must match the description: else it would write past the end of our
    arrays.
    """
    found = tuple(
        [
            (port.element_type.get_type_name(), tuple(port.partial_shape.to_shape()))
            for port in ports
        ]
        for ports in (compiled.inputs, compiled.outputs)
    )
    if found != (
        [("u8", network.input_shape)],
        [("f32", tuple(shape)) for shape in network.output_shapes],
    ):
        raise EngineError(
            f"engine openvino: the graph of {network.name} takes {found[0]} and gives {found[1]}; "
            f"wanted one u8 input {network.input_shape} and f32 outputs {network.output_shapes}"
        )


def _hint(network: Network, options: EngineOptions) -> str:
    """What the plugin computes in where the graph does not say.

    Layers that stay float in int8 run in bf16 where that is known to be harmless: a calibration
    measures it (``quantize.calibrate.FLOAT_IN_BF16``).
    """
    chosen = options.own.get("float", "auto")
    if chosen not in ("auto", "fp32", "bf16"):
        raise UsageError(
            f"--engine-options float={chosen}: what int8 leaves in float is auto, fp32 or bf16"
        )
    known = _float_in_bf16(network) is not None and bool(cpu_flags() & BF16)
    if options.precision == "int8" and (chosen == "bf16" or (chosen == "auto" and known)):
        return HINTS["bf16"]
    return HINTS[options.precision]


def _float_in_bf16(network: Network) -> float | None:
    """Agreement with fp32 of int8 whose float layers run in bf16, where the calibration has it."""
    agreement: float | None = network.details.get("int8", {}).get("float_in_bf16")
    return agreement


def _float_note(network: Network) -> str:
    agreement = _float_in_bf16(network)
    # Rounded down, as the line on the engine's choice has it.
    told = f"; agreement with fp32 is {int(agreement * 1000) / 1000:.3f}" if agreement else ""
    return (
        f"engine openvino: layers that int8 leaves in float run in bf16 on this CPU{told}; "
        "--engine-options float=fp32 keeps them in fp32"
    )


def _notes(compiled: Any, network: Network, precision: str, hint: str) -> list[str]:
    runs = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if runs == hint:
        return [] if hint == HINTS[precision] else [_float_note(network)]
    return [
        f"engine openvino: {precision} was asked for; on this CPU OpenVINO runs "
        f"{TYPES.get(runs, runs)}"
    ]


def _layers(model: Any, graph: onnx.GraphProto) -> list[LayerExecution]:
    """What the plugin says that it runs. Nodes that are not of ``graph`` are the plugin's own."""
    known = {node.name for node in graph.node}
    constant: set[str] = (
        set()
    )  # computed while compiling: constants, and what depends on nothing else
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
            nodes = tuple(node for node in facts["originalLayersNames"].split(",") if node in known)
            layers.append(
                LayerExecution(name, kind, _precision(kind, facts["runtimePrecision"]), nodes=nodes)
            )
    return name_swallowed(layers, graph)


def name_swallowed(
    layers: Sequence[LayerExecution], graph: onnx.GraphProto
) -> list[LayerExecution]:
    """Adds each convolution that no layer names to the layer whose result it reads.

    Without AVX-512 the plugin computes a depthwise convolution inside the 1x1 before it
    (``jit_avx2_dw_1x1_f32`` of openvino 2026.4), and names neither it nor its activation.
    """
    layer_of = {node: at for at, layer in enumerate(layers) for node in layer.nodes}
    makers = {name: node.name for node in graph.node for name in node.output}
    added: dict[str, int] = {}
    for node in graph.node:
        maker = makers.get(node.input[0], "") if node.input else ""
        # An activation follows its convolution; one without is left out by the plugin, not hidden.
        follows = node.op_type == "Conv" or (node.op_type in ELEMENTWISE and maker in added)
        if node.name not in layer_of and follows and maker in layer_of:
            added[node.name] = layer_of[node.name] = layer_of[maker]
    return [
        replace(layer, nodes=(*layer.nodes, *(name for name, its in added.items() if its == at)))
        for at, layer in enumerate(layers)
    ]


FACTS = ("layerType", "runtimePrecision", "originalLayersNames")


def _precision(kind: str, found: str) -> str:
    if found in QUANTISED and kind not in LAYERS_THAT_MOVE:
        return "int8"
    return TYPES.get(found, found)


# ---- Q/DQ pairs that OpenVINO does not need
#
# The graph has a pair behind every node that ONNX Runtime runs in integers, because ONNX Runtime
# has a kernel for each of them. OpenVINO has one kernel for a convolution with all the elementwise
# work behind it. A pair in between makes it write the convolution's result as u8 and read it again.
# So these pairs are removed:
# 1. behind nodes that only move or choose values, if the values had the same steps before: nothing
# is rounded there;
# 2. between a convolution or elementwise work and elementwise work: one rounding less, at the end
# of the kernel.
#
# Measured with two requests in flight on 2 cores (docs/settings.md): 11 to 33 % less time.

ELEMENTWISE = (
    "Add",
    "Sum",
    "Sub",
    "Mul",
    "Div",
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Clip",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Elu",
    "Softplus",
    "Tanh",
    "Mish",
)


def remove_needless_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A new model with the same inputs and outputs."""
    import onnx

    # output of a DequantizeLinear -> input of its pair
    instead = _Pairs(model.graph).needless()
    pairs = set(instead)
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] in instead:
            pairs.add(node.input[0])
    nodes = []
    for node in model.graph.node:
        if pairs.intersection(node.output):
            continue
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for at, name in enumerate(node.input):
            made.input[at] = _follow(instead, name)
        nodes.append(made)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def _follow(instead: dict[str, str], name: str) -> str:
    while name in instead:
        name = instead[name]
    return name


class _Pairs:
    def __init__(self, graph: onnx.GraphProto) -> None:
        from onnx import numpy_helper

        self._graph = graph
        self._outputs = {info.name for info in graph.output}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._single = {
            tensor.name: numpy_helper.to_array(tensor).item()
            for tensor in graph.initializer
            if _is_single(tensor)
        }

    def needless(self) -> dict[str, str]:
        found = {}
        for quantize in self._graph.node:
            if quantize.op_type != "QuantizeLinear":
                continue
            readers = self._readers.get(quantize.output[0], [])
            if (
                len(readers) == 1
                and readers[0].op_type == "DequantizeLinear"
                and self._is_needless(readers[0])
            ):
                found[readers[0].output[0]] = quantize.input[0]
        return found

    def _is_needless(self, dequantize: onnx.NodeProto) -> bool:
        maker = self._makers.get(self._makers[dequantize.input[0]].input[0])
        if maker is None or dequantize.output[0] in self._outputs:
            return False
        if maker.op_type in (*MOVING, "Concat"):
            return self._only_moves(maker) and self._had_steps(maker, self._steps(dequantize))
        readers = self._readers.get(dequantize.output[0], [])
        return maker.op_type in (*MULTIPLYING, *ELEMENTWISE) and all(
            node.op_type in ELEMENTWISE for node in readers
        )

    def _only_moves(self, node: onnx.NodeProto) -> bool:
        """Whether the node makes no new values. Resize does, unless it takes the nearest."""
        modes = [entry.s for entry in node.attribute if entry.name == "mode"]
        return node.op_type != "Resize" or modes in ([], [b"nearest"])

    def _had_steps(self, node: onnx.NodeProto, steps: tuple[Any, ...]) -> bool:
        given = node.input if node.op_type == "Concat" else node.input[:1]
        makers = [self._makers.get(name) for name in given]
        return all(
            maker is not None
            and maker.op_type == "DequantizeLinear"
            and self._steps(maker) == steps
            for maker in makers
        )

    def _steps(self, node: onnx.NodeProto) -> tuple[Any, ...]:
        """Scale and zero point; their names where they are not single numbers."""
        return tuple(self._single.get(name, name) for name in node.input[1:])


def _is_single(tensor: onnx.TensorProto) -> bool:
    return all(side == 1 for side in tensor.dims)


# ---- nodes that stay float32, whatever precision the plugin is asked for
#
# A hint makes the plugin convert the whole graph, except the nodes with the attribute ``precise``.
# Python cannot set it: it is an attribute of a C++ type, which a dictionary of strings cannot hold.
# OpenVINO's own file format can hold it, so the model goes through a file. No manual mentions the
# attribute; the compiled model shows whether it took effect (openvino 2024.6 and 2026.4 heed it).

# What the ONNX front end appends to a convolution; the sum with its
# bias has the node's name.
WITHOUT_BIASES = "/WithoutBiases"
PASSIVE = ("Const", "Parameter", "Result")


def mark_precise(core: Any, model: Any, names: Set[str]) -> Any:
    """A copy of the model in which the nodes of these names are marked.

    ``core``: an ``openvino.Core``.

    Raises OSError where nothing can be written to the folder for temporary files.
    """
    import openvino

    with tempfile.TemporaryDirectory(prefix="detect-video-") as folder:
        graph, weights = Path(folder, "graph.xml"), Path(folder, "graph.bin")
        openvino.serialize(model, str(graph), str(weights))
        # Both are read into memory: some systems cannot delete a file that is mapped.
        return core.read_model(_mark(graph, names), weights.read_bytes())


def _mark(graph: Path, names: Set[str]) -> bytes:
    root = ElementTree.parse(graph).getroot()
    for layer in root.iter("layer"):
        if (
            layer.get("type") in PASSIVE
            or layer.get("name", "").removesuffix(WITHOUT_BIASES) not in names
        ):
            continue
        info = layer.find("rt_info")
        if info is None:
            info = ElementTree.Element("rt_info")
            # OpenVINO writes it behind the data.
            layer.insert(0 if layer.find("data") is None else 1, info)
        ElementTree.SubElement(info, "attribute", {"name": "precise", "version": "0"})
    return ElementTree.tostring(root)
