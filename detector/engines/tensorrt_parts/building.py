"""Graph -> plan, by one path for TensorRT 10.15 to 11: strongly typed, so that the graph's types are what is run."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from detector.engines.base import BuildProgress, EngineOptions
from detector.engines.tensorrt_parts.batches import any_batch
from detector.engines.tensorrt_parts.monitor import progress_monitor
from detector.engines.tensorrt_parts.settings import HARDWARE, Settings, read
from detector.errors import EngineError
from detector.models.base import Network
from detector.nvidia.driver import Gpu
from detector.nvidia.log import kept_log

MB = 1 << 20
OUT_OF_MEMORY = re.compile(r"out of memory|outofmemory|cudaErrorMemoryAllocation|insufficient (workspace|memory)", re.I)


def graph_bytes(network: Network, settings: Settings) -> bytes:
    """The ONNX that TensorRT is given: for one batch as it is, for a range with the first dimension open."""
    low, _, high = settings.batches
    model = network.graph if low == high else any_batch(network.graph)
    return bytes(model.SerializeToString(deterministic=True))


def build_plan(
    trt: Any, network: Network, options: EngineOptions, gpu: Gpu, target: Path, progress: BuildProgress
) -> dict[str, Any]:
    """Writes the plan to ``target``; facts for its manifest. The GPU must be current. Raises EngineError."""
    settings, log = read(options), kept_log(trt)
    builder = trt.Builder(log)
    typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    definition = builder.create_network(typed)
    parser = trt.OnnxParser(definition, log)
    _parse(trt, parser, graph_bytes(network, settings), network.name, log)
    config = builder.create_builder_config()
    monitor = progress_monitor(trt, progress)
    config.progress_monitor = monitor
    _configure(trt, config, settings, options.precision)
    for profile in _profiles(trt, builder, definition, settings):
        if config.add_optimization_profile(profile) < 0:
            raise EngineError(f"engine trt: batches {settings.batches} are refused: {log.reason()}")
    cache = _cache_file(target, trt, gpu)
    _load_timings(config, cache)
    plan = builder.build_serialized_network(definition, config)
    if monitor.raised is not None:
        raise monitor.raised
    if plan is None:
        raise EngineError(_why_no_plan(monitor.cancelled, log.reason(), network, options))
    target.write_bytes(plan)
    _save_timings(config, cache)
    return {"tensorrt": trt.__version__, "gpu": gpu.name, "batches": list(settings.batches), "timings": cache.name}


def _parse(trt: Any, parser: Any, graph: bytes, name: str, log: Any) -> None:
    if parser.parse(graph):
        return
    errors = [parser.get_error(at) for at in range(parser.num_errors)]
    said = [f"{error.node_operator()} at {error.node_name() or error.node()}: {error.desc()}" for error in errors]
    reason = "; ".join(dict.fromkeys(" ".join(text.split()) for text in said)) or log.reason()
    cure = "; use --engine ort or openvino" if any(_unsupported(error) for error in errors) else ""
    raise EngineError(f"engine trt: the graph of {name} cannot be read by TensorRT {trt.__version__}: {reason}{cure}")


def _unsupported(error: Any) -> bool:
    return str(error.code().name).startswith("UNSUPPORTED")


def _configure(trt: Any, config: Any, settings: Settings, precision: str) -> None:
    if precision != "tf32":  # on by default, and then fp32 is not what its name says
        config.clear_flag(trt.BuilderFlag.TF32)
    else:
        config.set_flag(trt.BuilderFlag.TF32)
    if settings.workspace_mb:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_mb * MB)
    if settings.level is not None:
        config.builder_optimization_level = settings.level
    if settings.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    config.hardware_compatibility_level = getattr(
        trt.HardwareCompatibilityLevel, HARDWARE[settings.hardware_compatible]
    )
    # Names of layers for NVTX and the inspector are kept by either; their types by DETAILED alone.
    verbosity = trt.ProfilingVerbosity
    config.profiling_verbosity = verbosity.DETAILED if settings.detailed else verbosity.LAYER_NAMES_ONLY


def _profiles(trt: Any, builder: Any, definition: Any, settings: Settings) -> list[Any]:
    """None for a fixed batch. For a range: one for the smallest batch alone, tuned for it, and one for all."""
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


def _why_no_plan(cancelled: bool, reason: str, network: Network, options: EngineOptions) -> str:
    if cancelled:
        return "engine trt: the build was cancelled; nothing was kept"
    text = f"engine trt: TensorRT could not build a plan for {network.name}: {reason}"
    if not OUT_OF_MEMORY.search(reason):
        return text
    smaller = f"try --batch {options.batch // 2}, or " if options.batch > 1 else "try "
    return f"{text}; {smaller}--engine-options workspace_mb=256, or a GPU with more free memory"


def _cache_file(target: Path, trt: Any, gpu: Gpu) -> Path:
    """Measured times of layers, kept beside the plans: another build on the same GPU need not measure them again."""
    folder = target.parent.parent if target.parent.name.startswith(".") else target.parent  # past the store's own
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu.name).strip("-") or "gpu"
    digest = hashlib.sha256(f"{trt.__version__} {gpu.name} {gpu.capability}".encode()).hexdigest()[:8]
    return folder / f"trt-{name}-{digest}.timings"


def _load_timings(config: Any, cache: Path) -> None:
    """An absent or refused file means an empty cache: it only saves time."""
    try:
        known = cache.read_bytes()
    except OSError:
        known = b""
    timings = config.create_timing_cache(known) or config.create_timing_cache(b"")
    if timings is not None:
        config.set_timing_cache(timings, False)


def _save_timings(config: Any, cache: Path) -> None:
    timings = config.get_timing_cache()
    if timings is None:
        return
    temporary = cache.with_name(f".{cache.name}.tmp")
    with suppress(OSError):  # the plan is there; a cache that cannot be kept is no reason to lose it
        temporary.write_bytes(timings.serialize())
        temporary.replace(cache)
