"""All that makes another plan necessary, as JSON values; and when a plan for a range of batches serves for one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from detector.engines.base import EngineOptions
from detector.engines.tensorrt_parts.batches import any_batch
from detector.engines.tensorrt_parts.settings import Settings, read
from detector.errors import EngineError
from detector.models.base import Network
from detector.nvidia import driver
from detector.nvidia.driver import Gpu


def plan_key(trt: Any, network: Network, options: EngineOptions, gpu: Gpu) -> dict[str, Any]:
    """A plan is good for the very graph, the TensorRT and the GPU that it was built with, and for nothing else.

    Of the driver its CUDA major alone counts: NVIDIA ties plans to TensorRT and the GPU, and a newer driver of the same
    major runs what an older one ran.
    """
    settings = read(options)
    return {
        "graph": _digest(network),
        "batches": list(settings.batches),
        "tensorrt": trt.__version__.split(".")[0] if settings.version_compatible else trt.__version__,
        **_gpu(gpu, settings),
        "cuda": driver.cuda_version()[0],
        "workspace_mb": settings.workspace_mb,
        "level": settings.level,
        "detailed": settings.detailed,
    }


def covers(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a plan that was built for the key ``found`` can run what ``wanted`` asks for: all equal but the batches,
    and those within its range."""
    low, _, high = found.get("batches") or (0, 0, 0)
    first, _, last = wanted["batches"]
    return low <= first and last <= high and {**found, "batches": None} == {**wanted, "batches": None}


def _gpu(gpu: Gpu, settings: Settings) -> dict[str, str]:
    capability = ".".join(map(str, gpu.capability))
    if settings.hardware_compatible == "ampere":
        return {"gpu": "any", "capability": "8.0 or newer"}
    return {"gpu": "any" if settings.hardware_compatible else gpu.name, "capability": capability}


def _digest(network: Network) -> str:
    """Of the graph for any batch, so that it is the same whatever batch the network was opened with."""
    try:
        model = any_batch(network.graph)
    except EngineError:  # the batch is in its constants: each batch is a graph of its own
        model = network.graph
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
