"""ONNX Runtime's execution providers that this build and this machine have."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType, SimpleNamespace

import onnxruntime
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.ort import providers
from detector.core.engines.ort.providers import Provider, note_of
from detector.core.engines.trt import driver
from detector.core.errors import EngineError, UsageError
from tests.known_answers import plus_one
from tests.waiting import meet

since_1_24 = pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="machine: onnxruntime is older than 1.24",
)
AVAILABLE = onnxruntime.get_available_providers()
AZURE, CPU, OWN = (f"{name}ExecutionProvider" for name in ("Azure", "CPU", "X"))


@pytest.fixture
def build(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [AZURE, CPU])


@pytest.mark.parametrize(
    ("named", "options", "error", "message"),
    [
        ("tpu", {}, UsageError, "provider=tpu: unknown; this build .* azure, cpu, and .* rtx$"),
        ("cpu", {}, UsageError, "provider=cpu: use --device cpu$"),
        ("CUDAExecutionProvider", {}, UsageError, "use --device cuda$"),
        ("openvino", {"device": "cuda"}, UsageError, "not run on --device cuda; omit --device$"),
        ("rtx", {"device": "cpu"}, UsageError, "not run on --device cpu; omit --device$"),
        ("OpenVINO", {}, EngineError, "provider openvino: .* pip install onnxruntime-openvino$"),
        ("trt", {}, EngineError, "provider tensorrt: .* pip install onnxruntime-gpu$"),
        ("xnnpack", {}, EngineError, "build onnxruntime with it$"),
        (
            "rtx",
            {},
            EngineError,
            "rtx: (it needs onnxruntime 1.24|pip install onnxruntime-ep-nv-tensorrt-rtx-cu13)",
        ),
        ("rtx", {"precision": "int8"}, EngineError, "misreads .* --engine rtx$"),
    ],
)
def test_unavailable_provider_is_refused(build, monkeypatch, named, options, error, message):
    monkeypatch.setattr(providers, "find_spec", lambda name: None)
    with pytest.raises(error, match=message):
        engines.open("ort", plus_one(), EngineOptions(own={"provider": named}, **options))


def test_the_plugin_is_not_imported_without_a_driver(build, monkeypatch):
    monkeypatch.setattr(providers, "find_spec", lambda name: object())
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", None, raising=False)
    monkeypatch.setattr(driver, "absent", lambda: "no NVIDIA driver")
    with pytest.raises(EngineError, match=r"engine ort: provider rtx: no NVIDIA driver$"):
        engines.open("ort", plus_one(), EngineOptions(own={"provider": "rtx"}))
    assert providers.PLUGIN not in sys.modules
    [offer] = engines.find("ort").offers()
    assert (offer.option.endswith("=rtx"), offer.usable) == (True, False)


@since_1_24
def test_the_plugin_is_registered_once_and_asked_for_its_gpus(monkeypatch, tmp_path):
    plugin, registered = ModuleType(providers.PLUGIN), []
    plugin.get_library_path = lambda: str(tmp_path / "none.so")
    monkeypatch.setitem(sys.modules, providers.PLUGIN, plugin)
    monkeypatch.setattr(providers, "why_no_rtx", lambda: None)
    monkeypatch.setattr(providers, "_registered", set())
    asked = EngineOptions(own={"provider": "rtx"}, device="cuda:2")
    with pytest.raises(EngineError, match=r"start provider rtx: Failed to load library .*none.so"):
        engines.open("ort", plus_one(), asked)
    name = "register_execution_provider_library"
    both = Barrier(2)  # of two engines that open at once, only one registers

    monkeypatch.setattr(onnxruntime, name, lambda *given: (registered.append(given), meet(both)))
    with ThreadPoolExecutor(2) as pool:
        opening = [pool.submit(engines.open, "ort", plus_one(), asked) for _ in range(2)]
    assert all("lists 0 GPUs" in str(one.exception()) for one in opening)
    assert registered == [(providers.RTX, str(tmp_path / "none.so"))]


@since_1_24
@pytest.mark.skipif(AZURE not in AVAILABLE, reason="machine: not the CPU build of onnxruntime")
def test_provider_that_runs_no_node_is_an_error():
    with pytest.raises(EngineError, match=r"azure runs none of the network's 4 nodes"):
        engines.open("ort", plus_one(), EngineOptions(own={"provider": "azure"}))


def session(*parts: tuple[str, list[str]], started: bool = True):
    assignments = [
        SimpleNamespace(
            ep_name=name,
            get_nodes=lambda kinds=kinds: [SimpleNamespace(op_type=kind) for kind in kinds],
        )
        for name, kinds in parts
    ]
    return SimpleNamespace(
        get_providers=lambda: [OWN] if started else [],
        get_provider_graph_assignment_info=lambda: assignments,
    )


def test_note_counts_nodes_that_a_provider_leaves_to_others():
    x = Provider("x", OWN)
    assert note_of(session((OWN, ["Conv", "Relu"])), x).endswith("provider x runs all 2 nodes")
    split = session((OWN, ["Conv"]), (CPU, ["Hardmax"]), (OWN, ["Conv"]), (CPU, ["Hardmax"]))
    note = note_of(split, x)
    assert "runs 2 of 4 nodes; cpu runs the others (2 Hardmax)" in note
    with pytest.raises(EngineError, match=r"provider x did not start"):
        note_of(session((CPU, ["Conv"]), started=False), x)
    old = SimpleNamespace(get_providers=lambda: [OWN])
    assert "does not report which nodes provider x runs" in note_of(old, x)


@pytest.mark.skipif(
    "OpenVINOExecutionProvider" not in AVAILABLE, reason="machine: no onnxruntime-openvino"
)
def test_openvino_runs_as_a_provider():
    options, network = EngineOptions(own={"provider": "openvino"}), plus_one()
    with engines.open("ort", network, options) as engine:
        engine.requests[0].slot[:] = 7
        assert engine.requests[0].infer(1)[0].max() == pytest.approx(8, abs=1e-5)
        assert (engine.device_name, engine.execution()) == ("OpenVINOExecutionProvider", [])
    with pytest.raises(EngineError, match=r"no layer times: provider openvino"):
        engines.time_layers("ort", network, options, [engine.requests[0].slot], 1)
