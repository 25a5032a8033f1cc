"""The driver is checked before TensorRT starts, and refusals state the reason."""

import re
from collections.abc import Callable

import pytest

from detector.core import engines
from detector.core.engines import _ranking, trt
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt import driver, edition
from detector.core.errors import EngineError
from tests.engines.trt.opening import opened
from tests.fakes.install import install_fake_tensorrt
from tests.known_answers import plus_one


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"gpus": ()}, "the NVIDIA driver finds no GPU"),
        ({"error": 100}, "the NVIDIA driver finds no GPU"),
        ({"error": 999}, r"the NVIDIA driver does not start \(CUDA_ERROR_UNKNOWN, error 999\)"),
        (None, r"no NVIDIA driver \(libcuda\.so\.1 cannot be opened\)"),
    ],
)
def test_tensorrt_is_not_started_without_a_working_driver(monkeypatch, state, reason):
    machine = install_fake_tensorrt(monkeypatch)
    machine.fake.alive = False  # from here on Runtime and Builder would crash
    if state is None:

        def none():
            raise OSError("libcuda.so.1: cannot open shared object file")

        monkeypatch.setattr(trt.driver, "library", none)
    else:
        machine.libcuda.gpus, machine.libcuda.error = (
            list(state.get("gpus", machine.libcuda.gpus)),
            state.get("error", 0),
        )
    assert engines.why_unusable()["trt"] is not None
    for call in (
        lambda: engines.load_library("trt"),
        lambda: opened(),
        lambda: trt.PlanBuilder("trt").key(plus_one(), EngineOptions()),
    ):
        with pytest.raises(EngineError, match=f"engine trt: {reason}"):
            call()
    name, _ = _ranking.choose_by_rank()
    assert name != "trt"
    assert machine.fake.builds == []


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (False, "the NVIDIA driver finds no GPU"),
        (True, "tensorrt is not installed; install it with: pip install"),
    ],
)
def test_error_advises_to_install_tensorrt_only_if_there_is_a_gpu(monkeypatch, gpus, reason):
    machine = install_fake_tensorrt(monkeypatch)
    if not gpus:
        machine.libcuda.gpus = []
    monkeypatch.setattr(engines, "find_spec", lambda library: None)
    with pytest.raises(EngineError, match=f"engine trt: {reason}"):
        engines.check_installed("trt")


def test_refusal_of_a_too_old_driver_suggests_the_right_package(monkeypatch):
    install_fake_tensorrt(monkeypatch, cuda=12040)
    monkeypatch.setattr(edition, "version", lambda package: "11.4.0")
    message = r"tensorrt 11\.4\.0 .*CUDA 13, .* 12\.4; .* tensorrt-cu12"
    assert re.fullmatch(message, engines.why_unusable()["trt"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "precision", "device", "reason"),
    [
        ((("L4", (8, 9)),), "fp32", "cuda:2", "there is no cuda:2; GPUs here: cuda:0 L4"),
        ((("T4", (7, 5)),), "bf16", "auto", r"T4 has compute capability 7\.5; bf16 needs 8\.0"),
        ((("T4", (7, 5)),), "tf32", "cuda", r"tf32 needs 8\.0 \(Ampere\) or newer"),
        ((("V100", (7, 0)),), "fp16", "auto", r"TensorRT needs 7\.5 \(Turing\) or newer"),
        ((("T4", (7, 5)),), "fp16", "auto", None),
        ((("T4", (7, 5)), ("L4", (8, 9))), "bf16", "cuda:1", None),
    ],
)
def test_unsupported_device_or_precision_is_refused_with_the_reason(
    monkeypatch, gpus, precision, device, reason
):
    install_fake_tensorrt(monkeypatch, gpus=gpus)
    if reason is None:
        wanted = trt.TrtEngine.precisions[precision]
        assert engines.graph_precision_for("trt", precision, device) == wanted
        return
    with pytest.raises(EngineError, match=reason):
        engines.graph_precision_for("trt", precision, device)


def test_auto_chooses_trt_unless_the_cpu_is_requested(monkeypatch):
    install_fake_tensorrt(monkeypatch)
    assert _ranking.choose_by_rank()[0] == "trt"
    assert _ranking.choose_by_rank(device="cuda:0")[0] == "trt"
    assert _ranking.choose_by_rank(device="cpu")[0] == "ort"


class FailingDriver:
    """A libcuda in which two functions fail: cuGetErrorName, and the one that ``fails`` names."""

    def __init__(self, fails: str) -> None:
        self._codes = {fails: 2, "cuGetErrorName": 1}

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: self._codes.get(name, 0)


@pytest.mark.parametrize("fails", ["cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2"])
def test_error_names_the_failing_call_of_the_driver(fails):
    with pytest.raises(driver.DriverError, match=f"^{fails}: error 2$"):
        driver._gpu(FailingDriver(fails), 0)
