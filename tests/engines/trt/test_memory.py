"""The choice of the package that allocates device memory."""

import pytest

from detector.core.engines.trt import memory
from detector.core.errors import EngineError, UsageError


def test_auto_memory_prefers_loaded_torch_then_pycuda_then_cuda_python(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(memory, "_installed", lambda name: name in installed)
    monkeypatch.setattr(memory, "_torch_has_cuda", lambda: True)
    installed = {"pycuda", "cuda-python", "torch"}
    for wanted in ("pycuda", "cuda-python", "torch"):
        assert memory.choose_provider("auto") == wanted
        installed.discard(wanted)
    with pytest.raises(EngineError, match=r"GPU memory; .*pip install"):
        memory.choose_provider("auto")
    with pytest.raises(EngineError, match=r"--device-memory pycuda: .*pip"):
        memory.choose_provider("pycuda")
    with pytest.raises(UsageError, match=r"opencl.*auto, pycuda, torch"):
        memory.choose_provider("opencl")
    monkeypatch.setitem(sys.modules, "torch", object())
    installed = {"pycuda", "torch"}
    assert memory.choose_provider("auto") == "torch"
    monkeypatch.setattr(memory, "_torch_has_cuda", lambda: False)  # the CPU build
    assert memory.choose_provider("auto") == "pycuda"
