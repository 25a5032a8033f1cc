"""A network in the form in which an engine wants it: converted or quantised, exported, and built where it must be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from detector import engines
from detector.config.schema import Config
from detector.engines import store
from detector.engines.base import BuildProgress, EngineOptions
from detector.models.base import Network


@dataclass(frozen=True, slots=True)
class Prepared:
    """``network``: of the precision that the engine asked for, exported. ``options``: all that ``engines.open`` takes.
    ``build_s``: seconds that went into another precision's graph and into files that were not there yet.
    ``artefact_s``: what building took, whenever it was done. ``exported``: the graph's file; ``built``: the engine's
    own, where it runs one."""

    network: Network
    options: EngineOptions
    notes: tuple[str, ...]
    exported: store.Artefact
    build_s: float = 0.0
    artefact_s: float = 0.0
    built: store.Artefact | None = None


def silent(doing: str, done: int, of: int) -> bool:
    return True


def prepared(
    network: Network,
    engine: str,
    config: Config,
    requests: Callable[[int], int],
    progress: BuildProgress = silent,
    one_at_a_time: bool = False,
) -> Prepared:
    """Everything before ``engines.open``. ``requests``: how many are wanted at a concurrency. ``one_at_a_time``: the
    caller runs one request after the other, so that one should have all threads, where the user does not say.

    Raises UsageError and EngineError for a precision or device that cannot be, OutputError for the artefacts' folder.
    """
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    if network.plan is not None:  # built elsewhere, and run as it is
        alone = one_at_a_time or config.loop.sync
        plan = store.Artefact(str(network.plan), False, ())
        return Prepared(network, _options(engine, config, precision, requests, alone), (), plan)
    wanted = engines.graph_wanted(engine, precision, runtime.device)
    folder = _folder(config)
    start = time.perf_counter()
    variant, notes = _variant(network, wanted, config, folder, progress)
    made_s = time.perf_counter() - start if variant is not network else 0.0
    exported = store.export(variant, folder)
    options = _options(engine, config, precision, requests, one_at_a_time or config.loop.sync)
    built = _built(variant, engine, options, folder, progress)
    if built is None:
        return Prepared(variant, options, (*notes, *exported.notes), exported, made_s, made_s)
    took_s = float(store.manifest_of(built.path).get("build_s", 0.0))
    said = (*notes, *exported.notes, *built.notes)
    options = replace(options, artefact=built.path)
    return Prepared(
        variant,
        options,
        said,
        exported,
        made_s + (took_s if built.built else 0.0),
        made_s + took_s,
        built,
    )


def variant_of(network: Network, wanted: str, config: Config) -> tuple[Network, list[str]]:
    """The network converted or quantised as an engine wants it (``engines.graph_wanted``), and lines for the user."""
    return _variant(network, wanted, config, _folder(config), silent)


def _folder(config: Config) -> Path:
    return (
        Path(config.runtime.engines_dir) if config.runtime.engines_dir else store.default_folder()
    )


def _variant(
    network: Network, wanted: str, config: Config, folder: Path, progress: BuildProgress
) -> tuple[Network, list[str]]:
    if wanted == network.precision:
        return network, []
    if wanted in ("fp16", "bf16"):
        from detector.models.graph.halves import convert_to_halves

        return convert_to_halves(network, wanted), []
    from detector.run.quantize import quantize_network

    return quantize_network(network, wanted, config, folder, progress)


def _options(
    engine: str, config: Config, precision: str, requests: Callable[[int], int], one_at_a_time: bool
) -> EngineOptions:
    runtime = config.runtime
    asked = EngineOptions(
        batch=runtime.batch,
        threads=runtime.threads,
        concurrency=runtime.concurrency,
        precision=precision,
        device=runtime.device,
        device_memory=runtime.device_memory,
        own=dict(_pair(text) for text in runtime.engine_options or ()),
    )
    concurrency = asked.concurrency or (
        1 if one_at_a_time else engines.find(engine).best_concurrency(asked)
    )
    return replace(asked, concurrency=concurrency, requests=requests(concurrency))


def _pair(text: str) -> tuple[str, str]:
    """NAME=VALUE; a NAME alone is switched on."""
    name, _, value = text.partition("=")
    return name.strip(), value.strip() or "1"


def _built(
    network: Network, engine: str, options: EngineOptions, folder: Path, progress: BuildProgress
) -> store.Artefact | None:
    builder = engines.find(engine).artefact
    if builder is None:
        return None
    key = {"engine": engine, "precision": options.precision, **builder.key(network, options)}
    standing = store.standing(folder, builder.suffix, lambda made: builder.covers(made, key))
    return standing or store.built(
        folder,
        f"{store.stem(network)}-{engine}-{options.precision}",
        builder.suffix,
        key,
        lambda target: builder.build(network, options, target, progress),
    )
