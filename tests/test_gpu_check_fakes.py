"""The steps of scripts/gpu_check that run on the tests' fakes as they would on a GPU."""

from __future__ import annotations

import pytest
from gpu import machine as here
from gpu import memory_steps

from tests.fakes.install import install


@pytest.mark.slow
def test_the_check_of_memory_notices_other_bytes(monkeypatch):
    from detector.core.engines.trt.memory.cuda_python import CudaBuffer

    install(monkeypatch, 11)
    monkeypatch.setattr(CudaBuffer, "upload", lambda self, stream: None)
    rows = [one for one in memory_steps.memory() if one["what"].startswith("cuda-python: 2 thread")]
    assert [one["state"] for one in rows] == ["fail"]


@pytest.fixture
def few(monkeypatch) -> None:
    in_loop, pictures = here.in_loop, here.pictures
    monkeypatch.setattr(here, "pictures", lambda machine, _=2: pictures(machine, 2))
    monkeypatch.setattr(here, "in_loop", lambda machine, given, _=2: in_loop(machine, given, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_wrong_answer_fails_the_check(monkeypatch, tmp_path):
    machine = install(monkeypatch, 11)
    machine.trt.IBuilderConfig.clear_flag = lambda self, flag: None  # TF32 stays on
    reference = here.ort_reference(str(tmp_path))
    rows = list(here.variant("trt", "fp32", str(tmp_path), reference, 1e-5, precision="fp32"))
    assert [one["state"] for one in rows if "against ort" in one["what"]] == ["fail"]
