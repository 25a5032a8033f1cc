"""Build an engine's files ahead of a run, or write its graph to an ONNX file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.engines import _ranking
from detector.core.engines._built import building, store
from detector.core.engines.base import BuildProgress
from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import refuse_kept
from detector.core.errors.writing import whole_file
from detector.core.models.base import Network
from detector.core.models.own_files import write_description
from detector.core.run.canvas import open_network
from detector.core.run.inputs import keep_inputs
from detector.core.run.prepare import PreparedNetwork, convert_network, prepare_network

RANGE = ("min_batch", "max_batch")  # options of engines whose files accept several batch sizes


def parse_batches(text: str) -> tuple[int, int]:
    """Parse ``8`` or ``1..8``. Raises UsageError."""
    low, dots, high = text.partition("..")
    parts = [low.strip(), (high if dots else low).strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or int(parts[0]) > int(
        parts[1]
    ):
        raise UsageError(f"--batch {text}: write 8, or 1..8 for a range of batches")
    return int(parts[0]), int(parts[1])


def build(config: Config, batches: tuple[int, int], progress: BuildProgress) -> dict[str, Any]:
    """Build the missing files that an engine needs for a model. Return facts as JSON values."""
    config = _with_engine(config, batches)
    engine = config.runtime.engine
    engines.load_library(engine, to_build=True)
    start = time.perf_counter()
    network = _open_with_graph(config)
    ready = prepare_network(network, engine, config, lambda concurrency: concurrency + 1, progress)
    seconds = time.perf_counter() - start
    facts = _describe_build(network, ready)
    if reason := engines.why_absent(engine):
        facts["notes"].append(f"this machine cannot run the built file: {reason}")
    return {
        "schema": 1,
        "engine": engine,
        "batch": _range_text(batches),
        **facts,
        "seconds": seconds,
    }


def export_onnx(config: Config, output: str | None) -> dict[str, Any]:
    """Write the ONNX graph that the engine would run. Raises ModelError if ONNX rejects it."""
    config = _with_engine(config, (config.runtime.batch, config.runtime.batch))
    runtime = config.runtime
    start = time.perf_counter()
    keep_inputs(config)
    if output is not None:
        refuse_kept(output)  # check this before reading the model, which takes a while
    graph_precision = engines.graph_precision_for(runtime.engine, runtime.precision, runtime.device)
    if graph_precision != runtime.precision:
        raise UsageError(
            f"--precision {runtime.precision}: the ONNX file serves every precision, since engine "
            f"{runtime.engine} converts the graph in each run; omit --precision"
        )
    network = _open_with_graph(config)
    folder = store.choose_folder(runtime.engines_dir)
    graph, notes = convert_network(network, graph_precision, config, folder)
    target = Path(output) if output else Path(f"{store.stem(graph)}.onnx")
    refuse_kept(target)
    building.refuse_beyond_one_message(
        graph, "the export would have to be one file", "run the model directly, without export"
    )
    write_description(graph)
    _check_graph(graph)
    with whole_file(target, "choose another with -o") as temporary:
        temporary.write_bytes(graph.graph.SerializeToString(deterministic=True))
    return {
        "schema": 1,
        "engine": runtime.engine,
        "batch": str(runtime.batch),
        "path": str(target),
        "built": True,
        **_describe_network(network, graph),
        "notes": [*network.warnings, *notes],
        "seconds": time.perf_counter() - start,
    }


def _open_with_graph(config: Config) -> Network:
    network = open_network(config)
    if network.plan is not None:
        only = engines.only_engine(network.plan)
        raise ModelError(
            f"{network.plan}: already built for engine {only}, and contains no graph from which "
            "another file could be built; give the model that it was built from"
        )
    return network


def _with_engine(config: Config, batches: tuple[int, int]) -> Config:
    """Replace ``auto`` in the configuration. Turn a range of batches into engine options."""
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    engine = (
        _ranking.choose_by_rank(precision, runtime.device)[0]
        if runtime.engine == "auto"
        else runtime.engine
    )
    own = runtime.engine_options
    if batches[0] != batches[1]:
        able = [
            name for name in engines.names() if set(RANGE) <= engines.find(name).own_options.keys()
        ]
        if engine not in able:
            capable = " or ".join(able) or "trt"
            raise UsageError(
                f"--batch {_range_text(batches)}: a range needs engine {capable}; engine {engine} "
                "builds one batch per file"
            )
        own = (
            *(own or ()),
            *(f"{name}={batch}" for name, batch in zip(RANGE, batches, strict=True)),
        )
    options = {"engine": engine, "precision": precision, "batch": batches[1]}
    return config.with_options({**options, "engine_options": own})


def _describe_build(network: Network, ready: PreparedNetwork) -> dict[str, Any]:
    manifest: Mapping[str, Any] = store.read_manifest(ready.artefact.path)
    return {
        "path": ready.artefact.path,
        "built": ready.artefact.built,
        "build_s": manifest.get("build_s"),
        "bytes": manifest.get("file_bytes"),
        "facts": manifest.get("facts", {}),
        **_describe_network(network, ready.network),
        "notes": [*network.warnings, *ready.notes],
    }


def _describe_network(network: Network, variant: Network) -> dict[str, Any]:
    return {
        "model": network.name,
        "model_sha256": network.sha256,
        "precision": variant.precision,
        "input_shape": list(variant.input_shape),
        "output_shapes": [list(shape) for shape in variant.output_shapes],
    }


def _range_text(batches: tuple[int, int]) -> str:
    return str(batches[0]) if batches[0] == batches[1] else f"{batches[0]}..{batches[1]}"


def _check_graph(network: Network) -> None:
    import onnx

    try:
        onnx.checker.check_model(network.graph, full_check=True)
        onnx.shape_inference.infer_shapes(
            network.graph, check_type=True, strict_mode=True, data_prop=True
        )
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"ONNX rejects the graph of {network.name}: {' '.join(str(error).split())}"
        ) from error
