"""Behaviour that only ONNX Runtime's engine has."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.ort import engine as ort
from detector.core.errors import EngineError
from tests.engines.quantised import CONVOLUTIONS, pictures, quantised, small_network
from tests.known_answers import plus_one, run_once


def test_threads_are_as_requested():
    with engines.open("ort", plus_one(), EngineOptions(threads=1)) as engine:
        assert engine.threads == 1


@pytest.mark.parametrize(
    ("options", "at_once"), [(EngineOptions(), 4), (EngineOptions(threads=2), 2)]
)
def test_best_concurrency_fills_the_cores_of_a_cpu(monkeypatch, options, at_once):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    assert engines.find("ort").best_concurrency(options) == at_once


# --- executed layers ----------


def execution(network, precision="fp32") -> tuple[dict[str, str], list[str]]:
    with engines.open("ort", network, EngineOptions(precision=precision)) as engine:
        layers = engine.execution()
    assert engine.execution() == []
    kinds = {node.name: node.op_type for node in network.graph.graph.node}
    assert all(
        "Conv" in layer.type for layer in layers for node in layer.nodes if kinds[node] == "Conv"
    )
    return {node: layer.precision for layer in layers for node in layer.nodes}, [
        n for layer in layers for n in layer.nodes
    ]


def test_every_node_is_in_one_layer(tmp_path):
    network = small_network(tmp_path)
    precisions, listed = execution(network)
    assert sorted(listed) == sorted(node.name for node in network.graph.graph.node)
    assert {precisions[name] for name in CONVOLUTIONS} == {"fp32"}


@pytest.mark.parametrize("keep", [(), ("4.conv",), ("0.conv", "1.conv"), tuple(CONVOLUTIONS)])
def test_convolutions_that_stay_float_in_int8_are_reported(tmp_path, keep):
    network = small_network(tmp_path)
    int8 = quantised(network, tmp_path, keep=keep)
    precisions, listed = execution(int8, "int8")
    assert {name: precisions[name] for name in CONVOLUTIONS} == {
        name: "fp32" if name in keep else "int8" for name in CONVOLUTIONS
    }
    assert len(listed) == len(set(listed))


def test_int8_runs_the_quantised_graph(tmp_path):
    network = small_network(tmp_path)
    [expected] = run_once(network, pictures(network, 9))
    [output] = run_once(quantised(network, tmp_path), pictures(network, 9))
    assert 0 < np.abs(output - expected).mean() < 0.03 * np.abs(expected).max()


# --- devices ----------


@pytest.fixture
def with_cuda(monkeypatch):
    """Pretend that the build has CUDA. Sessions still use the real build, and may fail."""
    monkeypatch.setattr(
        onnxruntime,
        "get_available_providers",
        lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
    )


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("precision", "device", "reason"),
    [
        ("fp16", "cpu", "fp16 cannot run here: ONNX Runtime computes an fp16 graph in fp32"),
        ("fp16", "auto", "has no CUDA provider; to get one: pip uninstall"),
        ("tf32", "auto", "it needs a GPU; use --precision fp32"),
        ("fp32", "cuda:1", "--device cuda:1: .*this build of onnxruntime has no CUDA provider"),
        ("bf16", "auto", "cannot run bf16; it runs fp32, tf32, fp16, int8; for bf16 use --engine "),
    ],
)
def test_precision_that_would_not_be_executed_is_refused(without_cuda, precision, device, reason):
    with pytest.raises(EngineError, match=reason):
        engines.graph_precision_for("ort", precision, device)


def test_int8_on_a_gpu_is_refused(with_cuda):
    with pytest.raises(EngineError, match="int8 convolution"):
        engines.graph_precision_for("ort", "int8", "cuda")


def test_cuda_engine_gets_the_graph_of_the_right_precision(with_cuda):
    assert engines.graph_precision_for("ort", "fp16", "auto") == "fp16"
    assert engines.graph_precision_for("ort", "tf32", "cuda:1") == "fp32"
    assert engines.graph_precision_for("ort", "int8", "auto") == "int8-u8"


def test_requested_gpu_is_not_replaced_by_the_cpu(without_cuda):
    with pytest.raises(EngineError, match="--device cuda:1"):
        engines.open("ort", plus_one(), EngineOptions(device="cuda:1"))


def test_missing_cuda_is_noted_only_if_there_is_a_gpu(without_cuda, monkeypatch, tmp_path):
    for driver, notes in ((tmp_path, 1), (tmp_path / "none", 0)):
        monkeypatch.setattr(ort, "NVIDIA_DRIVER", driver)
        with engines.open("ort", plus_one(), EngineOptions()) as engine:
            assert engine.device == "cpu"
            assert len(engine.notes) == notes
    monkeypatch.setattr(ort, "NVIDIA_DRIVER", tmp_path)
    with engines.open("ort", plus_one(), EngineOptions(device="cpu")) as engine:
        assert engine.notes == []


def patch_session(monkeypatch, providers_of):
    """Give sessions the providers ``providers_of(requested)``. If it raises, no session opens."""
    real = onnxruntime.InferenceSession

    def session(source, settings, providers, enable_fallback, disabled_optimizers):
        names = [name[0] if isinstance(name, tuple) else name for name in providers]
        assert enable_fallback == 0
        opened = real(source, settings, providers=["CPUExecutionProvider"])
        got = providers_of(names)
        monkeypatch.setattr(opened, "get_providers", lambda: got)
        return opened

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)


def raising(names):
    if len(names) > 1:
        raise RuntimeError("CUDA failure 35: driver\n is insufficient")
    return names


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda names: names[-1:], "the driver or the GPU is missing"),
        (raising, "CUDA failure 35: driver is insufficient"),
    ],
)
def test_cuda_failure_raises_unless_auto_uses_the_cpu(with_cuda, monkeypatch, answer, message):
    patch_session(monkeypatch, answer)
    with engines.open("ort", plus_one(), EngineOptions(device="auto")) as engine:
        assert engine.device == "cpu"
        [note] = engine.notes
        assert note.startswith("engine ort: ")
        assert message in note
        assert note.endswith(" on the CPU")
    for options in (EngineOptions(device="cuda:0"), EngineOptions(device="auto", precision="tf32")):
        with pytest.raises(EngineError, match=message):
            engines.open("ort", plus_one(), options)


class FakeOrtValue:
    """An OrtValue with its own memory: a copy of the slot, which only update_inplace renews."""

    instances: list[FakeOrtValue] = []  # noqa: RUF012

    def __init__(self, slot, device, index):
        self.memory, self.device = slot.copy(), (device, index)
        self.instances.append(self)

    def update_inplace(self, slot):
        self.memory[:] = slot


def test_gpu_request_uploads_its_own_slot_before_it_runs(with_cuda, monkeypatch):
    """The network runs on the CPU, but reads what was uploaded to a FakeOrtValue, not the slot."""
    patch_session(monkeypatch, lambda names: names)
    monkeypatch.setattr(FakeOrtValue, "instances", [])
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", FakeOrtValue)

    def bind(binding, name, value):
        memory = value.memory
        binding.bind_input(name, "cpu", 0, np.uint8, memory.shape, memory.ctypes.data)

    monkeypatch.setattr(onnxruntime.IOBinding, "bind_ortvalue_input", bind)
    with engines.open("ort", plus_one(), EngineOptions(device="cuda:3", requests=2)) as engine:
        assert (engine.device, engine.concurrency) == ("cuda:3", 1)
        first, second = engine.requests
        first.slot[:], second.slot[:] = 7, 9
        answers = [request.infer(1)[0].max() for request in (second, first)]
        assert [value.device for value in FakeOrtValue.instances] == [("cuda", 3)] * 2
    assert answers == [10, 8]


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", 0), ("tf32", 1), ("fp16", 0)])
def test_tf32_is_always_set_explicitly(precision, tf32):
    [(name, settings), last] = ort._providers("cuda:2", precision)
    assert (name, last) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert settings == {"device_id": 2, "use_tf32": tf32}
