"""Prepare a network for an engine: convert or quantise it, export it, build its engine file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.engines._built import store
from detector.core.engines.base import NVIDIA_DRIVER, BuildProgress, EngineOptions
from detector.core.errors import ModelError, OutputError, UsageError
from detector.core.errors.machine import too_much
from detector.core.errors.text import counted
from detector.core.models.base import Network

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class PreparedNetwork:
    """A network ready for ``engines.open``.

    ``build_s``: seconds that this run took to convert the graph and build missing files;
    ``artefact_s``: the same, plus the build time of files from earlier runs. ``artefact``: the
    engine's own file, or else the file of the graph."""

    network: Network
    options: EngineOptions
    notes: tuple[str, ...]
    artefact: store.Artefact
    build_s: float = 0.0
    artefact_s: float = 0.0


def ignore_progress(doing: str, done: int, of: int) -> bool:
    return True


def prepare_network(
    network: Network,
    engine: str,
    config: Config,
    requests: Callable[[int], int],
    progress: BuildProgress = ignore_progress,
    one_at_a_time: bool = False,
) -> PreparedNetwork:
    """Prepare a network for ``engines.open``.

    ``requests``: concurrency -> number of requests. ``one_at_a_time``: run one request at a time
    with all threads, if the user does not set the concurrency. Raises OutputError, and
    also UsageError or EngineError if the precision or device is unavailable.
    """
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    options = _options(engine, config, precision, requests, one_at_a_time or config.loop.sync)
    if network.plan is not None:  # a file that another program built
        return PreparedNetwork(network, options, (), store.Artefact(str(network.plan), False, ()))
    _refuse_what_cannot_fit(network, engine, options)
    graph_precision = engines.graph_precision_for(engine, precision, runtime.device)
    given, folder = runtime.engines_dir, store.choose_folder(runtime.engines_dir)
    notes = tuple(filter(None, [store.why_elsewhere(given)]))
    prepare_in = partial(_prepare_in, network, engine, graph_precision, config, options, progress)
    try:
        prepared = prepare_in(folder)
        return replace(prepared, notes=(*notes, *prepared.notes))
    except OutputError:
        if given is not None or store.is_writable(folder):
            raise
    # Built files only make later runs start sooner, so a temporary folder is enough for this run.
    prepared = prepare_in(store.temporary_folder())
    note = (
        f"{folder} is not writable, so this run builds in a temporary folder; choose another "
        "with --engines-dir DIR"
    )
    return replace(prepared, notes=(*notes, *prepared.notes, note))


def _prepare_in(
    network: Network,
    engine: str,
    graph_precision: str,
    config: Config,
    options: EngineOptions,
    progress: BuildProgress,
    folder: Path,
) -> PreparedNetwork:
    start = time.perf_counter()
    variant, notes = convert_network(network, graph_precision, config, folder, progress)
    converted_s = time.perf_counter() - start if variant is not network else 0.0
    exported = store.find_exported(variant, folder)
    if exported is None:
        from detector.core.engines._built import building

        exported = building.export(variant, folder)
    prepared = PreparedNetwork(
        variant, options, (*notes, *exported.notes), exported, converted_s, converted_s
    )
    built = _build_artefact(variant, engine, options, folder, progress)
    if built is None:
        return prepared
    manifest = store.read_manifest(built.path)
    build_s = float(manifest.get("build_s", 0.0))
    return replace(
        prepared,
        options=replace(options, artefact=built.path),
        notes=(*prepared.notes, *built.notes, *manifest.get("notes", ())),
        build_s=converted_s + (build_s if built.built else 0.0),
        artefact_s=converted_s + build_s,
        artefact=built,
    )


def _refuse_what_cannot_fit(network: Network, engine: str, options: EngineOptions) -> None:
    """Raise UsageError if the requests cannot fit into memory, ModelError if the network cannot."""
    values = sum(4 * math.prod(shape) for shape in network.output_shapes)
    each = math.prod(network.input_shape) + values
    if (size := too_much(options.requests * each)) is not None:
        raise UsageError(
            f"{counted(options.requests, 'request')} of {each / MB:,.1f} MB need {size}; use a "
            "smaller --batch, --size or --concurrency, or in --config a smaller loop.queue_batches"
        )
    on_gpu = engine == "trt" or options.device.startswith("cuda")
    if on_gpu or (options.device == "auto" and NVIDIA_DRIVER.exists()):
        return  # the device has its own memory
    peak = 0 if engine == "null" else _peak_bytes(network)
    if (size := too_much(peak + 4 * network.parameters)) is not None:
        width, height = network.input.width, network.input.height
        raise ModelError(
            f"{network.name}: at {width}x{height} and batch {network.batch} it needs {size}; use a "
            "smaller --size or --batch, or another model"
        )


def _peak_bytes(network: Network) -> int:
    if network.peak_bytes is not None:
        return network.peak_bytes
    from detector.core.models.graph.build import peak_bytes

    return peak_bytes(network.graph)


def convert_network(
    network: Network,
    graph_precision: str,
    config: Config,
    folder: Path,
    progress: BuildProgress = ignore_progress,
) -> tuple[Network, list[str]]:
    if graph_precision == network.precision:
        return network, []
    if graph_precision in ("fp16", "bf16"):
        from detector.core.models.graph.halves import convert_to_halves

        return convert_to_halves(network, graph_precision), []
    from detector.core.run.quantize import quantize_network

    return quantize_network(network, graph_precision, config, folder, progress)


def _options(
    engine: str, config: Config, precision: str, requests: Callable[[int], int], one_at_a_time: bool
) -> EngineOptions:
    runtime = config.runtime
    options = EngineOptions(
        batch=runtime.batch,
        threads=runtime.threads,
        concurrency=runtime.concurrency,
        precision=precision,
        device=runtime.device,
        device_memory=runtime.device_memory,
        own=own_options(config),
    )
    concurrency = options.concurrency or (
        1 if one_at_a_time else engines.find(engine).best_concurrency(options)
    )
    return replace(options, concurrency=concurrency, requests=requests(concurrency))


def own_options(config: Config) -> dict[str, str]:
    """Parse --engine-options. NAME alone means NAME=1."""
    pairs = (text.partition("=") for text in config.runtime.engine_options or ())
    return {name.strip(): value.strip() or "1" for name, _, value in pairs}


def _build_artefact(
    network: Network, engine: str, options: EngineOptions, folder: Path, progress: BuildProgress
) -> store.Artefact | None:
    builder = engines.find(engine).artefact
    if builder is None or not builder.is_wanted(options):
        return None
    key = {"engine": engine, "precision": options.precision, **builder.key(network, options)}
    existing = store.find_built(folder, builder.suffix, lambda made: builder.covers(made, key))
    if existing is not None:
        return existing
    from detector.core.engines._built import building

    return building.build_once(
        folder,
        f"{store.stem(network)}-{engine}-{options.precision}",
        builder.suffix,
        key,
        lambda target: builder.build(network, options, target, progress),
    )
