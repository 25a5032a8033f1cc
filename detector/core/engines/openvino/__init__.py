"""OpenVINO on the CPU: what the engine is. ``engine.py`` runs the graph."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from detector.core.engines.base import BF16_OPTION, AutoChoice, Engine, EngineOptions, best_streams
from detector.core.errors import EngineError, UsageError

if TYPE_CHECKING:
    from detector.core.models.base import Network


class OpenvinoEngine(Engine):
    name = "openvino"
    library = "openvino"
    install = "pip install 'detect-video[openvino]'"
    gain = "the default job ran 1.1 to 1.4 times as fast with it on an Intel Xeon"
    # In fp32 it is as fast as ONNX Runtime, which is always there and loads sooner. In fewer bits
    # it is well ahead of ONNX Runtime, or the only one (docs/settings.md).
    auto = AutoChoice(15, "openvino is installed")
    auto_in: ClassVar[Mapping[str, AutoChoice]] = {
        "bf16": AutoChoice(30, "the fastest in bf16 on a CPU"),
        "int8": AutoChoice(30, "the fastest in int8 on a CPU"),
    }
    # bf16 and fp16 are the plugin's own conversion of the fp32 graph: it knows which of its kernels
    # have them. What bf16 hurts most is marked, so that it stays fp32.
    precisions: ClassVar[Mapping[str, str]] = {
        "fp32": "fp32",
        "bf16": "fp32",
        "fp16": "fp32",
        "int8": "int8-u8",
    }
    own_options = {
        "mode": "throughput (default): several requests at once, few threads each; latency: one "
        "request on all threads",
        "float": "what int8 leaves in float runs in fp32, bf16, or auto (default): bf16 if the CPU "
        "has it and the calibration measured its loss, else fp32",
    } | BF16_OPTION
    model_suffixes = (".xml",)
    model_kind = "an OpenVINO IR"
    model_front_end = "detector.core.engines._openvino_ir"

    @classmethod
    def import_library(cls) -> None:
        """Imports openvino without its telemetry, which sends an event from inside the import,
        asked or not.

        openvino falls back to a stub of its own where ``openvino_telemetry`` cannot be imported.
        """
        if "openvino" in sys.modules:
            return
        name = "openvino_telemetry"
        before = {name: sys.modules[name]} if name in sys.modules else {}
        sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to make an import fail
        try:
            importlib.import_module("openvino")
        finally:
            del sys.modules[name]
            sys.modules.update(before)

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        """fp16 where the CPU lacks it: the plugin would silently run bf16 or f32 in its place."""
        if precision != "fp16":
            return None
        cls.import_library()
        import openvino

        able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if "FP16" in able:
            return None
        instead = "--precision bf16" if "BF16" in able else "--precision int8"
        return (
            "this CPU has no fp16 arithmetic (AVX512-FP16), so OpenVINO would use another type; "
            f"use {instead}"
        )

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        mode = options.own.get("mode", "throughput")
        if mode not in ("throughput", "latency"):
            raise UsageError(f"--engine-options mode={mode}: give throughput or latency")
        return 1 if mode == "latency" else best_streams(options)

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        from detector.core.engines.openvino.engine import OpenOpenvino

        if network.plan is not None:
            cls._check_precision_of_ir(network.plan, options)
        return OpenOpenvino(network, options, options.concurrency or cls.best_concurrency(options))

    @classmethod
    def _check_precision_of_ir(cls, plan: str, options: EngineOptions) -> None:
        """An IR is not converted: what it was quantised to stays, the rest runs in a float type."""
        if options.precision == "int8":
            raise EngineError(
                f"engine openvino: {plan} cannot be quantised here; if it is already quantised, "
                "omit --precision, else give the ONNX file that it was made from"
            )
        if reason := cls.refusal(options.precision, options.device):
            raise EngineError(f"engine openvino: {options.precision} cannot run here: {reason}")
