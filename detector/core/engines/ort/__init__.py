"""Declare the engine ort: ONNX Runtime on the CPU, on an NVIDIA GPU, or with another provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from detector.core.engines.base import Engine, EngineOptions, Offer

if TYPE_CHECKING:
    from detector.core.models.base import Network


class OrtEngine(Engine):
    name = "ort"
    library = "onnxruntime"
    install = "pip install onnxruntime"
    auto = (20, "onnxruntime is installed; it is the default on a CPU")
    precisions: ClassVar[Mapping[str, str]] = {
        "fp32": "fp32",
        "tf32": "fp32",
        "fp16": "fp16",
        "int8": "int8-u8",
    }
    devices = ("cpu", "cuda")
    own_options: ClassVar[Mapping[str, str]] = {
        "provider": "an execution provider that this onnxruntime has (openvino, tensorrt, coreml, "
        "...); nodes that it leaves to the CPU are counted"
    }

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        from detector.core.engines.ort import abilities

        return abilities.refusal(precision, device)

    @classmethod
    def runs_on_gpu(cls, precision: str) -> bool:
        from detector.core.engines.ort import abilities

        return precision != "int8" and abilities.has_cuda()

    @classmethod
    def offers(cls) -> list[Offer]:
        from detector.core.engines.ort import providers

        return providers.list_offers()

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        from detector.core.engines.ort import abilities

        return abilities.best_concurrency(options)

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        if "provider" in options.own:
            from detector.core.engines.ort.providers import OpenProvider

            return OpenProvider(network, options)
        from detector.core.engines.ort.engine import OpenOrt

        return OpenOrt(network, options)
