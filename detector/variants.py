"""A network in the form in which an engine wants it: converted or quantised, exported, and built where it must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from detector import artefacts, engines
from detector.config import Config
from detector.engines.base import BuildProgress, EngineOptions
from detector.models.base import Network


@dataclass(frozen=True, slots=True)
class Prepared:
    """``network``: of the precision that the engine asked for, exported. ``options``: all that ``engines.open`` takes.
    ``build_s``: seconds that went into files that were not there yet."""

    network: Network
    options: EngineOptions
    notes: tuple[str, ...]
    build_s: float = 0.0


def silent(doing: str, done: int, of: int) -> bool:
    return True


def prepared(
    network: Network, engine: str, config: Config, requests: Callable[[int], int], progress: BuildProgress = silent
) -> Prepared:
    """Everything before ``engines.open``. ``requests``: how many are wanted at a concurrency.

    Raises UsageError and EngineError for a precision or device that cannot be, OutputError for the artefacts' folder.
    """
    runtime = config.runtime
    precision = "fp32" if runtime.precision == "auto" else runtime.precision
    if network.plan is not None:  # built elsewhere, and run as it is
        return Prepared(network, _options(engine, config, precision, requests), ())
    wanted = engines.graph_wanted(engine, precision, runtime.device)
    folder = Path(runtime.engines_dir) if runtime.engines_dir else artefacts.default_folder()
    variant, notes = _variant(network, wanted, config, folder)
    exported = artefacts.export(variant, folder)
    options = _options(engine, config, precision, requests)
    built = _built(variant, engine, options, folder, progress)
    if built is None:
        return Prepared(variant, options, (*notes, *exported.notes))
    build_s = float(artefacts.manifest_of(built.path).get("build_s", 0.0)) if built.built else 0.0
    return Prepared(variant, replace(options, artefact=built.path), (*notes, *exported.notes, *built.notes), build_s)


def _variant(network: Network, wanted: str, config: Config, folder: Path) -> tuple[Network, list[str]]:
    if wanted == network.precision:
        return network, []
    if wanted in ("fp16", "bf16"):
        from detector.models.convert import converted

        return converted(network, wanted), []
    from detector.quantize import quantized

    return quantized(network, wanted, config, folder)


def _options(engine: str, config: Config, precision: str, requests: Callable[[int], int]) -> EngineOptions:
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
    concurrency = engines.concurrency(engine, asked)
    return replace(asked, concurrency=concurrency, requests=requests(concurrency))


def _pair(text: str) -> tuple[str, str]:
    """NAME=VALUE; a NAME alone is switched on."""
    name, _, value = text.partition("=")
    return name.strip(), value.strip() or "1"


def _built(
    network: Network, engine: str, options: EngineOptions, folder: Path, progress: BuildProgress
) -> artefacts.Artefact | None:
    module = engines.build_of(engine)
    if module is None:
        return None
    key = {"engine": engine, "precision": options.precision, **module.build_key(network, options)}
    stem = f"{artefacts.stem(network)}-{engine}-{options.precision}"
    if hasattr(module, "covers"):  # built for more than is asked for now: a range of batches that holds this one
        found = artefacts.standing(folder, module.SUFFIX, lambda made: bool(module.covers(made, key)))
        if found is not None:
            return found
    return artefacts.built(
        folder, stem, module.SUFFIX, key, lambda target: module.build(network, options, target, progress)
    )
