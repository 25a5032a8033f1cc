"""Behaviour that only OpenVINO's engine has."""

import os
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import onnx.helper
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions, LayerExecution
from detector.core.engines.openvino import compiling, devices
from detector.core.engines.openvino import layers as openvino_layers
from detector.core.engines.openvino.precise import mark_precise
from detector.core.errors import EngineError, OutputError, UsageError
from detector.core.models.graph.int8 import FRONT
from tests.conftest import CHECKOUT
from tests.engines.quantised import CONVOLUTIONS, pictures, quantised, small_network
from tests.known_answers import plus_one, run_once
from tests.networks import need_engine
from tests.run.quantize.graphs import depthwise, in_int8

need_engine("openvino", allow_module_level=True)


@pytest.fixture(scope="module")
def openvino():
    engines.load_library("openvino")
    import openvino

    return openvino


def convolutions(engine) -> dict[str, str]:
    """Return each convolution's precision; fail if a convolution is in two layers."""
    found = [
        (node, layer.precision)
        for layer in engine.execution()
        for node in layer.nodes
        if layer.type == "Convolution" and node.endswith(".conv")
    ]
    assert len(found) == len(dict(found))
    return dict(found)


SIGNALLED = """
import os, signal, threading
from detector.core.engines.openvino.devices import open_core

cores = [open_core(), open_core()]
for core in cores:
    core.get_property("CPU", "FULL_DEVICE_NAME")
del core
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
for free in (cores.pop, lambda: cores.pop(0)):
    thread = threading.Thread(target=free)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_signals_are_handled_after_another_thread_dropped_the_core():
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n" * 2), done.stderr


def test_unlisted_convolution_belongs_to_the_layer_whose_result_it_reads():
    """CPUs without AVX-512 fuse a depthwise convolution into the 1x1 convolution before it."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["1.conv"], "1.conv"),
        onnx.helper.make_node("LeakyRelu", ["1.conv"], ["1.act"], "1.act"),
        onnx.helper.make_node("Conv", ["1.act", "w"], ["2.conv"], "2.conv"),
        onnx.helper.make_node("LeakyRelu", ["2.conv"], ["2.act"], "2.act"),
        onnx.helper.make_node("Conv", ["2.act", "w"], ["3.conv"], "3.conv"),
        onnx.helper.make_node("Relu", ["3.conv"], ["3.act"], "3.act"),
    ]
    layers = [
        LayerExecution("1.conv/WithoutBiases", "Convolution", "fp32", nodes=("1.conv", "1.act")),
        LayerExecution("3.conv/WithoutBiases", "Convolution", "fp32", nodes=("3.conv",)),
    ]
    found = openvino_layers.add_hidden_nodes(layers, onnx.helper.make_graph(nodes, "g", [], []))
    assert [layer.nodes for layer in found] == [("1.conv", "1.act", "2.conv", "2.act"), ("3.conv",)]


RUN_ONCE = """
import importlib, sys
from detector.core import engines
from tests.known_answers import run_once, plus_one, np
run_once(plus_one(), np.zeros((1, 2, 3, 3), np.uint8), "openvino")
print([name for name in sys.modules if name.startswith(("openvino_telemetry", "openvino.tools"))])
"""


