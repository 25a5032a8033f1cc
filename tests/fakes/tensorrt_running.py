"""Run plans of the fake TensorRT, by computing their graph with ONNX Runtime.

When the stream reaches a run, the run reads and writes the bytes at the addresses that it was
given. The signatures are those of TensorRT for RTX (tests/engines/test_trt_names.py checks them).
"""

import json
import zlib
from typing import Any

import numpy as np
import tensorrt_rtx as rtx

from detector.core.engines.trt.edition import read_header
from tests.fakes.device import Device, DeviceFaultError
from tests.fakes.tensorrt_inspecting import layers_of
from tests.fakes.tensorrt_state import CONTEXT_BYTES, RTX_MAJOR, Crash, ort_session

NUMPY = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
}


def _say(logger: Any, text: str) -> None:
    logger.log(rtx.ILogger.ERROR, text)


class Runtime:
    __slots__ = ("_logger", "engine_host_code_allowed")
    engine_header_size = 64  # the value of TensorRT for RTX

    def __init__(self, logger: Any) -> None:
        if not self._trt.fake.alive:
            raise Crash("Runtime without a driver")
        self._logger, self.engine_host_code_allowed = logger, False

    def get_engine_validity(self, buffer: bytes) -> Any:
        """Judge by the header. (The real package returns (INVALID, 0) if there is no driver.)"""
        trt, diagnostics = self._trt, rtx.EngineInvalidityDiagnostics
        problems, header = 0, read_header(bytes(buffer))
        if header is None:
            problems |= int(diagnostics.MALFORMED_ENGINE)
        else:
            if header.version != trt.__version__:
                problems |= int(diagnostics.VERSION_MISMATCH)
            if ".".join(map(str, trt.fake.gpu[1])) not in header.targets:
                problems |= int(diagnostics.UNSUPPORTED_CC)
        return (rtx.EngineValidity.INVALID if problems else rtx.EngineValidity.VALID), problems

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        trt, data = self._trt, bytes(serialized_engine)
        facts, graph = None, b""
        if data[:4] == trt.fake.edition.magic:
            header = read_header(data) if trt.fake.major == RTX_MAJOR else None
            body = data[header.size if header else len(data[:4]) :]
            if zlib.crc32(body[4:]).to_bytes(4, "little") == body[:4]:
                head, _, graph = body[4:].partition(b"\n")
                facts = json.loads(head)
        if reason := self._refusal(facts):
            return _say(self._logger, reason)
        return trt.ICudaEngine(self._logger, facts, graph)

    def _refusal(self, facts: dict[str, Any] | None) -> str | None:
        fake = self._trt.fake
        if facts is None:
            return "Serialization assertion: checksum of the archive does not match"
        if facts["portable"] and not self.engine_host_code_allowed:
            return (
                "Cannot deserialize engine with lean runtime since engine_host_code_allowed "
                "is False"
            )
        if facts["trt"] != self._trt.__version__ and not facts["portable"]:
            return (
                "Version tag does not match. Note: Current Version: 2, Serialized Engine Version: 1"
            )
        elsewhere = facts["gpu"][1] != list(fake.gpu[1]) and facts["hardware"] == "NONE"
        if elsewhere and fake.major != RTX_MAJOR:
            return (
                "The engine plan file is generated on an incompatible device, expecting compute "
                "8.9 got 9.0"
            )
        return None


