"""ONNX Runtime on the CPU or on an NVIDIA GPU: one session, any number of requests inside it at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.engines.base import Engine, EngineOptions, LayerExecution, Request, cpu_threads, streams, translated
from detector.errors import EngineError
from detector.models.base import Network

LIBRARY = "onnxruntime"
INSTALL = "pip install onnxruntime"
AUTO = 20
WHY = "onnxruntime is installed, the first choice on a CPU"
PRECISIONS = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16", "int8": "int8-u8"}
DEVICES = ("cpu", "cuda")
OPTIONS: dict[str, str] = {}

SILENT = 4  # fatal only: what fails comes back as an exception, and stdout and stderr are not its to write on
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
WITH_CUDA = "pip install onnxruntime-gpu (after: pip uninstall onnxruntime)"
# Rounds the float weights of a convolution between two quantised ones to int8, though the graph keeps it in float.
UNWANTED = {"WeightBiasQuantization"}
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
ON_GPU_ONLY = {
    "tf32": "it is a GPU's arithmetic",
    # Seen: a cast on each edge, all 47 convolutions of street in fp32, the same speed; bf16: no convolution at all.
    "fp16": "ONNX Runtime computes an fp16 graph in fp32 on a CPU, with casts",
}


def refusal(precision: str, device: str) -> str | None:
    if device.startswith("cuda") and not _has_cuda():
        return f"--device {device}: {_no_cuda()}"
    if precision == "int8" and device.startswith("cuda"):
        return "ONNX Runtime has no int8 convolution on a GPU and would compute them in fp32; --device cpu has, or trt"
    if precision not in ON_GPU_ONLY or (device != "cpu" and _has_cuda()):
        return None
    return f"{ON_GPU_ONLY[precision]}, and " + ("--device is cpu" if device == "cpu" else _no_cuda())


def concurrency(options: EngineOptions) -> int:
    """On a CPU, as many as fill the cores. On a GPU one: not measured there yet."""
    return 1 if _wanted_device(options) != "cpu" else streams(options)


class OrtRequest(Request):
    """Slot and outputs are bound once; a run reads and writes them in place, without an allocation. On a GPU the slot
    is copied, as u8, into memory of this request's own there, and each output straight into its array here."""

    def __init__(self, session: Any, run_options: Any, network: Network, device: str) -> None:
        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._session, self._options = session, run_options
        self._binding = session.io_binding()
        self._uploaded: Any = None
        given = session.get_inputs()[0].name
        if device == "cpu":
            self._binding.bind_input(given, "cpu", 0, np.uint8, self.slot.shape, self.slot.ctypes.data)
        else:
            import onnxruntime

            self._uploaded = onnxruntime.OrtValue.ortvalue_from_numpy(self.slot, "cuda", _index(device))
            self._binding.bind_ortvalue_input(given, self._uploaded)
        for output, array in zip(session.get_outputs(), self._outputs, strict=True):
            self._binding.bind_output(output.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._session is None:
            raise EngineError("engine ort: infer after close")
        with translated("ort", "run the network"):
            if self._uploaded is not None:
                self._uploaded.update_inplace(self.slot)
            self._session.run_with_iobinding(self._binding, self._options)
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._session = self._binding = self._uploaded = None


class OrtEngine(Engine):
    name = "ort"

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.precision = options.precision
        self.concurrency = options.concurrency or concurrency(options)
        self.threads = cpu_threads(options, self.concurrency)
        self._network: Network | None = network
        self.notes: list[str] = []
        session, self.device = self._open(network, options)
        with translated("ort", "load the graph"):
            _check_contract(session, network)
            run_options = _run_options()
            self.requests: list[OrtRequest] = [
                OrtRequest(session, run_options, network, self.device) for _ in range(options.requests)
            ]

    def _open(self, network: Network, options: EngineOptions) -> tuple[Any, str]:
        """The session and where it runs. What was asked for by name is not replaced, and nothing in silence."""
        device = _wanted_device(options)
        if device != "cpu":
            try:
                return _cuda_session(network, self.threads, self.precision, device), device
            except EngineError as error:
                if options.device != "auto" or self.precision in ON_GPU_ONLY:
                    raise
                self.notes.append(f"{error}; it runs on the CPU")
        elif options.device == "auto" and NVIDIA_DRIVER.exists() and self.precision != "int8":
            self.notes.append(f"engine ort runs on the CPU: {_no_cuda()}")
        with translated("ort", "load the graph"):
            return _session(network, _settings(self.threads), [CPU]), "cpu"

    def execution(self) -> list[LayerExecution]:
        """From the graph as ONNX Runtime optimised it, saved by a second session of the same settings."""
        if self._network is None:
            return []
        from detector.engines.ort_graph import layers

        with translated("ort", "list the layers"):
            optimised = _optimised(self._network, self.threads, _providers(self.device, self.precision))
            float_math = "tf32" if self.precision == "tf32" else "fp32"
            return layers(optimised, self._network.graph, float_math)

    def close(self) -> None:
        self._network = None
        for request in self.requests:
            request.release()


def create(network: Network, options: EngineOptions) -> Engine:
    return OrtEngine(network, options)


class OrtLayerProfiler:
    """A session that writes a trace of every node, and its optimised graph beside it."""

    def __init__(self, network: Network, options: EngineOptions) -> None:
        from detector.engines.ort_graph.profiling import traced

        self._network, self._precision = network, options.precision
        self._folder = tempfile.TemporaryDirectory(prefix="detect-video-layers-")
        device = _wanted_device(options)
        settings = traced(_settings(cpu_threads(options)), self._folder.name)
        with translated("ort", "load the graph for a profile"):
            self._session: Any = _session(network, settings, _providers(device, self._precision))
            self._request = OrtRequest(self._session, _run_options(), network, device)

    def run(self, slot: NDArray[np.uint8]) -> None:
        np.copyto(self._request.slot, slot)
        self._request.infer(len(slot))

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        from detector.engines.ort_graph.profiling import node_times

        with translated("ort", "read the profile"):
            float_math = "tf32" if self._precision == "tf32" else "fp32"
            trace = self._session.end_profiling()
            return node_times(trace, self._folder.name, self._network.graph, float_math)

    def close(self) -> None:
        self._request.release()
        self._session = None
        self._folder.cleanup()


def layer_profiler(network: Network, options: EngineOptions) -> OrtLayerProfiler:
    return OrtLayerProfiler(network, options)


def _has_cuda() -> bool:
    import onnxruntime

    return CUDA in onnxruntime.get_available_providers()


def _no_cuda() -> str:
    return f"this build of onnxruntime has no CUDA provider; one that has it: {WITH_CUDA}"


def _wanted_device(options: EngineOptions) -> str:
    """ "cpu" or "cuda:N". ``auto`` is the first GPU where this build can use one and it has the precision."""
    if options.device == "auto":
        return "cuda:0" if options.precision != "int8" and _has_cuda() else "cpu"
    return f"cuda:{_index(options.device)}" if options.device != "cpu" else "cpu"


def _index(device: str) -> int:
    """N of ``cuda:N``; 0 of ``cuda``."""
    return int(device.partition(":")[2] or 0)


def _providers(device: str, precision: str) -> list[Any]:
    if device == "cpu":
        return [CPU]
    # use_tf32 is on by default: fp32 would not be fp32.
    return [(CUDA, {"device_id": _index(device), "use_tf32": int(precision == "tf32")}), CPU]


def _cuda_session(network: Network, threads: int, precision: str, device: str) -> Any:
    """A session on the GPU. Raises EngineError: ONNX Runtime itself would go on on the CPU."""
    import onnxruntime

    if not _has_cuda():
        raise EngineError(f"engine ort: --device {device}: {_no_cuda()}")
    onnxruntime.set_default_logger_severity(SILENT)  # a library that is not found is reported through this one
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries out of pip's own packages
    with translated("ort", f"start its CUDA provider on {device}"):
        session = _session(network, _settings(threads), _providers(device, precision))
        if CUDA not in session.get_providers():
            raise RuntimeError("no driver, no such GPU, or CUDA or cuDNN of another version than it was built for")
    return session


def _settings(threads: int) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = SILENT
    # Threads that spin between two runs take the cores from decoding and drawing, and count as CPU time of ours.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def _run_options() -> Any:
    import onnxruntime as ort

    run_options = ort.RunOptions()
    run_options.log_severity_level = SILENT
    return run_options


def _session(network: Network, settings: Any, providers: Sequence[Any]) -> Any:
    import onnxruntime as ort

    source = network.path or network.graph.SerializeToString()
    return ort.InferenceSession(
        source,
        settings,
        providers=providers,
        enable_fallback=0,  # it prints on stdout and goes on with another provider
        disabled_optimizers=UNWANTED,
    )


def _optimised(network: Network, threads: int, providers: Sequence[Any]) -> Any:
    import onnx

    from detector.engines.ort_graph.profiling import OPTIMISED, kept_graph

    with tempfile.TemporaryDirectory() as folder:
        settings = kept_graph(_settings(threads), folder)
        _session(network, settings, providers)
        return onnx.load(Path(folder, OPTIMISED), load_external_data=False)


def _check_contract(session: Any, network: Network) -> None:
    """The graph must be what the description says; else memory would be written that is not there."""
    found_inputs = [(tensor.type, tuple(tensor.shape)) for tensor in session.get_inputs()]
    found_outputs = [(tensor.type, tuple(tensor.shape)) for tensor in session.get_outputs()]
    if found_inputs != [("tensor(uint8)", network.input_shape)] or found_outputs != [
        ("tensor(float)", tuple(shape)) for shape in network.output_shapes
    ]:
        raise EngineError(
            f"engine ort: the graph of {network.name} takes {found_inputs} and gives {found_outputs}; "
            f"wanted one u8 input {network.input_shape} and float32 outputs {network.output_shapes}"
        )
