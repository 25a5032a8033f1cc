"""Declare the engine trt: TensorRT on an NVIDIA GPU. Every request has its own context and stream.
The engine rtx (TensorRT for RTX) is the same code with another library (``edition.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from detector.core.engines.base import ArtefactBuilder, BuildProgress, Engine, EngineOptions

if TYPE_CHECKING:
    from detector.core.models.base import Network


class PlanBuilder(ArtefactBuilder):
    suffix = ".plan"

    def __init__(self, edition: str) -> None:
        self._edition = edition

    def key(self, network: Network, options: EngineOptions) -> dict[str, Any]:
        from detector.core.engines.trt import build
        from detector.core.engines.trt.edition import edition_named

        return build.plan_key(edition_named(self._edition), network, options)

    def build(
        self, network: Network, options: EngineOptions, target: Path, progress: BuildProgress
    ) -> Mapping[str, Any]:
        from detector.core.engines.trt import build
        from detector.core.engines.trt.edition import edition_named

        return build.build_plan(edition_named(self._edition), network, options, target, progress)

    def covers(self, built: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        from detector.core.engines.trt import build

        return build.covers(built, wanted)


class TrtEngine(Engine):
    name = "trt"
    library = "tensorrt"
    install = "pip install 'detect-video[trt]'"
    auto = (40, "tensorrt is installed and there is an NVIDIA GPU")
    precisions: ClassVar[Mapping[str, str]] = {
        "fp32": "fp32",
        "tf32": "fp32",
        "bf16": "bf16",
        "fp16": "fp16",
        "int8": "int8-s8",
    }
    devices = ("cuda",)
    own_options: ClassVar[Mapping[str, str]] = {
        "min_batch": "smallest batch that the plan accepts; default: --batch",
        "max_batch": "largest batch that the plan accepts; default: --batch",
        "opt_batch": "batch that the plan is tuned for; default: the largest",
        "workspace_mb": "GPU memory that a layer may use while it runs; default: all",
        "level": "how long TensorRT searches, 0 to 5; default: its own (3)",
        "version_compatible": "1: the plan also runs with later minor versions of TensorRT",
        "hardware_compatible": "other GPUs that run the plan; same: those of the same compute "
        "capability; ampere: those of 8.0 or later",
        "detailed": "0: omit the types of layers; the executed precision is then unknown",
        "host_code": "1: run the TensorRT runtime that a plan contains; only for trusted files",
    }
    artefact = PlanBuilder("trt")
    model_suffixes: ClassVar[Sequence[str]] = (".trt", ".engine", ".plan")
    model_kind = "a TensorRT plan"
    model_front_end = "detector.core.engines.trt.model"

    @classmethod
    def absent(cls) -> str | None:
        """See ``Engine.absent``. Checks the driver first: without one, TensorRT crashes."""
        from detector.core.engines.trt import driver

        if reason := driver.absent():
            return reason
        from detector.core.engines.trt.edition import edition_named

        return edition_named(cls.name).driver_too_old()

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        from detector.core.engines.trt import driver
        from detector.core.engines.trt.edition import edition_named

        if driver.absent() is not None:  # ``absent`` reports a missing driver
            return None
        try:
            return edition_named(cls.name).refusal(precision, driver.gpu_of(device))
        except driver.DriverError as exc:
            return str(exc)

    @classmethod
    def reads_file(cls, file: str) -> bool:
        """Return whether a file's suffix and first bytes say that the engine's library built it."""
        if not super().reads_file(file):
            return False
        from detector.core.engines.trt.plan_file import edition_of_file

        built_by = edition_of_file(file)
        return cls.name == ("trt" if built_by is None else built_by.engine)

    @classmethod
    def runs_on_gpu(cls, precision: str) -> bool:
        return True

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        from detector.core.engines.trt.running import IN_FLIGHT

        return IN_FLIGHT

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        from detector.core.engines.trt.engine import OpenTrt

        return OpenTrt(network, options)
