"""What the fake TensorRT does with a plan: it computes the graph in it by ONNX Runtime.

It computes on the bytes that really lie at the addresses it was given, when the stream comes to it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

from detector.core.engines.trt.edition import read_header
from tests.fakes.bindings import RTX
from tests.fakes.device import Device, DeviceFaultError
from tests.fakes.tensorrt_building import HEADER_BYTES
from tests.fakes.tensorrt_inspecting import layers_of
from tests.fakes.tensorrt_state import CONTEXT_BYTES, Crash, make, ort_session, shapes_of

NUMPY = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
}


class Runtime:
    def started(self, logger: Any) -> None:
        if not self._trt.fake.alive:
            raise Crash("Runtime without a driver")
        self.__dict__.update(_logger=logger, _engine_host_code_allowed=False)

    def get_engine_header_size_(self) -> int:
        return HEADER_BYTES

    def get_engine_validity(self, buffer: bytes) -> Any:
        """As 1.7.1.116 answers, by what the header says."""
        trt, diagnostics = self._trt, self._trt.EngineInvalidityDiagnostics
        found, header = 0, read_header(bytes(buffer))
        if header is None:
            found |= int(diagnostics.MALFORMED_ENGINE)
        else:
            if header.version != trt.__version__:
                found |= int(diagnostics.VERSION_MISMATCH)
            if ".".join(map(str, trt.fake.gpu[1])) not in header.targets:
                found |= int(diagnostics.UNSUPPORTED_CC)
        return (trt.EngineValidity.INVALID if found else trt.EngineValidity.VALID), found

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        trt = self._trt
        say = lambda text: self._logger.log(trt.ILogger.Severity.ERROR, text)  # noqa: E731
        data = bytes(serialized_engine)
        if data[:4] != trt.fake.magic:
            return say(
                "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed.Magic tag "
                "does not match"
            )
        head_bytes = HEADER_BYTES if trt.fake.major == RTX else len(trt.fake.magic)
        checksum, content = data[head_bytes : head_bytes + 4], data[head_bytes + 4 :]
        if zlib.crc32(content).to_bytes(4, "little") != checksum:
            return say("Serialization assertion: checksum of the archive does not match")
        head, _, body = content.partition(b"\n")
        facts = json.loads(head)
        if facts["portable"] and not self._engine_host_code_allowed:
            return say(
                "Cannot deserialize engine with lean runtime since engine_host_code_allowed "
                "is False"
            )
        if facts["trt"] != trt.__version__ and not facts["portable"]:
            return say(
                "Version tag does not match. Note: Current Version: 2, Serialized Engine Version: 1"
            )
        if (
            trt.fake.major != RTX
            and facts["capability"] != list(trt.fake.gpu[1])
            and facts["hardware"] == "NONE"
        ):
            return say(
                "The engine plan file is generated on an incompatible device, expecting compute "
                "8.9 got 9.0"
            )
        import onnx

        model = onnx.load_from_string(body)
        tensors = {**shapes_of(model.graph.output), **shapes_of(model.graph.input)}
        batches = [profile[name][2][0] for profile in facts["profiles"] for name in profile]
        batch = max([*batches, *(shape[0] for _, shape in tensors.values())])
        state = {
            "_number": trt.fake.device.number,
            "_facts": facts,
            "_model": model,
            "_session": ort_session(model),
            "_tensors": tensors,
        }
        # Outputs first: nothing may depend on the order.
        return make(
            trt, "ICudaEngine", _logger=self._logger, _context_bytes=CONTEXT_BYTES * batch, **state
        )


class ICudaEngine:
    def get_num_io_tensors_(self) -> int:
        return len(self._tensors)

    def get_num_optimization_profiles_(self) -> int:
        return max(1, len(self._facts["profiles"]))

    def get_device_memory_size_v2_(self) -> int:
        return self._context_bytes

    def get_profiling_verbosity_(self) -> Any:
        return getattr(self._trt.ProfilingVerbosity, self._facts["verbosity"])

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

    def create_runtime_config(self) -> Any:
        off = self._trt.CudaGraphStrategy.DISABLED
        return make(self._trt, "IRuntimeConfig", _cuda_graph_strategy=off, _cache=None)

    def create_execution_context(self, strategy: Any = None, runtime_config: Any = None) -> Any:
        fake = self._trt.fake
        on_its_gpu(self)
        if runtime_config is not None:
            fake.strategies.append(runtime_config._cuda_graph_strategy.name)
            if runtime_config._cache is not None:  # what it compiles goes there
                runtime_config._cache.__dict__["_data"] = repr(fake.gpu).encode()
        try:
            own = fake.device.allocate(self._context_bytes)
        except MemoryError:
            self._logger.log(
                self._trt.ILogger.Severity.ERROR,
                f"IExecutionContext: OutOfMemory (Requested size was {self._context_bytes} bytes.)",
            )
            return None
        state = {
            "_engine": self,
            "_own": own,
            "_addresses": {},
            "_given": {},
            "_profile": 0,
            "_timed": [],
        }
        state |= {"_profiler": None, "_enqueue_emits_profile": True}
        return make(self._trt, "IExecutionContext", **state)

    def create_engine_inspector(self) -> Any:
        return make(self._trt, "EngineInspector", _engine=self, _execution_context=None)


class IRuntimeConfig:
    def create_runtime_cache(self) -> Any:
        return make(self._trt, "IRuntimeCache", _data=b"")

    def set_runtime_cache(self, cache: Any) -> bool:
        self.__dict__["_cache"] = cache
        return True


class IRuntimeCache:
    def serialize(self) -> Any:
        return self._trt.IHostMemory(self._data)

    def deserialize(self, blob: bytes) -> bool:
        fake, fits = self._trt.fake, bytes(blob) == repr(self._trt.fake.gpu).encode()
        fake.caches_read.append(fits)
        if fits:
            self.__dict__["_data"] = bytes(blob)
        return fits


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
        return [
            info.name for info in self._engine._model.graph.input if -1 in _shape(self, info.name)
        ]

    def get_tensor_shape(self, name: str) -> Any:
        return self._trt.Dims(_shape(self, name))

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
            if name not in self._addresses:
                engine._logger.log(
                    self._trt.ILogger.Severity.ERROR,
                    f"Address is not set for tensor {name}. Call setTensorAddress.",
                )
                return False
            if -1 in _shape(self, name):
                engine._logger.log(
                    self._trt.ILogger.Severity.ERROR, f"shape of {name} is not known"
                )
                return False
        addresses = dict(self._addresses)
        stream.put(lambda: _compute(self, addresses, stream.handle))
        if self._profiler is not None and self._enqueue_emits_profile:
            stream.run_until(
                lambda: False
            )  # with a profiler that is told at once, a run is waited for
            _report(self)
        return True

    def report_to_profiler(self) -> bool:
        """Nothing to do where each run reports by itself; False without a profiler, or without a
        run to tell of.
        """
        if self._profiler is None or (not self._timed and not self._enqueue_emits_profile):
            return False
        if not self._enqueue_emits_profile:
            _report(self)
        return True


def on_its_gpu(engine: Any) -> None:
    """An engine lives on the GPU that was current when it was read."""
    if engine._trt.fake.device.number != engine._number:
        raise DeviceFaultError(
            f"invalid device context: the engine is on GPU {engine._number}, which is not current"
        )


def _shape(context: Any, name: str) -> tuple[int, ...]:
    shape = context._engine._tensors[name][1]
    batch = next((given[0] for given in context._given.values()), -1)
    return tuple(batch if side == -1 else side for side in shape)


def _compute(context: Any, addresses: dict[str, int], handle: int) -> None:
    """What a GPU would do when the stream comes here: read the input's bytes, run, write the
    outputs' bytes.
    """
    fake, engine = context._trt.fake, context._engine
    feeds = {}
    for info in engine._model.graph.input:
        kind, shape = NUMPY[engine._tensors[info.name][0]], _shape(context, info.name)
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        feeds[info.name] = (
            fake.device.at(addresses[info.name], size, engine._number)
            .view(kind)
            .reshape(shape)
            .copy()
        )
    names = [info.name for info in engine._model.graph.output]
    for name, result in zip(names, engine._session.run(names, feeds), strict=True):
        if engine._facts["tf32"] and result.dtype == np.float32:  # 10 bits of mantissa
            result = (np.ascontiguousarray(result).view(np.uint32) & np.uint32(0xFFFFE000)).view(
                np.float32
            )
        taken = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        fake.device.at(addresses[name], taken.size, engine._number)[:] = taken
    if context._profiler is not None:
        context._timed.append(len(fake.runs))
    fake.runs.append(handle)
    fake.device.log.append(("run", handle))


def _report(context: Any) -> None:
    """Times of the run that ended last, layer by layer; numbers stand for names where the plan has
    none.
    """
    engine, run = context._engine, context._timed.pop()
    context._timed.clear()
    for at, layer in enumerate(layers_of(engine)):
        name = str(at) if engine._facts["verbosity"] == "NONE" else layer["Name"]
        context._profiler.report_layer_time(name, context._trt.fake.layer_ms(at, run))


def _stream(device: Device, handle: int) -> Any:
    if int(handle) == 0:
        raise DeviceFaultError(
            "the default stream: TensorRT would synchronise the device at each run"
        )
    if int(handle) not in device.streams:
        raise DeviceFaultError(f"invalid stream handle {handle:#x}")
    return device.streams[int(handle)]
