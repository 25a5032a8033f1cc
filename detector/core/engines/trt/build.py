"""Build a strongly typed plan from a graph, for TensorRT 10.15 to 11 and TensorRT for RTX."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.core.engines._built import building, store
from detector.core.engines.base import BuildProgress, EngineOptions, translated
from detector.core.engines.trt import driver
from detector.core.engines.trt.driver import Gpu
from detector.core.engines.trt.edition import Edition
from detector.core.engines.trt.plan_file import make_log
from detector.core.engines.trt.settings import TrtSettings, read
from detector.core.errors import OutputError
from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

    from detector.core.models.graph.build import Shape


BATCH = "batch"  # name of the first dimension


class FixedBatchError(Exception):
    """Constants of a graph contain its batch size."""


def any_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a graph, and make the copy's batch size dynamic. Raises FixedBatchError."""
    import onnx
    from onnx import shape_inference

    from detector.core.models.graph.build import tensor_shapes

    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    graph = whole.graph
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_value
    _free_reshapes(graph, batch, tensor_shapes(model))
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = BATCH
    # Remove the outputs' shapes, so that shape inference must find them.
    bare = onnx.ModelProto()
    bare.CopyFrom(whole)
    for info in bare.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        shaped = shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True).graph
    except shape_inference.InferenceError as exc:
        raise FixedBatchError(
            f"this graph cannot take a range of batches: {' '.join(str(exc).split())}"
        ) from exc
    open_ended = {
        info.name
        for info in (*shaped.input, *shaped.value_info, *shaped.output)
        if _has_open_batch(info)
    }
    if not open_ended.issuperset(info.name for info in graph.output):
        raise FixedBatchError(
            f"{_describe_fixed_batch(shaped, open_ended)}; build for one batch: --batch {batch}"
        )
    return whole


def _free_reshapes(graph: onnx.GraphProto, batch: int, shapes: Mapping[str, Shape]) -> None:
    """Where a Reshape keeps the batch, write 0 as the batch size, which means: as in the input."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[1]]).tolist()
        keeps = shapes.get(node.input[0], ())[:1] == (batch,) == tuple(shape[:1])
        if keeps and not (0 in shape and any(entry.i for entry in node.attribute)):
            # Other nodes may read the constant, so give this node a constant of its own.
            name = f"{node.output[0]}.any_batch"
            values = np.array([0, *shape[1:]], np.int64)
            graph.initializer.append(numpy_helper.from_array(values, name))
            node.input[1] = name
            del node.attribute[:]  # with allowzero, 0 would mean an empty batch


def _has_open_batch(info: onnx.ValueInfoProto) -> bool:
    shape = info.type.tensor_type.shape
    return bool(shape.dim) and not shape.dim[0].HasField("dim_value")


def _describe_fixed_batch(graph: onnx.GraphProto, open_ended: set[str]) -> str:
    for node in graph.node:
        if any(name in open_ended for name in node.input) and node.output[0] not in open_ended:
            return (
                f"node {node.name} ({node.op_type}) has the batch in its constants, so it cannot "
                "take a range of batches"
            )
    return "constants of the graph contain the batch, so it cannot take a range of batches"


def plan_key(edition: Edition, network: Network, options: EngineOptions) -> dict[str, Any]:
    """Return all facts that a plan depends on, as JSON: graph, library, GPU. Raises EngineError."""
    settings = read(options)
    return {
        "graph": _digest(network),
        "batches": list(settings.batches),
        **edition.key(edition.gpu_to_build_on(options.device), settings),
        "workspace_mb": settings.workspace_mb,
        "detailed": settings.detailed,
    }


def covers(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a plan with the key ``found`` also serves the key ``wanted``. The keys must be
    equal, except that the plan's range of batches may be larger."""
    low, _, high = found.get("batches") or (0, 0, 0)
    first, _, last = wanted["batches"]
    return (
        low <= first and last <= high and {**found, "batches": None} == {**wanted, "batches": None}
    )