class ICudaEngine:
    __slots__ = ("_context_bytes", "_facts", "_logger", "_model", "_number", "_session", "_tensors")

    def __init__(self, logger: Any, facts: dict[str, Any], graph: bytes) -> None:
        import onnx

        self._logger, self._facts, self._tensors = logger, facts, facts["tensors"]
        self._model = onnx.load_from_string(graph)
        self._session, self._number = ort_session(self._model), self._trt.fake.device.number
        batches = [profile[name][2][0] for profile in facts["profiles"] for name in profile]
        sizes = [shape[0] for _, shape in self._tensors.values() if shape]
        self._context_bytes = CONTEXT_BYTES * max([*batches, *sizes])

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return max(1, len(self._facts["profiles"]))

    @property
    def device_memory_size_v2(self) -> int:
        return self._context_bytes

    @property
    def profiling_verbosity(self) -> Any:
        return getattr(rtx.ProfilingVerbosity, self._facts["verbosity"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return rtx.TensorIOMode.INPUT if name in self._facts["inputs"] else rtx.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return getattr(rtx.DataType, self._tensors[name][0])

    def get_tensor_shape(self, name: str) -> Any:
        return rtx.Dims(self._tensors[name][1])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list:
        return [rtx.Dims(shape) for shape in self._facts["profiles"][profile_index][name]]

    def create_runtime_config(self) -> Any:
        return self._trt.IRuntimeConfig()

    def create_execution_context(self, runtime_config: Any = None) -> Any:
        fake = self._trt.fake
        on_its_gpu(self)
        if runtime_config is not None:
            fake.strategies.append(runtime_config.cuda_graph_strategy.name)
            if runtime_config._cache is not None:  # the cache keeps kernels compiled for this GPU
                runtime_config._cache._data = repr(fake.gpu).encode()
        try:
            return self._trt.IExecutionContext(self, fake.device.allocate(self._context_bytes))
        except MemoryError:
            text = f"OutOfMemory (Requested size was {self._context_bytes} bytes.)"
            return _say(self._logger, f"IExecutionContext: {text}")

    def create_engine_inspector(self) -> Any:
        return self._trt.EngineInspector(self)


class IRuntimeConfig:
    __slots__ = ("_cache", "cuda_graph_strategy")

    def __init__(self) -> None:
        self._cache, self.cuda_graph_strategy = None, rtx.CudaGraphStrategy.DISABLED

    def create_runtime_cache(self) -> Any:
        return self._trt.IRuntimeCache()

    def set_runtime_cache(self, cache: Any) -> bool:
        self._cache = cache
        return True


class IRuntimeCache:
    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def serialize(self) -> bytes:
        return self._data

    def deserialize(self, blob: bytes) -> bool:
        fake = self._trt.fake
        fits = bytes(blob) == repr(fake.gpu).encode()
        fake.caches_read.append(fits)
        if fits:
            self._data = bytes(blob)
        return fits


class IExecutionContext:
    __slots__ = ("_addresses", "_engine", "_given", "_own", "_profile", "_timed")
    __slots__ += ("enqueue_emits_profile", "nvtx_verbosity", "profiler")

    def __init__(self, engine: Any, own: int) -> None:
        self._engine, self._own, self._profile = engine, own, 0
        self._addresses, self._given, self._timed = dict[str, int](), dict[str, tuple](), []
        self.profiler, self.enqueue_emits_profile = None, True
        self.nvtx_verbosity = engine.profiling_verbosity

    def __del__(self) -> None:
        self._trt.fake.device.allocations.pop(self._own, None)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        _stream(self._trt.fake.device, stream_handle)
        self._profile = int(profile_index)
        return 0 <= profile_index < max(1, len(self._engine._facts["profiles"]))

    def set_input_shape(self, name: str, shape: Any) -> bool:
        smallest, _, largest = self._engine._facts["profiles"][self._profile][name]
        if not all(a <= b <= c for a, b, c in zip(smallest, shape, largest, strict=True)):
            return False
        self._given[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine._facts["inputs"] if -1 in _shape(self, name)]

    def get_tensor_shape(self, name: str) -> Any:
        return rtx.Dims(_shape(self, name))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._engine._tensors:
            return False
        self._addresses[name] = int(memory)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        fake, engine = self._trt.fake, self._engine
        on_its_gpu(engine)
        stream = _stream(fake.device, stream_handle)
        if stream.number != engine._number:
            raise DeviceFaultError(f"invalid resource handle: a stream of GPU {stream.number}")
        for name in engine._tensors:
            if name not in self._addresses or -1 in _shape(self, name):
                _say(engine._logger, f"Address or shape is not set for tensor {name}.")
                return False
        addresses = dict(self._addresses)
        stream.put(lambda: _compute(self, addresses, stream.handle))
        if self.profiler is not None and self.enqueue_emits_profile:
            stream.run_until(lambda: False)  # reporting at once means waiting for the run
            _report(self)
        return True

    def report_to_profiler(self) -> bool:
        """Report the last run if this is still due. Return False without a profiler or a run."""
        if self.profiler is None or (not self._timed and not self.enqueue_emits_profile):
            return False
        if not self.enqueue_emits_profile:
            _report(self)
        return True


def on_its_gpu(engine: Any) -> None:
    """Raise if the current GPU is not the one that was current when the engine was read."""
    if engine._trt.fake.device.number != engine._number:
        raise DeviceFaultError(
            f"invalid device context: the engine is on GPU {engine._number}, which is not current"
        )


def _shape(context: Any, name: str) -> tuple[int, ...]:
    shape = context._engine._tensors[name][1]
    batch = next((given[0] for given in context._given.values()), -1)
    return tuple(batch if side == -1 else side for side in shape)


def _compute(context: Any, addresses: dict[str, int], handle: int) -> None:
    """Do the GPU's work when the stream reaches the run: read inputs, compute, write outputs."""
    fake, engine = context._trt.fake, context._engine
    feeds = {}
    for name in engine._facts["inputs"]:
        kind, shape = NUMPY[engine._tensors[name][0]], _shape(context, name)
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        data = fake.device.at(addresses[name], size, engine._number)
        feeds[name] = data.view(kind).reshape(shape).copy()
    names = [info.name for info in engine._model.graph.output]
    for name, result in zip(names, engine._session.run(names, feeds), strict=True):
        if engine._facts["tf32"] and result.dtype == np.float32:  # TF32 has 10 mantissa bits
            bits = np.ascontiguousarray(result).view(np.uint32) & np.uint32(0xFFFFE000)
            result = bits.view(np.float32)
        output = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        fake.device.at(addresses[name], output.size, engine._number)[:] = output
    if context.profiler is not None:
        context._timed.append(len(fake.runs))
    fake.runs.append(handle)


def _report(context: Any) -> None:
    """Report the times of the last run by layer. Layers of a plan without names get numbers."""
    engine, run = context._engine, context._timed.pop()
    context._timed.clear()
    for at, layer in enumerate(layers_of(engine)):
        name = str(at) if engine._facts["verbosity"] == "NONE" else layer["Name"]
        context.profiler.report_layer_time(name, context._trt.fake.layer_ms(at, run))


def _stream(device: Device, handle: int) -> Any:
    if int(handle) == 0:
        raise DeviceFaultError(
            "the default stream: TensorRT would synchronise the device at each run"
        )
    if int(handle) not in device.streams:
        raise DeviceFaultError(f"invalid stream handle {handle:#x}")
    return device.streams[int(handle)]
