"""Fake TensorRT, every major version."""

from __future__ import annotations

import pytest

from tests.fakes.install import MAJORS, install_fake_tensorrt


@pytest.fixture(params=MAJORS)
def machine(request, monkeypatch):
    return install_fake_tensorrt(monkeypatch, request.param)
