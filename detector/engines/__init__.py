"""Interchangeable engines: one module of this folder each. Adding one is one file and its test.

A module ``NAME.py`` (``NAME_.py`` where the plain name is its library's) holds:
    LIBRARY   what must be importable, or None
    INSTALL   the command that installs it
    AUTO      how early ``--engine auto`` takes it; 0 never. WHY: the reason, for the user. Either a value for all
              precisions, or precision -> value, "" standing for the others
    PRECISIONS  precision -> the graph that it wants for it: fp32 (as the front end made it), fp16, bf16 (converted),
              int8-u8, int8-s8 (Q/DQ nodes with asymmetric u8 or symmetric s8 activations)
    DEVICES   of "cpu", "cuda"
    OPTIONS   its own options (--engine-options NAME=VALUE) -> what they do
    create(network, options) -> Engine
and, where it needs more:
    absent() -> why it cannot be used though its library is installed, or None; starts nothing that may crash
    refusal(precision, device) -> why this cannot run here, or None; asked only where the library is installed
    concurrency(options) -> how many requests at once are best here, where the user does not say
    import_library() imports LIBRARY, where a plain import does more than it should
    SUFFIX, build_key(network, options), build(network, options, target, progress): a file built once, kept by
              artefacts.py; the key (JSON values) holds all that makes another file necessary
    covers(found, wanted) -> whether a file that was built for one key runs what another one asks for
    layer_profiler(network, options) -> layer_timing.LayerProfiler: one request under the engine's own profiler, with
              the threads of ``options``. NOT_TIMED: why there is none, where there is none
    MODEL_SUFFIXES  of model files that it alone runs; model.py of its folder is their front end
    RUNS_PLANS  True where it runs ``Network.plan``, a file that TensorRT built elsewhere
and imports its library late, so that listing costs nothing. Folders here are parts of engines, not engines.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from detector.engines.base import PRECISIONS, Engine, EngineOptions, translated
from detector.engines.layer_times import LayerTimes, timed
from detector.errors import EngineError, UsageError
from detector.models.base import Network

__all__ = [
    "build_of",
    "choose",
    "concurrency",
    "front_ends",
    "graph_wanted",
    "install_command",
    "layer_times",
    "library",
    "load",
    "names",
    "only_engine",
    "open",
    "own_options",
    "plan_refusal",
    "precisions",
    "ranked",
    "usable",
]

PARTS = ("base", "layer_times", "store")  # modules of this folder that are no engine
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def names() -> list[str]:
    """All engines of this folder, whether usable here or not."""
    return sorted(_files())


def usable() -> dict[str, str | None]:
    """Engine -> None, or the reason why it cannot be used here. Imports no library."""
    return {name: _absent(_module(name)) for name in names()}


def install_command(name: str) -> str:
    return str(_module(name).INSTALL)


def precisions(name: str) -> list[str]:
    """Those that an engine has, in the order of ``PRECISIONS``; whether they run here, ``graph_wanted`` says."""
    return [precision for precision in PRECISIONS if precision in _module(name).PRECISIONS]


def own_options(name: str) -> dict[str, str]:
    """An engine's own options (--engine-options) and what they do."""
    return dict(_module(name).OPTIONS)


def library(name: str) -> str | None:
    """What an engine imports; None where it needs nothing."""
    found: str | None = _module(name).LIBRARY
    return found


def ranked(precision: str = "fp32") -> list[str]:
    """Engines in the order in which ``--engine auto`` tries them; those that it never takes are not among them."""
    ranks = {name: int(_for(_module(name).AUTO, precision)) for name in names()}
    return sorted((name for name in ranks if ranks[name]), key=lambda name: -ranks[name])


def choose(precision: str = "fp32", device: str = "auto") -> tuple[str, str]:
    """The engine that ``--engine auto`` means here for a precision and a device, and a sentence that says why.

    Raises UsageError and EngineError as ``graph_wanted`` does, of the first engine, where none can do this.
    """
    modules = {name: _module(name) for name in names()}
    order = ranked(precision)
    absent = [name for name in order if _absent(modules[name]) is not None]
    there = [name for name in order if name not in absent]
    if not there:
        cures = " or ".join(
            modules[name].INSTALL for name in order if _worth_installing(modules[name])
        )
        raise EngineError(f"no engine is installed; install one: {cures}")
    name = next((name for name in there if _can(name, precision, device)), there[0])
    graph_wanted(name, precision, device)
    better = [modules[other] for other in order[: order.index(name)] if other in absent]
    missing = [module.LIBRARY for module in better if _worth_installing(module)]
    without = f" ({', '.join(missing)} not installed)" if missing else ""
    return name, f"engine {name}: {_for(modules[name].WHY, precision)}{without}"


def _for(value: Any, precision: str) -> Any:
    return value.get(precision, value[""]) if isinstance(value, dict) else value


def _can(name: str, precision: str, device: str) -> bool:
    try:
        graph_wanted(name, precision, device)
    except EngineError:
        return False
    return True


def load(name: str) -> None:
    """Imports the engine and its library, so that a run can time this apart. Raises UsageError or EngineError."""
    if name not in _files():
        raise UsageError(f"unknown engine {name!r}; engines are {', '.join(names())}, or auto")
    module = _module(name)
    if reason := _absent(module):
        raise EngineError(f"engine {name}: {reason}")
    if module.LIBRARY is not None:
        with translated(name, f"import {module.LIBRARY} (install it anew with: {module.INSTALL})"):
            getattr(module, "import_library", partial(importlib.import_module, module.LIBRARY))()


