"""Declare the engine openvino, for CPUs and for Intel's GPUs and NPUs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from detector.core.engines.base import (
    BF16_OPTION,
    ArtefactBuilder,
    BuildProgress,
    Engine,
    EngineOptions,
    Offer,
    best_streams,
    read_switch,
)
from detector.core.errors import EngineError, UsageError

if TYPE_CHECKING:
    from detector.core.models.base import Network


# On a GPU or NPU, one request computes while the data of another is copied.
REQUESTS_ON_A_DEVICE = 2
TELEMETRY, CONVERTER = "openvino_telemetry", "openvino.tools.ovc"


def _import_without(module: str, *names: str) -> Any:
    """Import a module while None in ``sys.modules`` blocks any import of ``names``."""
    loaded = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        return importlib.import_module(module)
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(loaded)


def _convert_model(*given: Any, **named: Any) -> Any:
    """Stand in for ``openvino.convert_model``, and import the converter at the first call."""
    return _import_without(CONVERTER, TELEMETRY).convert_model(*given, **named)


class CompiledModels(ArtefactBuilder):
    suffix = ".blob"

    def is_wanted(self, options: EngineOptions) -> bool:
        return read_switch(options.own, "cache", options.device.startswith(("gpu", "npu")))

    def key(self, network: Network, options: EngineOptions) -> dict[str, Any]:
        from detector.core.engines.openvino import compiled

        return compiled.key_here(network, options)

    def build(
        self, network: Network, options: EngineOptions, target: Path, progress: BuildProgress
    ) -> Mapping[str, Any]:
        from detector.core.engines.openvino import compiled

        return compiled.build_here(network, options, target, progress)


class OpenvinoEngine(Engine):
    name = "openvino"
    library = "openvino"
    install = "pip install 'detect-video[openvino]'"
    gain = "the default job ran 1.1 to 1.4 times as fast with it on an Intel Xeon"
    # In fp32 it ranks below ONNX Runtime, which is as fast, always installed, and loads sooner. In
    # bf16 and int8 it is much faster, or the only engine that can run them (docs/settings.md).
    auto = (15, "openvino is installed")
    auto_in: ClassVar[Mapping[str, tuple[int, str]]] = {
        "bf16": (30, "the fastest in bf16 on a CPU"),
        "int8": (30, "the fastest in int8 on a CPU"),
    }
    # OpenVINO's plugin converts the fp32 graph to bf16 or fp16, since it knows which kernels it
    # has. We mark the nodes whose results would change most in bf16, so that these nodes stay fp32.
    precisions: ClassVar[Mapping[str, str]] = {
        "fp32": "fp32",
        "bf16": "fp32",
        "fp16": "fp32",
        "int8": "int8-u8",
    }
    precisions_on_cpu: ClassVar[Mapping[str, str]] = {"int8": "int8-u8-front"}
    devices = ("cpu", "gpu", "npu")
    artefact = CompiledModels()
    own_options = {
        "mode": "throughput (default): several requests at once, few threads each; latency: one "
        "request on all threads",
        "float": "type of layers that int8 leaves in float: fp32, bf16, fp16 or auto (default), "
        "which is bf16 if the CPU has it and the calibration measured its loss, else fp32",
        "through": "hetero: what the device cannot run goes to the CPU",
        "cache": "1 (default on gpu and npu): keep the compiled model; 0: compile at every start",
    } | BF16_OPTION
    model_suffixes = (".xml",)
    model_kind = "an OpenVINO IR"
    model_front_end = "detector.core.engines._openvino_ir"

    @classmethod
    def import_library(cls) -> None:
        """Import openvino without two optional parts: its telemetry, which sends an event during
        the import, and its converter, which takes 16 MB and is not used in a run."""
        if "openvino" in sys.modules:
            return
        _import_without("openvino", TELEMETRY, CONVERTER).convert_model = _convert_model

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        if precision != "fp16" and device in ("auto", "cpu"):
            return None
        cls.import_library()
        from detector.core.engines.openvino import devices

        return devices.refusal(precision, device)

    @classmethod
    def offers(cls) -> list[Offer]:
        cls.import_library()
        from detector.core.engines.openvino import devices

        return devices.list_offers()

    @classmethod
    def unused_device(cls) -> str | None:
        if not os.path.exists("/dev/dri") and not os.path.exists("/dev/accel"):
            return None
        from detector.core.engines.openvino import devices

        return devices.unused_device()

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        mode = options.own.get("mode", "throughput")
        if mode not in ("throughput", "latency"):
            raise UsageError(f"--engine-options mode={mode}: give throughput or latency")
        on_cpu = options.device in ("auto", "cpu")
        concurrent = best_streams(options) if on_cpu else REQUESTS_ON_A_DEVICE
        return 1 if mode == "latency" else concurrent

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        from detector.core.engines.openvino.engine import OpenOpenvino

        if network.plan is not None:
            cls._check_precision_of_ir(network.plan, options)
        return OpenOpenvino(network, options, options.concurrency or cls.best_concurrency(options))

    @classmethod
    def _check_precision_of_ir(cls, plan: str, options: EngineOptions) -> None:
        if options.precision == "int8":
            raise EngineError(
                f"engine openvino: {plan} cannot be quantised here; if it is already quantised, "
                "omit --precision, else give the ONNX file that it was made from"
            )
        if reason := cls.refusal(options.precision, options.device):
            raise EngineError(f"engine openvino: {options.precision} cannot run here: {reason}")
