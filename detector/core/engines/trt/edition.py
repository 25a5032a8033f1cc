"""The differences between TensorRT and TensorRT for RTX.

To build a plan, TensorRT measures kernels on the GPU that will run it. TensorRT for RTX builds for
a list of compute capabilities without a GPU. It compiles kernels when it loads a plan (seen with
1.7.1.116; docs/gpu.md).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from detector.core.engines.trt import driver
from detector.core.engines.trt.driver import Gpu
from detector.core.engines.trt.settings import HARDWARE, TARGETS, TrtSettings
from detector.core.errors import EngineError

AMPERE = (8, 0)  # the first compute capability with tf32 and bf16


@dataclass(frozen=True)
class Edition:
    """A library. ``magic``: first bytes of a plan. ``packages``: the name of its pip package;
    {} stands for CUDA's major version."""

    engine: str
    module: str
    title: str
    magic: bytes
    packages: str
    install: str

    @property
    def trt(self) -> Any:
        return importlib.import_module(self.module)

    def error(self, text: str) -> EngineError:
        return EngineError(f"engine {self.engine}: {text}")

    def driver_too_old(self) -> str | None:
        """Return a line if the driver is too old for the installed packages' CUDA, or None."""
        supported = driver.cuda_version()
        for major in (13, 12):
            try:
                installed = version(self.packages.format(major))
            except PackageNotFoundError:
                continue
            if supported[0] >= major:
                return None
            older = self.packages.format(supported[0]).removesuffix("-bindings")
            return (
                f"{self.module.replace('_', '-')} {installed} is made for CUDA {major}, but the "
                f"driver supports only {supported[0]}.{supported[1]}; update the driver, or: pip "
                f"install {older}"
            )
        return None

    def refusal(self, precision: str, gpu: Gpu) -> str | None:
        about_gpu = f"{gpu.name} has compute capability {capability(gpu)}"
        if reason := self.unsupported(gpu.capability):
            return f"{about_gpu}; {reason}"
        if precision in ("tf32", "bf16") and gpu.capability < AMPERE:
            return f"{about_gpu}; {precision} needs 8.0 (Ampere) or newer"
        return None

    def require_gpu(self, device: str) -> Gpu:
        try:
            return driver.gpu_of(device)
        except driver.DriverError as exc:
            raise self.error(str(exc)) from exc

    # ---- Differences between the libraries

    measures = False
    """Whether a build measures kernels on the GPU and keeps the times in a timing cache."""
    records_graphs = False
    """Whether the library's contexts can run the network as a CUDA graph."""

    def unsupported(self, found: tuple[int, int]) -> str | None:
        """Return why the library does not run on this compute capability, or None."""
        raise NotImplementedError

    def gpu_to_build_on(self, device: str) -> Gpu | None:
        """Return the GPU that a build uses; None if it needs none. Raises EngineError."""
        return self.require_gpu(device)

    def key(self, gpu: Gpu | None, settings: TrtSettings) -> dict[str, Any]:
        """Return what a plan depends on: facts about library, machine and settings."""
        raise NotImplementedError

    def configure(self, config: Any, settings: TrtSettings, gpu: Gpu | None) -> None:
        raise NotImplementedError

    def describe(self, plan: bytes) -> str:
        """Describe a plan in words for messages; ``plan`` may be its first bytes only."""
        return f"a plan of {self.title}"

    def check_plan(self, runtime: Any, plan: bytes, gpu: Gpu) -> str | None:
        """Check a plan before it is loaded. Return why it cannot run on this GPU, or None."""
        return None

    def create_context(self, engine: Any, graphs: bool, cache: Any) -> Any:
        return engine.create_execution_context()

    def create_cache(self, engine: Any, known: bytes | None) -> Any:
        """Return a cache for the code that the library compiles when it loads a plan, or None."""
        return None


class Full(Edition):
    measures = True

    def unsupported(self, found: tuple[int, int]) -> str | None:
        return None if found >= (7, 5) else "TensorRT needs 7.5 (Turing) or newer"

    def key(self, gpu: Gpu | None, settings: TrtSettings) -> dict[str, Any]:
        assert gpu is not None
        names = {"gpu": gpu.name, "capability": capability(gpu)}
        if settings.hardware_compatible == "ampere":
            names = {"gpu": "any", "capability": "8.0 or newer"}
        elif settings.hardware_compatible:
            names["gpu"] = "any"
        installed = str(self.trt.__version__)
        return {
            "tensorrt": installed.split(".")[0] if settings.version_compatible else installed,
            **names,
            "cuda": driver.cuda_version()[0],
            "level": settings.level,
        }

    def configure(self, config: Any, settings: TrtSettings, gpu: Gpu | None) -> None:
        trt = self.trt
        if settings.level is not None:
            config.builder_optimization_level = settings.level
        if settings.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        config.hardware_compatibility_level = getattr(
            trt.HardwareCompatibilityLevel, HARDWARE[settings.hardware_compatible]
        )


# Compute capabilities in NVIDIA's support matrix: Turing, RTX 30, RTX 40, RTX 50, GB10.
RTX_CAPABILITIES = ((7, 5), (8, 6), (8, 9), (12, 0), (12, 1))
PORTABLE = "8.0 or newer"
# Bits of the diagnostics from ``get_engine_validity`` -> text for the user.
INVALID = {
    "MALFORMED_ENGINE": "it is damaged, or not a plan",
    "VERSION_MISMATCH": "it was built by {built}, but {installed} is installed; build it again",
    "UNSUPPORTED_CC": "it was built for compute capability {targets}, but {gpu} has {own}; build "
    "it with --engine-options targets={own}",
    "OLD_CUDA_DRIVER": "the NVIDIA driver is too old for it; update the driver",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it; reinstall with: {install}",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little free memory for it",
    "CUDA_ERROR": "CUDA does not work here; check nvidia-smi",
}


