"""Install the fakes where the program looks for them: sys.modules and libcuda."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from detector.core.engines.trt import driver
from tests.fakes.device import Device
from tests.fakes.driver import Libcuda
from tests.fakes.packages import PACKAGES
from tests.fakes.tensorrt_state import State

MAJORS = (10, 11)


def install_fake_tensorrt(
    monkeypatch, major: int = 11, memory: str = "cuda-python", **gpu
) -> SimpleNamespace:
    """Install fakes of the driver, of TensorRT, and of the CUDA package ``memory``.

    ``major``: version of TensorRT, or ``RTX_MAJOR``. ``gpu``: ``total`` (bytes of the GPU's
    memory) and options of ``Libcuda``. Skip the test if TensorRT for RTX is not installed.
    """
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")
    from tests.fakes.tensorrt_module import make_module  # imports the real library

    device = Device(gpu.pop("total", 1 << 30))
    libcuda = Libcuda(device, **gpu)
    monkeypatch.setattr(driver, "library", lambda: libcuda)
    fake = State(device, libcuda.gpus, major)
    module = make_module(fake)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, package in PACKAGES[memory](device).items():
        monkeypatch.setitem(sys.modules, name, package)
    importlib.invalidate_caches()
    engine = fake.edition.engine
    return SimpleNamespace(device=device, libcuda=libcuda, trt=module, fake=fake, engine=engine)
