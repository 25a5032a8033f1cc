"""The open engines trt and rtx: a plan, and the memory of its requests."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from detector.core.engines.base import (
    Engine,
    EngineOptions,
    LayerExecution,
    check_contract,
    translated,
)
from detector.core.engines.trt import build as plans
from detector.core.engines.trt import driver, memory, plan_file, settings
from detector.core.engines.trt.edition import FULL, RTX, Edition
from detector.core.engines.trt.jit import Contexts, choose_graphs
from detector.core.engines.trt.plan_file import make_log
from detector.core.engines.trt.running import IN_FLIGHT, TrtRequest
from detector.core.errors.writing import temporary_folder
from detector.core.models.base import Network
from detector.core.models.layouts.plans import PlanTensor

if TYPE_CHECKING:
    from detector.core.engines.trt.layers import TrtLayerProfiler

OUT_OF_MEMORY = re.compile(r"out ?of ?memory|MemoryAllocation", re.IGNORECASE)
MB = 1 << 20


class OpenTrt(Engine):
    name = "trt"
    edition: ClassVar[Edition] = FULL

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> TrtLayerProfiler:
        """Return a profiler with an engine of its own: profiling would slow the run's engine."""
        from detector.core.engines.trt.layers import TrtLayerProfiler

        profiled = cls(network, options)
        try:
            return TrtLayerProfiler(cls.edition, profiled, profiled.requests[0])
        except BaseException as error:
            profiled.close_after(error)
            raise

    def __init__(self, network: Network, options: EngineOptions) -> None:
        settings.read(options)  # raises UsageError before a plan is built
        data, file = self._read_plan(network, options)
        gpu = self._gpu = self.edition.require_gpu(options.device)
        trt = self.edition.trt
        self.concurrency = options.concurrency or IN_FLIGHT
        self.device = f"cuda:{gpu.index}"
        self._foreign = network.plan is not None
        self.precision = "as built" if self._foreign else options.precision
        self.requests: list[TrtRequest] = []
        self._memory: Any = None
        self._trt, self._log, self._network = trt, make_log(trt), network
        self._engine: Any = None
        self._runtime: Any = None
        self._contexts: Contexts | None = None
        self._notes: tuple[str, ...] = ()
        with translated(self.name, f"load {file}"):
            self._memory = memory.open_memory(
                memory.choose_provider(options.device_memory), gpu.index
            )
            try:
                with self._memory.active():
                    self._open(data, file, options)
            except Exception as exc:
                context_bytes = 0 if self._engine is None else self._engine.device_memory_size_v2
                needed = int(context_bytes) * options.requests
                self.close_after(exc)
                if not OUT_OF_MEMORY.search(str(exc)):
                    raise
                raise self.edition.error(
                    describe_lack_of_memory(network, options, needed, driver.free_bytes(gpu.index))
                ) from exc
        self.notes = (
            f"{self.edition.title} {trt.__version__} on {gpu.name}, device memory by "
            f"{self._memory.name}",
            *self._notes,
            *self._note_missing_details(file),
        )

    def _read_plan(self, network: Network, options: EngineOptions) -> tuple[bytes, str]:
        if file := network.plan or options.artefact:
            return Path(file).read_bytes(), file
        with temporary_folder() as place:
            target = place / "network.plan"
            plans.build_plan(self.edition, network, options, target, lambda *_: True)
            return target.read_bytes(), network.name

    def _open(self, data: bytes, file: str, options: EngineOptions) -> None:
        own = settings.read(options)
        try:
            _, body = plan_file.split(data)
            self._runtime, self._engine = plan_file.deserialize(
                self.edition,
                body,
                self._log,
                self._gpu,
                host_code=own.host_code or (own.version_compatible and not self._foreign),
            )
        except plan_file.PlanError as exc:
            raise self.edition.error(f"{file}: {exc}") from exc
        tensors = plan_file.tensors(self._trt, self._engine)
        outputs = self._check_outputs(tensors)
        contexts = Contexts(self.edition, self._engine, options.artefact, self._gpu)
        self._contexts = contexts

        def open_request(graphs: bool) -> TrtRequest:
            request = TrtRequest(self.edition, self._memory, self._log)
            self.requests.append(request)
            make_context = partial(contexts.make, graphs)
            request.prepare(make_context, tensors, outputs, self._network.batch, self._foreign)
            self._name_ranges(request.context)
            return request

        graphs = bool(own.graphs)
        if self.edition.records_graphs and own.graphs is None:
            chosen, graphs, note = choose_graphs(open_request)
            self.requests[:], self._notes = [chosen], (note,)
        while len(self.requests) < options.requests:
            open_request(graphs)

    def _check_outputs(self, tensors: list[PlanTensor]) -> list[str]:
        """Return output names in the network's order. Raises EngineError for unexpected tensors."""
        network = self._network
        shapes = {tensor.name: at_batch(tensor, network.batch) for tensor in tensors}
        types = {tensor.name: tensor.dtype for tensor in tensors}
        inputs = [(t.dtype, shapes[t.name]) for t in tensors if t.is_input]
        if network.plan is None:
            names = [info.name for info in network.graph.graph.output]
        else:  # another program's plan: ``TrtRequest`` converts types and layout
            names = list(network.details["plan_outputs"])
            inputs[:1], types = [("uint8", network.input_shape)], dict.fromkeys(types, "float32")
        outputs = [(types[name], shapes[name]) for name in names if name in shapes]
        check_contract(self.name, network, inputs, outputs)
        return names

    def _name_ranges(self, context: Any) -> None:
        """Let NVTX ranges show layers' names only, even if the plan contains more details."""
        verbosity = self._trt.ProfilingVerbosity
        if self._engine.profiling_verbosity == verbosity.DETAILED:
            context.nvtx_verbosity = verbosity.LAYER_NAMES_ONLY

    def _note_missing_details(self, file: str) -> list[str]:
        verbosity, built = self._trt.ProfilingVerbosity, self._engine.profiling_verbosity
        if built == verbosity.DETAILED:
            return []
        unknown = "the executed precision is unknown"
        if built == verbosity.NONE:
            unknown = f"its layers have only numbers as names, and {unknown}"
        cure = "build it with ProfilingVerbosity DETAILED" if self._foreign else "omit detailed=0"
        return [f"{file} was built without its layers' details: {unknown}; to fix this, {cure}"]

    def execution(self) -> list[LayerExecution]:
        if self._engine is None:
            return []
        from detector.core.engines.trt.layers import list_executed_layers

        graph = None if self._foreign else self._network.graph
        with translated(self.name, "inspect the plan"), self._memory.active():
            return list_executed_layers(self._trt, self._engine, self.requests[0].context, graph)

    def close(self) -> None:
        """Free contexts, engine, runtime and memory. If freeing one of them fails, free the rest,
        then raise the first error."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        errors: list[Exception] = []
        with translated(self.name, "free the GPU's memory"):
            for free in (partial(self._release, memory, errors), memory.close):
                try:
                    free()
                except Exception as error:  # each package has its own errors
                    errors.append(error)
            if errors:
                raise errors[0]

    def _release(self, memory: Any, errors: list[Exception]) -> None:
        try:
            with memory.active():
                contexts, self._contexts = self._contexts, None
                if contexts is not None:
                    contexts.store_cache()
                for request in self.requests:
                    try:
                        request.release()
                    except Exception as error:
                        errors.append(error)
                del contexts  # must happen while the device is active
                self._engine = self._runtime = None
        finally:
            self._engine = self._runtime = None


class OpenRtx(OpenTrt):
    name = "rtx"
    edition = RTX


def describe_lack_of_memory(
    network: Network, options: EngineOptions, needed: int, free: int
) -> str:
    """Return the message for a lack of GPU memory. It proposes a batch that may fit."""
    text = (
        f"out of GPU memory: {network.name} at batch {options.batch} in {options.requests} requests"
    )
    fits = options.batch // 2
    if needed:
        text += f" needs more than {needed // MB} MB, but only {free // MB} MB are free"
        fits = min(fits, options.batch * free // needed)
    if fits < 1:
        return f"{text}; try --concurrency 1, a smaller --size, or a GPU with more memory"
    return f"{text}; try --batch {1 << fits.bit_length() - 1}, or --concurrency 1"


def at_batch(tensor: PlanTensor, batch: int) -> tuple[int, ...]:
    return tuple(batch if side < 0 and at == 0 else side for at, side in enumerate(tensor.shape))
