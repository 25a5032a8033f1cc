"""Fake TensorRT, every major version."""

from __future__ import annotations

import pytest

from tests.fakes.install import MAJORS, install


@pytest.fixture(params=MAJORS)
def machine(request, monkeypatch):
    return install(monkeypatch, request.param)
