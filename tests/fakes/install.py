"""Puts the fakes where the program looks: sys.modules and libcuda."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

from detector.core.engines.trt import driver
from tests.fakes.device import Device
from tests.fakes.driver import Libcuda
from tests.fakes.packages import PACKAGES
from tests.fakes.tensorrt_building import load_real_parser
from tests.fakes.tensorrt_module import make_module
from tests.fakes.tensorrt_state import edition_of

MAJORS = (10, 11)


def install(monkeypatch, major: int = 11, memory: str = "cuda-python", **gpu) -> SimpleNamespace:
    """A driver, a TensorRT of that major (``bindings.RTX``: TensorRT for RTX) and one CUDA package.

    ``gpu``: total (bytes), gpus, cuda, error.
    """
    load_real_parser()
    device = Device(gpu.pop("total", 1 << 30))
    libcuda = Libcuda(device, **gpu)
    monkeypatch.setattr(driver, "library", lambda: libcuda)
    module = make_module(major, device, libcuda.gpus)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, package in PACKAGES[memory](device).items():
        monkeypatch.setitem(sys.modules, name, package)
    importlib.invalidate_caches()
    engine = edition_of(major).engine
    return SimpleNamespace(
        device=device, libcuda=libcuda, trt=module, fake=module.fake, engine=engine
    )
