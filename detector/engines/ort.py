"""ONNX Runtime on the CPU: one session, any number of requests inside it at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.engines.base import Engine, EngineOptions, Request, cpu_threads, translated
from detector.errors import EngineError
from detector.models.base import Network

LIBRARY = "onnxruntime"
INSTALL = "pip install onnxruntime"
AUTO = 20
WHY = "onnxruntime is installed, the first choice on a CPU"
PRECISIONS = {"fp32": "fp32"}
DEVICES = ("cpu",)
OPTIONS: dict[str, str] = {}

SILENT = 4  # fatal only: what fails comes back as an exception, and stdout and stderr are not its to write on


class OrtRequest(Request):
    """Slot and outputs are bound once; a run reads and writes them in place, without a copy or an allocation."""

    def __init__(self, session: Any, run_options: Any, network: Network) -> None:
        self.slot = np.zeros(network.input_shape, np.uint8)  # [B, H, W, 3] RGB
        self._outputs = [np.zeros(shape, np.float32) for shape in network.output_shapes]
        self._session, self._options = session, run_options
        self._binding = session.io_binding()
        given = session.get_inputs()[0].name
        self._binding.bind_input(given, "cpu", 0, np.uint8, self.slot.shape, self.slot.ctypes.data)
        for output, array in zip(session.get_outputs(), self._outputs, strict=True):
            self._binding.bind_output(output.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._session is None:
            raise EngineError("engine ort: infer after close")
        with translated("ort", "run the network"):
            self._session.run_with_iobinding(self._binding, self._options)
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._session = self._binding = None


class OrtEngine(Engine):
    name = "ort"

    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.concurrency = options.concurrency or 1
        self.threads = cpu_threads(options)
        with translated("ort", "load the graph"):
            session, run_options = _open_session(network, self.threads)
            _check_contract(session, network)
            self.requests: list[OrtRequest] = [
                OrtRequest(session, run_options, network) for _ in range(options.requests)
            ]

    def close(self) -> None:
        for request in self.requests:
            request.release()


def create(network: Network, options: EngineOptions) -> Engine:
    return OrtEngine(network, options)


def _open_session(network: Network, threads: int) -> tuple[Any, Any]:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = SILENT
    # Threads that spin between two runs take the cores from decoding and drawing, and count as CPU time of ours.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    run_options = ort.RunOptions()
    run_options.log_severity_level = SILENT
    source = network.path or network.graph.SerializeToString()
    return ort.InferenceSession(source, settings, providers=["CPUExecutionProvider"]), run_options


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
