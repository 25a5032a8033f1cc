"""The open engine torch, which runs the graph as a ``torch.fx.GraphModule``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from detector.core.engines.base import (
    Engine,
    EngineOptions,
    LayerExecution,
    check_contract,
    cpu_threads,
    find_fp32_nodes,
    read_switch,
    translated,
)
from detector.core.engines.torch import abilities
from detector.core.errors import EngineError, UsageError
from detector.core.models.base import Network
from detector.core.models.graph.build import is_quantised
from detector.core.models.graph.operators import QUANTISED

if TYPE_CHECKING:
    from detector.core.engines.torch.layers import TorchLayerProfiler
    from detector.core.engines.torch.requests import CudaRequest, Run, TorchRequest


DEFAULTS = {"channels_last": True, "compile": False, "graphs": False, "benchmark": False}


class OpenTorch(Engine):
    """The open engine torch. ``module``: the GraphModule, to use with torch's own tools."""

    name = "torch"

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> TorchLayerProfiler:
        for name in ("compile", "graphs"):
            if read_switches(options.own)[name]:
                raise EngineError(
                    f"engine torch: no layer times: --engine-options {name} does not run layers "
                    "one by one"
                )
        from detector.core.engines.torch.layers import TorchLayerProfiler

        engine = cls(network, replace(options, own={**options.own, "graphs": "0"}))
        return TorchLayerProfiler(engine, engine.module)

    def __init__(self, network: Network, options: EngineOptions) -> None:
        from detector.core.engines.torch.graph import signature

        self.concurrency = options.concurrency or abilities.best_concurrency(options.device)
        self.precision = options.precision
        self.threads = cpu_threads(options)
        self.notes: list[str] = []
        self.captured = False  # whether each request replays a CUDA graph
        self._executed: list[LayerExecution] | None = None
        switches = read_switches(options.own)
        with translated("torch", "load the graph"):
            self._device = self._choose_device(options, switches)
            self.device = str(self._device)
            # None after close
            self.module: Any = self._build(network, options, switches["channels_last"])
            check_contract(self.name, network, *signature(network.graph))
        self._input_shape = network.input_shape
        self._multiplied = self._arithmetic(options.precision)
        self.requests: list[TorchRequest] | list[CudaRequest] = self._requests(
            network, options, switches
        )

    def _choose_device(self, options: EngineOptions, switches: Mapping[str, bool]) -> Any:
        device, note = abilities.device_of(options.device)
        if note:
            self.notes.append(note)
        if reason := abilities.refusal(options.precision, device):
            raise EngineError(f"engine torch: {options.precision} cannot run here: {reason}")
        for name, needed in (("graphs", "CUDA graphs need"), ("benchmark", "cuDNN needs")):
            if switches[name] and device.type != "cuda":
                raise UsageError(
                    f"--engine-options {name}: {needed} a GPU, but torch uses the CPU; omit {name}"
                )
        if switches["compile"]:
            abilities.check_compiler(device)
        return device

    def _build(self, network: Network, options: EngineOptions, channels_last: bool) -> Any:
        from detector.core.engines.torch.graph import graph_module, lay_out

        halves = self.precision in ("bf16", "fp16")
        if halves and is_quantised(network.graph):
            raise EngineError(
                f"engine torch: {network.name} cannot become {self.precision}: {QUANTISED}"
            )
        module = lay_out(graph_module(network.graph), channels_last)
        if halves:
            import torch

            from detector.core.engines.torch.halves import cast_to_halves

            dtype = torch.bfloat16 if self.precision == "bf16" else torch.float16
            module = cast_to_halves(module, dtype, find_fp32_nodes(network, options))
        return module.to(self._device)

    def _arithmetic(self, precision: str) -> dict[str, str]:
        """Map the type of a convolution's tensors to the type of its arithmetic, if they differ."""
        if precision == "tf32":
            return {"fp32": "tf32"}
        if self._device.type != "cpu":
            return {}
        if precision != "bf16" or abilities.has_bf16():
            return {}
        self.notes.append(
            "engine torch: bf16 is not faster here: this CPU has no bf16 arithmetic (AVX512-BF16 "
            "or AMX), so values are stored in bf16 but multiplied in fp32"
        )
        return {"bf16": "fp32"}

    def _requests(
        self, network: Network, options: EngineOptions, switches: Mapping[str, bool]
    ) -> Any:
        from detector.core.engines.torch.requests import CallingThreads, TorchRequest, arithmetic

        threads, run = CallingThreads(self.threads), self.module
        on_cpu = self._device.type == "cpu"
        # Set the arithmetic first: compiling, the trial run and capturing depend on it.
        tf32, benchmark = self.precision == "tf32", switches["benchmark"]
        with nullcontext() if on_cpu else arithmetic(tf32, benchmark):
            if switches["compile"]:
                threads.prepare()  # compiled code depends on the number of threads
                with translated("torch", "compile the network"):
                    run = self._compile()
            if on_cpu:
                return [TorchRequest(run, network, threads) for _ in range(options.requests)]
            return self._cuda_requests(run, network, options, switches)

    def _compile(self) -> Run:
        """Compile now, not at the first frame, so that errors and time are counted as loading."""
        import torch

        run: Run = torch.compile(self.module, dynamic=False, options={"freezing": True})
        # Create the input outside inference mode, or torch would compile again in the first run.
        example = torch.zeros(self._input_shape, dtype=torch.uint8, device=self._device)
        with torch.inference_mode():
            run(example)
        return run

    def _cuda_requests(
        self, run: Run, network: Network, options: EngineOptions, switches: Mapping[str, bool]
    ) -> list[CudaRequest]:
        """By default, use CUDA graphs if possible: to launch kernels one by one takes several times
        as long as to run them (docs/gpu.md)."""
        import torch

        from detector.core.engines.torch.requests import CudaRequest, capture_graphs, check_memory

        graphs, count = switches["graphs"], options.requests
        by_default = "graphs" not in options.own and not switches["compile"]
        tf32, benchmark = self.precision == "tf32", switches["benchmark"]

        def make() -> list[CudaRequest]:
            return [CudaRequest(run, network, self._device, tf32, benchmark) for _ in range(count)]

        with translated("torch", "try the network on the GPU"):
            torch.cuda.current_stream(self._device).synchronize()  # the weights are uploaded
            # With CUDA graphs, check all requests: a graph holds its memory until it is released.
            check_memory(run, network, self._device, count if graphs else self.concurrency)
            requests = make()
            if by_default:
                reason = capture_graphs(requests, run, network, self._device)
                if reason is not None:
                    self.notes.append(f"engine torch: running without CUDA graphs: {reason}")
                    requests = make()
                graphs = reason is None
            elif graphs:
                for request in requests:
                    request.capture()
        self.captured = graphs
        return requests

    def execution(self) -> list[LayerExecution]:
        """Return the layers with the precision of each. The first call runs the network."""
        if self.module is None:
            return []
        if self._executed is None:
            import torch

            from detector.core.engines.torch.execution import list_executed_layers

            with translated("torch", "run the network"):
                example = torch.zeros(self._input_shape, dtype=torch.uint8, device=self._device)
                self._executed = list_executed_layers(self.module, example, self._multiplied)
        return list(self._executed)

    def close(self) -> None:
        self.module = None
        for request in self.requests:
            request.release()


def read_switches(own: Mapping[str, str]) -> dict[str, bool]:
    return {name: read_switch(own, name, default) for name, default in DEFAULTS.items()}
