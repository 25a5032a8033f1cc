"""Promises that only OpenVINO's engine makes."""

from __future__ import annotations

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
from detector.core.engines.openvino import layers as layers_room
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
    """Precision by the graph's own convolutions; fails where one is in two layers."""
    found = [
        (node, layer.precision)
        for layer in engine.execution()
        for node in layer.nodes
        if layer.type == "Convolution" and node.endswith(".conv")
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def test_a_convolution_that_no_layer_names_belongs_to_the_one_that_it_reads():
    """CPUs without AVX-512 compute a depthwise convolution inside the 1x1 before it."""
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
    found = layers_room.add_hidden_nodes(layers, onnx.helper.make_graph(nodes, "g", [], []))
    assert [layer.nodes for layer in found] == [("1.conv", "1.act", "2.conv", "2.act"), ("3.conv",)]


IN_A_PROCESS_OF_ITS_OWN = """
import importlib, sys
from detector.core import engines
from tests.known_answers import run_once, plus_one, np
run_once(plus_one(), np.zeros((1, 2, 3, 3), np.uint8), "openvino")
print([name for name in sys.modules if name.startswith(("openvino_telemetry", "openvino.tools"))])
"""


@pytest.mark.slow
def test_its_telemetry_never_runs_and_nothing_is_left_in_the_users_home(tmp_path):
    """A plain import of openvino loads openvino_telemetry, makes ~/intel and sends an event."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(CHECKOUT)},
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_executed_is_the_one_asked_for_where_the_cpu_has_it(
    tmp_path, openvino, precision
):
    if precision == "bf16" and "BF16" not in openvino.Core().get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    ):
        pytest.skip("machine: no bf16 on this CPU")
    network = small_network(tmp_path)
    with engines.open("openvino", network, EngineOptions(precision=precision)) as engine:
        assert engine.precision == precision
        # The first convolution reads three channels, and makes less than a fifth of the MACs.
        assert convolutions(engine) == dict.fromkeys(CONVOLUTIONS, precision) | {"0.conv": "fp32"}
        assert engine.notes == []
    assert engine.execution() == []


def test_all_of_it_runs_in_bf16_where_that_is_asked_for(tmp_path, openvino):
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("machine: no bf16 on this CPU")
    options = EngineOptions(precision="bf16", own={"bf16": "all"})
    with engines.open("openvino", small_network(tmp_path), options) as engine:
        assert convolutions(engine) == dict.fromkeys(CONVOLUTIONS, "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"bf16": "all"}])
def test_what_is_timed_is_what_runs(tmp_path, own):
    """The layers are timed on a graph that is compiled apart."""
    network, options = small_network(tmp_path), EngineOptions(precision="bf16", own=own)
    with engines.open("openvino", network, options) as engine:
        ran = {layer.name: layer.precision for layer in engine.execution()}
    timed = engines.time_layers("openvino", network, options, [pictures(network, 1)], runs=1)
    assert {layer.name: layer.precision for layer in timed.layers} == ran


def test_what_is_marked_goes_through_a_file_and_nothing_is_left_of_it(
    tmp_path, monkeypatch, openvino
):
    """Names that XML would misread included, and numbers as they were."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    network, name = plus_one(), "0.<conv> & 'more\""
    graph = network.graph.graph
    graph.node[2].name = graph.node[2].output[0] = graph.output[0].name = name
    core = openvino.Core()
    before = core.read_model(network.graph.SerializeToString())
    written = []
    seen = SimpleNamespace(
        read_model=lambda *parts: written.append(parts[0]) or core.read_model(*parts)
    )
    after = mark_precise(seen, before, {name})
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
        found = core.compile_model(model, "CPU", settings)(picture)
        np.testing.assert_array_equal(found[0], picture.transpose(0, 3, 1, 2) + 1)


def test_no_place_for_that_file_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match=r"missing.*set TMPDIR") as caught:
        engines.open("openvino", plus_one(), EngineOptions(precision="bf16"))
    assert "\n" not in str(caught.value)


def test_activations_are_counted_into_their_convolution(tmp_path):
    with engines.open("openvino", small_network(tmp_path)) as engine:
        [layer] = [layer for layer in engine.execution() if "0.conv" in layer.nodes]
    assert layer.nodes == ("0.conv", "0.act")


@pytest.mark.parametrize(("able", "instead"), [(("fp32", "bf16"), "bf16"), (("fp32",), "int8")])
def test_fp16_is_refused_where_the_plugin_would_run_something_else(monkeypatch, able, instead):
    monkeypatch.setattr(devices, "precisions_of", lambda core, own: able)
    with pytest.raises(EngineError, match=rf"\(AVX512-FP16\).*--precision {instead}"):
        engines.graph_wanted("openvino", "fp16")
    monkeypatch.setattr(devices, "precisions_of", lambda core, own: (*able, "fp16"))
    assert engines.graph_wanted("openvino", "fp16") == "fp32"


