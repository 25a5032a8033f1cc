"""Declare the engine rtx: TensorRT for RTX, for GeForce and RTX GPUs; it builds without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from detector.core.engines.base import Engine, EngineOptions
from detector.core.engines.trt import PlanBuilder, TrtEngine

if TYPE_CHECKING:
    from detector.core.models.base import Network

SHARED = ("min_batch", "max_batch", "opt_batch", "workspace_mb", "detailed")


class RtxEngine(TrtEngine):
    name = "rtx"
    library = "tensorrt_rtx"
    install = "pip install 'detect-video[rtx]'"
    auto = (0, "")
    own_options: ClassVar[Mapping[str, str]] = {
        **{name: TrtEngine.own_options[name] for name in SHARED},
        "targets": "compute capabilities to build for, such as 8.6+12.0; default: all from 8.0 on",
        "graphs": "1 or 0: run the network as a CUDA graph or not; default: the faster one",
    }
    artefact = PlanBuilder("rtx")
    builds_anywhere = True
    model_suffixes = (".trt", ".engine", ".plan", ".rtx")
    model_kind = "a plan of TensorRT for RTX"
    model_front_end = "detector.core.engines.trt.model"

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        from detector.core.engines.trt.engine import OpenRtx

        return OpenRtx(network, options)
