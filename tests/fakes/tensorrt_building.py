"""What the fake TensorRT does to build: it parses ONNX, and the "plan" holds that.

Class and method names are the real ones; tests/fakes/tensorrt_module.py sees to it that they are
called as those are.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from detector.core.engines.trt.settings import TARGETS
from tests.fakes.bindings import RTX
from tests.fakes.tensorrt_state import Crash, make, shapes_of

HEADER_BYTES = 64  # of TensorRT for RTX


class ILogger:
    pass


class Logger:
    def started(self, min_severity: Any) -> None:
        pass

    def log(self, severity: Any, msg: str) -> None:
        pass


class IProgressMonitor:
    pass


class Dims:
    def started(self, shape: Any = ()) -> None:
        self.__dict__["_sides"] = tuple(int(side) for side in shape)

    def __len__(self) -> int:
        return len(self._sides)

    def __iter__(self) -> Any:
        return iter(self._sides)


class IHostMemory(bytes):
    def get_nbytes_(self) -> int:
        return len(self)


class Builder:
    def started(self, logger: Any) -> None:
        if not self._trt.fake.alive:
            raise Crash("Builder without a driver")
        self.__dict__["_logger"] = logger

    def create_network(self, flags: int) -> Any:
        trt = self._trt
        typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        strong = bool(int(flags) & typed) or trt.fake.major != 10
        name = f"Unnamed Network {len(trt.fake.builds)}"
        state = {"_name": name, "_model": None, "_strong": strong, "_inputs": []}
        return make(trt, "INetworkDefinition", **state)

    def create_builder_config(self) -> Any:
        trt = self._trt
        config = make(
            trt, "IBuilderConfig", _raised={"TF32"}, _profiles=[], _limits={}, _cache=None
        )
        verbosity = trt.ProfilingVerbosity.LAYER_NAMES_ONLY
        config.__dict__.update(_progress_monitor=None, _targets=[], _profiling_verbosity=verbosity)
        config.__dict__["_hardware_compatibility_level"] = trt.HardwareCompatibilityLevel.NONE
        return config

    def create_optimization_profile(self) -> Any:
        return make(self._trt, "IOptimizationProfile", _ranges={})

    def build_serialized_network(self, network: Any, config: Any, kernel_text: Any = None) -> Any:
        trt = self._trt
        say = lambda text: self._logger.log(trt.ILogger.Severity.ERROR, text)  # noqa: E731
        if network._model is None:
            return say("Network must have at least one output")
        if not network._strong:
            return say(
                "[fake] a weakly typed network: the types of the graph would not be what is run"
            )
        if any(-1 in tensor.shape for tensor in network._inputs) and not config._profiles:
            return say(
                "Network has dynamic or shape inputs, but no optimization profile has been defined."
            )
        if not tell_progress(config._progress_monitor):
            return say("Build was cancelled")
        facts = {
            "trt": trt.__version__,
            "network": network._name,
            "gpu": trt.fake.gpu[0],
            "capability": list(trt.fake.gpu[1]),
            "profiles": [profile._ranges for profile in config._profiles],
            "verbosity": config._profiling_verbosity.name,
            "int8_kernels": trt.fake.int8_kernels,
            "tf32_kernels": trt.fake.tf32_kernels,
            "tf32": "TF32" in config._raised,
            "portable": "VERSION_COMPATIBLE" in config._raised,
            "hardware": config._hardware_compatibility_level.name,
            "flags": sorted(config._raised),
            "limits": dict(config._limits),
            "timings_known": len(config._cache._data) if config._cache is not None else None,
            "level": config.__dict__.get("_builder_optimization_level"),
        }
        trt.fake.builds.append(facts)
        if config._cache is not None:
            config._cache.__dict__["_data"] += b"timings;"
        body = json.dumps(facts).encode() + b"\n" + network._model.SerializeToString()
        return trt.IHostMemory(
            _header(trt, config, len(body)) + zlib.crc32(body).to_bytes(4, "little") + body
        )


def _header(trt: Any, config: Any, body: int) -> bytes:
    """TensorRT: the magic alone. TensorRT for RTX: 64 bytes, with the version and the targets."""
    fake = trt.fake
    if fake.major != RTX:
        return fake.magic
    numbers = bytes(int(number) for number in trt.__version__.split("."))
    known = list(TARGETS.values())
    bits = sum(1 << known.index(name) for name in config._targets) if config._targets else 0x7E
    size = (HEADER_BYTES + 4 + body).to_bytes(8, "little")
    start = fake.magic + bytes(4) + b"\2\0\0\0" + bytes(4) + size + numbers + fake.magic
    return (start + bits.to_bytes(4, "little")).ljust(HEADER_BYTES, b"\0")


def tell_progress(monitor: Any) -> bool:
    """Nested phases as the real builder has them; False where a step was answered with False."""
    if monitor is None:
        return True
    monitor.phase_start("Building", None, 2)
    go_on = monitor.step_complete("Building", 0)
    monitor.phase_start("Timing layers", "Building", 4)
    go_on = go_on and all([monitor.step_complete("Timing layers", at) for at in range(4)])
    monitor.phase_finish("Timing layers")
    go_on = go_on and monitor.step_complete("Building", 1)
    monitor.phase_finish("Building")
    return bool(go_on)


class IBuilderConfig:
    def clear_flag(self, flag: Any) -> None:
        self._raised.discard(flag.name)

    def set_flag(self, flag: Any) -> None:
        self._raised.add(flag.name)

    def set_compute_capability(self, compute_capability: Any, index: int) -> bool:
        self._targets.append(compute_capability.name)
        return index < self._num_compute_capabilities

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self._limits[pool.name] = int(pool_size)

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        if serialized_timing_cache[:8] not in (b"", b"timings;"):
            return None
        return make(self._trt, "ITimingCache", _data=bytes(serialized_timing_cache))

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self.__dict__["_cache"] = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._cache


class ITimingCache:
    def serialize(self) -> Any:
        return self._trt.IHostMemory(self._data)


class IOptimizationProfile:
    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        self._ranges[input] = [[*min], [*opt], [*max]]


class INetworkDefinition:
    def get_num_inputs_(self) -> int:
        return len(self._inputs)

    def get_input(self, index: int) -> Any:
        return self._inputs[index]


class OnnxParser:
    def started(self, network: Any, logger: Any) -> None:
        self.__dict__.update(_network=network, _logger=logger, _errors=[])

    def parse(self, model: bytes, path: str | None) -> bool:
        """By the real parser of TensorRT for RTX, where that is installed."""
        import onnx

        try:
            whole = onnx.load_from_string(bytes(model))
        except Exception as exc:
            return (
                self._errors.append(_error(self._trt, "INVALID_GRAPH", "", str(exc), "")) or False
            )
        for error in real_errors(bytes(model)):
            self._errors.append(_error(self._trt, *error))
        if self._errors:
            return False
        self._network.__dict__["_model"] = whole
        self._network.__dict__["_inputs"] = [
            make(self._trt, "ITensor", _name=name, _shape=self._trt.Dims(shape))
            for name, (_, shape) in shapes_of(whole.graph.input).items()
        ]
        return True

    def get_num_errors_(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]


def _error(trt: Any, code: str, name: str, desc: str, operator: str, func: str = "") -> Any:
    state = {"_code": code, "_name": name, "_desc": desc, "_operator": operator, "_func": func}
    return make(trt, "ParserError", **state)


@cache
def load_real_parser() -> Any:
    """``tensorrt_rtx`` itself, or None. Called before a fake takes its place."""
    return import_module("tensorrt_rtx") if find_spec("tensorrt_rtx") else None


def real_errors(model: bytes) -> list[tuple[str, str, str, str, str]]:
    """Code, node, text, operator and function of each error of the real parser."""
    if (trt := load_real_parser()) is None:
        return []
    log = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(0)  # must outlive its parser
    parser = trt.OnnxParser(network, log)
    parser.parse(model)
    found = [parser.get_error(at) for at in range(parser.num_errors)]
    return [
        (one.code().name, one.node_name(), one.desc(), one.node_operator(), one.func())
        for one in found
    ]


class ParserError:
    def code(self) -> Any:
        return getattr(self._trt.ErrorCode, self._code)

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return 0

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator

    def func(self) -> str:
        return self._func
