"""Parse and build with the real TensorRT for RTX, which needs no GPU for that. Append the graph and
the settings to the plan, since the fake runtime computes from them.

We fake only what TensorRT for RTX 1.7.1.116 lacks. With a warning, it ignores a timing cache and
hardware compatibility. Without libnvinfer_lean, it cannot build plans that contain a runtime.
"""

import json
import zlib
from hashlib import sha256
from typing import Any

import tensorrt_rtx as rtx

from tests.fakes.tensorrt_state import RTX_MAJOR, Crash

BUILT: dict[tuple[str, str, str], tuple[bytes, list[tuple[str, tuple]]]] = {}
"""Cache of builds, which take seconds. Keys: engine, digest of the graph, settings. Values: start
of the plan, progress calls."""


class Progress(rtx.IProgressMonitor):
    """Record the calls, to replay them for another build of the same graph."""

    def __init__(self, to: Any) -> None:
        super().__init__()
        self.to, self.calls = to, list[tuple[str, tuple]]()

    def _notify(self, name: str, *arguments: Any) -> bool:
        self.calls.append((name, arguments))
        return notify(self.to, name, *arguments) is not False

    def phase_start(self, *arguments: Any) -> None:
        self._notify("phase_start", *arguments)

    def step_complete(self, *arguments: Any) -> bool:
        return self._notify("step_complete", *arguments)

    def phase_finish(self, *arguments: Any) -> None:
        self._notify("phase_finish", *arguments)


def notify(monitor: Any, name: str, *arguments: Any) -> Any:
    return None if monitor is None else getattr(monitor, name)(*arguments)


class Builder(rtx.Builder):
    def __init__(self, logger: Any) -> None:
        if not self._trt.fake.alive:
            raise Crash("Builder without a driver")
        self._logger = logger
        super().__init__(logger)

    def create_network(self, flags: int) -> Any:
        strong = flags >> int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED) & 1
        self._weak = self._trt.fake.major == 10 and not strong
        return super().create_network(flags)

    def create_builder_config(self) -> Any:
        return self._trt.IBuilderConfig(super().create_builder_config())

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        trt, real = self._trt, config._real
        if self._weak:  # TensorRT 10 would choose the types itself
            return self._logger.log(rtx.ILogger.ERROR, "[fake] a weakly typed network")
        graph = trt.fake.graphs.get(network, b"")
        settings = _settings(network, real, config._profiles)
        key = trt.fake.edition.engine, sha256(graph).hexdigest(), json.dumps(settings)
        if key in BUILT:
            head, calls = BUILT[key]
            if any(
                notify(real.progress_monitor, name, *arguments) is False
                for name, arguments in calls
            ):
                return None
        else:
            real.progress_monitor = progress = Progress(real.progress_monitor)
            plan = super().build_serialized_network(network, real)
            if plan is None:
                return None
            head = bytes(plan) if trt.fake.major == RTX_MAJOR else trt.fake.edition.magic
            BUILT[key] = head, progress.calls
        facts = {**settings, **config._facts(), "trt": trt.__version__, "gpu": trt.fake.gpu}
        trt.fake.builds.append(facts)
        body = json.dumps(facts).encode() + b"\n" + graph
        return head + zlib.crc32(body).to_bytes(4, "little") + body


def _settings(network: Any, config: Any, profiles: list[Any]) -> dict[str, Any]:
    inputs = [network.get_input(at) for at in range(network.num_inputs)]
    outputs = [network.get_output(at) for at in range(network.num_outputs)]
    targets = range(config.num_compute_capabilities)
    return {
        "network": network.name,
        "inputs": [one.name for one in inputs],
        # Outputs come first, so that a caller fails if it relies on inputs being first.
        "tensors": {one.name: (one.dtype.name, [*one.shape]) for one in (*outputs, *inputs)},
        "profiles": [
            {one.name: [[*shape] for shape in profile.get_shape(one.name)] for one in inputs}
            for profile in profiles
        ],
        "verbosity": config.profiling_verbosity.name,
        "tf32": config.get_flag(rtx.BuilderFlag.TF32),
        "workspace": config.get_memory_pool_limit(rtx.MemoryPoolType.WORKSPACE),
        "level": config.builder_optimization_level,
        "targets": [config.get_compute_capability(at).name for at in targets],
    }


class IBuilderConfig:
    """The real builder config of TensorRT for RTX, plus the settings that only TensorRT has."""

    __slots__ = ("_portable", "_profiles", "_real", "_timings", "hardware_compatibility_level")

    def __init__(self, real: Any) -> None:
        self._real, self._profiles, self._timings, self._portable = real, [], None, False
        self.hardware_compatibility_level = rtx.HardwareCompatibilityLevel.NONE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in IBuilderConfig.__slots__
        object.__setattr__(self, name, value) if own else setattr(self._real, name, value)

    def _facts(self) -> dict[str, Any]:
        known = None if self._timings is None else len(self._timings.data)
        if self._timings is not None:
            self._timings.data += b"timings;"
        fake = self._trt.fake
        return {
            "hardware": self.hardware_compatibility_level.name,
            "portable": self._portable,
            "timings_known": known,
            "int8_kernels": fake.int8_kernels,
            "tf32_kernels": fake.tf32_kernels,
        }

    def set_flag(self, flag: Any) -> None:
        if flag == rtx.BuilderFlag.VERSION_COMPATIBLE:
            self._portable = True
        else:
            self._real.set_flag(flag)

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile)
        return self._real.add_optimization_profile(profile)

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        data = bytes(serialized_timing_cache)
        return ITimingCache(data) if data[:8] in (b"", b"timings;") else None

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self._timings = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._timings


class ITimingCache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data


class OnnxParser(rtx.OnnxParser):
    def __init__(self, network: Any, logger: Any) -> None:
        super().__init__(network, logger)
        self._network, self._logger = network, logger

    def parse(self, model: bytes) -> bool:
        if not super().parse(model):
            return False
        self._trt.fake.graphs[self._network] = bytes(model)
        return True
