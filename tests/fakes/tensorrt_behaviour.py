"""What the fake TensorRT does: it parses ONNX, "builds" a plan that holds it, and computes it by ONNX Runtime.

It computes on the bytes that really lie at the addresses it was given, when the stream comes to it. Class and method
names are the real ones; tests/fakes/tensorrt_module.py sees to it that they are called as the real ones are.
"""

from __future__ import annotations

import json
import zlib
from types import ModuleType
from typing import Any

import numpy as np

from tests.fakes.device import Device, DeviceFaultError

MAGIC = b"ftrt"
CONTEXT_BYTES = 1 << 20  # what a context takes of the device, a picture
UNSUPPORTED = {"Det", "StringNormalizer", "Unique"}
ERROR = "ERROR"
NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "UINT8": np.uint8, "INT32": np.int32, "INT64": np.int64}
ONNX_TYPES = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}


class State:
    """What tests look at. ``alive``: False models that no driver answers: then nothing may be started."""

    def __init__(self, module: ModuleType, device: Device, gpu: tuple[str, tuple[int, int]], major: int) -> None:
        self.module, self.device, self.gpu, self.major = module, device, gpu, major
        self.alive = True
        self.builds: list[dict] = []
        self.runs: list[int] = []  # stream handles, in the order in which the runs happened


class Crash(BaseException):
    """A segmentation fault, as TensorRT without a driver ends."""


def make(trt: ModuleType, name: str, **state: Any) -> Any:
    return getattr(trt, name)(_made_here=True, **state)


