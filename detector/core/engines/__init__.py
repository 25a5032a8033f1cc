"""Interchangeable engines. Each file ``NAME.py`` or folder ``NAME/`` here is one engine.

It defines one subclass of ``base.Engine``, whose ``name`` is NAME, and must import its library and
most of its code late, in ``Engine.start``. Shared code is in ``base`` and in modules named ``_*``.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from detector.core import wings
from detector.core.engines.base import PRECISIONS, Engine, EngineOptions, translated
from detector.core.errors import EngineError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from detector.core.engines._layer_times import LayerTimes
    from detector.core.models.base import Network

DEVICE = re.compile(r"auto|cpu|npu|(cuda|gpu)(:\d+)?")
VIRTUAL = re.compile(r"(?:auto|batch|hetero|multi):(?:intel:)?(cpu|gpu|npu)\b.*")  # OpenVINO's
# Other programs' names for our engines.
OTHER_NAMES = {
    "tensorrt": "trt",
    "tensorrt_rtx": "rtx",
    "onnx": "ort",
    "onnxruntime": "ort",
    "pytorch": "torch",
    "torchscript": "torch",
    "ov": "openvino",
}


def names() -> list[str]:
    return list(wings.list_files(*__path__))


def unknown(name: str) -> str:
    near = OTHER_NAMES.get(name.lower()) or next(iter(get_close_matches(name, names(), 1)), None)
    hint = f"; did you mean {near}?" if near else ""
    return f"unknown engine {name!r}; engines are {', '.join(names())}, or auto{hint}"


def find(name: str) -> type[Engine]:
    if name not in names():
        raise UsageError(unknown(name))
    module = importlib.import_module(f"{__name__}.{name}")
    for candidate in vars(module).values():
        # Compare names: a file may import the class of another engine to derive from it.
        if (
            isinstance(candidate, type)
            and issubclass(candidate, Engine)
            and vars(candidate).get("name") == name
        ):
            return candidate
    raise EngineError(
        f"{module.__file__}: it has no subclass of Engine with name = {name!r}; if the file "
        'is not an engine, begin its name with "_"'
    )


def read_attribute(name: str, attribute: str) -> Any:
    return wings.read_literal(f"{__name__}.{name}", attribute)


def libraries() -> list[str]:
    """Return the names of the modules that engines import, whether or not they are installed."""
    return [library for name in names() if (library := read_attribute(name, "library"))]


def why_unusable(*only: str) -> dict[str, str | None]:
    """Return engine -> why it is unusable, or None; by default for all. Imports no library."""
    return {name: describe_absence(find(name)) for name in names() if not only or name in only}


def is_installed(name: str) -> bool:
    library = find(name).library
    return library is None or find_spec(library) is not None


def describe_absence(engine: type[Engine]) -> str | None:
    if is_installed(engine.name):
        return engine.absent()
    return f"{engine.library} is not installed; install it with: {engine.install}"


def why_absent(name: str) -> str | None:
    """Return why an engine cannot be used here, or None. Imports no library. If both hardware and
    library are missing, report the hardware. In this case ``why_unusable`` (for ``auto``) reports
    the library: it starts no driver for an engine whose library is not installed."""
    engine = find(name)
    reason = describe_absence(engine)
    return reason if reason is None or is_installed(name) else engine.absent() or reason


def why_not_buildable(name: str) -> str | None:
    """Return why an engine's files cannot be built here, or None. Imports no library."""
    engine = find(name)
    if not engine.builds_anywhere:
        return why_absent(name)
    return None if is_installed(name) else describe_absence(engine)


def rank_engines(precision: str = "fp32") -> list[str]:
    """Return the engines that ``--engine auto`` tries (rank above 0), highest rank first."""
    ranks = {name: read_rank(name, precision)[0] for name in names()}
    return sorted((name for name in ranks if ranks[name]), key=lambda name: -ranks[name])


def read_rank(name: str, precision: str) -> tuple[int, str]:
    if precision == "fp32":
        return read_attribute(name, "auto") or Engine.auto
    engine = find(name)
    return engine.auto_in.get(precision, engine.auto)


def check_installed(name: str, to_build: bool = False) -> None:
    """Raise UsageError for an unknown engine, and EngineError if the engine cannot run here. With
    ``to_build``, the engine need not run here, but we must be able to build its file."""
    if reason := why_not_buildable(name) if to_build else why_absent(name):
        builds = not to_build and why_not_buildable(name) is None
        cure = f" (but this machine can build its files: detect-video build MODEL --engine {name})"
        raise EngineError(f"engine {name}: {reason}{cure if builds else ''}")


def load_library(name: str, to_build: bool = False) -> None:
    check_installed(name, to_build)
    engine = find(name)
    with translated(name, f"import {engine.library} (reinstall it with: {engine.install})"):
        engine.import_library()