def test_what_the_cpu_lacks_it_says_of_itself(openvino):
    """The words of the test above are the library's: a hint of f16 becomes another type where FP16
    is not listed.
    """
    core = openvino.Core()
    model = core.read_model(plus_one().graph.SerializeToString())
    runs = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f16"}).get_property(
        "INFERENCE_PRECISION_HINT"
    )
    assert (runs.get_type_name() == "f16") == (
        "FP16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    )


def test_int8_runs_the_quantised_graph_and_tells_what_stayed_float(tmp_path):
    network = small_network(tmp_path)
    int8 = quantised(network, tmp_path, keep=("4.conv",))
    with engines.open("openvino", int8, EngineOptions(precision="int8")) as engine:
        found = convolutions(engine)
        engine.requests[0].slot[:] = pictures(network, 9)
        [output] = [output.copy() for output in engine.requests[0].infer(1)]
    assert list(found) == CONVOLUTIONS
    assert found["4.conv"] == "fp32"
    assert found["1.conv"] == found["6.conv"] == "int8"
    [wanted] = run_once(network, pictures(network, 9))
    assert 0 < np.abs(output - wanted).mean() < 0.03 * np.abs(wanted).max()


def test_a_depthwise_convolution_with_a_scale_for_each_channel_runs_in_int8():
    int8 = in_int8(depthwise(), FRONT, pictures(depthwise(), 9))
    with engines.open("openvino", int8, EngineOptions(precision="int8")) as engine:
        found = convolutions(engine)
    assert {found[name] for name in ("0.conv", "1.conv", "2.conv")} == {"int8"}


@pytest.mark.slow
def test_what_int8_leaves_in_float_runs_in_bf16_where_that_is_asked_for(tmp_path, openvino):
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("machine: no bf16 on this CPU")
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
    ("flags", "known", "chosen", "precision", "hint"),
    [
        ({"avx512_bf16"}, 0.98, None, "int8", "bf16"),
        ({"amx_bf16"}, 0.98, "auto", "int8", "bf16"),
        ({"avx512_bf16"}, 0.98, "fp32", "int8", "f32"),
        ({"avx512_bf16"}, None, None, "int8", "f32"),  # its loss was never measured
        ({"avx512_bf16"}, None, "bf16", "int8", "bf16"),
        ({"avx2"}, 0.98, None, "int8", "f32"),
        ({"avx512_bf16"}, 0.98, None, "fp32", "f32"),
    ],
)
def test_float_layers_of_int8_are_bf16_where_the_loss_is_known(
    monkeypatch, flags, known, chosen, precision, hint
):
    monkeypatch.setattr(compiling, "cpu_flags", lambda: frozenset(flags))
    own = {} if chosen is None else {"float": chosen}
    network = SimpleNamespace(details={"int8": {"float_in_bf16": known}})
    assert compiling.hint_of(network, EngineOptions(precision=precision, own=own)) == hint


def test_the_note_tells_the_agreement_where_it_is_known():
    network = SimpleNamespace(details={"int8": {"float_in_bf16": 0.98164}})
    note = compiling._float_note(network, "bf16", "this CPU")
    assert "agreement then: 0.981" in note


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
def test_requests_at_once_fill_the_cores(monkeypatch, options, at_once):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert engines.find("openvino").best_concurrency(options) == at_once


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"mode": "fast"}, "mode=fast: give throughput or latency"),
        ({"bf16": "none"}, "bf16=none: give mixed or all"),
        ({"float": "half"}, "float=half: give auto, fp32, bf16 or fp16"),
        ({"through": "multi"}, "through=multi: give no, hetero, auto, batch"),
    ],
)
def test_a_value_that_is_none_lists_the_values(own, message):
    with pytest.raises(UsageError, match=message):
        engines.open("openvino", plus_one(), EngineOptions(own=own))


@pytest.mark.parametrize(("concurrency", "threads"), [(1, 1), (1, 2), (2, 1)])
def test_streams_and_threads_are_what_was_asked_for_and_none_is_pinned(concurrency, threads):
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


def test_single_runs_are_worked_out_of_the_means_of_all():
    """PERF_COUNT gives the mean since compilation; taken as single runs, one slow start affects
    all.
    """
    profiler = object.__new__(layers_room.OpenvinoLayerProfiler)
    profiler._sums, told = {}, []
    for profiler._runs, mean_us in enumerate((2000, 3000, 3000, 2750), 1):
        mean = SimpleNamespace(
            node_name="a", node_type="Conv", real_time=timedelta(microseconds=mean_us)
        )
        told.append(profiler._subtract(mean)[2])
    assert told == pytest.approx([2.0, 4.0, 3.0, 2.0])
