"""What the parts of the fake TensorRT share: what tests look at, how a plan begins, and the graph that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tests.fakes.device import Device

MAGIC = b"ftrt"
CONTEXT_BYTES = 1 << 20  # what a context takes of the device, a picture
ONNX_TYPES = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}


Gpu = tuple[str, tuple[int, int]]
"""Name and compute capability."""


class State:
    """What tests look at. ``alive``: False models that no driver answers: then nothing may be started."""

    def __init__(self, module: ModuleType, device: Device, gpus: Sequence[Gpu], major: int) -> None:
        self.module, self.device, self.gpus, self.major = module, device, gpus, major
        self.alive = True
        self.builds: list[dict] = []
        self.runs: list[int] = []  # stream handles, in the order in which the runs happened

    @property
    def gpu(self) -> Gpu:
        """The one that is current in this thread: TensorRT builds for it and reads plans for it."""
        return self.gpus[self.device.number]


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


def ort_session(model: Any) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