def shapes_of(infos: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name -> (TensorRT type, shape with -1)."""
    return {
        info.name: (
            ONNX_TYPES[info.type.tensor_type.elem_type],
            tuple(d.dim_value if d.HasField("dim_value") else -1 for d in info.type.tensor_type.shape.dim),
        )
        for info in infos
    }


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
        return make(trt, "INetworkDefinition", _model=None, _strong=strong, _inputs=[])

    def create_builder_config(self) -> Any:
        trt = self._trt
        config = make(trt, "IBuilderConfig", _raised={"TF32"}, _profiles=[], _limits={}, _cache=None)
        config.__dict__.update(_progress_monitor=None, _profiling_verbosity=trt.ProfilingVerbosity.LAYER_NAMES_ONLY)
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
            return say("[fake] a weakly typed network: the types of the graph would not be what is run")
        if any(-1 in tensor.shape for tensor in network._inputs) and not config._profiles:
            return say("Network has dynamic or shape inputs, but no optimization profile has been defined.")
        if not tell_progress(config._progress_monitor):
            return say("Build was cancelled")
        if config._limits.get("WORKSPACE", 1 << 40) < 1 << 20:
            return say("Insufficient workspace: out of memory")
        facts = {
            "trt": trt.__version__,
            "gpu": trt.fake.gpu[0],
            "capability": list(trt.fake.gpu[1]),
            "profiles": [profile._ranges for profile in config._profiles],
            "detailed": config._profiling_verbosity is trt.ProfilingVerbosity.DETAILED,
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
            _ort_session(whole)
        except Exception as exc:
            return _fail(self, "INVALID_GRAPH", "", str(exc))
        for node in whole.graph.node:
            if node.op_type in UNSUPPORTED:
                return _fail(self, "UNSUPPORTED_NODE", node.name, f"No importer registered for op {node.op_type}", node)
        for info in whole.graph.input:
            if info.type.tensor_type.elem_type == onnx.TensorProto.UINT8:
                for node in whole.graph.node:
                    if info.name in node.input and node.op_type != "Cast":
                        return _fail(
                            self, "UNSUPPORTED_NODE_DATATYPE", node.name, "UINT8 can only be converted by a Cast", node
                        )
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


def _fail(self: Any, code: str, name: str, desc: str, node: Any = None) -> bool:
    state = {"_code": code, "_name": name, "_desc": desc, "_operator": node.op_type if node is not None else ""}
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


class Runtime:
    def started(self, logger: Any) -> None:
        if not self._trt.fake.alive:
            raise Crash("Runtime without a driver")
        self.__dict__.update(_logger=logger, _engine_host_code_allowed=False)

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        trt = self._trt
        say = lambda text: self._logger.log(trt.ILogger.Severity.ERROR, text)  # noqa: E731
        data = bytes(serialized_engine)
        if data[:4] != MAGIC:
            return say("Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed.Magic tag does not match")
        if zlib.crc32(data[8:]).to_bytes(4, "little") != data[4:8]:
            return say("Serialization assertion: checksum of the archive does not match")
        head, _, body = data[8:].partition(b"\n")
        facts = json.loads(head)
        if facts["portable"] and not self._engine_host_code_allowed:
            return say("Cannot deserialize engine with lean runtime since engine_host_code_allowed is False")
        if facts["trt"] != trt.__version__ and not facts["portable"]:
            return say("Version tag does not match. Note: Current Version: 2, Serialized Engine Version: 1")
        if facts["capability"] != list(trt.fake.gpu[1]) and facts["hardware"] == "NONE":
            return say("The engine plan file is generated on an incompatible device, expecting compute 8.9 got 9.0")
        import onnx

        model = onnx.load_from_string(body)
        tensors = {**shapes_of(model.graph.output), **shapes_of(model.graph.input)}
        batches = [profile[name][2][0] for profile in facts["profiles"] for name in profile]
        batch = max([*batches, *(shape[0] for _, shape in tensors.values())])
        state = {"_facts": facts, "_model": model, "_session": _ort_session(model), "_tensors": tensors}
        # Outputs first: nothing may depend on the order.
        return make(trt, "ICudaEngine", _logger=self._logger, _context_bytes=CONTEXT_BYTES * batch, **state)


class ICudaEngine:
    def get_num_io_tensors_(self) -> int:
        return len(self._tensors)

    def get_num_optimization_profiles_(self) -> int:
        return max(1, len(self._facts["profiles"]))

    def get_device_memory_size_v2_(self) -> int:
        return self._context_bytes

    def get_profiling_verbosity_(self) -> Any:
        verbosity = self._trt.ProfilingVerbosity
        return verbosity.DETAILED if self._facts["detailed"] else verbosity.LAYER_NAMES_ONLY

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        given = name in [info.name for info in self._model.graph.input]
        return self._trt.TensorIOMode.INPUT if given else self._trt.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return getattr(self._trt.DataType, self._tensors[name][0])

    def get_tensor_shape(self, name: str) -> Any:
        return self._trt.Dims(self._tensors[name][1])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list:
        return [self._trt.Dims(shape) for shape in self._facts["profiles"][profile_index][name]]

    def create_execution_context(self, strategy: Any = None, runtime_config: Any = None) -> Any:
        fake = self._trt.fake
        try:
            own = fake.device.allocate(self._context_bytes)
        except MemoryError:
            self._logger.log(
                self._trt.ILogger.Severity.ERROR,
                f"IExecutionContext: OutOfMemory (Requested size was {self._context_bytes} bytes.)",
            )
            return None
        state = {"_engine": self, "_own": own, "_addresses": {}, "_given": {}, "_profile": 0}
        return make(self._trt, "IExecutionContext", **state)

    def create_engine_inspector(self) -> Any:
        return make(self._trt, "EngineInspector", _engine=self, _execution_context=None)


class IExecutionContext:
    def __del__(self) -> None:
        if "_own" in self.__dict__:
            self._trt.fake.device.allocations.pop(self._own, None)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        _stream(self._trt.fake.device, stream_handle)
        self.__dict__["_profile"] = int(profile_index)
        return 0 <= profile_index < max(1, len(self._engine._facts["profiles"]))

    def set_input_shape(self, name: str, shape: Any) -> bool:
        smallest, _, largest = self._engine._facts["profiles"][self._profile][name]
        if not all(a <= b <= c for a, b, c in zip(smallest, shape, largest, strict=True)):
            return False
        self._given[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        return [info.name for info in self._engine._model.graph.input if -1 in _shape(self, info.name)]

    def get_tensor_shape(self, name: str) -> Any:
        return self._trt.Dims(_shape(self, name))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._engine._tensors:
            return False
        self._addresses[name] = int(memory)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        fake, engine = self._trt.fake, self._engine
        stream = _stream(fake.device, stream_handle)
        for name in engine._tensors:
            if name not in self._addresses:
                engine._logger.log(
                    self._trt.ILogger.Severity.ERROR, f"Address is not set for tensor {name}. Call setTensorAddress."
                )
                return False
            if -1 in _shape(self, name):
                engine._logger.log(self._trt.ILogger.Severity.ERROR, f"shape of {name} is not known")
                return False
        addresses = dict(self._addresses)
        stream.put(lambda: _compute(self, addresses, stream.handle))
        return True


def _shape(context: Any, name: str) -> tuple[int, ...]:
    shape = context._engine._tensors[name][1]
    batch = next((given[0] for given in context._given.values()), -1)
    return tuple(batch if side == -1 else side for side in shape)


def _compute(context: Any, addresses: dict[str, int], handle: int) -> None:
    """What a GPU would do when the stream comes here: read the input's bytes, run, write the outputs' bytes."""
    fake, engine = context._trt.fake, context._engine
    feeds = {}
    for info in engine._model.graph.input:
        kind, shape = NUMPY[engine._tensors[info.name][0]], _shape(context, info.name)
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        feeds[info.name] = fake.device.at(addresses[info.name], size).view(kind).reshape(shape).copy()
    names = [info.name for info in engine._model.graph.output]
    for name, result in zip(names, engine._session.run(names, feeds), strict=True):
        if engine._facts["tf32"] and result.dtype == np.float32:  # 10 bits of mantissa
            result = (np.ascontiguousarray(result).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        taken = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        fake.device.at(addresses[name], taken.size)[:] = taken
    fake.runs.append(handle)
    fake.device.log.append(("run", handle))


def _stream(device: Device, handle: int) -> Any:
    if int(handle) == 0:
        raise DeviceFaultError("the default stream: TensorRT would synchronise the device at each run")
    if int(handle) not in device.streams:
        raise DeviceFaultError(f"invalid stream handle {handle:#x}")
    return device.streams[int(handle)]


class EngineInspector:
    def get_engine_information(self, format: Any) -> str:
        engine, major = self._engine, self._trt.fake.major
        layers: list[Any] = [_layer(engine, nodes, major, self._execution_context) for nodes in _fused(engine._model)]
        if not engine._facts["detailed"]:
            layers = [layer["Name"] for layer in layers]
        names = list(engine._tensors)
        tensors = {"Bindings": names} if major < 11 else {"I/O Tensors": [{"Name": name} for name in names]}
        return json.dumps({"Layers": layers, **tensors})


def _fused(model: Any) -> list[list[Any]]:
    """A convolution takes the activation after it along."""
    groups: list[list[Any]] = []
    for node in model.graph.node:
        if groups and groups[-1][-1].op_type == "Conv" and node.op_type in ("LeakyRelu", "Relu", "Sigmoid"):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


WORDS = {"FLOAT": "Float", "HALF": "Half", "UINT8": "UInt8", "INT8": "Int8", "BF16": "BFloat16"}


def _layer(engine: Any, nodes: list[Any], major: int, context: Any) -> dict[str, Any]:
    types = _value_types(engine._model)
    kinds = {"Conv": "CaskConvolution", "Cast": "Cast", "Transpose": "Shuffle"}

    def described(name: str) -> dict[str, Any]:
        word = WORDS.get(types.get(name, "FLOAT"), "Float")
        if major < 11:
            dynamic = context is None and engine._facts["profiles"]
            return {"Name": name, "Format/Datatype": "N/A due to dynamic shapes" if dynamic else word}
        return {"Name": name, "Format": "Row major linear format (kLINEAR)", "Datatype": word}

    return {
        "Name": " + ".join(node.name for node in nodes),
        "LayerType": kinds.get(nodes[0].op_type, nodes[0].op_type),
        "Inputs": [described(nodes[0].input[0])],
        "Outputs": [described(nodes[-1].output[0])],
        "TacticName": "sm80_xmma_fprop_tf32f32" if engine._facts["tf32"] and nodes[0].op_type == "Conv" else "sm80",
        "Metadata": "".join(f"[ONNX Layer: {node.name}]\x1e" for node in nodes),
    }


def _value_types(model: Any) -> dict[str, str]:
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model).graph
    infos = [*graph.input, *graph.value_info, *graph.output]
    return {info.name: ONNX_TYPES.get(info.type.tensor_type.elem_type, "FLOAT") for info in infos}


def _ort_session(model: Any) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
