"""The open engine openvino: a compiled graph, and a group of threads per concurrent request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.engines.base import (
    Engine,
    EngineOptions,
    LayerExecution,
    RawRequest,
    check_contract,
    translated,
)
from detector.core.engines.openvino.compiled import read_compiled
from detector.core.engines.openvino.compiling import (
    IN_FLOAT,
    Compilation,
    compile_graph,
    notes_of,
    plan_compilation,
)
from detector.core.engines.openvino.devices import open_core
from detector.core.engines.openvino.differing import LIMITS, find_differing
from detector.core.engines.openvino.quantised import (
    is_quantised_elsewhere,
    is_unlike,
    is_wide,
    run_reference,
)
from detector.core.errors import EngineError
from detector.core.models.base import Network

if TYPE_CHECKING:
    from detector.core.engines.openvino.layers import OpenvinoLayerProfiler


class OpenvinoRequest(RawRequest):
    """A request whose slot OpenVINO reads, and whose outputs it writes, without copies."""

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
            raise EngineError("engine openvino: infer() called after close()")
        with translated("openvino", "run the network"):
            # OpenVINO's ``infer`` would create a dictionary of arrays in each call.
            self._request.start_async()
            self._request.wait()
        return [output[:n] for output in self._outputs]

    def release(self) -> None:
        self._request = None


class OpenOpenvino(Engine):
    name = "openvino"

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> OpenvinoLayerProfiler:
        from detector.core.engines.openvino.layers import OpenvinoLayerProfiler

        return OpenvinoLayerProfiler(network, options)

    def __init__(self, network: Network, options: EngineOptions, concurrency: int) -> None:
        self.precision = options.precision
        self.concurrency = concurrency
        self._network = network
        with translated("openvino", "load the graph"):
            core = open_core()
            compilation = plan_compilation(network, options, concurrency, core)
            self.device, self.threads = compilation.target.device, compilation.threads
            if self.device != "cpu":
                self.device_name, self.threads = compilation.target.full_name, 1
            self._compile(core, compilation, options.requests, options.artefact)
            self.notes = notes_of(self._compiled, compilation, options.precision)
            if compilation.target.kind == "cpu" and is_quantised_elsewhere(network):
                self.notes += self._check_quantised(core, compilation, options.requests)
            elif (node := find_differing(network)) is not None:
                self._check_node(node)

    def _compile(
        self, core: Any, compilation: Compilation, requests: int, built: str | None
    ) -> None:
        self._compiled: Any = (
            compile_graph(core, compilation)
            if built is None
            else read_compiled(core, compilation, built)
        )
        inputs, outputs = map(_describe_ports, (self._compiled.inputs, self._compiled.outputs))
        check_contract(self.name, compilation.network, inputs, outputs)
        self.requests: list[OpenvinoRequest] = [
            OpenvinoRequest(self._compiled, compilation.network) for _ in range(requests)
        ]

    def _check_quantised(self, core: Any, compilation: Compilation, requests: int) -> list[str]:
        """If the outputs differ from ONNX Runtime's, compile in float. Return notes about it. Raise
        EngineError if the outputs in float differ, too."""
        network, name = compilation.network, compilation.network.name
        expected = run_reference(network)
        if is_unlike(network, expected, self.requests[: self.concurrency]):
            network.details[IN_FLOAT] = True
            self._compile(core, compilation, requests, None)
            if is_unlike(network, expected, self.requests[: self.concurrency]):
                raise EngineError(
                    f"engine openvino: boxes or scores of {name}, which is quantised, differ "
                    "from those of ONNX Runtime; use --engine ort"
                )
        elif not is_wide(network.graph):
            return []
        return [
            f"engine openvino: in integers, boxes or scores of {name} differ from those of ONNX "
            "Runtime, so the run computes in float; --engine ort runs the file as it is"
        ]

    def _check_node(self, node: str) -> None:
        limits = {"limits": LIMITS} if self.precision == "fp32" else {}
        if is_unlike(self._network, run_reference(self._network), self.requests[:1], **limits):
            raise EngineError(
                f"engine openvino: boxes or scores of {self._network.name} are not those of ONNX "
                f"Runtime, since OpenVINO computes node {node} differently; use --engine ort"
            )

    def execution(self) -> list[LayerExecution]:
        if self._compiled is None:
            return []
        from detector.core.engines.openvino.layers import layers_of

        try:
            with translated("openvino", "list the layers"):
                return layers_of(self._compiled.get_runtime_model(), self._network.graph.graph)
        except EngineError:
            if self.device == "cpu":
                raise
            return []  # an NPU does not list its layers

    def close(self) -> None:
        self._compiled = None
        for request in self.requests:
            request.release()


def _describe_ports(ports: Any) -> list[tuple[str, Any]]:
    names = [port.element_type.get_type_name() for port in ports]
    shapes = [tuple(port.partial_shape.to_shape()) for port in ports]
    types = [{"u8": "uint8", "f32": "float32"}.get(name, name) for name in names]
    return list(zip(types, shapes, strict=True))