def _digest(network: Network) -> str:
    try:
        model = any_batch(network.graph)
    except FixedBatchError:
        model = network.graph
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def progress_monitor(trt: Any, progress: BuildProgress) -> Any:
    """Return an ``IProgressMonitor`` that calls ``progress`` at every step and never raises."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cancelled = False
            self.raised: BaseException | None = None
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            self._report(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._report(phase_name, step + 1)
            return not self.cancelled

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def _report(self, phase_name: str, done: int) -> None:
            if self.cancelled:
                return
            try:
                proceed = progress(phase_name, done, self._steps.get(phase_name, done))
            except BaseException as exc:  # no exception, even Ctrl-C, may reach TensorRT's C++
                self.raised, proceed = exc, False
            self.cancelled = not proceed

    return Monitor()


MB = 1 << 20
OUT_OF_MEMORY = re.compile(
    r"out of memory|outofmemory|cudaErrorMemoryAllocation|insufficient (workspace|memory)"
    r"|workspace limit",
    re.I,
)
OTHERS = "; use --engine ort or openvino"


def graph_bytes(network: Network, settings: TrtSettings) -> bytes:
    """Return the ONNX file for TensorRT. For a range of batch sizes, its batch is dynamic."""
    low, _, high = settings.batches
    model = network.graph if low == high else any_batch(network.graph)
    return bytes(model.SerializeToString(deterministic=True))


def build_plan(
    edition: Edition,
    network: Network,
    options: EngineOptions,
    target: Path,
    progress: BuildProgress,
) -> dict[str, Any]:
    """Write a plan to ``target``; return facts for its manifest. Raises EngineError."""
    gpu = edition.gpu_to_build_on(options.device)
    on_gpu = nullcontext() if gpu is None else driver.current(gpu.index)
    with translated(edition.engine, "build a plan"), on_gpu:
        return _build(edition, network, options, gpu, target, progress)


def _build(
    edition: Edition,
    network: Network,
    options: EngineOptions,
    gpu: Gpu | None,
    target: Path,
    progress: BuildProgress,
) -> dict[str, Any]:
    trt = edition.trt
    settings, log = read(options), make_log(trt)
    builder = trt.Builder(log)
    typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    definition = builder.create_network(typed)
    definition.name = network.name  # otherwise the plan calls it "Unnamed Network 0"
    parser = trt.OnnxParser(definition, log)
    try:
        graph = graph_bytes(network, settings)
    except FixedBatchError as exc:
        raise edition.error(str(exc)) from exc
    _parse(edition, parser, graph, network, log)
    config = builder.create_builder_config()
    monitor = progress_monitor(trt, progress)
    config.progress_monitor = monitor
    _configure(trt, config, settings, options.precision)
    edition.configure(config, settings, gpu)
    for profile in _profiles(trt, builder, definition, settings):
        if config.add_optimization_profile(profile) < 0:
            raise edition.error(
                f"{edition.title} rejects batches {settings.batches}: {log.reason()}"
            )
    facts: dict[str, Any] = {"batches": list(settings.batches)}
    if edition.measures:
        assert gpu is not None
        cache = _cache_file(target, trt, gpu)
        _load_timings(config, cache)
        facts = {"gpu": gpu.name, "timings": cache.name, **facts}
    plan = builder.build_serialized_network(definition, config)
    if monitor.raised is not None:
        raise monitor.raised
    if plan is None:
        reason = log.reason()
        raise edition.error(_why_no_plan(edition, monitor.cancelled, reason, network, options))
    target.write_bytes(plan)
    if edition.measures:
        _save_timings(config, cache)
    return {edition.module: trt.__version__, **facts, "notes": log.notes()}


def _parse(edition: Edition, parser: Any, graph: bytes, network: Network, log: Any) -> None:
    _refuse_bytes(edition, network.graph.graph)
    if parser.parse(graph):
        return
    errors = [parser.get_error(at) for at in range(parser.num_errors)]
    texts = [f"{_describe_nodes(error, network.graph.graph)}: {error.desc()}" for error in errors]
    reason = "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts)) or log.reason()
    raise edition.error(
        f"{edition.title} {edition.trt.__version__} cannot read the graph of {network.name}: "
        f"{reason}{'' if OUT_OF_MEMORY.search(reason) else OTHERS}"
    )


def _refuse_bytes(edition: Edition, graph: onnx.GraphProto) -> None:
    """Refuse Q and DQ nodes of uint8. TensorRT would read them as int8 with at most a warning."""
    from onnx import TensorProto

    infos = (*graph.value_info, *graph.output)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and any(
            kinds.get(name) == TensorProto.UINT8 for name in (*node.input, *node.output)
        ):
            raise edition.error(
                f"node {node.name} ({node.op_type}) is uint8, which TensorRT reads as int8{OTHERS}"
            )


def _describe_nodes(error: Any, graph: onnx.GraphProto) -> str:
    operator = error.node_operator() or error.func().removeprefix("import")
    names = ", ".join(node.name for node in graph.node if node.op_type == operator)
    return " at ".join(filter(None, (operator, error.node_name() or names)))


def _configure(trt: Any, config: Any, settings: TrtSettings, precision: str) -> None:
    if precision != "tf32":  # TF32 is on by default, so it must be turned off for fp32
        config.clear_flag(trt.BuilderFlag.TF32)
    else:
        config.set_flag(trt.BuilderFlag.TF32)
    if settings.workspace_mb:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_mb * MB)
    # NVTX and the inspector always show layers' names, but types only with DETAILED.
    verbosity = trt.ProfilingVerbosity
    config.profiling_verbosity = (
        verbosity.DETAILED if settings.detailed else verbosity.LAYER_NAMES_ONLY
    )


def _profiles(trt: Any, builder: Any, definition: Any, settings: TrtSettings) -> list[Any]:
    """Return profiles for the smallest batch and the whole range of batches; [] without a range."""
    low, best, high = settings.batches
    if low == high:
        return []
    ranges = [(low, best, high)] if best == low else [(low, low, low), (low, best, high)]
    profiles = []
    for batches in ranges:
        profile = builder.create_optimization_profile()
        for at in range(definition.num_inputs):
            tensor = definition.get_input(at)
            rest = [int(side) for side in tensor.shape][1:]
            smallest, middle, largest = (trt.Dims([batch, *rest]) for batch in batches)
            profile.set_shape(tensor.name, smallest, middle, largest)
        profiles.append(profile)
    return profiles


def _why_no_plan(
    edition: Edition, cancelled: bool, reason: str, network: Network, options: EngineOptions
) -> str:
    if cancelled:
        return "the build was cancelled; nothing was kept"
    text = f"{edition.title} could not build a plan for {network.name}: {reason}"
    if not OUT_OF_MEMORY.search(reason):
        return f"{text}{_find_named_node(reason, network.graph.graph)}{OTHERS}"
    smaller = f"--batch {options.batch // 2}, or " if options.batch > 1 else ""
    limit, workspace = read(options).workspace_mb, "--engine-options workspace_mb"
    cure = f"a build without {workspace}={limit}" if limit else f"{workspace}=256"
    return f"{text}; try {smaller}{cure}, or a GPU with more free memory"


def _find_named_node(reason: str, graph: onnx.GraphProto) -> str:
    for node in sorted(graph.node, key=lambda node: len(node.name), reverse=True):
        # If a node's name has only letters, it may be an ordinary word of the text.
        if not node.name.isalpha() and re.search(
            rf"(?<![\w./]){re.escape(node.name)}(_\d+)?(?![\w/])", reason
        ):
            return f" (node {node.name}, {node.op_type})"
    return ""


def _cache_file(target: Path, trt: Any, gpu: Gpu) -> Path:
    """Return the file of measured layer times, which make the next build on this GPU faster."""
    # ``target`` may be in a hidden folder for unfinished files, inside the engines' folder.
    folder = target.parent.parent if target.parent.name.startswith(".") else target.parent
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu.name).strip("-") or "gpu"
    digest = hashlib.sha256(f"{trt.__version__} {gpu.name} {gpu.capability}".encode()).hexdigest()[
        :8
    ]
    return folder / f"trt-{name}-{digest}.timings"


def _load_timings(config: Any, cache: Path) -> None:
    known = store.read_sealed(cache) or b""
    timings = config.create_timing_cache(known) or config.create_timing_cache(b"")
    if timings is not None:
        config.set_timing_cache(timings, False)


def _save_timings(config: Any, cache: Path) -> None:
    timings = config.get_timing_cache()
    if timings is None:
        return
    # If the cache cannot be stored, the plan can still be used.
    with suppress(OSError, OutputError):
        building.write_sealed(cache, bytes(timings.serialize()))
