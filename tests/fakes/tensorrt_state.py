"""Shared parts of the fake TensorRT: the state that tests inspect, and sessions of ONNX Runtime."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from detector.core.engines.trt.edition import FULL, RTX, Edition
from tests.fakes.device import Device

RTX_MAJOR = 1  # major version of TensorRT for RTX; TensorRT itself has 10 or 11
CONTEXT_BYTES = 1 << 20  # device memory of a context, per picture

Gpu = tuple[str, tuple[int, int]]
"""Name and compute capability."""


class State:
    """The state that tests inspect. ``alive``: False simulates a machine without a driver, on which
    TensorRT crashes. ``int8_kernels``, ``tf32_kernels``: False simulates that TensorRT chose no
    such kernel: it found none, or other kernels were faster. Without int8 kernels, Q and
    DQ remain layers around a convolution in float."""

    def __init__(self, device: Device, gpus: Sequence[Gpu], major: int) -> None:
        self.device, self.gpus, self.major = device, gpus, major
        self.alive = True
        self.int8_kernels = self.tf32_kernels = True
        self.layer_ms: Callable[[int, int], float] = lambda layer, run: (
            0.125 * (layer + 1)
        )  # (number of the layer, number of the run) -> ms
        self.graphs: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()  # ONNX of each network
        self.builds: list[dict] = []
        self.strategies: list[str] = []  # CUDA graph strategy of each context of TensorRT for RTX
        self.caches_read: list[bool] = []  # for each runtime cache that was read, whether it fitted
        self.runs: list[int] = []  # stream handles, in the order of the runs

    @property
    def edition(self) -> Edition:
        return RTX if self.major == RTX_MAJOR else FULL

    @property
    def gpu(self) -> Gpu:
        """The GPU that is current in this thread, for which TensorRT builds and reads plans."""
        return self.gpus[self.device.number]


class Crash(BaseException):
    """A simulated segmentation fault: how TensorRT ends without a driver."""


def ort_session(model: Any) -> Any:
    """Return a session of ONNX Runtime that computes the graph. ONNX Runtime cannot compute in
    bfloat16, so we compute in float32 and round each result."""
    import onnx
    import onnxruntime as ort

    nodes = model.graph.node
    if any(
        entry.name == "to" and entry.i == onnx.TensorProto.BFLOAT16
        for node in nodes
        for entry in node.attribute
    ):
        from scripts.measuring.rounded import rounded

        model = rounded(onnx.shape_inference.infer_shapes(model))
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    # By default, ONNX Runtime quantizes the float biases of a Q/DQ graph. TensorRT does not.
    return ort.InferenceSession(
        model.SerializeToString(),
        settings,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["WeightBiasQuantization"],
    )
