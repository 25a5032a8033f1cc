"""Fixtures with a fake TensorRT of each major version; ``machine`` also varies the CUDA package."""

import pytest

from tests.engines.trt.opening import EVERY
from tests.fakes.install import MAJORS, install_fake_tensorrt


@pytest.fixture(params=EVERY, ids=[f"trt{major}-{memory}" for major, memory in EVERY])
def machine(request, monkeypatch):
    return install_fake_tensorrt(monkeypatch, *request.param)


@pytest.fixture(params=MAJORS)
def tensorrt(request, monkeypatch):
    return install_fake_tensorrt(monkeypatch, request.param, "cuda-python")