class Rtx(Edition):
    records_graphs = True

    def unsupported(self, found: tuple[int, int]) -> str | None:
        if found in RTX_CAPABILITIES:
            return None
        able = ", ".join(f"{major}.{minor}" for major, minor in RTX_CAPABILITIES)
        return f"TensorRT for RTX runs on {able} (GeForce and RTX GPUs); use --engine trt or torch"

    def gpu_to_build_on(self, device: str) -> Gpu | None:
        """Return the GPU that will run the plan; None without a driver (a build needs no GPU)."""
        return None if driver.absent() is not None else self.require_gpu(device)

    def key(self, gpu: Gpu | None, settings: TrtSettings) -> dict[str, Any]:
        return {
            "tensorrt_rtx": str(self.trt.__version__),
            "capability": "+".join(self._targets(gpu, settings)) or PORTABLE,
        }

    def configure(self, config: Any, settings: TrtSettings, gpu: Gpu | None) -> None:
        targets = self._targets(gpu, settings)
        if targets:
            config.num_compute_capabilities = len(targets)
        for at, name in enumerate(targets):
            member = getattr(self.trt.ComputeCapability, TARGETS[name])
            if not config.set_compute_capability(member, at):
                raise self.error(f"{self.title} rejects the target {name}")

    @staticmethod
    def _targets(gpu: Gpu | None, settings: TrtSettings) -> tuple[str, ...]:
        """Return the capabilities; () means 8.0 and newer. An older GPU's default is its own."""
        if settings.targets or gpu is None or gpu.capability >= AMPERE:
            return settings.targets
        return (capability(gpu),)

    def describe(self, plan: bytes) -> str:
        header = read_header(plan)
        if header is None:
            return super().describe(plan)
        *others, last = header.targets or ("none",)
        targets = f"{', '.join(others)} and {last}" if others else last
        return f"a plan of {self.title} {header.version} for compute capability {targets}"

    def check_plan(self, runtime: Any, plan: bytes, gpu: Gpu) -> str | None:
        rtx = self.trt
        validity, diagnostics = runtime.get_engine_validity(plan[: runtime.engine_header_size])
        header = read_header(plan)
        if header is not None and header.size > len(plan):
            return f"it is cut off: {len(plan):,} of {header.size:,} bytes"
        if validity != rtx.EngineValidity.INVALID:
            return None
        words = {
            "built": f"version {header.version}" if header else "another version",
            "targets": " and ".join(header.targets) if header else "another",
            "installed": rtx.__version__,
            "gpu": gpu.name,
            "own": capability(gpu),
            "install": self.install,
        }
        bits = rtx.EngineInvalidityDiagnostics
        reasons = [
            text.format(**words)
            for name, text in INVALID.items()
            if diagnostics & int(getattr(bits, name))
        ]
        return "; ".join(reasons) or "TensorRT for RTX gives no reason"

    def create_context(self, engine: Any, graphs: bool, cache: Any) -> Any:
        config = engine.create_runtime_config()
        strategy = self.trt.CudaGraphStrategy
        config.cuda_graph_strategy = strategy.WHOLE_GRAPH_CAPTURE if graphs else strategy.DISABLED
        if cache is not None:
            config.set_runtime_cache(cache)
        return engine.create_execution_context(config)

    def create_cache(self, engine: Any, known: bytes | None) -> Any:
        cache = engine.create_runtime_config().create_runtime_cache()
        if known:
            cache.deserialize(known)  # leaves it empty if ``known`` is from another GPU or driver
        return cache


def capability(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.capability))


FULL = Full(
    "trt",
    "tensorrt",
    "TensorRT",
    b"ftrt",
    "tensorrt-cu{}-bindings",
    "pip install 'detect-video[trt]'",
)
RTX = Rtx(
    "rtx",
    "tensorrt_rtx",
    "TensorRT for RTX",
    b"vtrt",
    "tensorrt-rtx-cu{}-bindings",
    "pip install 'detect-video[rtx]'",
)
EDITIONS = (FULL, RTX)


def edition_named(engine: str) -> Edition:
    return next(edition for edition in EDITIONS if edition.engine == engine)


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """The first bytes of a plan of TensorRT for RTX. ``size``: bytes of the whole file."""

    size: int
    version: str
    targets: tuple[str, ...]


# NVIDIA does not document the header. We derived it from plans of 1.7.1.116 for each target.
HEADER = re.compile(rb"vtrt.{4}\x02\0\0\0.{4}(.{8})(.{4})vtrt(.{4})", re.DOTALL)


def read_header(plan: bytes) -> PlanHeader | None:
    """Parse the header of a plan of TensorRT for RTX. Return None if its form is unknown."""
    if not (match := HEADER.match(plan)):
        return None
    bits = int.from_bytes(match[3], "little")
    targets = tuple(name for at, name in enumerate(TARGETS) if bits >> at & 1)
    return PlanHeader(int.from_bytes(match[1], "little"), ".".join(map(str, match[2])), targets)