def graph_precision_for(name: str, precision: str, device: str = "auto") -> str:
    """Return the kind of graph that an engine needs for a precision (``Engine.precisions``). Raises
    UsageError for an unknown precision or device, EngineError if either cannot be used here."""
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}; precisions are {', '.join(PRECISIONS)}")
    if not DEVICE.fullmatch(device):
        raise UsageError(f"--device {device}: {_suggest_device(device)}")
    engine = find(name)
    kind = device.partition(":")[0]
    if kind not in ("auto", *engine.devices):
        capable = [other for other in names() if other != "null" and kind in find(other).devices]
        nvidia = "; NVIDIA's GPUs are --device cuda" if kind == "gpu" else ""
        raise EngineError(
            f"engine {name} does not run on {kind}; it runs on {', '.join(engine.devices)}; for "
            f"--device {kind} use --engine {' or '.join(capable)}{nvidia}"
        )
    if precision not in engine.precisions:
        capable = [
            other for other in rank_engines(precision) if precision in find(other).precisions
        ]
        raise EngineError(
            f"engine {name} cannot run {precision}; it runs {', '.join(engine.precisions)}; for "
            f"{precision} use --engine {' or '.join(capable)}"
        )
    if describe_absence(engine) is None and (reason := engine.refusal(precision, device)):
        raise EngineError(f"engine {name}: {precision} cannot run here: {reason}")
    on_cpu = engine.precisions_on_cpu if kind in ("auto", "cpu") else {}
    return on_cpu.get(precision, engine.precisions[precision])


def _suggest_device(device: str) -> str:
    if match := VIRTUAL.fullmatch(device):
        return (
            f"use --engine openvino --device {match[1]}; with --engine-options through=hetero the "
            "CPU runs what the device cannot"
        )
    return (
        "devices are auto, cpu, cuda (NVIDIA), gpu (Intel) and npu (Intel); cuda:N and gpu:N are "
        "the Nth GPU"
    )


def open(name: str, network: Network, options: EngineOptions | None = None) -> Engine:
    load_library(name)
    engine = find(name)
    options = options or EngineOptions(batch=network.batch)
    if options.batch != network.batch:
        raise EngineError(
            f"the graph of {network.name} was built for batch {network.batch}, but the engine is "
            f"opened for {options.batch}"
        )
    if network.plan is not None and not engine.reads_file(network.plan):
        raise EngineError(plan_refusal(name, network.plan))
    if options.requests < 1 or options.threads < 0 or options.concurrency < 0:
        raise EngineError(
            "an engine needs at least one request; threads and concurrency cannot be negative: "
            f"{options}"
        )
    for key in options.own.keys() - engine.own_options.keys():
        known = ", ".join(engine.own_options) or "none"
        raise UsageError(
            f"--engine-options {key}: engine {name} has no such option; its options: {known}"
        )
    return engine.start(network, options)


def time_layers(
    name: str,
    network: Network,
    options: EngineOptions,
    slots: Sequence[NDArray[np.uint8]],
    runs: int,
    budget_s: float = math.inf,
) -> LayerTimes:
    """Return the median ms of every layer, and of a pass without the profiler. Stops after ``runs``
    passes or ``budget_s`` seconds. ``slots``: batches u8 RGB [B, H, W, 3]. Raises EngineError."""
    from detector.core.engines._layer_times import measure_layers

    load_library(name)
    single = replace(options, requests=1, concurrency=1)
    with open(name, network, single) as engine:
        profiler = engine.layer_profiler(network, replace(single, threads=engine.threads))
        try:
            times = measure_layers(engine.requests[0], profiler, slots, runs, budget_s)
        finally:
            profiler.close()
        return times._replace(notes=tuple(engine.notes))


# ---- Model files that only one engine reads


def front_ends() -> dict[str, str]:
    """Return suffix -> module whose FRONT_END reads such files. Imports no engine."""
    return {
        suffix: read_attribute(name, "model_front_end")
        for name in names()
        for suffix in read_attribute(name, "model_suffixes") or ()
    }


def only_engine(model: str) -> str | None:
    from detector.core.models.base import files_in_folder  # imports numpy, which --help avoids

    inside = files_in_folder(model)
    file = inside[0] if len(inside) == 1 else model
    suffix = os.path.splitext(file)[1].lower()
    readers = (name for name in names() if suffix in (read_attribute(name, "model_suffixes") or ()))
    return next((name for name in readers if find(name).reads_file(file)), None)


def plan_refusal(name: str, plan: str) -> str:
    reader = only_engine(plan)
    assert reader is not None
    return (
        f"engine {name}: {plan} is {find(reader).model_kind}, which no longer holds the graph; use "
        f"--engine {reader}, or give --model the file that it was built from"
    )
