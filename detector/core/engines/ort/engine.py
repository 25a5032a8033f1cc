"""The open engine ort: one session with any number of concurrent requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.engines.base import (
    NVIDIA_DRIVER,
    Engine,
    EngineOptions,
    LayerExecution,
    RawRequest,
    check_contract,
    cpu_threads,
    translated,
)
from detector.core.engines.ort import abilities
from detector.core.engines.ort.abilities import CPU, CUDA
from detector.core.errors import EngineError
from detector.core.errors.writing import temporary_folder
from detector.core.models.base import Network

# Log fatal errors only. Others raise exceptions, and a library must not print to our streams.
SILENT = 4
# This optimiser rounds a float convolution's weights to int8 if the convolutions around it are
# quantised.
UNWANTED = {"WeightBiasQuantization"}


class OrtRequest(RawRequest):
    """A request whose slot and outputs are bound once. On a GPU, each run uploads the u8 slot."""

    def __init__(self, session: Any, run_options: Any, network: Network, device: str) -> None:
        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._session, self._options = session, run_options
        self._binding = session.io_binding()
        self._uploaded: Any = None
        name = session.get_inputs()[0].name
        if device == "cpu":
            self._binding.bind_input(
                name, "cpu", 0, np.uint8, self.slot.shape, self.slot.ctypes.data
            )
        else:
            import onnxruntime

            self._uploaded = onnxruntime.OrtValue.ortvalue_from_numpy(
                self.slot, "cuda", abilities.index_of(device)
            )
            self._binding.bind_ortvalue_input(name, self._uploaded)
        for output, array in zip(session.get_outputs(), self._outputs, strict=True):
            self._binding.bind_output(
                output.name, "cpu", 0, np.float32, array.shape, array.ctypes.data
            )

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._session is None:
            raise EngineError("engine ort: infer() called after close()")
        with translated("ort", "run the network"):
            if self._uploaded is not None:
                self._uploaded.update_inplace(self.slot)
            self._session.run_with_iobinding(self._binding, self._options)
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._session = self._binding = self._uploaded = None


class OpenOrt(Engine):
    name = "ort"

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> OrtLayerProfiler:
        return OrtLayerProfiler(network, options)

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.precision = options.precision
        self.concurrency = options.concurrency or abilities.best_concurrency(options)
        self.threads = cpu_threads(options, self.concurrency)
        self._network: Network | None = network
        self.notes: list[str] = []
        session, self.device = self._open(network, options)
        with translated("ort", "load the graph"):
            check_contract(
                self.name, network, *map(_describe, (session.get_inputs(), session.get_outputs()))
            )
            run_options = _run_options()
            self.requests: list[OrtRequest] = [
                OrtRequest(session, run_options, network, self._memory())
                for _ in range(options.requests)
            ]

    def _memory(self) -> str:
        return self.device

    def _open(self, network: Network, options: EngineOptions) -> tuple[Any, str]:
        """Return the session and its device. With ``auto``, use the CPU if CUDA does not start."""
        device = abilities.wanted_device(options)
        if device != "cpu":
            try:
                return _cuda_session(network, self.threads, self.precision, device), device
            except EngineError as error:
                if options.device != "auto" or self.precision in abilities.ON_GPU_ONLY:
                    raise
                self.notes.append(f"{error}; the engine runs on the CPU")
        elif options.device == "auto" and NVIDIA_DRIVER.exists() and self.precision != "int8":
            self.notes.append(f"engine ort runs on the CPU: {abilities.why_no_cuda()}")
        with translated("ort", "load the graph"):
            settings = settings_of(self.threads)
            # With memory patterns, later runs would allocate a block besides the first run's arena.
            settings.enable_mem_pattern = False
            return open_session(network, settings, [CPU]), "cpu"

    def execution(self) -> list[LayerExecution]:
        """Return the layers of the optimised graph, which a second session saves."""
        if self._network is None:
            return []
        import onnx

        from detector.core.engines.ort.layers import read_layers

        with translated("ort", "list the layers"), temporary_folder() as folder:
            settings = save_graph(settings_of(self.threads), str(folder))
            open_session(self._network, settings, _providers(self.device, self.precision))
            optimised = onnx.load(folder / OPTIMISED, load_external_data=False)
            return read_layers(optimised, self._network.graph, self.precision)

    def close(self) -> None:
        self._network = None
        for request in self.requests:
            request.release()


class OrtLayerProfiler:
    """A session that writes its optimised graph, and a trace with an event per node and run."""

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self._network, self._precision = network, options.precision
        self._open_folder = ExitStack()
        self._folder = self._open_folder.enter_context(temporary_folder("detect-video-layers-"))
        device = abilities.wanted_device(options)
        settings = save_graph(settings_of(cpu_threads(options)), str(self._folder))
        settings.enable_profiling = True
        settings.profile_file_prefix = str(self._folder / "trace")
        with translated("ort", "load the graph for a profile"):
            self._session: Any = open_session(
                network, settings, _providers(device, self._precision)
            )
            self._request = OrtRequest(self._session, _run_options(), network, device)

    def run(self, slot: NDArray[np.uint8]) -> None:
        np.copyto(self._request.slot, slot)
        self._request.infer(len(slot))

    def times(self) -> list[tuple[LayerExecution, list[float]]]:
        import onnx

        from detector.core.engines._layer_times import match_layers
        from detector.core.engines.ort.layers import read_layers, split_into_runs

        with translated("ort", "read the profile"):
            events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
            optimised = onnx.load(self._folder / OPTIMISED, load_external_data=False)
            layers = read_layers(optimised, self._network.graph, self._precision)
            return match_layers(layers, split_into_runs(events))

    def close(self) -> None:
        self._request.release()
        self._session = None
        self._open_folder.close()


def _providers(device: str, precision: str) -> list[Any]:
    if device == "cpu":
        return [CPU]
    # use_tf32 is on by default, so it must be turned off for fp32.
    return [
        (CUDA, {"device_id": abilities.index_of(device), "use_tf32": int(precision == "tf32")}),
        CPU,
    ]


def _cuda_session(network: Network, threads: int, precision: str, device: str) -> Any:
    """Return a session on the GPU. Raises EngineError if ONNX Runtime would continue on the CPU."""
    import onnxruntime

    if not abilities.has_cuda():
        raise EngineError(f"engine ort: --device {device}: {abilities.why_no_cuda()}")
    onnxruntime.set_default_logger_severity(SILENT)  # else it logs missing libraries
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries from pip packages
    with translated("ort", f"start its CUDA provider on {device}"):
        session = open_session(network, settings_of(threads), _providers(device, precision))
        if CUDA not in session.get_providers():
            raise RuntimeError(
                "the driver or the GPU is missing, or onnxruntime was built for another "
                "version of CUDA or cuDNN"
            )
    return session


def settings_of(threads: int) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = SILENT
    # Threads that spin would take cores from decoding and drawing, and add to our CPU time.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def _run_options() -> Any:
    import onnxruntime as ort

    run_options = ort.RunOptions()
    run_options.log_severity_level = SILENT
    return run_options


def open_session(network: Network, settings: Any, providers: Sequence[Any]) -> Any:
    import onnxruntime as ort

    return ort.InferenceSession(
        network.path or network.graph.SerializeToString(),
        settings,
        providers=providers,
        enable_fallback=0,  # a fallback would print on stdout and continue with another provider
        disabled_optimizers=UNWANTED,
    )


def _describe(tensors: Any) -> list[tuple[str, Any]]:
    names = {"tensor(uint8)": "uint8", "tensor(float)": "float32"}
    return [(names.get(tensor.type, tensor.type), tuple(tensor.shape)) for tensor in tensors]


OPTIMISED = "optimised.onnx"


def save_graph(settings: Any, folder: str) -> Any:
    settings.optimized_model_filepath = str(Path(folder, OPTIMISED))
    # Write the weights to another file, since one protobuf message may be too small for them.
    settings.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "weights.bin"
    )
    return settings
