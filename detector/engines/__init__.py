"""Interchangeable engines: one module of this folder each. Adding one is one file and its test.

A module ``NAME.py`` (``NAME_.py`` where the plain name is its library's) holds:
    LIBRARY   what must be importable, or None
    INSTALL   the command that installs it
    AUTO      how early ``--engine auto`` takes it; 0 never. WHY: the reason, for the user
    create(network, options) -> Engine
and imports its library late, so that listing costs nothing. Folders here are parts of engines, not engines.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec
from types import ModuleType

from detector.engines.base import Engine, EngineOptions, translated
from detector.errors import EngineError, UsageError
from detector.models.base import Network

__all__ = ["choose", "load", "names", "open", "usable"]


def names() -> list[str]:
    """All engines of this folder, whether usable here or not."""
    return sorted(_files())


def usable() -> dict[str, str | None]:
    """Engine -> None, or the reason why it cannot be used here. Imports no library."""
    return {name: _absent(_module(name)) for name in names()}


def choose() -> tuple[str, str]:
    """The engine that ``--engine auto`` means here, and a sentence that says why."""
    modules = {name: _module(name) for name in names() if _module(name).AUTO}
    ranked = sorted(modules, key=lambda name: -modules[name].AUTO)
    for at, name in enumerate(ranked):
        if _absent(modules[name]) is None:
            missing = [modules[other].LIBRARY for other in ranked[:at]]
            without = f" ({', '.join(missing)} not installed)" if missing else ""
            return name, f"engine {name}: {modules[name].WHY}{without}"
    cures = " or ".join(modules[name].INSTALL for name in ranked)
    raise EngineError(f"no engine is installed; install one: {cures}")


def load(name: str) -> None:
    """Imports the engine and its library, so that a run can time this apart. Raises UsageError or EngineError."""
    if name not in _files():
        raise UsageError(f"unknown engine {name!r}; engines are {', '.join(names())}, or auto")
    module = _module(name)
    if reason := _absent(module):
        raise EngineError(f"engine {name}: {reason}")
    if module.LIBRARY is not None:
        with translated(name, f"import {module.LIBRARY} (install it anew with: {module.INSTALL})"):
            importlib.import_module(module.LIBRARY)


def open(name: str, network: Network, options: EngineOptions | None = None) -> Engine:
    """The engine of that name, running the network. Raises UsageError for a name that is none, else EngineError."""
    load(name)
    options = options or EngineOptions(batch=network.batch)
    if options.batch != network.batch:
        raise EngineError(
            f"the graph of {network.name} was built for batch {network.batch}, the engine asked for {options.batch}"
        )
    if options.requests < 1 or options.threads < 0 or options.concurrency < 0:
        raise EngineError(f"an engine needs at least one request, and no negative threads or concurrency: {options}")
    engine: Engine = _module(name).create(network, options)
    return engine


def _files() -> dict[str, str]:
    """Engine name -> module name. A trailing underscore keeps a module apart from the library that it wraps."""
    modules = [info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg and info.name != "base"]
    return {module.rstrip("_"): module for module in modules}


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{_files()[name]}")


def _absent(module: ModuleType) -> str | None:
    if module.LIBRARY is None or find_spec(module.LIBRARY) is not None:
        return None
    return f"{module.LIBRARY} is not installed; install it with: {module.INSTALL}"