@pytest.mark.slow
def test_telemetry_never_runs_and_home_stays_empty(tmp_path):
    """A plain import of openvino would load openvino_telemetry, make ~/intel and send an event."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ONCE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(CHECKOUT)},
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
    assert list(tmp_path.iterdir()) == []


def capabilities(openvino) -> list[str]:
    return openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.fixture
def cpu_with_bf16(openvino) -> None:
    if "BF16" not in capabilities(openvino):
        pytest.skip("machine: no bf16 on this CPU")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_requested_precision_is_executed_if_the_cpu_has_it(tmp_path, request, precision):
    if precision == "bf16":
        request.getfixturevalue("cpu_with_bf16")
    network = small_network(tmp_path)
    with engines.open("openvino", network, EngineOptions(precision=precision)) as engine:
        assert engine.precision == precision
        # The first convolution stays fp32: it reads pixels, and has less than a fifth of the MACs.
        assert convolutions(engine) == dict.fromkeys(CONVOLUTIONS, precision) | {"0.conv": "fp32"}
        assert engine.notes == []
    assert engine.execution() == []


@pytest.mark.usefixtures("cpu_with_bf16")
def test_option_bf16_all_runs_every_convolution_in_bf16(tmp_path):
    options = EngineOptions(precision="bf16", own={"bf16": "all"})
    with engines.open("openvino", small_network(tmp_path), options) as engine:
        assert convolutions(engine) == dict.fromkeys(CONVOLUTIONS, "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"bf16": "all"}])
def test_timed_layers_equal_the_layers_of_a_run(tmp_path, own):
    """To time the layers, we compile the graph a second time."""
    network, options = small_network(tmp_path), EngineOptions(precision="bf16", own=own)
    with engines.open("openvino", network, options) as engine:
        ran = {layer.name: layer.precision for layer in engine.execution()}
    timed = engines.time_layers("openvino", network, options, [pictures(network, 1)], runs=1)
    assert {layer.name: layer.precision for layer in timed.layers} == ran


def test_temporary_file_for_marking_precise_layers_is_removed(tmp_path, monkeypatch, openvino):
    """Node names with XML's special characters work, and results do not change."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    network, name = plus_one(), "0.<conv> & 'more\""
    graph = network.graph.graph
    graph.node[2].name = graph.node[2].output[0] = graph.output[0].name = name
    core = openvino.Core()
    before = core.read_model(network.graph.SerializeToString())
    written = []
    recorder = SimpleNamespace(
        read_model=lambda *parts: written.append(parts[0]) or core.read_model(*parts)
    )
    after = mark_precise(recorder, before, {name})
    layers = list(ElementTree.fromstring(written[0]).iter("layer"))
    marked = [
        layer.get("name")
        for layer in layers
        if layer.find("rt_info/attribute[@name='precise']") is not None
    ]
    assert sorted(marked) == [name, f"{name}/WithoutBiases"]
    assert list(tmp_path.iterdir()) == []
    picture = np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
    for model in (before, after):
        outputs = core.compile_model(model, "CPU", settings)(picture)
        np.testing.assert_array_equal(outputs[0], picture.transpose(0, 3, 1, 2) + 1)


def test_missing_temporary_folder_raises_an_error_of_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match=r"missing.*set TMPDIR") as caught:
        engines.open("openvino", plus_one(), EngineOptions(precision="bf16"))
    assert "\n" not in str(caught.value)


def test_activation_belongs_to_the_layer_of_its_convolution(tmp_path):
    with engines.open("openvino", small_network(tmp_path)) as engine:
        [layer] = [layer for layer in engine.execution() if "0.conv" in layer.nodes]
    assert layer.nodes == ("0.conv", "0.act")


@pytest.mark.parametrize(("able", "instead"), [(("fp32", "bf16"), "bf16"), (("fp32",), "int8")])
def test_fp16_is_refused_if_the_plugin_would_run_another_type(monkeypatch, able, instead):
    monkeypatch.setattr(devices, "precisions_of", lambda core, own: able)
    with pytest.raises(EngineError, match=rf"\(AVX512-FP16\).*--precision {instead}"):
        engines.graph_precision_for("openvino", "fp16")
    monkeypatch.setattr(devices, "precisions_of", lambda core, own: (*able, "fp16"))
    assert engines.graph_precision_for("openvino", "fp16") == "fp32"


def test_openvino_ignores_the_f16_hint_on_a_cpu_without_fp16(openvino):
    """OpenVINO replaces the hint by another type without an error, so we refuse fp16 ourselves."""
    core = openvino.Core()
    model = core.read_model(plus_one().graph.SerializeToString())
    runs = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f16"}).get_property(
        "INFERENCE_PRECISION_HINT"
    )
    assert (runs.get_type_name() == "f16") == ("FP16" in capabilities(openvino))


def test_int8_runs_the_quantised_graph_and_reports_float_layers(tmp_path):
    network = small_network(tmp_path)
    int8 = quantised(network, tmp_path, keep=("4.conv",))
    with engines.open("openvino", int8, EngineOptions(precision="int8")) as engine:
        precisions = convolutions(engine)
        engine.requests[0].slot[:] = pictures(network, 9)
        [output] = [output.copy() for output in engine.requests[0].infer(1)]
    assert list(precisions) == CONVOLUTIONS
    assert precisions["4.conv"] == "fp32"
    assert precisions["1.conv"] == precisions["6.conv"] == "int8"
    [expected] = run_once(network, pictures(network, 9))
    assert 0 < np.abs(output - expected).mean() < 0.03 * np.abs(expected).max()


