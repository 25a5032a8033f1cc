"""ONNX Runtime's execution providers: those of this build are used, all others are refused."""

from types import SimpleNamespace

import onnxruntime
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.ort.providers import Provider, note_of
from detector.core.errors import EngineError, UsageError
from tests.known_answers import plus_one

since_1_24 = pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="machine: onnxruntime is older than 1.24",
)
AVAILABLE = onnxruntime.get_available_providers()
AZURE, CPU, OWN = (f"{name}ExecutionProvider" for name in ("Azure", "CPU", "X"))


@pytest.fixture
def cpu_build(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [AZURE, CPU])


@pytest.mark.parametrize(
    ("named", "options", "error", "message"),
    [
        ("tpu", {}, UsageError, "provider=tpu: unknown; this build .* azure, cpu$"),
        ("cpu", {}, UsageError, "provider=cpu: use --device cpu$"),
        ("CUDAExecutionProvider", {}, UsageError, "use --device cuda$"),
        ("openvino", {"device": "cuda"}, UsageError, "not run on --device cuda; omit --device$"),
        ("trt", {"device": "cpu"}, UsageError, "not run on --device cpu; omit --device$"),
        ("OpenVINO", {}, EngineError, "provider openvino: .* pip install onnxruntime-openvino$"),
        ("trt", {}, EngineError, "provider tensorrt: .* pip install onnxruntime-gpu$"),
        ("xnnpack", {}, EngineError, "build onnxruntime with it$"),
        ("tensorrt", {"precision": "int8"}, EngineError, "misreads .* --engine trt$"),
    ],
)
def test_unavailable_provider_is_refused(cpu_build, named, options, error, message):
    with pytest.raises(error, match=message):
        engines.open("ort", plus_one(), EngineOptions(own={"provider": named}, **options))


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
