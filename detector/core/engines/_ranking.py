"""Choose the engine for ``--engine auto`` by rank, and suggest what would make runs faster."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

from detector.core import engines
from detector.core.engines.base import NVIDIA_DRIVER
from detector.core.errors import EngineError


def choose_by_rank(precision: str = "fp32", device: str = "auto") -> tuple[str, str]:
    """Return the highest-ranked engine that can run a precision on a device here, and a line on why
    it was chosen. Raises EngineError if no engine is installed or none can run it."""
    order, on_gpu = engines.rank_engines(precision), None
    if device == "auto" and NVIDIA_DRIVER.exists():
        capable = (name for name in _installed(order) if engines.find(name).runs_on_gpu(precision))
        on_gpu = next((name for name in capable if _can_run(name, precision, "auto")), None)
    capable = (name for name in _installed(order) if _can_run(name, precision, device))
    name = on_gpu or next(capable, None) or _explain_best(order, device)
    engines.graph_precision_for(name, precision, device)
    better = [engines.find(other) for other in order[: order.index(name)] if _is_missing(other)]
    useful = [other for other in better if not on_gpu or "cuda" in other.devices]
    missing = ", ".join(str(other.library) for other in useful)
    _, why = engines.read_rank(name, precision)
    if on_gpu:
        why = f"{engines.find(name).library} can use the GPU"
    return name, f"engine {name}: {why}" + (f" ({missing} not installed)" if missing else "")


def _installed(order: Sequence[str]) -> Iterator[str]:
    """Yield the usable engines. Each is imported only when the caller asks for it."""
    return (name for name in order if engines.describe_absence(engines.find(name)) is None)


def _explain_best(order: Sequence[str], device: str) -> str:
    """Return the engine whose error explains best why no engine can run on a device."""
    installed = list(_installed(order))
    if not installed:
        commands = " or ".join(engines.find(name).install for name in order if _is_missing(name))
        raise EngineError(f"no engine is installed; install one: {commands}")
    kind = device.partition(":")[0]
    return next((name for name in installed if kind in engines.find(name).devices), installed[0])


def _can_run(name: str, precision: str, device: str) -> bool:
    try:
        engines.graph_precision_for(name, precision, device)
    except EngineError:
        return False
    return True


def _is_missing(name: str) -> bool:
    """Return whether the engine is unusable only because its library is not installed."""
    engine = engines.find(name)
    return not engines.is_installed(name) and engine.absent() is None


def suggest_library(device: str = "auto") -> str | None:
    """Return a line on a missing library or unused device that would make runs faster, or None."""
    on_cpu = device == "cpu" or (device == "auto" and not NVIDIA_DRIVER.exists())
    names = (name for name in engines.names() if engines.read_attribute(name, "gain"))
    candidates = [engines.find(name) for name in names]
    for engine in candidates:
        if on_cpu and platform.machine() == "x86_64" and _is_missing(engine.name):
            return f"{engine.library} is not installed; {engine.gain}; to get it: {engine.install}"
    unused = (engine.unused_device() for engine in candidates if device == "auto")
    return next(filter(None, unused), None)
