"""The steps of scripts/gpu_check that run on the tests' fakes as they would on a GPU."""

from __future__ import annotations

import pytest
from gpu import machine as here
from gpu import memory_steps, trt_steps

from detector.core.engines.trt import memory
from tests.fakes.install import install
from tests.fakes.packages import PACKAGES


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_the_check_of_memory(monkeypatch, name):
    machine = install(monkeypatch, 11, name)
    rows = {one["what"]: one for one in memory_steps.memory() if one["what"].startswith(name)}
    assert rows[f"{name}: 2 threads x 20 x 1 MB there and back"]["value"] == "the same bytes"
    assert rows[f"{name}: 64 MB to the device, page-locked"]["state"] == "pass"
    assert machine.device.allocations == {}


@pytest.mark.slow
def test_the_check_of_memory_notices_other_bytes(monkeypatch):
    from detector.core.engines.trt.memory.cuda_python import CudaBuffer

    install(monkeypatch, 11)
    monkeypatch.setattr(CudaBuffer, "upload", lambda self, stream: None)
    rows = [one for one in memory_steps.memory() if one["what"].startswith("cuda-python: 2 thread")]
    assert [one["state"] for one in rows] == ["fail"]


@pytest.fixture
def few(monkeypatch) -> None:
    """The clip's first pictures, and few calls."""
    in_loop, pictures = here.in_loop, here.pictures
    monkeypatch.setattr(here, "pictures", lambda machine, _=2: pictures(machine, 2))
    monkeypatch.setattr(here, "in_loop", lambda machine, given, _=2: in_loop(machine, given, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_check_of_tensorrt(monkeypatch):
    """Build, run, agreement and refusals."""
    install(monkeypatch, 11)
    monkeypatch.setattr(
        memory, "why_unusable", lambda name: None if name == "cuda-python" else "not here"
    )
    monkeypatch.setattr(trt_steps, "TRT", (trt_steps.TRT[0], trt_steps.TRT[1], trt_steps.TRT[3]))
    monkeypatch.setattr(here, "command", lambda *_: here.row("the command", "another process"))
    rows = {one["what"]: one for one in trt_steps.tensorrt()}
    assert [one for one in rows.values() if one["state"] == "fail"] == []
    assert "ms device" in rows["trt fp32: speed, 200 calls"]["value"]
    assert rows["trt fp32: raw outputs against ort fp32"]["state"] == "pass"
    assert "'tf32'" in rows["trt tf32, 2 at once: layers"]["value"]
    assert "11.4.0.106 rejects" in rows["tensorrt: plan, truncated"]["value"]
    assert rows["trt fp16: timed layers that the inspector does not know"]["value"] == "none"
    assert rows["trt fp16: convolutions in no timed layer"]["value"] == "none"


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_the_check_of_tensorrt_in_few_bits(monkeypatch, tmp_path, name):
    """Limits that the roundings keep, as far as the fake can tell."""
    install(monkeypatch, 11)
    limit, options = next((limit, own) for kind, limit, own in trt_steps.TRT if kind == name)
    reference = here.ort_reference(str(tmp_path))
    rows = list(here.variant("trt", name, str(tmp_path), reference, limit, **options))
    assert [one for one in rows if one["state"] != "pass"] == []
    assert f"'{name}'" in rows[-1]["value"]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_wrong_answer_fails_the_check(monkeypatch, tmp_path):
    machine = install(monkeypatch, 11)
    machine.trt.IBuilderConfig.clear_flag = lambda self, flag: None  # TF32 stays on
    reference = here.ort_reference(str(tmp_path))
    rows = list(here.variant("trt", "fp32", str(tmp_path), reference, 1e-5, precision="fp32"))
    assert [one["state"] for one in rows if "against ort" in one["what"]] == ["fail"]
