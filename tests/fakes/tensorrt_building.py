"""What the fake TensorRT does to build: it parses ONNX, and the "plan" holds that.

Class and method names are the real ones; tests/fakes/tensorrt_module.py sees to it that they are
called as those are.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from tests.fakes.tensorrt_state import MAGIC, Crash, make, ort_session, shapes_of

UNSUPPORTED = {"Det", "StringNormalizer", "Unique"}


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
        strong = bool(int(flags) & typed) or trt.fake.major >= 11
        name = f"Unnamed Network {len(trt.fake.builds)}"
        state = {"_name": name, "_model": None, "_strong": strong, "_inputs": []}
        return make(trt, "INetworkDefinition", **state)

    def create_builder_config(self) -> Any:
        trt = self._trt
        config = make(
            trt, "IBuilderConfig", _raised={"TF32"}, _profiles=[], _limits={}, _cache=None
        )
        config.__dict__.update(
            _progress_monitor=None, _profiling_verbosity=trt.ProfilingVerbosity.LAYER_NAMES_ONLY
        )
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
        return trt.IHostMemory(MAGIC + zlib.crc32(body).to_bytes(4, "little") + body)


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
        import onnx

        try:
            whole = onnx.load_from_string(bytes(model))
            ort_session(whole)
        except Exception as exc:
            return _fail(self, "INVALID_GRAPH", "", str(exc))
        given = {info.name: info.type.tensor_type.elem_type for info in whole.graph.input}
        constants = {tensor.name: tensor for tensor in whole.graph.initializer}
        for node in whole.graph.node:
            if (refusal := _refusal(node, given, constants)) is not None:
                code, text = refusal
                return _fail(self, code, node.name, text, node)
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


def _refusal(node: Any, given: dict[str, int], constants: dict[str, Any]) -> tuple[str, str] | None:
    """Code and text of what TensorRT does not take, as far as its documentation says."""
    from onnx import TensorProto, numpy_helper

    if node.op_type in UNSUPPORTED:
        return "UNSUPPORTED_NODE", f"No importer registered for op {node.op_type}"
    if any(given.get(name) == TensorProto.UINT8 for name in node.input):
        if node.op_type != "Cast":
            return "UNSUPPORTED_NODE_DATATYPE", "UINT8 can only be converted by a Cast"
        if node.attribute[0].i not in (TensorProto.FLOAT, TensorProto.FLOAT16):
            return "UNSUPPORTED_NODE_DATATYPE", "UINT8 can only be converted to FLOAT or HALF"
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        zero = constants.get(node.input[2]) if len(node.input) > 2 else None
        if zero is not None and numpy_helper.to_array(zero).any():
            return (
                "INVALID_VALUE",
                "TensorRT only quantises symmetrically: all zero points must be zero",
            )
    return None


def _fail(self: Any, code: str, name: str, desc: str, node: Any = None) -> bool:
    state = {
        "_code": code,
        "_name": name,
        "_desc": desc,
        "_operator": node.op_type if node is not None else "",
    }
    self._errors.append(make(self._trt, "ParserError", **state))
    return False


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
        return "parse"