def graph_wanted(name: str, precision: str, device: str = "auto") -> str:
    """The graph that an engine wants for a precision (``PRECISIONS`` above). Raises UsageError for a word that is no
    precision or device, EngineError for what this engine, or this machine, cannot do."""
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}; precisions are {', '.join(PRECISIONS)}")
    if not DEVICE.fullmatch(device):
        raise UsageError(
            f"--device {device}: devices are auto, cpu, cuda, or cuda:N for the Nth GPU"
        )
    module = _module(name)
    kind = device.partition(":")[0]
    if kind not in ("auto", *module.DEVICES):
        raise EngineError(
            f"engine {name} does not run on {kind}; it runs on {' and '.join(module.DEVICES)}"
        )
    if precision not in module.PRECISIONS:
        able = (
            ", ".join(other for other in names() if precision in _module(other).PRECISIONS)
            or "none here"
        )
        raise EngineError(
            f"engine {name} cannot run {precision}; it can {', '.join(module.PRECISIONS)}; {precision}: {able}"
        )
    if (
        _absent(module) is None
        and hasattr(module, "refusal")
        and (reason := module.refusal(precision, device))
    ):
        raise EngineError(f"engine {name}: {precision} cannot run here: {reason}")
    return str(module.PRECISIONS[precision])


def concurrency(name: str, options: EngineOptions) -> int:
    """Requests that should be inside the engine at once: as asked, else the engine's own choice."""
    module = _module(name)
    own = module.concurrency(options) if hasattr(module, "concurrency") else 1
    return options.concurrency or int(own)


def build_of(name: str) -> ModuleType | None:
    """The engine's module, with SUFFIX, build_key and build, where the engine runs a file built beforehand."""
    module = _module(name)
    return module if hasattr(module, "build") else None


def open(name: str, network: Network, options: EngineOptions | None = None) -> Engine:
    """The engine of that name, running the network. Raises UsageError for a name that is none, else EngineError."""
    load(name)
    options = options or EngineOptions(batch=network.batch)
    if options.batch != network.batch:
        raise EngineError(
            f"the graph of {network.name} was built for batch {network.batch}, the engine asked for {options.batch}"
        )
    if network.plan is not None and not getattr(_module(name), "RUNS_PLANS", False):
        raise EngineError(plan_refusal(name, network.plan))
    if options.requests < 1 or options.threads < 0 or options.concurrency < 0:
        raise EngineError(
            f"an engine needs at least one request, and no negative threads or concurrency: {options}"
        )
    _check_own(name, options)
    engine: Engine = _module(name).create(network, options)
    return engine


def layer_times(
    name: str,
    network: Network,
    options: EngineOptions,
    slots: Sequence[Any],
    runs: int,
    budget_s: float = math.inf,
) -> LayerTimes:
    """The layers with their median ms, beside a forward pass without a profiler: the same threads, one request each,
    ``runs`` of each in turn, fewer past ``budget_s``. ``slots``: batches u8 RGB [B, H, W, 3]. Raises EngineError where
    an engine cannot."""
    load(name)
    module = _module(name)
    if not hasattr(module, "layer_profiler"):
        reason = getattr(module, "NOT_TIMED", "it has no profiler of its layers")
        raise EngineError(f"engine {name}: no layer times: {reason}")
    alone = replace(options, requests=1, concurrency=1)
    with open(name, network, alone) as engine:
        profiler = module.layer_profiler(network, replace(alone, threads=engine.threads))
        try:
            return timed(engine.requests[0], profiler, slots, runs, budget_s)._replace(
                notes=tuple(engine.notes)
            )
        finally:
            profiler.close()


def only_engine(model: str) -> str | None:
    """The engine that alone runs this file; None for all that become a graph."""
    suffix = Path(model).suffix.lower()
    return next((name for name in names() if suffix in _own_suffixes(name)), None)


def front_ends() -> dict[str, str]:
    """Suffix -> module whose FRONT_END (models.base) reads the files that only one engine runs."""
    return {
        suffix: f"{_module(name).__name__}.model"
        for name in names()
        for suffix in _own_suffixes(name)
    }


def _own_suffixes(name: str) -> tuple[str, ...]:
    return tuple(getattr(_module(name), "MODEL_SUFFIXES", ()))


def plan_refusal(name: str, plan: str) -> str:
    """Why an engine does not run a file that TensorRT built, and what does."""
    able = [other for other in names() if getattr(_module(other), "RUNS_PLANS", False)]
    return (
        f"engine {name}: {plan} is a TensorRT plan, and no graph is left in it; use --engine {' or '.join(able)}, or "
        "give --model the file that it was built from"
    )


def _check_own(name: str, options: EngineOptions) -> None:
    known = _module(name).OPTIONS
    for key in options.own:
        if key not in known:
            there = ", ".join(known) or "none"
            raise UsageError(
                f"--engine-options {key}: engine {name} has no such option; it has {there}"
            )


def _files() -> dict[str, str]:
    """Engine name -> module name. A trailing underscore keeps a module apart from the library that it wraps."""
    modules = [info.name for info in pkgutil.iter_modules(__path__) if info.name not in PARTS]
    return {module: module for module in modules}


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{_files()[name]}")


def _worth_installing(module: ModuleType) -> bool:
    """Not what is there and lacks something else, nor what could not run here even if it were installed."""
    return find_spec(module.LIBRARY) is None and (
        not hasattr(module, "absent") or module.absent() is None
    )


def _absent(module: ModuleType) -> str | None:
    if module.LIBRARY is None or find_spec(module.LIBRARY) is not None:
        return str(reason) if hasattr(module, "absent") and (reason := module.absent()) else None
    return f"{module.LIBRARY} is not installed; install it with: {module.INSTALL}"