def test_depthwise_convolution_with_channel_scales_runs_in_int8():
    int8 = in_int8(depthwise(), FRONT, pictures(depthwise(), 9))
    with engines.open("openvino", int8, EngineOptions(precision="int8")) as engine:
        precisions = convolutions(engine)
    assert {precisions[name] for name in ("0.conv", "1.conv", "2.conv")} == {"int8"}


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_with_bf16")
def test_float_layers_of_an_int8_graph_run_in_bf16_on_request(tmp_path):
    int8 = quantised(small_network(tmp_path), tmp_path, keep=("4.conv",))
    options = EngineOptions(precision="int8", own={"float": "bf16"})
    with engines.open("openvino", int8, options) as engine:
        assert convolutions(engine)["4.conv"] == "bf16"
        [note] = engine.notes
        ran = sorted((layer.type, layer.precision) for layer in engine.execution())
    assert "bf16" in note
    assert "--engine-options float=fp32" in note
    timed = engines.time_layers("openvino", int8, options, [pictures(int8, 1)], runs=1)
    assert sorted((layer.type, layer.precision) for layer in timed.layers) == ran


@pytest.mark.parametrize(
    ("flags", "agreement", "chosen", "precision", "hint"),
    [
        ({"avx512_bf16"}, 0.98, None, "int8", "bf16"),
        ({"amx_bf16"}, 0.98, "auto", "int8", "bf16"),
        ({"avx512_bf16"}, 0.98, "fp32", "int8", "f32"),
        ({"avx512_bf16"}, None, None, "int8", "f32"),  # the loss of bf16 was not measured
        ({"avx512_bf16"}, None, "bf16", "int8", "bf16"),
        ({"avx2"}, 0.98, None, "int8", "f32"),
        ({"avx512_bf16"}, 0.98, None, "fp32", "f32"),
    ],
)
def test_float_layers_of_an_int8_graph_are_bf16_if_the_loss_is_known(
    monkeypatch, flags, agreement, chosen, precision, hint
):
    monkeypatch.setattr(compiling, "cpu_flags", lambda: frozenset(flags))
    own = {} if chosen is None else {"float": chosen}
    network = SimpleNamespace(details={"int8": {"float_in_bf16": agreement}})
    assert compiling.hint_of(network, EngineOptions(precision=precision, own=own)) == hint


def test_note_on_bf16_states_the_known_agreement_with_fp32():
    network = SimpleNamespace(details={"int8": {"float_in_bf16": 0.98164}})
    note = compiling._float_note(network, "bf16", "this CPU")
    assert "agreement with fp32: 0.981" in note


@pytest.mark.parametrize(
    ("options", "at_once"),
    [
        (EngineOptions(), 8),
        (EngineOptions(threads=2), 4),
        (EngineOptions(threads=16), 1),
        (EngineOptions(own={"mode": "latency"}), 1),
        (EngineOptions(own={"mode": "throughput"}), 8),
    ],
)
def test_best_concurrency_fills_the_cores(monkeypatch, options, at_once):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert engines.find("openvino").best_concurrency(options) == at_once


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"mode": "fast"}, "mode=fast: give throughput or latency"),
        ({"bf16": "none"}, "bf16=none: give mixed or all"),
        ({"float": "half"}, "float=half: give auto, fp32, bf16 or fp16"),
        ({"through": "multi"}, "through=multi: give hetero"),
    ],
)
def test_error_lists_the_valid_values_of_an_option(own, message):
    with pytest.raises(UsageError, match=message):
        engines.open("openvino", plus_one(), EngineOptions(own=own))


@pytest.mark.parametrize(("concurrency", "threads"), [(1, 1), (1, 2), (2, 1)])
def test_streams_and_threads_are_as_requested_and_not_pinned(concurrency, threads):
    if concurrency * threads > len(os.sched_getaffinity(0)):
        pytest.skip("machine: fewer cores than threads")
    before = os.sched_getaffinity(0)
    with engines.open(
        "openvino", plus_one(), EngineOptions(concurrency=concurrency, threads=threads)
    ) as engine:
        engine.requests[0].infer(1)
        compiled = engine._compiled
        assert compiled.get_property("NUM_STREAMS") == concurrency
        assert compiled.get_property("INFERENCE_NUM_THREADS") == concurrency * threads
        assert (engine.concurrency, engine.threads) == (concurrency, threads)
        masks = []
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has just ended
                masks.append(os.sched_getaffinity(int(thread)))
    assert masks == [before] * len(masks)


def test_time_of_each_run_is_computed_from_running_means():
    """PERF_COUNT gives the mean of all runs so far, so a slow first run affects every mean."""
    profiler = object.__new__(openvino_layers.OpenvinoLayerProfiler)
    profiler._sums, times = {}, []
    for profiler._runs, mean_us in enumerate((2000, 3000, 3000, 2750), 1):
        mean = SimpleNamespace(
            node_name="a", node_type="Conv", real_time=timedelta(microseconds=mean_us)
        )
        times.append(profiler._subtract(mean)[2])
    assert times == pytest.approx([2.0, 4.0, 3.0, 2.0])
